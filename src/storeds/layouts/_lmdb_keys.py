"""The keys of a foreign store's records by position: counted out where they are numbers, else packed and memory-mapped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from storeds._count import Count
from storeds._index import load_index, save_index
from storeds.protocols import Array

__all__ = ["IndexedKeys", "Keys", "NumberedKeys", "iterate", "pack_keys"]

_CHUNK = 1 << 16
_VERSION = 1
_HEAD = 3  # version, count, bytes of all keys; then where each begins, and the bytes
_NUMBERED = -1  # instead of the bytes: the keys are the numbers from the next value on, as wide as the one after it


class Keys(Protocol):
    """The keys of records ``0..count-1``. Picklable, small whatever the count is."""

    @property
    def count(self) -> int: ...

    def ready(self, find: Callable[[], Iterable[bytes]]) -> None:
        """Load what `key` needs; `find` gives all keys anew where nothing was kept."""
        ...

    def key(self, position: int) -> bytes: ...


@dataclass(frozen=True)
class NumberedKeys:
    """Keys that are numbers in decimal, with leading zeros up to a width."""

    count: int
    start: int = 0
    width: int = 0

    def ready(self, find: Callable[[], Iterable[bytes]]) -> None:
        # docstring inherited
        return

    def key(self, position: int) -> bytes:
        # docstring inherited
        return b"%0*d" % (self.width, self.start + position)


class IndexedKeys:
    """Keys that were found once and lie packed in an index file.

    Parameters
    ----------
    path : Path
        The index file; its name says which state of which store it belongs to.
    find : callable
        Gives the keys in order of position where the file is not there yet.
    """

    count: int

    def __init__(self, path: Path, find: Callable[[], Iterable[bytes]]) -> None:
        self._path = path
        self._index: Array | None = None
        self.ready(find)

    def ready(self, find: Callable[[], Iterable[bytes]]) -> None:
        # docstring inherited
        if self._index is None:
            found = load_index(self._path)
            self._keep(save_index(self._path, pack_keys(find())) if found is None or not _is_whole(found) else found)

    def _keep(self, index: Array) -> None:
        count, size = Count(index[1]), int(index[2])
        self.count = count
        self._numbers = NumberedKeys(count, int(index[3]), int(index[4])) if size == _NUMBERED else None
        self._starts = index[_HEAD : _HEAD + count + 1]
        self._bytes = index[_HEAD + count + 1 :].view(np.uint8).data
        self._index = index

    def key(self, position: int) -> bytes:
        # docstring inherited
        if self._numbers is not None:
            return self._numbers.key(position)
        return bytes(self._bytes[self._starts[position] : self._starts[position + 1]])

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_index": None, "count": self.count}


def pack_keys(keys: Iterable[bytes]) -> Array:
    """Return the keys as one int64 array, built chunk by chunk."""
    blobs, sizes, numbers = [], [np.zeros(1, np.int64)], _Numbers()
    walk = iter(keys)
    while chunk := list(itertools.islice(walk, _CHUNK)):
        blobs.append(b"".join(chunk))
        sizes.append(np.fromiter(map(len, chunk), np.int64, len(chunk)))
        numbers.add(chunk)
    if numbers.found is not None and numbers.count:
        return np.array([_VERSION, numbers.count, _NUMBERED, numbers.found.start, numbers.found.width], np.int64)
    blob = b"".join(blobs)
    starts = np.cumsum(np.concatenate(sizes))
    padded = np.frombuffer(blob + b"\0" * (-len(blob) % 8), np.int64)
    return np.concatenate([np.array([_VERSION, len(starts) - 1, len(blob)], np.int64), starts, padded])


class _Numbers:
    """Finds out whether keys count up by one."""

    def __init__(self) -> None:
        self.count = 0
        self.found: NumberedKeys | None = None

    def add(self, chunk: list[bytes]) -> None:
        """Take the next keys."""
        if not self.count:
            first = chunk[0]
            if first.isdigit() and len(first) < 18:
                width = len(first) if first.startswith(b"0") and len(first) > 1 else 0
                self.found = NumberedKeys(0, int(first), width)
        if self.found is not None:
            expected = map(self.found.key, range(self.count, self.count + len(chunk)))
            if not all(key == due for key, due in zip(chunk, expected, strict=True)):
                self.found = None
        self.count += len(chunk)


def _is_whole(index: Array) -> bool:
    if len(index) < _HEAD or index[0] != _VERSION:
        return False
    count, size = int(index[1]), int(index[2])
    if size == _NUMBERED:
        return len(index) == _HEAD + 2
    return count >= 0 and len(index) == _HEAD + count + 1 + (size + 7) // 8 and int(index[_HEAD + count]) == size


def iterate(keys: Keys) -> Iterator[bytes]:
    """Yield all keys by position."""
    return map(keys.key, range(keys.count))
