"""The interface of a source for `pack`, and what several sources share: paths, hidden files, fingerprints, class names."""

from __future__ import annotations

import bisect
import os
import posixpath
import re
import struct
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import xxhash

from storeds._utils.text import counted, some
from storeds.ops.packing.rows import Bad as Problem
from storeds.ops.packing.rows import BadItem, backslash_hint, read_file
from storeds.protocols import JSON, Field, Record

__all__ = [
    "IMAGE_SUFFIXES",
    "BadItem",
    "Fingerprint",
    "Hidden",
    "KeyedSource",
    "PackSource",
    "Problem",
    "Root",
    "StringArray",
    "backslash_hint",
    "class_notes",
    "file_state",
    "is_hidden",
    "is_int",
    "is_text",
    "locate",
    "path_fault",
    "read_file",
    "show",
    "strata_of",
]


class PackSource(Protocol):
    """A finite, ordered source of records. It must be picklable, and `read` may be called in any process and any order.

    Attributes
    ----------
    fields : dict
        The fields of the new store, in order.
    attrs : dict
        The attributes of the new store, such as class names.
    fingerprint : JSON
        Changes when items or their order change, as far as this can be seen without reading blobs. It is short for any
        number of items. Resuming a pack compares it.
    problems : list of Problem
        Items found bad while listing. `read` does not offer them.

    Notes
    -----
    Five more members are optional:

    - ``thread_safe``: True if several threads may call `read` at once. Otherwise ``workers=0`` reads in the thread that
      packs, and each worker process gets its own copy.
    - ``notes``: sentences that `pack` logs as warnings, before and after it reads.
    - ``columns``: maps each column of a list to its field, or to None.
    - ``stores``: the backends that it reads. `pack` refuses to replace them.
    - ``strata()``: yields the key and the label of each item without reading images, with None for a label that cannot
      be read. `pack` uses it to divide classes into splits.
    """

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def attrs(self) -> Mapping[str, JSON]: ...

    @property
    def fingerprint(self) -> JSON: ...

    @property
    def problems(self) -> Sequence[Problem]: ...

    def __len__(self) -> int: ...

    def name(self, index: int, /) -> str:
        """Return the name of item `index` for messages."""
        ...

    def size(self, index: int, /) -> int:
        """Return about how many bytes item `index` takes, without reading it."""
        ...

    def read(self, index: int, /) -> Record:
        """Return the record of item `index`; raises `BadItem` with the reason."""
        ...


def strata_of(source: PackSource) -> Iterator[tuple[str, Any]]:
    """Yield the key and the label of each item: from the source's ``strata``, or by reading every item."""
    known = getattr(source, "strata", None)
    if known is not None:
        yield from known()
        return
    for index in range(len(source)):
        try:
            record = source.read(index)
            yield str(record.get("key", index)), record["label"]
        except BadItem:
            yield source.name(index), None


def locate(ends: Sequence[int], index: int) -> tuple[int, int]:
    """Return which of several parts in a row contains `index`, and the position in it; `ends` are the ends of the parts."""
    index = range(ends[-1] if ends else 0)[index]
    part = bisect.bisect_right(ends, index)
    return part, index - (ends[part - 1] if part else 0)


class StringArray(Sequence[str]):
    """An array of strings that takes their UTF-8 bytes plus 8 bytes each, also when pickled.

    Parameters
    ----------
    texts : iterable of str
        Strings without lone surrogates.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._blob = bytearray()
        self._ends = array("q")
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        """Add one string."""
        self._blob += text.encode()
        self._ends.append(len(self._blob))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        position = range(len(self._ends))[index]
        start = self._ends[position - 1] if position else 0
        return self._blob[start : self._ends[position]].decode()

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends:
            yield self._blob[start:end].decode()
            start = end


class KeyedSource:
    """Base of sources that keep a key and a size of each item. The key is the path of its image."""

    thread_safe = True
    _keys: StringArray
    _sizes: array[int]

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return self._keys[index]

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]


class Fingerprint:
    """A hash of a listing. It is the same in every process."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, name: str, *numbers: int) -> None:
        """Add a name and the numbers that belong to it."""
        data = name.encode()
        # The length comes first so that two different lists of names never give the same bytes.
        self._hash.update(struct.pack(f"<{len(numbers) + 1}q", len(data), *numbers))
        self._hash.update(data)

    def finish(self, kind: str, count: int) -> dict[str, JSON]:
        """Return the fingerprint of `count` items."""
        return {"kind": kind, "count": count, "xxh3": self._hash.hexdigest()}


# The suffixes of torchvision's ImageFolder, in lower case.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_ALLOW = "pass allow_outside=True (--allow-outside) to read it anyway"


def is_text(name: str) -> bool:
    """Whether a name can be encoded as UTF-8, as every string in a store must be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def show(name: str) -> str:
    r"""Return `name` in printable form, with bytes that are not UTF-8 as ``\xff``."""
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace").decode()


def path_fault(path: str) -> str | None:
    """Return why `path` cannot be the path of a file and a key, or None if it can."""
    if not path:
        return "no path is given"
    if "\0" in path:
        return "its path contains a NUL character"
    if not is_text(path):
        return "its path is not valid UTF-8"
    return None


def file_state(path: str) -> tuple[int, int]:
    """Return (size, mtime in ns) of the file at `path`, or zeros if stat fails; reading the file reports why."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


