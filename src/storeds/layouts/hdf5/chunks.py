"""Reads rows of HDF5 datasets through libhdf5: a batch decompresses each chunk once."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from storeds.errors import UnavailableError
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.protocols import Array

__all__ = ["ChunkedRows"]

_LONGEST_READ = 32 << 20  # bytes that one call reads for several rows
_MOST_CHUNKS = 1 << 12  # that one call reads, because libhdf5 takes some KiB of memory for each
_SMALL_CHUNK = 1 << 16  # bytes; reading such a chunk takes no longer than reading one of its rows

Span = tuple[int, int]


class ChunkedRows:
    """Rows in chunks, or of a virtual dataset, or of a type that libhdf5 converts.

    All rows of a chunk that a batch needs are read by one call. The chunks used most recently are kept decompressed, up to
    ``cache_bytes``. Thread-safe: libhdf5's lock serialises the calls.

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
        self._files, self._is_virtual, self._path = files, dataset.is_virtual, dataset.file.filename
        self._descriptor = files.descriptor(self._path)
        self._available = os.fstat(self._descriptor).st_size
        self._per_chunk = int(dataset.chunks[axis]) if dataset.chunks else 1
        self._is_filtered = dataset.id.get_create_plist().get_nfilters() > 0
        nbytes, limit = self._per_chunk * size, files.settings.cache_bytes
        self._is_cached = self._per_chunk > 1 and nbytes <= (limit if self._is_filtered else min(limit, _SMALL_CHUNK))
        self._slices = _Slices(dataset, memory, size, axis)
        # lru_cache has no lock that a fork could copy locked. It does not refer to `self`, so the chunks go with the rows.
        self._chunk = functools.lru_cache(limit // max(nbytes, 1))(self._slices.read)

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        # docstring inherited
        out = [data for group in self._groups(spans) for data in self._read_group(group)]
        if self._is_virtual:
            self._files.check_sources()
        if os.fstat(self._descriptor).st_size < self._available:  # libhdf5 returns zeros from behind the end
            raise UnavailableError(
                f"{self._files.url}: {self._path} was cut short; copy it again and open the store again"
            )
        return out

    def _groups(self, spans: Sequence[Span]) -> list[list[Span]]:
        groups: list[list[Span]] = []
        for span in spans:
            if groups and self._joins(groups[-1], span):
                groups[-1].append(span)
            else:
                groups.append([span])
        return groups

    def _joins(self, group: list[Span], span: Span) -> bool:
        """Whether one call reads a group of spans and the next one: they share a chunk, or it begins where they end."""
        end = group[-1][1]
        shares = (end - 1) // self._per_chunk == (span[1] - 1) // self._per_chunk
        if self._is_cached:
            return shares
        is_near = span[0] == end or (self._is_filtered and shares)
        return is_near and (span[1] - group[0][0]) * self.size <= _LONGEST_READ

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
        if self._is_cached and stop <= first + self._per_chunk:
            chunk: Array = self._chunk(first, min(first + self._per_chunk, self.count))
            return chunk[(start - first) * self.size :]
        step = _MOST_CHUNKS * self._per_chunk
        parts = [self._slices.read(at, min(at + step, stop)) for at in range(start, stop, step)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, "u1")])


class _Slices:
    """Ranges of rows of a dataset."""

    def __init__(self, dataset: h5py.Dataset, memory: Any, size: int, axis: int) -> None:
        self._dataset, self._memory, self._size, self._axis = dataset, memory, size, axis

    def read(self, start: int, stop: int) -> Array:
        """Return the bytes of rows."""
        data = np.empty((stop - start) * self._size, "u1")
        if data.size:
            shape, space = self._dataset.shape, self._dataset.id.get_space()
            origin, box = [0] * len(shape), list(shape)
            if shape:
                origin[self._axis], box[self._axis] = start, stop - start
                space.select_hyperslab(tuple(origin), tuple(box))
            memory_space = h5py.h5s.create_simple(tuple(box)) if shape else space
            self._dataset.id.read(memory_space, space, data, mtype=self._memory)
        return data
