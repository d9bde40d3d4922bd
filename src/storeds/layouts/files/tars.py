"""The source for WebDataset's tar shards: members with the same name up to its first dot make one sample."""

from __future__ import annotations

import glob
import json
import os
import posixpath
import re
import stat
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from storeds._utils.files import nearest
from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.layouts.files.rows import Bad, BadItem, Part, Row, Rows, from_start
from storeds.layouts.files.walk import IMAGE_SUFFIXES, Hidden, is_hidden, names_of, path_fault, show
from storeds.protocols import Field, Record
from storeds.records.canonical_json import canonical_json
from storeds.values.text import is_int

__all__ = ["in_ranges", "parse_members", "tar"]

_IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
_AFTER = 64 * tarfile.BLOCKSIZE  # bytes checked after the end mark: archives are padded to a multiple of twenty blocks


def tar(
    shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    extensions: Sequence[str] | str | None = None,
    key_with_shard: bool = False,
    label: bool = True,
    label_column: str | None = None,
) -> Rows:
    """Rows of tar files as WebDataset writes them. Members are read at random by their offsets.

    Parameters
    ----------
    shards : path or iterable of paths
        One tar file or several, a folder of them, a glob, or a range such as ``train-{000..099}.tar``.
    extensions : sequence of str or str, optional
        The extensions that every sample needs; members with others are left out. The image must be among them. The
        default is every extension that more than half of the samples have.
    key_with_shard : bool
        Prefix keys with the name of their shard, for shards that use the same keys.
    label : bool
        False to pack without labels. Required if samples contain more than images, but no label.
    label_column : str, optional
        The extension of the members that contain labels, as integers; ``cls`` by default.

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
    if label_column and not label:
        raise ConfigError(f"label_column={label_column!r} and label=False contradict each other")
    given = [os.fspath(shards)] if isinstance(shards, (str, os.PathLike)) else [os.fspath(each) for each in shards]
    watched = {folder: os.stat(folder) for each in given for folder in _folders_of(each)}
    paths = _find_shards(given)
    names = _short_names(paths)
    where = some(names)
    index = _Index(
        {each.lower().lstrip(".") for each in names_of(extensions)} or None,
        (label_column or "cls").lower().lstrip(".") if label else None,
        key_with_shard,
        Hidden(),
        watched,
    )
    for path, name in zip(paths, names, strict=True):
        index.add(path, name)
    if not index.samples and not index.bad:
        raise ConfigError(f"{where}: no members form a sample, such as 0001.jpg, 0001.cls")
    counts = Counter(name for sample in index.samples if "image" in sample.values for name in sample.values)
    # A member that only some samples have must not make the others bad.
    rare = [name for name in counts if name != "label" and extensions is None and 2 * counts[name] <= counts["image"]]
    needed = [name for name in ("image", "label") if name in counts]
    needed += sorted(counts.keys() - {*needed, *rare})
    endings = {name: sorted(index.endings[name]) for name in counts}
    others = [ending for name in needed if _kind(name) != "image" for ending in endings[name]]
    if label and counts and "label" not in counts and (label_column or others):
        raise ConfigError(
            f"{where}: samples have no .{label_column or 'cls'} with a label, only images and "
            f"{', '.join(f'.{ending}' for ending in others)}; name the extension of labels with label_column= (--option "
            "label_column=…), or pass label=False (--no-label) to pack without labels"
        )
    fields = {name: Field(_kind(name)) for name in needed[: 1 + ("label" in counts)]}
    fields |= {"key": Field("str"), **{name: Field(_kind(name)) for name in needed}}

    def items() -> Iterator[Row | Bad]:
        yield from index.bad
        for sample in index.samples:
            name = f"{sample.shard}: {sample.key}"
            fault = sample.fault or _incomplete(sample, needed, endings)
            values = sample.values | {"key": sample.key}
            yield Bad(name, fault) if fault else Row(name, {name: values[name] for name in fields})

    beside = [note for each in given if os.path.isdir(each) for note in _beside(each)]
    notes = [
        f"left out {' and '.join(f'.{each}' for each in endings[name])}, which {counts[name]:,} of {counts['image']:,} "
        "samples have; extensions= (--option extensions=jpg,cls,…) lists the extensions that every sample needs"
        for name in rare
    ]
    return Rows(
        fields=fields,
        attrs={"source": {"kind": "tar", "shards": len(paths)}},
        items=from_start(items),
        finish=parse_members,
        columns={f".{ending}": None if name in rare else name for name in (*needed, *rare) for ending in endings[name]},
        late_notes=lambda: [*notes, *index.hidden.notes(), *beside],
        watched=lambda: index.watched,
    )


def _find_shards(given: Sequence[str]) -> list[str]:
    """Return absolute paths in the given order; those of a glob and of a folder are sorted."""
    paths = [os.path.abspath(path) for item in given for path in _expand(item)]
    if not paths:
        raise ConfigError("no tar file is given")
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        count = f"{len(missing)} of {len(paths)} tar files are missing" if len(paths) > 1 else "no tar file"
        raise StoreNotFoundError(f"{count}: {some(missing)}; {nearest(missing[0])}")
    doubled = next((path for path, count in Counter(paths).items() if count > 1), None)
    if doubled is not None:
        raise ConfigError(f"{doubled} is given twice")
    return paths


def _expand(path: str) -> list[str]:
    """Return the paths that a range or a glob stands for. The name of an existing file stands for itself."""
    if os.path.isdir(path):
        return [os.path.join(path, name) for name in sorted(os.listdir(path)) if _is_shard(name)]
    names = in_ranges(path)
    if os.path.lexists(path) or (names == [path] and not glob.has_magic(path)):
        return [path]
    if names != [path]:
        return [each for name in names for each in _expand(name)]
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise StoreNotFoundError(f"no file matches {path}: {nearest(os.path.abspath(path))}")
    return matches


def in_ranges(path: str) -> list[str]:
    """Return the names that the ranges in one stand for, such as ``train-{000..099}.tar``; the name itself if it has none."""
    found = _RANGE.search(path)
    if found is None:
        return [path]
    numbers = range(int(found[1]), int(found[2]) + 1)
    if not numbers:
        raise ConfigError(f"{path}: the range {found[0]} is empty")
    filled = (f"{path[: found.start()]}{number:0{len(found[1])}}{path[found.end() :]}" for number in numbers)
    return [each for name in filled for each in in_ranges(name)]


def _is_shard(name: str) -> bool:
    return name.lower().endswith(".tar") and not is_hidden(name)


def _folders_of(path: str) -> set[str]:
    """Return the folders in which a folder of shards or a glob finds its files."""
    if os.path.isdir(path):
        return {path}
    if os.path.lexists(path) or not glob.has_magic(path):
        return set()
    literal = os.path.dirname(path[: re.search(r"[*?[]", path).start()])  # type: ignore[union-attr]  # it has magic
    folders = {os.path.dirname(found) for found in glob.glob(path, recursive=True)}
    above = {each for folder in folders for each in _up_to(folder, literal)}
    return {each or "." for each in above | ({literal} if os.path.isdir(literal or ".") else set())}


def _up_to(folder: str, top: str) -> Iterator[str]:
    """Yield a folder and those above it, below `top`."""
    while len(folder) > len(top):
        yield folder
        folder = os.path.dirname(folder)


def _beside(folder: str) -> list[str]:
    """Return a sentence about what a folder of shards contains besides them."""
    names = sorted(name for name in os.listdir(folder) if not _is_shard(name) and not is_hidden(name))
    return [f"left out {counted(len(names), 'name')} beside tar files: {some(map(show, names))}"] if names else []


def _short_names(paths: list[str]) -> list[str]:
    """Return the paths of the files below their common folder, which are distinct."""
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [show(os.path.relpath(path, common)) for path in paths]


@dataclass(slots=True)
class _Sample:
    shard: str
    key: str
    fault: str | None
    values: dict[str, Part | int | None] = field(default_factory=dict)  # the label, and places of the other members


@dataclass
class _Index:
    """Finds the samples of tar files, shard by shard. The parameters are those of `tar`."""

    extensions: set[str] | None
    label: str | None  # None leaves .cls out
    key_with_shard: bool
    hidden: Hidden
    watched: dict[str, os.stat_result]  # the folders of the files, and the files
    samples: list[_Sample] = field(default_factory=list)
    endings: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # field → extensions found
    bad: list[Bad] = field(default_factory=list)  # members and files
    _shards: dict[str, str] = field(default_factory=dict)  # key → the shard where it was found first
    _here: dict[str, _Sample] = field(default_factory=dict)  # the samples of this shard by key

    def add(self, path: str, shard: str) -> None:
        """Index the file at `path`, called `shard` in messages."""
        self._here.clear()
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
                status = self.watched[path] = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise BadItem("is not a regular file")
                for member in _members(file, status.st_size):
                    if member.isdir() or self.hidden.skips(member.name, below=True):
                        continue
                    fault = self._add_member(member, path, shard, file, status)
                    if fault is not None:
                        self.bad.append(Bad(f"{shard}: {show(member.name)}", fault))
        except BadItem as error:
            self.bad.append(Bad(shard, str(error)))
        except OSError as error:
            self.bad.append(Bad(shard, f"cannot be read: {error.strerror}"))

    def _add_member(
        self, member: tarfile.TarInfo, path: str, shard: str, file: BinaryIO, status: os.stat_result
    ) -> str | None:
        """Add a member to its sample; return why it cannot be used, or None."""
        folder, base = posixpath.split(posixpath.normpath(member.name))
        stem, _, ending = base.partition(".")
        ending = ending.lower()
        if not member.isreg() or member.issparse():
            return "is a link, a device or a sparse file; only regular files are packed"
        if member.name.startswith("/") or ".." in member.name.split("/"):
            return "its name is absolute or leads out of the archive"
        if not stem or not ending:
            return "its name has no extension such as 0001.jpg, so it belongs to no sample"
        if (fault := path_fault(member.name)) is not None:
            return fault
        if (self.extensions is not None and ending not in self.extensions) or (self.label is None and ending == "cls"):
            return None
        sample = self._sample(posixpath.join(folder, stem), shard)
        name = "label" if ending == self.label else _field_name(ending)
        if name in sample.values:
            return f"is the second member of its sample for the field {name}"
        self.endings[name].add(ending)
        if name != "label":
            sample.values[name] = Part(path, member.offset_data, member.size, status)
            return None
        blob = os.pread(file.fileno(), min(member.size, 64), member.offset_data)
        text = blob.decode("utf-8", "backslashreplace").strip()
        sample.values[name] = int(text) if is_int(text) else None
        if not is_int(text):
            sample.fault = f"its .{ending} contains {text[:40]!r}; expected an integer"
        return None

    def _sample(self, key: str, shard: str) -> _Sample:
        """Return the sample `key`, new if there is none yet."""
        if self.key_with_shard:
            key = f"{shard.removesuffix('.tar')}/{key}"
        if key not in self._here:
            first = self._shards.setdefault(key, shard)
            fault = (
                f"its key is already in {first}; pass key_with_shard=True (--option key_with_shard=true) to pack both"
            )
            self._here[key] = _Sample(shard, key, None if first == shard else fault)
            self.samples.append(self._here[key])
        return self._here[key]


def _members(file: BinaryIO, size: int) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an open file of `size` bytes; raises `BadItem` at damage, which `tarfile` takes for the end."""
    if file.read(8).startswith(_COMPRESSED):
        raise BadItem("is compressed; decompress it, so that members can be read at random")
    at = 0
    file.seek(0)
    try:
        archive = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")
        archive.offset = 0  # the constructor has read the first header
        while True:
            at = archive.offset
            file.seek(at)
            member = tarfile.TarInfo.fromtarfile(archive)
            if member.size < 0 or (member.isreg() and member.offset_data + member.size > size):
                raise tarfile.HeaderError(f"the file ends within {show(member.name)!r}")
            yield member
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the mark at the end
        if file.read(_AFTER).strip(b"\0"):
            raise BadItem(
                f"has more data after the end of the archive at byte {at:,}; put each archive into a file of its own"
            ) from None
    except OSError:
        raise
    except Exception as error:  # tarfile raises many kinds of exception on damaged headers
        raise BadItem(
            f"is damaged, cut short or not a tar file: no valid member at byte {at:,} ({error}); only members before "
            "that are used"
        ) from None