class Root:
    """A folder that paths must not leave.

    Parameters
    ----------
    path : str
        The folder.
    allow_outside : bool
        Allow paths to leave it.
    """

    def __init__(self, path: str, *, allow_outside: bool) -> None:
        self.path = os.path.abspath(path)
        self._real = os.path.realpath(self.path)
        self._allow = allow_outside
        self._folders: dict[str, bool] = {}

    def link_fault(self, path: str) -> str | None:
        """Return why the link at `path` must not be followed, or None."""
        if self._allow:
            return None
        real = os.path.realpath(path)
        return None if self._contains(real) else f"is a link to {show(real)}, outside {show(self.path)}; {_ALLOW}"

    def path_fault(self, path: str) -> str | None:
        """Return why `path`, as written in a list, must not be opened, or None."""
        if self._allow:
            return None
        if os.path.isabs(path):
            return f"the path is absolute, but paths are relative to {show(self.path)}; {_ALLOW}"
        if posixpath.normpath(path).split("/", 1)[0] == "..":
            return f"the path leads out of {show(self.path)}; {_ALLOW}"
        folder, name = os.path.split(os.path.join(self.path, path))
        # Each folder is resolved once: resolving it for every file takes longer than reading a small file.
        if folder not in self._folders:
            self._folders[folder] = self._contains(os.path.realpath(folder))
        whole = os.path.join(folder, name)
        if self._folders[folder] and name not in ("", ".", "..") and not os.path.islink(whole):
            return None
        real = os.path.realpath(whole)
        if self._contains(real):
            return None
        return f"the path leads through a link to {show(real)}, outside {show(self.path)}; {_ALLOW}"

    def _contains(self, real: str) -> bool:
        return real == self._real or real.startswith(self._real.rstrip("/") + "/")


# macOS, Windows and network drives create these names, which have no leading dot.
_SYSTEM_NAMES = frozenset(
    (
        "__macosx",
        "@eadir",
        "#recycle",
        "$recycle.bin",
        "lost+found",
        "system volume information",
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
    )
)
_NAMED = 4


def is_hidden(name: str) -> bool:
    """Whether the name of a file or folder begins with a dot or belongs to an operating system or a network drive."""
    is_dotted = name.startswith(".") and name not in (".", "..") and not name.startswith((".\\", "..\\"))
    return is_dotted or name.lower() in _SYSTEM_NAMES


class Hidden:
    """Skips hidden files and folders, such as ``.git``, ``__MACOSX`` and ``._0001.jpg``, and counts them.

    Parameters
    ----------
    include : bool
        Skip nothing.
    """

    def __init__(self, *, include: bool = False) -> None:
        self.include = include
        self._folders: dict[str, None] = {}
        self._files: list[str] = []
        self._count = 0

    def skips_folder(self, path: str) -> bool:
        """Whether to skip the folder at `path`, relative to the root. Only its own name counts."""
        if self.include or not is_hidden(path.rsplit("/", 1)[-1]):
            return False
        self._folders[path] = None
        return True

    def skips_file(self, path: str) -> bool:
        """Whether to skip the file at `path`, relative to the root. Only its own name counts."""
        return self._skips(path, [path.rsplit("/", 1)[-1]])

    def skips_path(self, path: str) -> bool:
        """Whether to skip a path from a list: it or one of its folders is hidden."""
        return self._skips(path, path.split("/"))

    def _skips(self, path: str, names: Iterable[str]) -> bool:
        if self.include or not any(map(is_hidden, names)):
            return False
        self._count += 1
        if len(self._files) < _NAMED:
            self._files.append(path)
        return True

    def notes(self) -> tuple[str, ...]:
        """Return one sentence about what was skipped, or nothing."""
        parts = []
        if self._folders:
            parts.append(f"{counted(len(self._folders), 'hidden folder')} ({some(sorted(self._folders), _NAMED)})")
        if self._count:
            more = ", …" if self._count > len(self._files) else ""
            parts.append(f"{counted(self._count, 'hidden file')} ({some(sorted(self._files), _NAMED)}{more})")
        if not parts:
            return ()
        return (f"left out {' and '.join(parts)}; include_hidden=True (--include-hidden) includes them",)


# int() accepts more: int("1_0") is 10, and 007 would lose its zeros.
_INT = re.compile(r"0|-?[1-9][0-9]*")


def is_int(text: str) -> bool:
    """Whether `text` is an int64 as Python writes it."""
    return len(text) < 21 and _INT.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63


def class_notes(classes: Sequence[str]) -> tuple[str, ...]:
    """Return warnings about class names that look alike, or that look like labels."""
    notes, by_look = [], dict[str, list[str]]()
    for name in classes:
        by_look.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    alike = [names for names in by_look.values() if len(names) > 1]
    if alike:
        shown = "; ".join(", ".join(ascii(name) for name in names) for names in alike[:4])
        notes.append(
            f"{counted(len(alike), 'group')} of classes differ only in case, spaces or Unicode form, and stay separate: "
            f"{shown}{' …' if len(alike) > 4 else ''}"
        )
    if classes and all(map(is_int, classes)):
        moved = next((label for label, name in enumerate(classes) if int(name) != label), None)
        if moved is not None and sorted(classes, key=int) != list(classes):
            notes.append(
                "classes are sorted as text, as ImageFolder sorts them, so labels are not the numbers in their names: "
                f"class {classes[moved]!r} is label {moved}"
            )
    return tuple(notes)
