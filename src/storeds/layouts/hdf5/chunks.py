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

__all__ = ["ChunkedRows", "check_claim"]

_LONGEST_READ = 32 << 20  # bytes that one call reads for several rows
_MOST_CHUNKS = 1 << 12  # that one call reads, because libhdf5 takes some KiB of memory for each
_SMALL_CHUNK = 1 << 16  # bytes; reading such a chunk takes no longer than reading one of its rows

Span = tuple[int, int]


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
        own = DEFLATE in filters and {*filters} <= {SHUFFLE, DEFLATE, FLETCHER}
        is_gzip = own and dataset.id.get_type().equal(memory)
        self._slices = (_GzipSlices if is_gzip else _Slices)(dataset, memory, axis)
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
    """Ranges of rows of a dataset, as libhdf5 reads them."""

    def __init__(self, dataset: h5py.Dataset, memory: Any, axis: int) -> None:
        self._dataset, self._memory, self._axis = dataset, memory, axis
        self._check = InflationCheck(dataset)
        self.per_chunk = int(dataset.chunks[axis]) if dataset.chunks else 1

    def read(self, start: int, stop: int) -> Array:
        """Return the bytes of rows."""
        origin, box = [0] * len(self._dataset.shape), list(self._dataset.shape)
        if box:
            origin[self._axis], box[self._axis] = start, stop - start
        return self._read_box(tuple(origin), tuple(box))

    def _read_box(self, origin: tuple[int, ...], box: tuple[int, ...]) -> Array:
        data, space = np.empty(math.prod(box) * self._dataset.dtype.itemsize, "u1"), self._dataset.id.get_space()
        if data.size:
            self._check(tuple(slice(at, at + size) for at, size in zip(origin, box, strict=True)))
            if box:
                space.select_hyperslab(origin, box)
            memory_space = h5py.h5s.create_simple(box) if box else space
            self._dataset.id.read(memory_space, space, data, mtype=self._memory)
        return data


class _GzipSlices(_Slices):
    """Ranges of rows in chunks that gzip compresses.

    libhdf5 2.0 returns stray memory for a chunk that inflates to too few bytes. Inflating here also leaves its lock free.
    """

    def __init__(self, dataset: h5py.Dataset, memory: Any, axis: int) -> None:
        super().__init__(dataset, memory, axis)
        self._filters = filters_of(dataset)
        self._block = (*dataset.chunks, dataset.dtype.itemsize)
        self._nbytes = math.prod(self._block)
        self._shape = dataset.shape
        sizes = zip(self._shape, dataset.chunks, strict=True)
        self._holds_rows = all(size == chunk for at, (size, chunk) in enumerate(sizes) if at != axis)

    def read(self, start: int, stop: int) -> Array:
        # docstring inherited
        selected = [slice(0, size) for size in self._shape]
        selected[self._axis] = slice(start, stop)
        is_one = self._holds_rows and start < stop and start // self.per_chunk == (stop - 1) // self.per_chunk
        out: Array | None = None
        for part in [selected] if is_one else self._dataset.iter_chunks(tuple(selected)):
            data = self._read_part(part)
            if [*part] == selected:
                return data.reshape(-1)
            if out is None:
                out = np.empty((*(one.stop - one.start for one in selected), self._block[-1]), "u1")
            out[
                tuple(slice(one.start - of.start, one.stop - of.start) for one, of in zip(part, selected, strict=True))
            ] = data
        return np.empty(0, "u1") if out is None else out.reshape(-1)

    def _read_part(self, part: Sequence[slice]) -> Array:
        """Return the bytes of a part of one chunk; raises ValueError if they are damaged."""
        corner = tuple(one.start - one.start % size for one, size in zip(part, self._block, strict=False))
        mask, raw = stored_chunk(self._dataset, corner) or (~0, b"")
        if any(code == DEFLATE and mask & 1 << at for at, code in enumerate(self._filters)):  # or not compressed
            shape = tuple(one.stop - one.start for one in part)
            return self._read_box(tuple(one.start for one in part), shape).reshape(*shape, -1)
        data = self._decoded(raw, mask)
        return data.reshape(self._block)[
            tuple(slice(one.start - at, one.stop - at) for one, at in zip(part, corner, strict=True))
        ]

    def _decoded(self, raw: bytes, mask: int) -> Array:
        """Return the bytes of a chunk, without the filters that `mask` says were left out; never more than a chunk has."""
        data, left = undone(raw, self._filters, mask, self._nbytes, self._block[-1])
        assert not left
        if len(data) != self._nbytes:
            raise ValueError(f"its chunk has {len(data)} bytes instead of {self._nbytes}")
        return np.frombuffer(data, "u1")
