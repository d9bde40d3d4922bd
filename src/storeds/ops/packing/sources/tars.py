"""The source for WebDataset's tar shards: members with the same name up to its first dot make one sample."""

from __future__ import annotations

import glob
import io
import json
import os
import posixpath
import re
import stat
import tarfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from storeds._utils.locations import nearest
from storeds._utils.text import some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import (
    IMAGE_SUFFIXES,
    BadItem,
    Fingerprint,
    Hidden,
    Problem,
    StringArray,
    is_int,
    path_fault,
    show,
)
from storeds.protocols import JSON, Field, Kind, Record
from storeds.records.fields import canonical_json

__all__ = ["TarSource", "is_pattern"]


_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_FILES = 100_000


def is_pattern(path: str) -> bool:
    """Whether `path` is a pattern to expand, and not the name of an existing file."""
    return not os.path.lexists(path) and (_BRACES.search(path) is not None or glob.has_magic(path))


def _find_shards(shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return absolute paths in the given order; those of a glob are sorted.

    Raises
    ------
    StoreNotFoundError
        There is no file, or some are missing.
    ConfigError
        A range is malformed, or a file is listed twice.
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


def _short_names(paths: list[str]) -> list[str]:
    """Return distinct names for the files: their base names, or their paths below their common folder."""
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
        if len(names) > _MAX_FILES:
            raise ConfigError(f"{path} expands to more than {_MAX_FILES} files")
    return names


def _expand_first(name: str) -> list[str]:
    found = _BRACES.search(name)
    if found is None:
        return [name]
    parts = found[1].split(",")
    bounds = _RANGE.fullmatch(found[1])
    if bounds is not None:
        first, last = int(bounds[1]), int(bounds[2])
        if last < first or last - first >= _MAX_FILES:
            raise ConfigError(
                f"{name}: {found[0]} is {'empty' if last < first else f'of more than {_MAX_FILES} files'}"
            )
        width = len(bounds[1]) if bounds[1].startswith("0") else 0
        parts = [f"{number:0{width}d}" for number in range(first, last + 1)]
    elif len(parts) == 1:
        raise ConfigError(f"{name}: {found[0]} is neither a range such as {{000..099}} nor a list such as {{a,b}}")
    return [name[: found.start()] + part + name[found.end() :] for part in parts]


_BLOCK = tarfile.BLOCKSIZE
_AFTER = 64 * _BLOCK  # bytes checked after the end mark: archives are padded to a multiple of twenty blocks
# A path has at most 4096 bytes. A longer name is damage, and would have to fit in memory.
_MAX_READ = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_TYPES = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
}


