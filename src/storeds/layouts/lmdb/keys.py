"""The key of each record by position: computed where keys are numbers, otherwise packed in an index file."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from storeds.errors import UnavailableError
from storeds.protocols import Array
from storeds.records.columns import load_index, save_index
from storeds.records.fields import Count

__all__ = ["IndexedKeys", "Keys", "NumberedKeys", "_pack_keys", "in_order_of_numbers", "iterate"]

_CHUNK = 1 << 16
_ITERATED = 1 << 12
_VERSION = 1
_HEAD = 3  # words: version, count, bytes of all keys; the start of each key and the bytes follow
_NUMBERED = -1  # the keys are numbers; the next two words are the first number and the width
_WORD = 8
_NEAR = 256  # positions; keys closer to one another are read together

_Read = Callable[[int, int], bytes]
"""Takes an offset into the index and a size, and returns these bytes."""


class Keys(Protocol):
    """The keys of records ``0..count-1``; picklable, and small for any count."""

    @property
    def count(self) -> int: ...

    def many(self, positions: Sequence[int], find: Callable[[], Iterable[bytes]]) -> list[bytes]:
        """Return the keys at `positions`, which ascend; `find` finds all keys again if the index is gone."""
        ...


@dataclass(frozen=True)
class NumberedKeys:
    """Keys that are decimal numbers with leading zeros up to a width."""

    count: int
    start: int = 0
    width: int = 0

    def many(self, positions: Sequence[int], find: Callable[[], Iterable[bytes]] | None = None) -> list[bytes]:
        # docstring inherited
        return [self.key(position) for position in positions]

    def key(self, position: int) -> bytes:
        return b"%0*d" % (self.width, self.start + position)


@dataclass(frozen=True)
class _Packed:
    """The size of an index and where its parts begin."""

    count: int
    size: int
    """The number of bytes of all keys."""
    numbers: NumberedKeys | None
    begin: int
    """The offset of the index in its file."""
    file_size: int
    kept: memoryview | None
    """The whole index, where the cache folder is not writable."""

    @classmethod
    def of(cls, index: Array) -> _Packed:
        """Return the description of an index, mapped or in memory."""
        count, size = Count(index[1]), int(index[2])
        numbers = NumberedKeys(count, int(index[3]), int(index[4])) if size == _NUMBERED else None
        if isinstance(index, np.memmap):
            return cls(count, size, numbers, index.offset, index.offset + index.nbytes, None)
        return cls(count, size, numbers, 0, index.nbytes, index.view(np.uint8).data)

    def keys(self, positions: Sequence[int], read: _Read) -> list[bytes]:
        """Return the keys at ascending positions."""
        return [key for run in _runs(positions) for key in self._near_keys(run, read)]

    def _near_keys(self, positions: Sequence[int], read: _Read) -> list[bytes]:
        """Return the keys at positions that are close to one another."""
        first, last = positions[0], positions[-1]
        starts = memoryview(read(self.begin + _WORD * (_HEAD + first), _WORD * (last - first + 2))).cast("q")
        low, high = starts[0], starts[-1]
        if not 0 <= low <= high <= self.size:
            raise UnavailableError("the index of keys is damaged; empty the cache folder and open the store again")
        keys = read(self.begin + _WORD * (_HEAD + self.count + 1) + low, high - low)
        if first == last:
            return [keys]
        return [keys[starts[at - first] - low : starts[at - first + 1] - low] for at in positions]


class IndexedKeys:
    """Keys that are found once and kept packed in an index file.

    Parameters
    ----------
    path : Path
        The index file; its name identifies the store and its state.
    find : callable
        Returns the keys in order of position; called if there is no index file.

    Notes
    -----
    Each batch opens the file, reads what it needs, and closes it. A mapped file would soon count as memory of every worker
    that reads at random. A file that stays open would cost one descriptor for each of thousands of stores.
    """

    count: int

    def __init__(self, path: Path, find: Callable[[], Iterable[bytes]]) -> None:
        self._path = path
        self._packed: _Packed | None = self._load(find)
        self.count = self._packed.count

    def _load(self, find: Callable[[], Iterable[bytes]]) -> _Packed:
        found = load_index(self._path)
        return _Packed.of(
            save_index(self._path, _pack_keys(find())) if found is None or not _is_whole(found) else found
        )

    def many(self, positions: Sequence[int], find: Callable[[], Iterable[bytes]]) -> list[bytes]:
        # docstring inherited
        packed = self._packed
        if packed is None:  # after unpickling
            packed = self._packed = self._load(find)
        for _ in range(2):
            if packed.numbers is not None:
                return packed.numbers.many(positions)
            if packed.kept is not None:
                return packed.keys(positions, functools.partial(_slice, packed.kept))
            with contextlib.suppress(OSError), open(self._path, "rb", buffering=0) as file:
                descriptor = file.fileno()
                if os.fstat(descriptor).st_size == packed.file_size:
                    return packed.keys(positions, functools.partial(_read_at, descriptor))
            packed = self._packed = self._load(find)  # the cache was emptied
        raise UnavailableError(
            f"the index {self._path} disappears while storeds uses it; set STOREDS_CACHE to a folder that is not cleaned"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_packed": None, "count": self.count}


def _slice(kept: Any, at: int, size: int) -> bytes:
    return bytes(kept[at : at + size])


def _read_at(descriptor: int, at: int, size: int) -> bytes:
    return os.pread(descriptor, size, at)


def _runs(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ascending positions where the next key is too far away to be read with the others."""
    start = 0
    for at in range(1, len(positions) + 1):
        if at == len(positions) or positions[at] - positions[at - 1] > _NEAR:
            yield positions[start:at]
            start = at


def _pack_keys(keys: Iterable[bytes]) -> Array:
    """Return the keys as one int64 array in the form of an index file."""
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
    """Checks whether keys are consecutive numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.found: NumberedKeys | None = None

    def add(self, chunk: list[bytes]) -> None:
        """Check the next keys."""
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


def iterate(keys: Keys, find: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield all keys by position."""
    for start in range(0, keys.count, _ITERATED):
        yield from keys.many(range(start, min(start + _ITERATED, keys.count)), find)


def in_order_of_numbers(walk: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield keys in order of their numbers if all are decimal, else in the order of `walk`, which is called twice."""
    if not all(key.isdigit() and len(key) < 19 for key in walk()):
        yield from walk()
        return
    found = np.fromiter(((int(key), len(key)) for key in walk()), np.dtype((np.int64, 2)))
    for number, width in found[np.lexsort((found[:, 1], found[:, 0]))].tolist():
        yield b"%0*d" % (width, number)