def _field_name(ending: str) -> str:
    if ending in _IMAGES:
        return "image"
    name = re.sub(r"[^a-z0-9]+", "_", ending)
    return f"member_{name}" if name in ("image", "label", "key") or not name[:1].isalpha() else name


def _kind(name: str) -> Any:
    known = {"label": "int", "json": "json", "txt": "str", "image": "image"}
    return known.get(name, "image" if name.rpartition("_")[2] in _IMAGES else "bytes")


def _incomplete(sample: _Sample, needed: Sequence[str], endings: dict[str, list[str]]) -> str | None:
    """Return what a sample lacks, or None."""
    if "image" not in sample.values:
        return f"has no image ({', '.join(_IMAGES)}), only {', '.join(sorted(sample.values))}"
    absent = [f".{'/.'.join(endings[name])}" for name in needed if name not in sample.values]
    if not absent:
        return None
    return (
        f"has no {' and '.join(absent)}, which others have; extensions= (--option extensions=jpg,…) lists the extensions "
        "that every sample needs"
    )


def parse_members(values: Record) -> Record:
    """Return the values of a sample with its text and its JSON parsed; raises `BadItem`."""
    for name in values.keys() & {"txt", "json"}:
        try:
            values[name] = text = values[name].decode()
            if name == "json":
                values[name] = json.loads(text)
                canonical_json(values[name])
        except UnicodeDecodeError as error:
            raise BadItem(f"its .{name} is not UTF-8 at byte {error.start}") from None
        except (ValueError, RecursionError) as error:
            raise BadItem(f"its .{name} cannot be stored as JSON: {error}") from None
    return values
