"""Reads rows of HDF5 datasets: by file offset if they are contiguous in the file, else through libhdf5.

Positional reads release the GIL and bypass libhdf5's global lock. Where the file was cut short or a sector is bad, they fail
with an error, whereas touching a memory mapping would end the process. Chunked or filtered datasets, such as those that
h5repack writes, are read correctly but more slowly.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import h5py
import numpy as np

from storeds._utils.prefetch import blocks_read, will_need
from storeds.errors import FormatError
from storeds.protocols import Array

__all__ = ["FlatRows", "JoinedRows", "LibraryRows", "Rows", "gather", "open_rows", "read_ranges"]

_GAP = 4096  # bytes; reading an unneeded page is cheaper than another call
_GROUP = 1 << 20  # bytes; neighbouring ranges are read together up to about this size
_KEPT = 1 << 24  # bytes; random reads soon touch every page of a smaller dataset, so it stays in memory
_PAGE = 4096  # bytes
_WORTH_ADVICE = 1 << 18  # bytes of one call
_SCATTERED = 32  # rows; fewer are read one by one
_SMALL = 1 << 14  # bytes of a row; copying larger ones takes longer than the calls
_VECTORS = 1024  # Linux's limit of ranges in one call


class Rows(Protocol):
    """A dataset as ``count`` rows of ``size`` bytes."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ascending row ranges ``[start, stop)``; fewer bytes where they are unreadable."""
        ...


