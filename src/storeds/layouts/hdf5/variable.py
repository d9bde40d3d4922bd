"""Reads items of variable length of HDF5 datasets, after comparing the lengths that the file claims with its size.

A dataset of such items holds references: a length, the address of a collection in the global heap, and a number there.
libhdf5 allocates what a length claims before it looks at the collection.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from storeds.backends.hdf5.headers import compact_bytes
from storeds.backends.hdf5.inflation import filters_of, stored_chunk, undone
from storeds.errors import FormatError
from storeds.layouts.hdf5.chunks import check_claim
from storeds.layouts.hdf5.files import Hdf5Files, file_of
from storeds.protocols import Array

__all__ = ["VariableRows"]

_LENGTH = 4  # bytes at the beginning of a reference
_NUMBER = 4  # bytes at its end
_CHUNKS = 1 << 10  # whose lengths are kept: 4 bytes for each item


class VariableRows:
    """Bytes, texts or arrays of numbers of variable length: a dataset with one dimension, or of one item.

    Parameters
    ----------
    files : Hdf5Files
    dataset : h5py.Dataset
    """

    def __init__(self, files: Hdf5Files, dataset: h5py.Dataset) -> None:
        self.count = int(dataset.size)
        self._dataset, self._url = dataset, files.url
        self._descriptor = files.descriptor(file_of(dataset))
        self._available = os.fstat(self._descriptor).st_size
        is_text = h5py.check_string_dtype(dataset.dtype) is not None
        self._itemsize = 1 if is_text else np.dtype(h5py.check_vlen_dtype(dataset.dtype)).itemsize
        addresses, _ = dataset.file.id.get_create_plist().get_sizes()
        self._wide = _LENGTH + addresses + _NUMBER
        self._offset = None if dataset.chunks else dataset.id.get_offset()
        self._chunk = functools.lru_cache(_CHUNKS)(functools.partial(_lengths_in_chunk, files, dataset, self._wide))
        self._check_references = functools.partial(check_claim, files, dataset)

    def read(self, positions: Sequence[int]) -> list[bytes | ValueError]:
        """Return the bytes of the items at ascending positions, with a ValueError in place of each bad one.

        Raises FormatError if they have more bytes together than the file, because many references lead to one item.
        """
        self._check_references(len(positions) * self._wide)
        out: list[bytes | ValueError] = []
        total = 0
        for start, stop in _runs(positions):
            for item in self._read_run(start, stop):
                total += 0 if isinstance(item, ValueError) else len(item)
                if total > self._available:
                    raise FormatError(
                        f"{self._url}: items of dataset {self._dataset.name} share their bytes, and would take more memory "
                        "than the file has bytes; write each item by itself, or read fewer records at once"
                    )
                out.append(item)
        return out

    def _read_run(self, start: int, stop: int) -> Iterator[bytes | ValueError]:
        """Read consecutive items with one call, or each with its own if that fails."""
        try:
            self._check(start, stop)
            items = list(map(_bytes_of, self._load(start, stop)))
        except (OSError, RuntimeError, ValueError) as error:
            if stop - start == 1:
                yield ValueError(f"it cannot be read: {error}")
                return
            for at in range(start, stop):
                yield from self._read_run(at, at + 1)
        else:
            yield from items

    def _load(self, start: int, stop: int) -> list[Any]:
        if self._dataset.ndim == 1:
            return [*self._dataset[start:stop]]
        item = self._dataset[()]
        while isinstance(item, np.ndarray) and item.dtype.hasobject:
            item = item.reshape(-1)[0]
        return [item]

    def _check(self, start: int, stop: int) -> None:
        """Raise ValueError if items claim more bytes than the file has."""
        claimed = self._claimed(start, stop) * self._itemsize
        if claimed > self._available:
            raise ValueError(f"its reference claims {claimed:,} bytes, more than its file has")

    def _claimed(self, start: int, stop: int) -> int:
        """Return how many numbers or bytes the references of items claim together."""
        if self._offset is not None:
            size = (stop - start) * self._wide
            return _sum(_lengths(os.pread(self._descriptor, size, self._offset + start * self._wide), self._wide))
        if not self._dataset.chunks:
            stored = compact_bytes(self._descriptor, self._dataset)
            return _sum(_lengths(stored, self._wide)[start:stop])
        step = self._dataset.chunks[0]
        firsts = range(start - start % step, stop, step)
        return sum(_sum(self._chunk(first)[max(start - first, 0) : stop - first]) for first in firsts)


def _sum(lengths: Array) -> int:
    return int(lengths.sum(dtype=np.int64))


def _lengths_in_chunk(files: Hdf5Files, dataset: h5py.Dataset, wide: int, start: int) -> Array:
    """Return the lengths in the references of the chunk that begins at an item, none if it was never written.

    Raises ValueError if it is damaged.
    """
    count = math.prod(dataset.chunks)
    stored = stored_chunk(dataset, (start, *(0 for _ in dataset.chunks[1:])))
    if stored is None:  # never written
        return np.empty(0, "<u4")
    check_claim(files, dataset, count * wide)
    mask, raw = stored
    data, left = undone(raw, filters_of(dataset), mask, count * wide, wide)
    data = _undone_by_library(dataset, raw, mask, wide) if left else data
    if len(data) != count * wide:
        raise ValueError(f"its chunk has {len(data)} bytes instead of {count * wide}")
    return _lengths(data, wide)


def _undone_by_library(dataset: h5py.Dataset, raw: bytes, mask: int, wide: int) -> bytes:
    """Let libhdf5 undo the filters of a chunk of references: it does so for a dataset of another type in memory."""
    own, properties = dataset.id.get_create_plist(), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(dataset.chunks)
    for number in range(own.get_nfilters()):
        if not mask & 1 << number:
            properties.set_filter(*own.get_filter(number)[:3])
    references, space = h5py.h5t.create(h5py.h5t.OPAQUE, wide), h5py.h5s.create_simple(dataset.chunks)
    data = np.empty(math.prod(dataset.chunks) * wide, "u1")
    with h5py.File("references", "w", driver="core", backing_store=False) as file:
        copy = h5py.h5d.create(file.id, b"x", references, space, properties)
        copy.write_direct_chunk((0,) * len(dataset.chunks), raw)
        copy.read(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=references)
    return data.tobytes()


def _lengths(references: bytes, wide: int) -> Array:
    """Return the lengths in references, uint32."""
    if len(references) % wide:
        raise ValueError("its reference is cut short")
    lengths: Array = np.frombuffer(references, "u1").reshape(-1, wide)[:, :_LENGTH].copy().view("<u4")[:, 0]
    return lengths


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs (start, stop) of consecutive numbers in ascending `positions`."""
    runs: list[tuple[int, int]] = []
    for at in positions:
        if runs and runs[-1][1] == at:
            runs[-1] = runs[-1][0], at + 1
        else:
            runs.append((at, at + 1))
    return runs


def _bytes_of(value: Any) -> bytes:
    """Return the bytes of an item of variable length, as in the file."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return value if isinstance(value, bytes) else value.tobytes()
