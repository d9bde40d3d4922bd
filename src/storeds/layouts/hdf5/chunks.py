"""Reads rows of HDF5 datasets that are not contiguous in the file: a batch decompresses each chunk once."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from storeds.backends.hdf5.inflation import (
    DEFLATE,
    FLETCHER,
    SHUFFLE,
    InflationCheck,
    filters_of,
    most_claimed,
    stored_chunk,
    undone,
)
from storeds.errors import FormatError, UnavailableError
from storeds.layouts.hdf5.files import Hdf5Files, file_of
from storeds.protocols import Array

__all__ = ["ChunkedRows", "check_claim", "inflated_chunk", "is_gzip", "moved"]

_LONGEST_READ = 32 << 20  # bytes that one call reads for several rows
_MOST_CHUNKS = 1 << 12  # that one call reads, because libhdf5 takes some KiB of memory for each
_SMALL_CHUNK = 1 << 16  # bytes; reading such a chunk takes no longer than reading one of its rows

Span = tuple[int, int]
Box = tuple[slice, ...]


def check_claim(files: Hdf5Files, dataset: h5py.Dataset, nbytes: int) -> None:
    """Raise FormatError if values of a dataset would take more memory than its file can hold.

    A file may claim any number of values that were never written.
    """
    path = file_of(dataset)
    if nbytes > most_claimed(files.descriptor(path)):
        raise FormatError(
            f"{files.url}: dataset {dataset.name} claims values of {nbytes:,} bytes, more than {path} can hold; "
            "copy it again, or write the dataset as large as its data"
        )


def is_gzip(dataset: h5py.Dataset, memory: h5py.h5t.TypeID) -> bool:
    """Whether the chunks of a dataset are compressed by gzip, and hold values as they are in memory."""
    filters = {*filters_of(dataset)}
    return DEFLATE in filters <= {SHUFFLE, DEFLATE, FLETCHER} and bool(dataset.id.get_type().equal(memory))


class ChunkedRows:
    """Rows in chunks, or of a type that libhdf5 converts.

    The chunks used most recently are kept decompressed, up to ``cache_bytes``. Thread-safe.

    Parameters
    ----------
    files : Hdf5Files
    dataset : h5py.Dataset
    memory : h5py.h5t.TypeID
        The type of the values in memory.
    size, count : int
    axis : int
        The axis of the rows; the axes before it have length 1.
    """

    def __init__(self, files: Hdf5Files, dataset: h5py.Dataset, memory: Any, size: int, count: int, axis: int) -> None:
        self.size, self.count = size, count
        self._files, self._path = files, file_of(dataset)
        self._descriptor = files.descriptor(self._path)
        self._available = os.fstat(self._descriptor).st_size
        self._check = functools.partial(check_claim, files, dataset)
        self._check(size)
        filters = filters_of(dataset)
        self._slices = (_GzipSlices if is_gzip(dataset, memory) else _Slices)(dataset, memory, axis)
        self._per_chunk = self._slices.per_chunk
        nbytes, limit = self._per_chunk * size, files.settings.cache_bytes
        may_hold_chunk = nbytes <= most_claimed(self._descriptor)
        self._by_chunk = (
            self._per_chunk > 1 and may_hold_chunk and (bool(filters) or nbytes <= min(limit, _SMALL_CHUNK))
        )
        self._keeps = nbytes <= limit
        # lru_cache has no lock that a fork could copy locked. It does not refer to `self`, so the chunks go with the rows.
        self._chunk = functools.lru_cache(max(limit // max(nbytes, 1), 1))(self._slices.read)

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        # docstring inherited
        self._check(max((stop - start for start, stop in spans), default=0) * self.size)
        out = [data for group in self._groups(spans) for data in self._read_group(group)]
        if not self._keeps:
            self._chunk.cache_clear()
        if os.fstat(self._descriptor).st_size < self._available:  # libhdf5 returns zeros from behind the end
            raise UnavailableError(
                f"{self._files.url}: {self._path} was cut short; copy it again and open the store again"
            )
        return out

    def _groups(self, spans: Sequence[Span]) -> list[list[Span]]:
        """Return the spans that one call reads: each begins where the one before it ends."""
        groups: list[list[Span]] = []
        for span in spans:
            joins = groups and not self._by_chunk and span[0] == groups[-1][-1][1]
            if joins and (span[1] - groups[-1][0][0]) * self.size <= _LONGEST_READ:
                groups[-1].append(span)
            else:
                groups.append([span])
        return groups

    def _read_group(self, group: list[Span]) -> list[bytes]:
        start, size = group[0][0], self.size
        try:
            data = self._load(start, group[-1][1])
        except (OSError, RuntimeError, ValueError):
            # Rows in other chunks than the damaged one are still good.
            return [b""] if len(group) == 1 else [self._read_group([span])[0] for span in group]
        return [data[(low - start) * size : (high - start) * size].tobytes() for low, high in group]

    def _load(self, start: int, stop: int) -> Array:
        first = start - start % self._per_chunk
        if self._by_chunk and stop <= first + self._per_chunk:
            chunk: Array = self._chunk(first, min(first + self._per_chunk, self.count))
            return chunk[(start - first) * self.size :]
        step = _MOST_CHUNKS * self._per_chunk
        parts = [self._slices.read(at, min(at + step, stop)) for at in range(start, stop, step)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, "u1")])


class _Slices:
    """Boxes of a dataset, as libhdf5 reads them; ranges of rows are boxes."""

    def __init__(self, dataset: h5py.Dataset, memory: Any, axis: int = 0) -> None:
        self._dataset, self._memory, self._axis = dataset, memory, axis
        self._check = InflationCheck(dataset)
        self._itemsize = dataset.dtype.itemsize
        self.per_chunk = int(dataset.chunks[axis]) if dataset.chunks else 1

    def read(self, start: int, stop: int) -> Array:
        """Return the bytes of rows."""
        selected = [slice(0, size) for size in self._dataset.shape]
        if selected:
            selected[self._axis] = slice(start, stop)
        return self.box((*selected,)).reshape(-1)

    def box(self, selected: Box, out: Array | None = None) -> Array:
        """Return the bytes of a box, shape (*its sides, bytes of a value), in a contiguous `out` if there is one."""
        sides, space = tuple(one.stop - one.start for one in selected), self._dataset.id.get_space()
        data: Array = np.empty((*sides, self._itemsize), "u1") if out is None else out
        if data.size:
            self._check(selected)
            if sides:
                space.select_hyperslab(tuple(one.start for one in selected), sides)
            memory_space = h5py.h5s.create_simple(sides) if sides else space
            self._dataset.id.read(memory_space, space, data, mtype=self._memory)
        return data


class _GzipSlices(_Slices):
    """Boxes of chunks that gzip compresses.

    libhdf5 2.0 returns stray memory for a chunk that inflates to too few bytes. Inflating here also leaves its lock free.
    """

    def __init__(self, dataset: h5py.Dataset, memory: Any, axis: int = 0) -> None:
        super().__init__(dataset, memory, axis)
        self._block = (*dataset.chunks, self._itemsize)
        self._filters = filters_of(dataset)

    def box(self, selected: Box, out: Array | None = None) -> Array:
        # docstring inherited; a part of one chunk is a view of it
        sides = zip(selected, self._block, strict=False)
        is_one = all(one.start < one.stop and one.start // size == (one.stop - 1) // size for one, size in sides)
        for part in [selected] if is_one else self._dataset.iter_chunks(selected):
            data = self._read_part(part)
            if part == selected:
                return data
            if out is None:
                out = np.empty((*(one.stop - one.start for one in selected), self._itemsize), "u1")
            out[moved(part, [one.start for one in selected])] = data
        return super().box(selected) if out is None else out

    def _read_part(self, part: Box) -> Array:
        """Return the bytes of a part of one chunk; raises ValueError if they are damaged."""
        corner = tuple(one.start - one.start % size for one, size in zip(part, self._block, strict=False))
        chunk = inflated_chunk(self._dataset, self._filters, self._block, corner)
        return super().box(part) if chunk is None else chunk[moved(part, corner)]


def moved(box: Box, origin: Sequence[int]) -> Box:
    """Return a box as it is counted from another origin."""
    return tuple(slice(one.start - at, one.stop - at) for one, at in zip(box, origin, strict=True))


def inflated_chunk(
    dataset: h5py.Dataset, filters: Sequence[int], block: tuple[int, ...], corner: tuple[int, ...]
) -> Array | None:
    """Return the bytes of a chunk, of shape `block`; None if it was never written, or not compressed."""
    mask, raw = stored_chunk(dataset, corner) or (~0, b"")
    if any(code == DEFLATE and mask & 1 << at for at, code in enumerate(filters)):
        return None
    nbytes = math.prod(block)
    data, left = undone(raw, filters, mask, nbytes, block[-1])
    assert not left
    if len(data) != nbytes:
        raise ValueError(f"its chunk has {len(data)} bytes instead of {nbytes}")
    return np.frombuffer(data, "u1").reshape(block)
