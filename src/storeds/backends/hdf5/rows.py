"""Reads rows of HDF5 datasets: by file offset if they are contiguous in the file, else through libhdf5.

Positional reads release the GIL and bypass libhdf5's global lock. Where the file was cut short or a sector is bad, they fail
with an error, whereas touching a memory mapping would end the process. Chunked or filtered datasets, such as those that
h5repack writes, are read correctly but more slowly.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import h5py
import numpy as np

from storeds._utils.prefetch import blocks_read, will_need
from storeds.backends.blocks import StoredBytes
from storeds.backends.hdf5.inflation import InflationCheck, most_claimed
from storeds.errors import FormatError
from storeds.protocols import Array

__all__ = ["UNREADABLE", "FlatRows", "JoinedRows", "LibraryRows", "Rows", "gather", "open_rows", "read_ranges"]

UNREADABLE = "its bytes cannot be read: a bad sector, a file cut short, or damaged offsets"

_PAGE = 4096  # bytes; reading an unneeded page is cheaper than another call
_JOINED = 1 << 20  # bytes; copying more out of one read takes longer than the calls that it saves
_KEPT = 1 << 24  # bytes; random reads soon touch every page of a smaller dataset, so it stays in memory
_KEPT_IN_ALL = 1 << 26  # bytes of all such datasets of this process
_KEEPING: dict[int, int] = {}  # id of rows → bytes that they keep
_WORTH_ADVICE = 1 << 18  # bytes of one call


class Rows(Protocol):
    """A dataset as ``count`` rows of ``size`` bytes."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ascending row ranges ``[start, stop)``; fewer bytes where they are unreadable."""
        ...


class JoinedRows:
    """Rows of which ranges that lie close together are read at once. Thread-safe."""

    def __init__(self, size: int, count: int, *, holds_values: bool = False) -> None:
        self.size, self.count = size, count
        self._kept: bytes | None = None
        is_kept = size * count <= _KEPT and not holds_values
        self._before_kept = self._worth_keeping = size * count // _PAGE if is_kept else sys.maxsize

    def _load(self, starts: Array, stops: Array) -> list[bytes]:
        """Read each range by itself; fewer bytes where they are unreadable."""
        raise NotImplementedError

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        return self.read_ranges(bounds[:, 0], bounds[:, 1])

    def read_ranges(self, starts: Array, stops: Array) -> list[bytes]:
        """Return the bytes of row ranges in any order; fewer bytes where they are unreadable."""
        kept = self.whole_if_small(len(starts))
        if kept is not None:
            return self._cut(kept, starts, stops)
        if not self.are_close(starts, stops):
            return self._load(starts, stops)
        first, last = int(np.minimum.reduce(starts)), int(np.maximum.reduce(stops))
        (data,) = self._load(np.array([first]), np.array([last]))
        if len(data) < (last - first) * self.size:  # ranges before and behind what is unreadable may be readable
            return self._load(starts, stops)
        return self._cut(data, starts - first, stops - first)

    def are_close(self, starts: Array, stops: Array) -> bool:
        """Whether one read of all that lies between these row ranges is faster than a read of each."""
        if self.size >= _PAGE or len(starts) < 2:
            return False
        reach = int(np.maximum.reduce(stops) - np.minimum.reduce(starts)) * self.size
        return 0 < reach <= min(_JOINED, int((stops - starts).sum()) * self.size + _PAGE * len(starts))

    def _cut(self, data: bytes, starts: Array, stops: Array) -> list[bytes]:
        begins, ends = starts * self.size, stops * self.size
        return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    def whole_if_small(self, asked: int) -> bytes | None:
        """Return all rows, once reading `asked` more of a small dataset would cost as much as reading all of it.

        None for values of varying size, and while the process keeps enough others.
        """
        if self._kept is None:
            self._before_kept -= asked
            if self._before_kept < 0:
                self._keep()
        return self._kept

    def _keep(self) -> None:
        self._before_kept = self._worth_keeping  # before the next attempt
        if sum(_KEEPING.values()) + self.size * self.count > _KEPT_IN_ALL:
            return
        (data,) = self._load(np.array([0]), np.array([self.count]))
        if len(data) == self.size * self.count:
            self._kept = data
            _KEEPING[id(self)] = len(data)
            weakref.finalize(self, _KEEPING.pop, id(self), None).atexit = False
        else:  # a part is unreadable
            self._before_kept = sys.maxsize


