"""WebDataset's tar shards: members that share a name up to its first dot make one sample."""

from __future__ import annotations

import glob
import json
import os
import posixpath
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storeds._utils.locations import nearest
from storeds._utils.text import some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import IMAGE_SUFFIXES, BadItem, Fingerprint, Problem, Texts, show, text_fault
from storeds.ops.packing.sources.columns import is_int
from storeds.ops.packing.sources.hidden import Hidden
from storeds.protocols import JSON, Field, Kind, Record
from storeds.records.codec import canonical_json

__all__ = [
    "Member",
    "SampleIndex",
    "TarDamage",
    "TarSource",
    "field_of",
    "find_shards",
    "is_pattern",
    "members",
    "short_names",
]


_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST = 100_000


def is_pattern(path: str) -> bool:
    """Whether `path` is to be expanded; a file of that very name is taken as it is."""
    return not os.path.lexists(path) and (_BRACES.search(path) is not None or glob.has_magic(path))


def find_shards(shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the absolute paths, in the order given; those of a glob sorted.

    Raises
    ------
    StoreNotFoundError
        There are none, or some are missing.
    ConfigError
        A range is no range, or a file is there twice.
    """
    given = [shards] if isinstance(shards, (str, os.PathLike)) else list(shards)
    paths = [os.path.abspath(path) for item in given for path in _expand(os.fspath(item))]
    if not paths:
        raise ConfigError("no tar file is given")
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        count = f"{len(missing)} of {len(paths)} tar files are missing" if len(paths) > 1 else "no tar file"
        raise StoreNotFoundError(f"{count}: {some(missing)}; {nearest(missing[0])}")
    if len(set(paths)) < len(paths):
        doubled = next(path for path in paths if paths.count(path) > 1)
        raise ConfigError(f"{doubled} is given twice")
    return paths


def short_names(paths: list[str]) -> list[str]:
    """Return what tells the files apart: their names, or their paths below the folder that holds them all."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, common) for path in paths]


def _expand(path: str) -> Iterator[str]:
    if not is_pattern(path):
        yield path
        return
    for name in _braces(path):
        if glob.has_magic(name) and not os.path.lexists(name):
            found = sorted(glob.glob(name, recursive=True))
            if not found:
                folder = os.path.dirname(os.path.abspath(name))
                raise StoreNotFoundError(f"no file matches {name}: {nearest(os.path.join(folder, 'x'))}")
            yield from found
        else:
            yield name


def _braces(path: str) -> list[str]:
    names = [path]
    while any(_BRACES.search(name) for name in names):
        names = [expanded for name in names for expanded in _expand_first(name)]
        if len(names) > _MOST:
            raise ConfigError(f"{path} stands for more than {_MOST} files")
    return names


def _expand_first(name: str) -> list[str]:
    found = _BRACES.search(name)
    if found is None:
        return [name]
    before, after = name[: found.start()], name[found.end() :]
    bounds = _RANGE.fullmatch(found[1])
    if bounds is None:
        if "," not in found[1]:
            raise ConfigError(f"{name}: {found[0]} is neither a range such as {{000..099}} nor a list such as {{a,b}}")
        return [before + part + after for part in found[1].split(",")]
    first, last = int(bounds[1]), int(bounds[2])
    if last < first or last - first >= _MOST:
        raise ConfigError(f"{name}: {found[0]} is {'empty' if last < first else f'of more than {_MOST} files'}")
    width = len(bounds[1]) if bounds[1].startswith("0") else 0
    return [f"{before}{number:0{width}d}{after}" for number in range(first, last + 1)]


_BLOCK = 512
_AFTER = 64 * _BLOCK  # archives are filled up with zeros to a multiple of twenty blocks
_REGULAR = b"0\x007"
_BODILESS = b"123456"
_KINDS = {
    ord("1"): "a hard link",
    ord("2"): "a symbolic link",
    ord("3"): "a device",
    ord("4"): "a device",
    ord("6"): "a FIFO",
    ord("S"): "a sparse file",
}
_FOLDER, _LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"5LKxg"
# A path is 4096 bytes at most; what claims more is damage, and would have to be held in memory.
_LARGEST_EXTRA = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarDamage(Exception):  # noqa: N818  # always caught and told as a problem
    """From `offset` on, a file cannot be read as tar."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar file.

    Attributes
    ----------
    name : str
        As written; bytes that are no UTF-8 are surrogate escapes.
    offset, size : int
        Where its bytes lie.
    odd : str or None
        What it is, if no regular file.
    """

    name: str
    offset: int
    size: int
    odd: str | None


def members(descriptor: int, length: int) -> Iterator[Member]:
    """Yield the files of the tar in `descriptor`, folders left out; reads headers only.

    Formats are ustar, GNU (long names, large numbers) and pax.

    Raises
    ------
    TarDamage
        The file ends early or a header is damaged; what came before stands.
    """
    start, common = 0, dict[str, bytes]()
    while True:
        header = _header(descriptor, start)
        if header is None:
            return
        at, own = start, dict[str, bytes]()
        while header[156] in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            size = _size(header, at, {})
            extra = _extra(descriptor, at + _BLOCK, size)
            _take(header[156], extra, own, common, at)
            at += _BLOCK + _padded(size)
            following = _header(descriptor, at)
            if following is None:
                if header[156] == _PAX_GLOBAL:
                    return
                raise TarDamage(at, "the archive ends after a header that announces a member")
            header = following
        size = _size(header, at, {**common, **own})
        offset = at + _BLOCK
        odd = _odd(header[156], own)
        # The size that links and the like carry is not that of any bytes behind their headers.
        start = offset + (0 if header[156] in _BODILESS else _padded(size))
        name = _name(header, {**common, **own})
        if odd is None and offset + size > length:
            raise TarDamage(offset, f"the file ends within {name.encode('utf-8', 'backslashreplace').decode()!r}")
        if header[156] != _FOLDER and not (header[156] == 0 and name.endswith("/")):
            yield Member(name, offset, size, odd)


def _header(descriptor: int, offset: int) -> bytes | None:
    """Return the header block at `offset`, or None for the mark of the archive's end."""
    block = os.pread(descriptor, _BLOCK, offset)
    if not offset:
        for magic, what in _MAGIC.items():
            if block.startswith(magic):
                raise TarDamage(0, f"it is compressed ({what}); decompress it, for members to be found at their places")
    if len(block) < _BLOCK:
        what = "within a header" if block else "without the mark that closes an archive"
        raise TarDamage(offset, f"the file ends {what}: it was cut short")
    if not block.strip(b"\0"):
        if os.pread(descriptor, _AFTER, offset).strip(b"\0"):
            raise TarDamage(
                offset, "more follows the mark that closes the archive; put each archive in a file of its own"
            )
        return None
    stored = _number(block[148:156])
    # Some old programs added up signed bytes.
    total = sum(block) - sum(block[148:156]) + 256
    signed = total - 256 * sum(byte > 127 for byte in (*block[:148], *block[156:])) if stored != total else total
    if stored not in (total, signed):
        raise TarDamage(offset, "there is no tar header; the file is damaged" if offset else "it is no tar file")
    return block


def _number(field: bytes) -> int | None:
    if field[0] & 0x80:  # GNU's form of what takes more than eleven octal digits
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    digits = field.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if all(byte in b"01234567" for byte in digits) else None


def _size(header: bytes, offset: int, pax: dict[str, bytes]) -> int:
    size = _number(header[124:136])
    written = pax.get("size")
    if written is not None:
        size = int(written) if written.isdigit() and len(written) < 20 else None
    if size is None or size < 0:
        raise TarDamage(offset, "the size in a header is no number")
    return size


def _extra(descriptor: int, offset: int, size: int) -> bytes:
    if size > _LARGEST_EXTRA:
        raise TarDamage(offset, f"a name or an extended header of {size} bytes")
    extra = os.pread(descriptor, size, offset)
    if len(extra) < size:
        raise TarDamage(offset, "the file ends within an extended header: it was cut short")
    return extra


def _take(kind: int, extra: bytes, own: dict[str, bytes], common: dict[str, bytes], offset: int) -> None:
    if kind == _LONG_NAME:
        own["path"] = extra.split(b"\0", 1)[0]
    elif kind in (_PAX, _PAX_GLOBAL):
        (own if kind == _PAX else common).update(_pax(extra, offset))


def _pax(extra: bytes, offset: int) -> Iterator[tuple[str, bytes]]:
    while extra.strip(b"\0"):
        digits, space, _ = extra.partition(b" ")
        length = int(digits) if space and digits.isdigit() and len(digits) < 8 else 0
        name, equals, value = extra[len(digits) + 1 : length - 1].partition(b"=")
        if not equals or length > len(extra) or extra[length - 1 : length] != b"\n":
            raise TarDamage(offset, "an extended header is damaged")
        yield name.decode("utf-8", "replace"), value
        extra = extra[length:]


def _odd(kind: int, own: dict[str, bytes]) -> str | None:
    if any(name.startswith("GNU.sparse.") for name in own):
        return _KINDS[ord("S")]
    if kind in _REGULAR:
        return None
    return _KINDS.get(kind, f"of the unknown type {chr(kind)!r}")


def _name(header: bytes, pax: dict[str, bytes]) -> str:
    name = pax.get("path")
    if name is None:
        name = header[:100].split(b"\0", 1)[0]
        prefix = header[345:500].split(b"\0", 1)[0]
        if prefix and header[257:263] == b"ustar\0":  # in GNU's own format these bytes hold other things
            name = prefix + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


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


class TarSource:
    """Tar files as WebDataset writes them, read at random through the places of their members.

    Parameters
    ----------
    shards : path or iterable of paths
        A tar file, several, a glob, or a range such as ``train-{000..099}.tar``.
    extensions : sequence of str, optional
        Which members to take; all of them by default. The image must be among them.
    key_with_shard : bool
        Whether keys begin with the name of their shard, for shards that number their samples alike.
    label : bool
        False to pack without labels. Required where samples hold more than images, but no label.
    label_column : str, optional
        The ending of the members that hold labels, as integers; ``cls`` by default.
    include_hidden : bool
        Whether to take hidden members, such as macOS's ``._0001.jpg``.

    Notes
    -----
    The field ``image`` holds the member ending in .jpg, .png and so on, ``label`` the integer in .cls, ``key`` what the
    members' names share, ``json`` and ``txt`` what .json and .txt hold. Other endings become fields of bytes, or
    images: ``a.seg.png`` is the field ``seg_png``.

    Raises
    ------
    StoreNotFoundError
        A file is missing.
    ConfigError
        There is no sample at all.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        extensions: Sequence[str] | None = None,
        key_with_shard: bool = False,
        label: bool = True,
        label_column: str | None = None,
        include_hidden: bool = False,
    ) -> None:
        self._paths = find_shards(shards)
        self._names = short_names(self._paths)
        wanted = None if extensions is None else {extension.lower().lstrip(".") for extension in extensions}
        if not label and label_column:
            raise ConfigError(f"label_column={label_column!r} and label=False contradict each other")
        ending = (label_column or "cls").lower().lstrip(".") if label else None
        index = SampleIndex(wanted, key_with_shard=key_with_shard, include_hidden=include_hidden, label=ending)
        self._states = [index.take(path, name) for path, name in zip(self._paths, self._names, strict=True)]
        index.settle()
        if not index.keys and not index.problems:
            raise ConfigError(
                f"{', '.join(self._names[:4])}: no members that make a sample, such as 0001.jpg, 0001.cls"
            )
        self.columns: Mapping[str, str | None] = {
            f".{found}": field for field in index.places for found in sorted(index.endings[field])
        }
        if label and index.places and "label" not in index.places:
            self._refuse_without_label(label_column)
        self._keys: Texts = index.keys
        self._shards: array[int] = index.shards
        self._places: dict[str, tuple[array[int], array[int]]] = index.places
        self._endings = {field: sorted(index.endings[field]) for field in index.places}
        self.problems: Sequence[Problem] = tuple(index.problems)
        self.notes: Sequence[str] = index.hidden.notes()
        self.fields: Mapping[str, Field] = _fields(index.places)
        provenance: dict[str, JSON] = {"kind": "tar", "shards": len(self._paths)}
        self.attrs: Mapping[str, JSON] = {"source": provenance}
        self.fingerprint: JSON = self._hash()

    def _refuse_without_label(self, label_column: str | None) -> None:
        others = [ending for ending, field in self.columns.items() if field and field_of(field).kind != "image"]
        if label_column or others:
            held = f"beside the images they hold {', '.join(others)}" if others else "they hold images only"
            raise ConfigError(
                f"{', '.join(self._names[:4])}: samples have no .{label_column or 'cls'} with a label, {held}; say which "
                "ending holds it with label_column= (--label-column), or pass label=False (--no-label) to pack without labels"
            )

    def _hash(self) -> JSON:
        fingerprint = Fingerprint()
        for name, (size, mtime) in zip(self._names, self._states, strict=True):
            fingerprint.add(name.encode("utf-8", "surrogateescape").hex(), size, mtime)
        for key, shard in zip(self._keys, self._shards, strict=True):
            fingerprint.add(key, shard)
        for field, (offsets, sizes) in self._places.items():
            fingerprint.add(field)
            for offset, size in zip(offsets, sizes, strict=True):
                fingerprint.add("", offset, size)
        return fingerprint.finish("tar", len(self))

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return f"{self._names[self._shards[index]]}: {self._keys[index]}"

    def size(self, index: int, /) -> int:
        # docstring inherited
        return sum(sizes[index] for _, sizes in self._places.values())

    def strata(self) -> Iterator[tuple[str, int | None]]:
        """Yield the key and the label of each item; reads the members that hold labels."""
        for index, key in enumerate(self._keys):
            try:
                yield key, self._label(index)
            except (BadItem, OSError):
                yield key, None

    def _label(self, index: int) -> int:
        descriptor = self._open(self._shards[index])
        try:
            return _integer(self._blob(descriptor, "label", index), "")
        finally:
            os.close(descriptor)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        index = range(len(self))[index]
        shard = self._shards[index]
        descriptor = self._open(shard)
        try:
            blobs = {field: self._blob(descriptor, field, index) for field in self._places}
        except OSError as error:
            raise BadItem(f"its shard cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)
        record: Record = {}
        for field, spec in self.fields.items():
            parse = _PARSERS.get(spec.kind)
            if field == "key":
                record[field] = self._keys[index]
            else:
                record[field] = blobs[field] if parse is None else parse(blobs[field], self._endings[field][0])
        return record

    def _open(self, shard: int) -> int:
        try:
            descriptor = os.open(self._paths[shard], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise BadItem(f"its shard cannot be read: {error.strerror}") from None
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != self._states[shard]:
            os.close(descriptor)
            raise BadItem("its shard was changed after its members were listed")
        return descriptor

    def _blob(self, descriptor: int, field: str, index: int) -> bytes:
        offsets, sizes = self._places[field]
        blob = os.pread(descriptor, sizes[index], offsets[index])
        while len(blob) < sizes[index]:  # one call returns 2 GiB at most
            more = os.pread(descriptor, sizes[index] - len(blob), offsets[index] + len(blob))
            if not more:
                raise BadItem("its shard ends within it")
            blob += more
        return blob


def _fields(found: Iterable[str]) -> dict[str, Field]:
    rest = sorted(set(found) - {"image", "label"})
    kinds: dict[str, Kind] = {"image": "image"}
    if "label" in found:
        kinds["label"] = "int"
    kinds["key"] = "str"
    return {name: Field(kind) for name, kind in (kinds | {name: field_of(name).kind for name in rest}).items()}


def _integer(blob: bytes, ending: str) -> int:
    text = blob.decode("utf-8", "backslashreplace").strip()
    if not is_int(text):
        raise BadItem(f"its .{ending} holds {text[:40]!r}; expected an integer")
    return int(text)


def _text(blob: bytes, ending: str) -> str:
    try:
        return blob.decode()
    except UnicodeDecodeError as error:
        raise BadItem(f"its .{ending} is no UTF-8 at byte {error.start}") from None


def _json(blob: bytes, ending: str) -> Any:
    try:
        value = json.loads(_text(blob, ending))
        canonical_json(value)
    except json.JSONDecodeError as error:
        raise BadItem(f"its .{ending} is no JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise BadItem(f"its .{ending} is JSON that cannot be kept: {error}") from None
    return value


_PARSERS: dict[str, Callable[[bytes, str], Any]] = {"int": _integer, "str": _text, "json": _json}