class _TarDamage(Exception):  # noqa: N818  # always caught and reported as a problem
    """A file cannot be read as tar from `offset` on."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")


class _Headers(io.FileIO):
    """A file that refuses to read more than a header can take, and notices when it ends within one."""

    is_cut = False

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _MAX_READ:
            raise _TarDamage(self.tell(), f"a name or an extended header takes {size} bytes")
        data = super().read(size) or b""
        self.is_cut = len(data) < size
        return data


class _Archive(tarfile.TarFile):
    """A tar archive whose damage raises `_TarDamage`, where `tarfile` ends the archive. Only headers are read.

    Formats are ustar, GNU and pax, without compression.
    """

    def next(self) -> tarfile.TarInfo | None:
        # docstring inherited
        at, headers = self.offset, self.fileobj
        assert isinstance(headers, _Headers)
        headers.seek(at)
        block = headers.read(_BLOCK)
        _check_block(block, at)
        if not block.strip(b"\0"):
            if headers.read(_AFTER).strip(b"\0"):
                raise _TarDamage(
                    at, "more data follows the end of the archive; put each archive into a file of its own"
                )
            return None
        headers.seek(at)
        try:
            member = tarfile.TarInfo.fromtarfile(self)
        except _TarDamage:
            raise
        except Exception:  # tarfile raises many kinds of exception on damaged headers
            raise _TarDamage(at, _header_fault(block, at, headers.is_cut)) from None
        if member.size < 0:
            raise _TarDamage(at, "the size in a header is negative")
        if member.isreg() and member.offset_data + member.size > os.fstat(headers.fileno()).st_size:
            raise _TarDamage(member.offset_data, f"the file ends within {show(member.name)!r}")
        return member


def _check_block(block: bytes, at: int) -> None:
    for magic, what in _MAGIC.items() if at == 0 else ():
        if block.startswith(magic):
            raise _TarDamage(0, f"it is compressed ({what}); decompress it, so that members can be read at random")
    if len(block) < _BLOCK:
        where = "within a header" if block else "without the mark that closes an archive"
        raise _TarDamage(at, f"the file ends {where}: it was cut short")


def _header_fault(block: bytes, at: int, is_cut: bool) -> str:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return "there is no tar header; the file is damaged" if at else "it is not a tar file"
    return "the file ends within an extended header: it was cut short" if is_cut else "an extended header is damaged"


def _members(descriptor: int) -> Iterator[tarfile.TarInfo]:
    """Yield the members of the open tar file without its folders.

    Raises
    ------
    _TarDamage
        The file ends early or a header is damaged. The members before that are valid.
    """
    with (
        _Headers(descriptor, closefd=False) as headers,
        _Archive(fileobj=headers, encoding="utf-8", errors="surrogateescape") as archive,
    ):
        archive.offset = 0  # the constructor has read the first header already
        while (member := archive.next()) is not None:
            if not member.isdir():
                yield member


_IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_LABEL = "cls"
_FIELDS = dict.fromkeys(_IMAGES, "image")
_TYPED = {"image": Field("image"), "label": Field("int"), "json": Field("json"), "txt": Field("str")}


def _field_of(name: str) -> Field:
    """Return the kind of the field `name` of a shard."""
    is_image = name.rpartition("_")[2] in _IMAGES
    return _TYPED.get(name, Field("image" if is_image else "bytes"))


class _SampleIndex:
    """Collects samples shard by shard.

    Parameters
    ----------
    wanted : set of str or None
        Extensions to include; None for all.
    key_with_shard : bool
        Prefix keys with the name of their shard.
    include_hidden : bool
        Include hidden members, such as ``._0001.jpg``.
    label : str or None
        The extension of the members with labels; None leaves ``.cls`` out.

    Attributes
    ----------
    keys, shards, places, endings
        After `finish`: the key and the shard number of each sample; by field, offsets and sizes, and the extensions found.
    problems : list of Problem
        What is wrong with members and samples.
    """

    def __init__(
        self, wanted: set[str] | None, *, key_with_shard: bool, include_hidden: bool, label: str | None
    ) -> None:
        self._wanted, self._key_with_shard, self._label = wanted, key_with_shard, label
        self.hidden = Hidden(include=include_hidden)
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._doubled: set[str] = set()
        self.keys, self.shards = StringArray(), array("q")
        self.places: dict[str, tuple[array[int], array[int]]] = {}
        self.endings: dict[str, set[str]] = {}
        self.problems: list[Problem] = []

    def add(self, path: str, name: str) -> tuple[int, int]:
        """Index the shard at `path`, named `name` in messages; return its (size, mtime in ns)."""
        name = show(name)
        self._names.append(name)
        self._doubled.clear()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._report(name, f"cannot be read: {error.strerror}")
            return 0, 0
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                for member in _members(descriptor):
                    self._sort_in(member, name)
            else:
                self._report(name, "is not a regular file")
        except _TarDamage as error:
            self._report(name, f"{error}; only members before that are used")
        except OSError as error:
            self._report(name, f"cannot be read: {error.strerror}")
        finally:
            os.close(descriptor)
        return status.st_size, status.st_mtime_ns

    def _sort_in(self, member: tarfile.TarInfo, shard: str) -> None:
        if self.hidden.skips_path(member.name):
            return
        where = f"{shard}: {show(member.name)}"
        fault = _name_fault(member.name) or _type_fault(member)
        if fault:
            self._report(where, fault)
            return
        folder, base = posixpath.split(posixpath.normpath(member.name))
        stem, dot, ending = base.partition(".")
        if not stem or not dot or not ending:
            self._report(where, "its name has no extension such as 0001.jpg, so it belongs to no sample")
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
            self._report(where, f"is the second member of its sample for the field {field}")
            return
        self.endings.setdefault(field, set()).add(ending)
        offsets[row], sizes[row] = member.offset_data, member.size

    def _row(self, key: str, shard: str) -> int | None:
        """Return the row of the sample `key`, adding it if it is new; None if another shard has this key."""
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
                reason = f"its key is already in {first}; pass key_with_shard=True to pack both"
                self._report(f"{shard}: {key}", reason)
            return None
        return row

    def finish(self) -> None:
        """Leave out samples without an image, or without a field that others have."""
        self._rows.clear()
        there = {field: np.array(offsets) >= 0 for field, (offsets, _) in self.places.items()}
        images = there.get("image", np.zeros(len(self.keys), bool))
        needed = sorted(field for field, has in there.items() if (has & images).any())
        good = np.logical_and.reduce([images, *(there[field] for field in needed)])
        for row in np.flatnonzero(~good).tolist():
            if images[row]:
                absent = [field for field in needed if not there[field][row]]
                missing = " and ".join(f".{'/.'.join(sorted(self.endings[field]))}" for field in absent)
                reason = f"has no {missing}, which others have; choose extensions with extensions="
            else:
                held = ", ".join(sorted(field for field, has in there.items() if has[row]))
                reason = f"has no image ({', '.join(_IMAGES)}), only {held}"
            self._report(f"{self._names[self.shards[row]]}: {self.keys[row]}", reason)
        kept = np.flatnonzero(good).tolist()
        self.keys = StringArray(self.keys[row] for row in kept)
        self.shards = _taken(self.shards, kept)
        self.places = {
            field: (_taken(at, kept), _taken(size, kept)) for field in needed for at, size in [self.places[field]]
        }

    def _report(self, name: str, reason: str) -> None:
        self.problems.append(Problem(name, reason))


def _taken(values: array[int], rows: Iterable[int]) -> array[int]:
    return array("q", (values[row] for row in rows))


def _field_name(ending: str) -> str:
    field = _FIELDS.get(ending, re.sub(r"[^a-z0-9]+", "_", ending))
    taken = field in ("image", "label", "key") and ending not in _FIELDS
    return f"member_{field}" if taken or not field[:1].isalpha() else field


def _type_fault(member: tarfile.TarInfo) -> str | None:
    if member.isreg() and not member.issparse():
        return None
    unknown = f"of the unknown type {member.type.decode('latin-1')!r}"
    kind = "a sparse file" if member.isreg() else _TYPES.get(member.type, unknown)
    return f"is {kind}; only regular files are packed"


def _name_fault(name: str) -> str | None:
    fault = path_fault(name)
    if fault:
        return fault.replace("path", "name")
    if name.startswith("/"):
        return "its name is an absolute path"
    if ".." in name.split("/"):
        return "its name leads out of the archive through .."
    return None


class TarSource:
    """Tar files as WebDataset writes them. Members are read at random by their offsets.

    Parameters
    ----------
    shards : path or iterable of paths
        One tar file or several, a glob, or a range such as ``train-{000..099}.tar``.
    extensions : sequence of str, optional
        The extensions of the members to include; all by default. The image must be among them.
    key_with_shard : bool
        Prefix keys with the name of their shard, for shards that use the same keys.
    label : bool
        False to pack without labels. Required if samples contain more than images, but no label.
    label_column : str, optional
        The extension of the members that contain labels, as integers; ``cls`` by default.
    include_hidden : bool
        Include hidden members, such as macOS's ``._0001.jpg``.

    Notes
    -----
    The field ``image`` is the member ending in .jpg, .png and so on, ``label`` the integer in .cls, ``key`` the common
    part of the members' names, ``json`` and ``txt`` the content of .json and .txt. Other extensions become fields of
    bytes, or images: ``a.seg.png`` is the field ``seg_png``.

    Raises
    ------
    StoreNotFoundError
        A file is missing.
    ConfigError
        There is no sample, or none has a label.
    """

    thread_safe = True

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
        self._paths = _find_shards(shards)
        self._names = _short_names(self._paths)
        wanted = None if extensions is None else {extension.lower().lstrip(".") for extension in extensions}
        if not label and label_column:
            raise ConfigError(f"label_column={label_column!r} and label=False contradict each other")
        ending = (label_column or "cls").lower().lstrip(".") if label else None
        index = _SampleIndex(wanted, key_with_shard=key_with_shard, include_hidden=include_hidden, label=ending)
        self._states = [index.add(path, name) for path, name in zip(self._paths, self._names, strict=True)]
        index.finish()
        if not index.keys and not index.problems:
            raise ConfigError(f"{', '.join(self._names[:4])}: no members form a sample, such as 0001.jpg, 0001.cls")
        self.columns: Mapping[str, str | None] = {
            f".{found}": field for field in index.places for found in sorted(index.endings[field])
        }
        if label and index.places and "label" not in index.places:
            self._raise_without_label(label_column)
        self._keys: StringArray = index.keys
        self._shards: array[int] = index.shards
        self._places: dict[str, tuple[array[int], array[int]]] = index.places
        self._endings = {field: sorted(index.endings[field]) for field in index.places}
        self.problems: Sequence[Problem] = tuple(index.problems)
        self.notes: Sequence[str] = index.hidden.notes()
        self.fields: Mapping[str, Field] = _fields(index.places)
        provenance: dict[str, JSON] = {"kind": "tar", "shards": len(self._paths)}
        self.attrs: Mapping[str, JSON] = {"source": provenance}
        self.fingerprint: JSON = self._hash()

    def _raise_without_label(self, label_column: str | None) -> None:
        others = [ending for ending, field in self.columns.items() if field and _field_of(field).kind != "image"]
        if label_column or others:
            held = f"only images and {', '.join(others)}" if others else "only images"
            raise ConfigError(
                f"{', '.join(self._names[:4])}: samples have no .{label_column or 'cls'} with a label, {held}; name the "
                "extension of labels with label_column= (--label-column), or pass label=False (--no-label) to pack without labels"
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
        """Yield the key and the label of each item, reading only the members with labels."""
        for index, key in enumerate(self._keys):
            try:
                yield key, self._values(index, ["label"])["label"]
            except BadItem:
                yield key, None

    def read(self, index: int, /) -> Record:
        # docstring inherited
        index = range(len(self))[index]
        found = {**self._values(index, self._places), "key": self._keys[index]}
        return {field: found[field] for field in self.fields}

    def _values(self, index: int, fields: Iterable[str]) -> Record:
        descriptor = self._open(self._shards[index])
        try:
            blobs = {field: self._blob(descriptor, field, index) for field in fields}
        except OSError as error:
            raise BadItem(f"its shard cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)
        return {
            field: _PARSERS[self.fields[field].kind](blob, self._endings[field][0]) for field, blob in blobs.items()
        }

    def _open(self, shard: int) -> int:
        try:
            descriptor = os.open(self._paths[shard], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise BadItem(f"its shard cannot be read: {error.strerror}") from None
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != self._states[shard]:
            os.close(descriptor)
            raise BadItem("its shard changed after its members were listed")
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
    return {name: Field(kind) for name, kind in (kinds | {name: _field_of(name).kind for name in rest}).items()}


def _integer(blob: bytes, ending: str) -> int:
    text = blob.decode("utf-8", "backslashreplace").strip()
    if not is_int(text):
        raise BadItem(f"its .{ending} contains {text[:40]!r}; expected an integer")
    return int(text)


def _text(blob: bytes, ending: str) -> str:
    try:
        return blob.decode()
    except UnicodeDecodeError as error:
        raise BadItem(f"its .{ending} is not UTF-8 at byte {error.start}") from None


def _json(blob: bytes, ending: str) -> Any:
    try:
        value = json.loads(_text(blob, ending))
        canonical_json(value)
    except json.JSONDecodeError as error:
        raise BadItem(f"its .{ending} is not JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise BadItem(f"its .{ending} is JSON that cannot be stored: {error}") from None
    return value


def _unchanged(blob: bytes, ending: str) -> bytes:
    return blob


_PARSERS: dict[str, Callable[[bytes, str], Any]] = {
    "image": _unchanged,
    "bytes": _unchanged,
    "int": _integer,
    "str": _text,
    "json": _json,
}