class FlatRows(JoinedRows):
    """Rows that are contiguous in a file.

    Parameters
    ----------
    descriptor : int
        Of the file; the caller closes it.
    offset : int
        Of the first row in the file.
    size, count : int
    """

    def __init__(self, descriptor: int, offset: int, size: int, count: int, *, holds_values: bool = False) -> None:
        super().__init__(size, count, holds_values=holds_values)
        self._descriptor, self._offset = descriptor, offset
        self._is_cold = False

    def _load(self, starts: Array, stops: Array) -> list[bytes]:
        begins = starts * self.size + self._offset
        sizes = ((stops - starts) * self.size).tolist()
        places = begins.tolist()
        with self._advised(begins, begins + sizes, sum(sizes)):
            try:
                found = list(map(os.pread, itertools.repeat(self._descriptor), sizes, places))
            except OSError:
                found = []  # each is read again by itself
            if list(map(len, found)) != sizes:
                found = list(map(self._load_one, sizes, places))
        return found

    def fill(self, out: Array, starts: Array) -> bool:
        """Read the rows from each of `starts` on into `out`, shape (n, bytes), uint8; return whether all of them are readable.

        Without memory of its own for each range, which for those of some kilobytes takes longer than the read.
        """
        begins, size = starts * self.size + self._offset, out.shape[1]
        memory = out.reshape(-1).data
        parts = [[memory[at : at + size]] for at in range(0, len(memory), size)] if size else []
        with self._advised(begins, begins + size, len(memory)):
            try:
                done = sum(map(os.preadv, itertools.repeat(self._descriptor), parts, begins.tolist()))
            except OSError:
                return False
        return done == len(memory)

    @contextmanager
    def _advised(self, begins: Array, ends: Array, size: int) -> Iterator[None]:
        """Have these bytes of the file loaded all at once, if the last ones came from the disk."""
        is_watched = self._is_cold or size >= _WORTH_ADVICE
        blocks = blocks_read() if is_watched else 0
        if self._is_cold:
            will_need(self._descriptor, begins, ends)
        yield
        if is_watched:
            self._is_cold = blocks_read() > blocks

    def _load_one(self, size: int, offset: int) -> bytes:
        parts: list[bytes] = []  # Linux reads at most 2 GiB at once
        try:
            while size and (data := os.pread(self._descriptor, size, offset)):
                parts.append(data)
                size, offset = size - len(data), offset + len(data)
        except OSError as error:
            _check_is_damage(error)
        return b"".join(parts)

    def stored(self, start: int, stop: int) -> StoredBytes:
        """Return the bytes of a row range, which are not read yet."""
        return StoredBytes(self._descriptor, self._offset + start * self.size, (stop - start) * self.size)


class LibraryRows(JoinedRows):
    """Rows that only libhdf5 can read: chunked, compressed or otherwise filtered."""

    def __init__(self, dataset: h5py.Dataset, size: int, count: int, *, holds_values: bool = False) -> None:
        super().__init__(size, count, holds_values=holds_values)
        self._dataset, self._check = dataset, InflationCheck(dataset)

    def _load(self, starts: Array, stops: Array) -> list[bytes]:
        order = np.argsort(starts)  # so that libhdf5 decompresses a chunk once
        found = dict(zip(order.tolist(), map(self._load_one, starts[order], stops[order]), strict=True))
        return [found[at] for at in range(len(starts))]

    def _load_one(self, start: int, stop: int) -> bytes:
        try:
            self._check((slice(int(start), int(stop)), *(slice(0, size) for size in self._dataset.shape[1:])))
            return np.ascontiguousarray(self._dataset[start:stop]).tobytes()
        except ValueError:
            return b""
        except OSError as error:
            _check_is_damage(error)
            return b""


