"""Groups the members of tar shards into samples, and tells the members and samples that are odd."""

from __future__ import annotations

import os
import posixpath
import re
import stat
from array import array

from storeds.ops.sources._hidden import Hidden
from storeds.ops.sources._packed import Texts
from storeds.ops.sources._paths import IMAGE_SUFFIXES, show, text_fault
from storeds.ops.sources._tar_members import Member, TarDamage, members
from storeds.ops.sources.base import Problem
from storeds.protocols import Field

__all__ = ["SampleIndex", "field_of"]

_IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_LABEL = "cls"
_FIELDS = dict.fromkeys(_IMAGES, "image")
_TYPED = {"image": Field("image"), "label": Field("int"), "json": Field("json"), "txt": Field("str")}


def field_of(name: str) -> Field:
    """Return what the field `name` of a shard holds."""
    is_image = name.rpartition("_")[2] in _IMAGES
    return _TYPED.get(name, Field("image" if is_image else "bytes"))


class SampleIndex:
    """Collects samples shard by shard.

    Parameters
    ----------
    wanted : set of str or None
        Endings to take; None for all.
    key_with_shard : bool
        Whether keys begin with the shard's name.
    include_hidden : bool
        Whether to take hidden members, such as ``._0001.jpg``.
    label : str or None
        The ending of the members that hold labels; None to leave ``.cls`` out.

    Attributes
    ----------
    keys, shards, places, endings
        After `settle`: each sample's key and number of shard; by field, its offsets and sizes, and the endings found.
    problems : list of Problem
        What was odd.
    """

    def __init__(
        self, wanted: set[str] | None, *, key_with_shard: bool, include_hidden: bool, label: str | None
    ) -> None:
        self._wanted, self._key_with_shard, self._label = wanted, key_with_shard, label
        self.hidden = Hidden(include=include_hidden)
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._doubled: set[str] = set()
        self.keys, self.shards = Texts(), array("q")
        self.places: dict[str, tuple[array[int], array[int]]] = {}
        self.endings: dict[str, set[str]] = {}
        self.problems: list[Problem] = []

    def take(self, path: str, name: str) -> tuple[int, int]:
        """Index the shard at `path`, which messages call `name`; return its (size, mtime in ns)."""
        name = show(name)
        self._names.append(name)
        self._doubled.clear()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._tell(name, f"cannot be read: {error.strerror}")
            return 0, 0
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                for member in members(descriptor, status.st_size):
                    self._sort_in(member, name)
            else:
                self._tell(name, "is no regular file")
        except TarDamage as error:
            self._tell(name, f"{error}; only what lies before was taken")
        except OSError as error:
            self._tell(name, f"cannot be read: {error.strerror}")
        finally:
            os.close(descriptor)
        return status.st_size, status.st_mtime_ns

    def _sort_in(self, member: Member, shard: str) -> None:
        if self.hidden.listed(member.name):
            return
        where = f"{shard}: {show(member.name)}"
        fault = _name_fault(member.name) or (f"is {member.odd}; only regular files are taken" if member.odd else None)
        if fault:
            self._tell(where, fault)
            return
        folder, base = posixpath.split(posixpath.normpath(member.name))
        stem, dot, ending = base.partition(".")
        if not stem or not dot or not ending:
            self._tell(where, "has no name with an ending, such as 0001.jpg, so it belongs to no sample")
            return
        ending = ending.lower()
        if (self._wanted is not None and ending not in self._wanted) or (self._label is None and ending == _LABEL):
            return
        row = self._row(posixpath.join(folder, stem), shard)
        if row is None:
            return
        field = "label" if ending == self._label else _field_name(ending)
        if field not in self.places:
            self.places[field] = array("q", [-1]) * len(self.keys), array("q", [0]) * len(self.keys)
        offsets, sizes = self.places[field]
        if offsets[row] >= 0:
            self._tell(where, f"is the second member of its sample that would be its {field}")
            return
        self.endings.setdefault(field, set()).add(ending)
        offsets[row], sizes[row] = member.offset, member.size

    def _row(self, key: str, shard: str) -> int | None:
        """Return the row of the sample `key`, a new one if need be; None for a key of another shard."""
        number = len(self._names) - 1
        if self._key_with_shard:
            key = f"{shard.removesuffix('.tar')}/{key}"
        row = self._rows.setdefault(key, len(self.keys))
        if row == len(self.keys):
            self.keys.append(key)
            self.shards.append(number)
            for offsets, sizes in self.places.values():
                offsets.append(-1)
                sizes.append(0)
        elif self.shards[row] != number:
            if key not in self._doubled:
                self._doubled.add(key)
                first = self._names[self.shards[row]]
                reason = f"its key is in {first} already; pass key_with_shard=True if both are meant"
                self._tell(f"{shard}: {key}", reason)
            return None
        return row

    def settle(self) -> None:
        """Leave out samples that lack an image, or what others have."""
        self._rows.clear()
        images = self.places.get("image", (array("q"), array("q")))[0]
        with_image = sum(offset >= 0 for offset in images)
        counts = {
            field: sum(offset >= 0 and image >= 0 for offset, image in zip(offsets, images, strict=True))
            for field, (offsets, _) in self.places.items()
            if with_image
        }
        lacking = sorted(field for field, count in counts.items() if 0 < count < with_image)
        good = array("q")
        for row, key in enumerate(self.keys):
            if not with_image or images[row] < 0:
                held = ", ".join(sorted(field for field, (offsets, _) in self.places.items() if offsets[row] >= 0))
                reason = f"has no image ({', '.join(_IMAGES)}), only {held}"
            else:
                absent = [field for field in lacking if self.places[field][0][row] < 0]
                said = " and ".join(f".{'/.'.join(sorted(self.endings[field]))}" for field in absent)
                reason = f"has no {said}, as others have; extensions= says which to take" if absent else ""
            if reason:
                self._tell(f"{self._names[self.shards[row]]}: {key}", reason)
            else:
                good.append(row)
        self._leave(good, [field for field, count in counts.items() if count])

    def _leave(self, rows: array[int], fields: list[str]) -> None:
        self.places = {field: self.places[field] for field in sorted(fields)}
        if len(rows) == len(self.keys):
            return
        keys, shards = self.keys, self.shards
        self.keys, self.shards = Texts(keys[row] for row in rows), array("q", (shards[row] for row in rows))
        self.places = {
            field: (array("q", (offsets[row] for row in rows)), array("q", (sizes[row] for row in rows)))
            for field, (offsets, sizes) in self.places.items()
        }

    def _tell(self, name: str, reason: str) -> None:
        self.problems.append(Problem(name, reason))


def _field_name(ending: str) -> str:
    field = _FIELDS.get(ending, re.sub(r"[^a-z0-9]+", "_", ending))
    taken = field in ("image", "label", "key") and ending not in _FIELDS
    return f"member_{field}" if taken or not field[:1].isalpha() else field


def _name_fault(name: str) -> str | None:
    fault = text_fault(name)
    if fault:
        return fault.replace("path", "name")
    if name.startswith("/"):
        return "its name is an absolute path"
    if ".." in name.split("/"):
        return "its name leads out of the archive by .."
    return None
