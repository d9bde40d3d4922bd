"""Reads chunks of HDF5 datasets at their place in the file and undoes their filters, outside of libhdf5's lock."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from typing import Any

import h5py
import numpy as np

from storeds.backends._hdf5_rows import FlatRows
from storeds.layouts._hdf5_files import Hdf5Files
from storeds.layouts._hdf5_filters import Filters
from storeds.protocols import Array

__all__ = ["Chunks"]

# Before, libhdf5 could tell no addresses, or left out the block of text that a file may begin with (HDF5 #3003).
_TELLS_ADDRESSES = h5py.version.hdf5_version_tuple >= (1, 14, 4)
_AHEAD = 64  # to decompress a chunk takes about as long as to look up the addresses of so many
_ODD = 4096  # bytes that filters may add to a chunk, beyond as many as it has
_MOST = 1 << 30  # bytes of a chunk


class Chunks:
    """The chunks of a dataset whose rows lie end to end in them.

    What of it is left to libhdf5 is None here: what is missing, what looks odd, and all of it until looking up the
    addresses pays.

    Parameters
    ----------
    descriptor : int
        Of the file.
    dataset : h5py.Dataset
    filters : Filters
    size : int
        Bytes of a row.
    axis : int
        Along which rows are counted.
    cache_bytes : int
        How many bytes of decompressed chunks to keep.
    """

    def __init__(
        self, descriptor: int, dataset: h5py.Dataset, filters: Filters, size: int, axis: int, cache_bytes: int
    ) -> None:
        self._descriptor, self._dataset, self._filters, self._axis = descriptor, dataset, filters, axis
        self._rows, self._size = dataset.shape[axis], size
        self.per_chunk = int(dataset.chunks[axis])
        self.nbytes = self.per_chunk * size
        self.is_unfiltered = len(filters) == 0
        self._count = -(-self._rows // self.per_chunk)
        self._asked = 0
        self._lock = threading.Lock()
        self._table: Array | None = None
        self._kept = _Kept(cache_bytes)

    @classmethod
    def of(cls, files: Hdf5Files, dataset: h5py.Dataset, size: int, axis: int) -> Chunks | None:
        """Return the chunks of a dataset whose values need no conversion, or None if only libhdf5 can read them."""
        shape, chunk = dataset.shape, dataset.chunks
        if not _TELLS_ADDRESSES or not chunk or not 0 < chunk[axis] * size <= _MOST:
            return None
        if any(chunk[at] != shape[at] for at in range(len(shape)) if at != axis):
            return None  # a row lies in several chunks, or not in one piece
        filters = Filters.of(dataset)
        if filters is None:
            return None
        descriptor = files.descriptor(dataset.file.filename)
        return cls(descriptor, dataset, filters, size, axis, files.settings.cache_bytes)

    def flat(self, chunk: int) -> FlatRows | None:
        """Return the rows of a chunk of a dataset without filters; their numbers begin at 0."""
        place = self._place(chunk) if self.is_unfiltered else None
        if place is None:
            return None
        return FlatRows(self._descriptor, place[0], self._size, self.per_chunk, None)

    def load(self, start: int, stop: int) -> bytes | memoryview | None:
        """Return the bytes of rows that lie in one chunk; raises ValueError where they are damaged."""
        chunk = start // self.per_chunk
        data = self._kept.get(chunk)
        if data is None:
            place = self._place(chunk)
            if place is None:
                return None
            offset, stored, skipped = place
            raw = os.pread(self._descriptor, stored, offset)
            if len(raw) != stored:
                raise ValueError(f"a chunk has {len(raw)} bytes in the file, and should have {stored}")
            data = self._filters.undo(raw, skipped, self.nbytes)
            if len(data) > self.nbytes:
                return None  # libhdf5 cuts it; too few bytes are not for libhdf5: it reads on behind them, or crashes
            self._kept.put(chunk, data)
        if stop - start == self.per_chunk:
            return data
        first = chunk * self.per_chunk
        return memoryview(data)[(start - first) * self._size : (stop - first) * self._size]

    def lacks(self, chunk: int) -> bool:
        """Whether a chunk would have to be decompressed."""
        return not self.is_unfiltered and chunk not in self._kept

    def _place(self, chunk: int) -> tuple[int, int, int] | None:
        """Return offset in the file, size in the file and filter mask of a chunk."""
        table = self._table
        if table is None:
            with self._lock:
                self._asked += 1
                if self._table is None and self._asked * _AHEAD >= self._count:
                    self._table = self._find()
                table = self._table
        if table is None:
            return None
        offset, stored, skipped = table[chunk].item()
        return (offset, stored, skipped) if stored else None

    def _find(self) -> Array:
        table = np.zeros(self._count, [("offset", "u8"), ("size", "u4"), ("skipped", "u4")])
        axis, per_chunk, available = self._axis, self.per_chunk, os.fstat(self._descriptor).st_size

        def note(chunk: Any) -> None:
            place, skipped, offset, stored = chunk
            if stored <= 2 * self.nbytes + _ODD and offset + stored <= available:
                table[place[axis] // per_chunk] = offset, stored, skipped

        # What a damaged file does not tell is left to libhdf5, which says what is wrong with it.
        with contextlib.suppress(OSError, RuntimeError, ValueError, IndexError):
            self._dataset.id.chunk_iter(note)
        if self.is_unfiltered:
            table["size"][table["size"] != self.nbytes] = 0
        elif self._rows % self.per_chunk and table["size"][-1] == self.nbytes:
            table["size"][-1] = 0  # a last chunk that is not full may, by a setting of its own, have no filter applied
        return table


class _Kept:
    """The chunks that were used last, up to so many bytes. For all threads of a process."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._chunks: OrderedDict[int, bytes | memoryview] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._chunks

    def get(self, chunk: int) -> bytes | memoryview | None:
        with self._lock:
            data = self._chunks.get(chunk)
            if data is not None:
                self._chunks.move_to_end(chunk)
            return data

    def put(self, chunk: int, data: bytes | memoryview) -> None:
        if len(data) > self._most:
            return
        with self._lock:
            if chunk not in self._chunks:
                self._chunks[chunk] = data
                self._bytes += len(data)
            while self._bytes > self._most:
                self._bytes -= len(self._chunks.popitem(last=False)[1])