def _check_is_damage(error: OSError) -> None:
    """Raise the error of a read again unless bytes are damaged: by a bad sector, or in a chunk, for which there is no number."""
    if error.errno not in (errno.EIO, None):
        raise error


def read_ranges(rows: Rows, starts: Array, stops: Array) -> list[bytes]:
    """Return the bytes of row ranges in any order; fewer bytes where they are unreadable."""
    if isinstance(rows, JoinedRows):
        return rows.read_ranges(starts, stops)
    order = np.lexsort((stops, starts))
    found = rows.read(list(zip(starts[order].tolist(), stops[order].tolist(), strict=True)))
    return [found[at] for at in np.argsort(order).tolist()]


def gather(rows: Rows, first: Array, wide: int = 1) -> Array:
    """Read `wide` rows starting at each of the rows `first`, in any order.

    Returns
    -------
    Array
        The bytes, shape (n, wide * size), uint8, writable.

    Raises
    ------
    ValueError
        Some of them are unreadable.
    """
    shape = len(first), wide * rows.size
    kept = rows.whole_if_small(len(first)) if isinstance(rows, JoinedRows) else None
    if kept is not None:
        table = np.frombuffer(kept, np.uint8).reshape(rows.count, rows.size)
        numbers = first if wide == 1 else first[:, None] + np.arange(wide)
        return table.take(numbers, axis=0).reshape(shape)
    if isinstance(rows, FlatRows) and not rows.are_close(first, first + wide):
        out = np.empty(shape, np.uint8)
        if rows.fill(out, first):
            return out
    data = bytearray().join(read_ranges(rows, first, first + wide))
    if len(data) != shape[0] * shape[1]:
        raise ValueError(UNREADABLE)
    return np.frombuffer(data, np.uint8).reshape(shape)


def open_rows(
    file: h5py.File, name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...], descriptor: int, url: str
) -> JoinedRows:
    """Return the rows of dataset `name`; raises FormatError unless it has this dtype and shape (None: any length)."""
    dataset = _local_dataset(file, name, url)
    fits = len(dataset.shape) == len(shape) and all(w in (None, g) for w, g in zip(shape, dataset.shape, strict=True))
    if dataset.dtype != dtype or not fits:
        raise FormatError(f"{url}: dataset {name} is {dataset.dtype} {dataset.shape}, expected {dtype} {shape}")
    count = int(dataset.shape[0])
    size = int(np.prod(dataset.shape[1:], dtype=np.int64)) * dtype.itemsize
    if dataset.nbytes == 0:
        return FlatRows(descriptor, 0, size, count)
    holds_values = None in shape
    offset = dataset.id.get_offset()
    if offset is None:
        if count * size > most_claimed(descriptor):
            raise FormatError(
                f"{url}: dataset {name} claims values of {count * size:,} bytes, more than the file can hold; copy it again"
            )
        return LibraryRows(dataset, size, count, holds_values=holds_values)
    available = os.fstat(descriptor).st_size
    if offset + count * size > available:
        raise FormatError(
            f"{url} is cut short: dataset {name} ends at byte {offset + count * size}, the file has {available}; copy it again"
        )
    return FlatRows(descriptor, offset, size, count, holds_values=holds_values)


def _local_dataset(file: h5py.File, name: str, url: str) -> h5py.Dataset:
    """Return a dataset whose bytes are in the file: h5py would follow a link into any other."""
    found, at = file, ""
    for part in name.split("/"):
        link, at = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None, f"{at}/{part}"
        if link is None:
            raise FormatError(f"{url}: {at} is missing; copy it again")
        if not isinstance(link, h5py.HardLink):
            raise FormatError(f"{url}: {at} is a link to elsewhere, which a native store never holds")
        found = found[part]
    if not isinstance(found, h5py.Dataset):
        raise FormatError(f"{url}: /{name} is not a dataset")
    if found.is_virtual or found.external:
        raise FormatError(f"{url}: dataset {name} keeps its bytes in other files, which a native store never does")
    return found