class JoinedRows(ABC):
    """Rows of which neighbouring ranges are read together. Thread-safe."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count
        self._kept: bytes | None = None
        self._before_kept = size * count // _PAGE if size * count <= _KEPT else sys.maxsize

    @abstractmethod
    def _load(self, starts: Array, stops: Array) -> list[bytes]:
        """Read each range by itself; fewer bytes where they are unreadable."""

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        return self.read_ranges(bounds[:, 0], bounds[:, 1])

    def read_ranges(self, starts: Array, stops: Array) -> list[bytes]:
        """Return the bytes of row ranges in any order; fewer bytes where they are unreadable."""
        data, size = self.kept(len(starts)), self.size
        if data is not None:
            bounds = zip((starts * size).tolist(), (stops * size).tolist(), strict=True)
            return [data[begin:end] for begin, end in bounds]
        if (starts[1:] >= starts[:-1]).all():
            return self._read_ascending(starts, stops)
        order = np.argsort(starts, kind="stable")
        found = self._read_ascending(starts[order], stops[order])
        return [found[at] for at in np.argsort(order).tolist()]

    def kept(self, asked: int) -> bytes | None:
        """Return all rows, once reading `asked` more of a small dataset would cost as much as reading all of it."""
        if self._kept is None:
            self._before_kept -= asked
            if self._before_kept < 0:
                (data,) = self._load(np.array([0]), np.array([self.count]))
                if len(data) == self.size * self.count:
                    self._kept = data
                else:  # a part is unreadable
                    self._before_kept = sys.maxsize
        return self._kept

    def _read_ascending(self, starts: Array, stops: Array) -> list[bytes]:
        size = max(self.size, 1)
        near = starts[1:] - stops[:-1] <= _GAP // size
        near &= starts[1:] * size // _GROUP == starts[:-1] * size // _GROUP
        if not near.any():
            return self._load(starts, stops)
        heads = np.flatnonzero(np.concatenate(([True], ~near)))
        begins, ends = starts[heads], np.maximum.reduceat(stops, heads)
        counts = np.diff(heads, append=len(starts))
        places = np.repeat(begins, counts)
        bounds = zip(((starts - places) * self.size).tolist(), ((stops - places) * self.size).tolist(), strict=True)
        needed = ((ends - begins) * self.size).tolist()
        out: list[bytes] = []
        for data, due, count in zip(self._load(begins, ends), needed, counts.tolist(), strict=True):
            out.extend(data[begin:end] for begin, end in itertools.islice(bounds, count))
            if len(data) < due:  # read each range by itself: the others may be readable
                first = len(out) - count
                out[first:] = self._load(starts[first : len(out)], stops[first : len(out)])
        return out


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

    def __init__(self, descriptor: int, offset: int, size: int, count: int) -> None:
        super().__init__(size, count)
        self._descriptor, self._offset = descriptor, offset
        self._waits = False
        self._mapped: Array | None = None
        self._may_map = _readv is not None

    def take(self, first: Array, wide: int) -> Array | None:
        """Copy small rows from all over the dataset with few system calls; None if another way must be used.

        The kernel copies them out of a mapping. Unlike this process, it survives a page that is not there.
        """
        length, count = wide * self.size, len(first)
        if count < _SCATTERED or not 0 < length <= _SMALL or not self._may_map:
            return None
        if self._mapped is None:
            self._mapped = self._map()
            if self._mapped is None:
                return None
        taken = np.empty((count, length), np.uint8)
        ranges = np.empty((count, 2), np.uint64)
        ranges[:, 0] = first * self.size + self._mapped.ctypes.data
        ranges[:, 1] = length
        for start in range(0, count, _VECTORS):
            part = taken[start : start + _VECTORS]
            target = np.array([part.ctypes.data, part.nbytes], np.uint64)
            address = ranges[start:].ctypes.data
            if _readv(os.getpid(), target.ctypes.data, 1, address, len(part), 0) != part.nbytes:
                return None
        return taken

    def _map(self) -> Array | None:
        first = self._offset % mmap.ALLOCATIONGRANULARITY
        size = first + self.size * self.count
        try:
            mapped = mmap.mmap(self._descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ, offset=self._offset - first)
        except (OSError, ValueError):  # no address space left, or the file was cut short
            self._may_map = False
            return None
        mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, np.uint8)[first:]

    def _load(self, starts: Array, stops: Array) -> list[bytes]:
        offsets = (starts * self.size + self._offset).tolist()
        sizes = ((stops - starts) * self.size).tolist()
        is_large = sum(sizes) >= _WORTH_ADVICE
        blocks = blocks_read() if is_large else 0
        if is_large and self._waits:
            # The last call waited for the disk. It reads all ranges at once if it knows them beforehand.
            will_need(self._descriptor, starts * self.size + self._offset, stops * self.size + self._offset)
        try:
            found = list(map(os.pread, itertools.repeat(self._descriptor), sizes, offsets))
        except OSError:
            found = []
        if list(map(len, found)) != sizes:
            found = list(map(self._pread, sizes, offsets))
        if is_large:
            self._waits = blocks_read() > blocks
        return found

    def _pread(self, size: int, offset: int) -> bytes:
        parts: list[bytes] = []  # Linux reads at most 2 GiB at once
        try:
            while size and (data := os.pread(self._descriptor, size, offset)):
                parts.append(data)
                size, offset = size - len(data), offset + len(data)
        except OSError:  # a bad sector
            pass
        return b"".join(parts)


def _find_readv() -> Any:
    """Return process_vm_readv of the C library, or None on systems that lack it."""
    found = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if found is not None:
        size, address = ctypes.c_ulong, ctypes.c_void_p
        found.argtypes, found.restype = [ctypes.c_int, address, size, address, size, size], ctypes.c_ssize_t
    return found


_readv = _find_readv()


class LibraryRows(JoinedRows):
    """Rows that only libhdf5 can read: chunked, compressed or otherwise filtered."""

    def __init__(self, dataset: h5py.Dataset, size: int, count: int) -> None:
        super().__init__(size, count)
        self._dataset = dataset

    def _load(self, starts: Array, stops: Array) -> list[bytes]:
        return list(map(self._load_one, starts.tolist(), stops.tolist()))

    def _load_one(self, start: int, stop: int) -> bytes:
        try:
            return np.ascontiguousarray(self._dataset[start:stop]).tobytes()
        except OSError:  # a damaged chunk
            return b""


def read_ranges(rows: Rows, starts: Array, stops: Array) -> list[bytes]:
    """Return the bytes of row ranges in any order; fewer bytes where they are unreadable."""
    if isinstance(rows, JoinedRows):
        return rows.read_ranges(starts, stops)
    order = np.lexsort((stops, starts))
    found = rows.read(list(zip(starts[order].tolist(), stops[order].tolist(), strict=True)))
    return [found[at] for at in np.argsort(order).tolist()]


_ALL = np.array(True)


def gather(rows: Rows, first: Array, wide: int = 1) -> tuple[Array, Array]:
    """Read `wide` rows starting at each of the rows `first`, in any order.

    Returns
    -------
    Array, Array
        The bytes, shape (n, wide * size), uint8, writable, zero where unreadable; and which rows are complete, shape (n,),
        bool, or () if all are.
    """
    length = wide * rows.size
    kept = rows.kept(len(first)) if isinstance(rows, JoinedRows) else None
    if kept is not None:
        table = np.frombuffer(kept, np.uint8).reshape(rows.count, rows.size)
        numbers = first if wide == 1 else first[:, None] + np.arange(wide)
        return table.take(numbers, axis=0).reshape(len(first), length), _ALL
    taken = rows.take(first, wide) if isinstance(rows, FlatRows) else None
    if taken is not None:
        return taken, _ALL
    found = read_ranges(rows, first, first + wide)
    whole: Any = _ALL
    if set(map(len, found)) != {length}:
        whole = np.array([len(data) == length for data in found], bool)
        found = [data if len(data) == length else bytes(length) for data in found]
    return np.frombuffer(bytearray().join(found), np.uint8).reshape(len(found), length), whole


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
    offset = dataset.id.get_offset()
    if dataset.chunks is not None or offset is None:
        return LibraryRows(dataset, size, count)
    available = os.fstat(descriptor).st_size
    if offset + count * size > available:
        raise FormatError(
            f"{url} is cut short: dataset {name} ends at byte {offset + count * size}, the file has {available}; copy it again"
        )
    return FlatRows(descriptor, offset, size, count)


def _local_dataset(file: h5py.File, name: str, url: str) -> h5py.Dataset:
    at = ""
    for part in name.split("/"):
        at = f"{at}/{part}"
        link = file.get(at, getlink=True)
        if link is None:
            raise FormatError(f"{url}: {at} is missing; copy it again")
        if not isinstance(link, h5py.HardLink):
            # h5py would follow the link into any file.
            raise FormatError(f"{url}: {at} is a link to elsewhere, which a native store never holds")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise FormatError(f"{url}: /{name} is not a dataset")
    if dataset.is_virtual or dataset.external:
        # A virtual dataset reads zeros for a missing source; external storage can name any file.
        raise FormatError(f"{url}: dataset {name} keeps its bytes in other files, which a native store never does")
    return dataset
