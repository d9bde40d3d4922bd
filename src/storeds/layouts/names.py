"""The names of a foreign store's records, packed in a file of the cache folder: keys of LMDB, groups of HDF5, ids of MongoDB.

Finding them takes a scan of the store, so it is done once. Workers then read only the names that a batch needs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storeds._utils.files import read_at
from storeds.errors import UnavailableError
from storeds.protocols import JSON, Array
from storeds.records.cache import load_index, save_index

__all__ = ["Names", "pack_names"]

_VERSION = 2
_HEADER = 6  # words: version, number of names, their width or 0, bytes of all names, numbers, bytes of the facts
_WORD = 8
_CHUNK = 1 << 16  # names that are packed at once
_ITERATED = 1 << 12
_NEAR = 256  # positions; names that are closer to one another are read together


def pack_names(names: Iterable[bytes], numbers: Sequence[int] | Array = (), facts: JSON = None) -> Array:
    """Return the int64 array of a `Names` file: the names, further numbers, and anything else as JSON."""
    blobs, sizes = list[bytes](), [np.zeros(1, np.int64)]
    walk = iter(names)
    while chunk := list(itertools.islice(walk, _CHUNK)):
        blobs.append(b"".join(chunk))
        sizes.append(np.fromiter(map(len, chunk), np.int64, len(chunk)))
    lengths = np.concatenate(sizes)[1:]
    blob, tail = b"".join(blobs), json.dumps(facts).encode()
    width = int(lengths[0]) if len(lengths) and lengths.min() == lengths.max() else 0
    starts = np.empty(0, np.int64) if width else np.concatenate([[0], np.cumsum(lengths)])
    header = [_VERSION, len(lengths), width, len(blob), len(numbers), len(tail)]
    return np.concatenate([header, starts, np.asarray(numbers, np.int64), _words(blob), _words(tail)]).astype(np.int64)


def _words(data: bytes) -> Array:
    return np.frombuffer(data + b"\0" * (-len(data) % _WORD), np.int64)


class Names:
    """A list of byte strings in a file of the cache folder.

    Parameters
    ----------
    path : Path
        Its name must identify the store and its state.
    build : callable
        Returns the array of `pack_names`; called if there is no such file.

    Attributes
    ----------
    count : int
    numbers : array of int64
        In memory.
    facts : JSON

    Notes
    -----
    Each batch opens the file, reads what it needs, and closes it. A mapped file would soon count as memory of every worker
    that reads at random. Where the folder is not writable, the names stay in memory. Not picklable: a worker makes its own.
    """

    def __init__(self, path: Path, build: Callable[[], Array]) -> None:
        self._path, self._build = path, build
        self._open()

    def _open(self) -> None:
        packed = load_index(self._path)
        if packed is None or not _is_whole(packed):
            packed = save_index(self._path, self._build())
        header: list[int] = packed[:_HEADER].tolist()
        _, self.count, self._width, self._size, numbers, facts = header
        at = _HEADER + (0 if self._width else self.count + 1)
        self.numbers: Array = np.array(packed[at : at + numbers])
        self._names_at = at + numbers  # in words
        facts_at = self._names_at + -(-self._size // _WORD)
        self.facts: Any = json.loads(packed[facts_at:].tobytes()[:facts])
        self._kept = None if isinstance(packed, np.memmap) else packed.view(np.uint8).data
        self._begin = packed.offset if isinstance(packed, np.memmap) else 0
        self._data_end = self._begin + packed.nbytes

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self.count, _ITERATED):
            yield from self.many(range(start, min(start + _ITERATED, self.count)))

    def many(self, positions: Sequence[int]) -> list[bytes]:
        """Return the names at `positions`, which ascend.

        Raises
        ------
        UnavailableError
            Another process keeps emptying the cache folder.
        """
        for _ in range(2):
            if self._kept is not None:
                return self._read(positions, functools.partial(_slice, self._kept))
            with contextlib.suppress(OSError), open(self._path, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size >= self._data_end:
                    return self._read(positions, functools.partial(_pread, file.fileno(), self._begin))
            self._open()  # the cache was emptied
        raise UnavailableError(
            f"the index {self._path} disappears while storeds uses it; set STOREDS_CACHE to a folder that is not cleaned"
        )

    def _read(self, positions: Sequence[int], read: Callable[[int, int], bytes]) -> list[bytes]:
        found: list[bytes] = []
        for run in _runs(positions):
            first, last = run[0], run[-1]
            if self._width:
                ends: Any = range(first * self._width, (last + 2) * self._width, self._width)
            else:
                ends = memoryview(read(_WORD * (_HEADER + first), _WORD * (last - first + 2))).cast("q")
            low, high = ends[0], ends[-1]
            if not 0 <= low <= high <= self._size:
                raise UnavailableError(f"the index {self._path} is damaged; remove it and open the store again")
            names = read(_WORD * self._names_at + low, high - low)
            found += [names[ends[at - first] - low : ends[at - first + 1] - low] for at in run]
        return found


def _slice(kept: memoryview, at: int, size: int) -> bytes:
    return bytes(kept[at : at + size])


def _pread(descriptor: int, begin: int, at: int, size: int) -> bytes:
    return read_at(descriptor, size, begin + at)


def _is_whole(packed: Array) -> bool:
    if len(packed) < _HEADER or packed[0] != _VERSION:
        return False
    header: list[int] = packed[:_HEADER].tolist()
    _, count, width, size, numbers, facts = header
    words = _HEADER + (0 if width else count + 1) + numbers + -(-size // _WORD) + -(-facts // _WORD)
    return min(count, width, size, numbers, facts) >= 0 and len(packed) == words


def _runs(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ascending positions where the next name is too far away to be read with the others."""
    start = 0
    for at in range(1, len(positions) + 1):
        if at == len(positions) or positions[at] - positions[at - 1] > _NEAR:
            yield positions[start:at]
            start = at
