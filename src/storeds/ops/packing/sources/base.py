"""What a source of records for `pack` is, and how one of its items that cannot be packed is told."""

from __future__ import annotations

import os
import posixpath
import stat
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import xxhash

from storeds._utils.text import printable
from storeds.protocols import JSON, Field, Record

__all__ = [
    "IMAGE_SUFFIXES",
    "BadItem",
    "Fingerprint",
    "PackSource",
    "Problem",
    "Root",
    "Texts",
    "file_state",
    "is_text",
    "read_file",
    "show",
    "strata_of",
    "text_fault",
]


class BadItem(Exception):  # noqa: N818  # told by policy rather than raised to the user
    """An item cannot be packed; its text is the reason, without the item's name."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one item of a source.

    Attributes
    ----------
    name : str
        How messages call the item: a path below the root, ``file.csv line 7``, ``shard.tar: member.jpg``.
    reason : str
        What is wrong with it.
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{printable(self.name)}: {printable(self.reason)}"


class PackSource(Protocol):
    """A finite, ordered source of records. Picklable; `read` may be called in any process, in any order.

    It need not be safe for threads: ``workers=0`` reads a source of yours in the thread that packs, and each worker
    process has its own.

    Attributes
    ----------
    fields : dict
        The declaration of the store to be, in order.
    attrs : dict
        Class names and the like.
    fingerprint : JSON
        Differs when items or their order differ, as far as can be told without reading blobs; short, whatever the
        number of items. A resumed pack compares it.
    problems : list of Problem
        Items found bad while listing, which `read` therefore does not offer.

    Notes
    -----
    Two more attributes are optional. ``notes``, a sequence of sentences, says what `pack` should warn about; ``columns``
    maps each column of a list to the field that it became, or to None. A method ``strata()`` yields the key and the label
    of each item, None for a label that cannot be read, without reading images: `pack` divides classes by it.
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
        """Return how messages call item `index`."""
        ...

    def size(self, index: int, /) -> int:
        """Return about how many bytes item `index` takes, without reading it."""
        ...

    def read(self, index: int, /) -> Record:
        """Return the record of item `index`; raises `BadItem` with the reason."""
        ...


def strata_of(source: PackSource) -> Iterator[tuple[str, Any]]:
    """Yield the key and the label of each item: by the source's ``strata``, else by reading every item."""
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


def read_file(path: str) -> bytes:
    """Return the bytes of a regular file; raises `BadItem`. Never waits, as opening a FIFO would."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BadItem(f"cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadItem("is no regular file")
        return _read_all(descriptor, status.st_size)
    except OSError as error:
        raise BadItem(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, size: int) -> bytes:
    # One byte more than there should be shows in the same call that there is no more.
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1]:
        parts.append(os.read(descriptor, _PART))
    return b"".join(parts)


_PART = 1 << 20


class Texts(Sequence[str]):
    """A list of str that costs its UTF-8 bytes and 8 more for each, also when pickled.

    Parameters
    ----------
    texts : iterable of str
        No lone surrogates.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._blob = bytearray()
        self._ends = array("q")
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        """Add one text."""
        self._blob += text.encode()
        self._ends.append(len(self._blob))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # nobody slices it
        position = range(len(self._ends))[index]
        start = self._ends[position - 1] if position else 0
        return self._blob[start : self._ends[position]].decode()

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends:
            yield self._blob[start:end].decode()
            start = end


class Fingerprint:
    """Hashes what tells one listing from another; the same in every process."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, name: str, *numbers: int) -> None:
        """Take a name and what belongs to it."""
        data = name.encode()
        # Lengths first, so that no two lists of names run together to the same bytes.
        self._hash.update(struct.pack(f"<{len(numbers) + 1}q", len(data), *numbers))
        self._hash.update(data)

    def finish(self, kind: str, count: int) -> dict[str, JSON]:
        """Return the fingerprint of `count` items."""
        return {"kind": kind, "count": count, "xxh3": self._hash.hexdigest()}


# Those of torchvision's ImageFolder, whose letters may be capitals.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_ALLOW = "pass allow_outside=True (--allow-outside) to take it all the same"


def is_text(name: str) -> bool:
    """Whether a name has a UTF-8 form, as every text in a store must."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def show(name: str) -> str:
    r"""Return `name` such that it can be printed: bytes that are no UTF-8 as ``\xff``."""
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace").decode()


def text_fault(path: str) -> str | None:
    """Return what keeps `path` from being the path of a file and a key, or None."""
    if not path:
        return "no path is given"
    if "\0" in path:
        return "its path holds a NUL character"
    if not is_text(path):
        return "its path is no valid UTF-8"
    return None


def file_state(path: str) -> tuple[int, int]:
    """Return (size, mtime in ns) of the file at `path`, zeros if it cannot be looked at: reading it will say why."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


class Root:
    """A folder that paths should not leave.

    Parameters
    ----------
    path : str
        The folder.
    allow_outside : bool
        Whether they may all the same.
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
        return None if self._holds(real) else f"is a link to {show(real)}, outside {show(self.path)}; {_ALLOW}"

    def path_fault(self, path: str) -> str | None:
        """Return why `path`, as written in a list, must not be opened, or None."""
        if self._allow:
            return None
        if os.path.isabs(path):
            return f"the path is absolute, and paths are taken below {show(self.path)}; {_ALLOW}"
        if posixpath.normpath(path).split("/", 1)[0] == "..":
            return f"the path leads out of {show(self.path)}; {_ALLOW}"
        folder, name = os.path.split(os.path.join(self.path, path))
        # Resolving every folder on the way of every file would take longer than reading small files.
        if folder not in self._folders:
            self._folders[folder] = self._holds(os.path.realpath(folder))
        whole = os.path.join(folder, name)
        if self._folders[folder] and name not in ("", ".", "..") and not os.path.islink(whole):
            return None
        real = os.path.realpath(whole)
        if self._holds(real):
            return None
        return f"the path leads, by a link, to {show(real)}, outside {show(self.path)}; {_ALLOW}"

    def _holds(self, real: str) -> bool:
        return real == self._real or real.startswith(self._real.rstrip("/") + "/")
