"""Reads boxes of arrays in HDF5 files: only the bytes around them, and each chunk that they touch once."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence

import h5py
import numpy as np

from storeds._utils.files import read_into
from storeds.backends.hdf5.inflation import filters_of
from storeds.errors import FormatError, UnavailableError
from storeds.layouts.hdf5.chunks import _Slices, check_claim, inflated_chunk, is_gzip, moved
from storeds.layouts.hdf5.files import Hdf5Files, file_of
from storeds.protocols import Array, Box
from storeds.records.parts import Spans, StoredArray

__all__ = ["BoxedArray", "Boxes", "boxes_of"]

_PAGE = 4096  # bytes; skipping fewer of them costs more than reading them

_Fill = Callable[[tuple[int, ...], Box, Array], None]
"""Reads a part of the chunk at a corner into the bytes of an array, shape (*its sides, bytes of a value)."""


class BoxedArray(StoredArray):
    """An array in a file, or a row of a dataset."""

    def __init__(self, boxes: Boxes, dtype: str, row: int | None = None) -> None:
        self.shape = boxes.shape if row is None else boxes.shape[1:]
        self._boxes, self._dtype, self._row = boxes, dtype, row

    def read(self, boxes: Sequence[Box]) -> list[Array | ValueError]:
        # docstring inherited
        if self._row is None:
            return self._boxes.read(boxes, self._dtype)
        row = slice(self._row, self._row + 1)
        found = self._boxes.read([(row, *box) for box in boxes], self._dtype)
        return [each if isinstance(each, ValueError) else each[0] for each in found]


def boxes_of(files: Hdf5Files, name: str, path: str) -> Boxes:
    """Return the boxes of a dataset of the file at `path`."""
    return Boxes(files, files.dataset_in(path, name))


class Boxes:
    """The boxes of a dataset of numbers.

    Contiguous bytes are read by file offset. Chunks that gzip compresses are inflated here, and those used most recently stay
    decompressed, up to ``cache_bytes``. libhdf5 reads others. Thread-safe.
    """

    def __init__(self, files: Hdf5Files, dataset: h5py.Dataset) -> None:
        self.shape: tuple[int, ...] = dataset.shape
        self._dtype, self._url, self._path = dataset.dtype, files.url, file_of(dataset)
        self._descriptor = files.descriptor(self._path)
        self._available = os.fstat(self._descriptor).st_size
        in_chunks, self._fill = self._how(files, dataset)
        self._chunked = dataset if in_chunks else None  # contiguous arrays need no object of HDF5

    def _how(self, files: Hdf5Files, dataset: h5py.Dataset) -> tuple[bool, _Fill]:
        """Return whether boxes are read chunk by chunk, and what reads them, which does not refer to `self`."""
        memory = h5py.h5t.py_create(self._dtype, logical=True)
        library = functools.partial(_from_library, _Slices(dataset, memory))
        if is_gzip(dataset, memory):
            block = (*dataset.chunks, self._dtype.itemsize)
            check_claim(files, dataset, math.prod(block))
            kept = max(files.settings.cache_bytes // math.prod(block), 1)
            chunk = functools.partial(inflated_chunk, dataset, filters_of(dataset), block)
            return True, functools.partial(_from_gzip, functools.lru_cache(kept)(chunk), library)
        offset = None if dataset.chunks else dataset.id.get_offset()
        if offset is None or not dataset.id.get_type().equal(memory):
            return False, library
        if offset + dataset.nbytes > self._available:
            raise FormatError(
                f"{self._url} is cut short: dataset {dataset.name} ends at byte {offset + dataset.nbytes} of {self._path}, "
                f"which has {self._available}; copy it again"
            )
        return False, functools.partial(_from_file, self._descriptor, offset, self.shape)

    def read(self, boxes: Sequence[Box], dtype: str) -> list[Array | ValueError]:
        """Return the values of each box in a new array of that dtype, with a ValueError in place of damaged ones."""
        found = [np.empty((*(one.stop - one.start for one in box), self._dtype.itemsize), "u1") for box in boxes]
        damaged: set[int] = set()
        for corner, number, part in sorted(self._pieces(boxes), key=lambda piece: piece[:2]):
            out = found[number][moved(part, [one.start for one in boxes[number]])]
            try:
                self._fill(corner, part, out)
            except (OSError, RuntimeError, ValueError):
                damaged.add(number)
        if os.fstat(self._descriptor).st_size < self._available:  # libhdf5 returns zeros from behind the end
            raise UnavailableError(f"{self._url}: {self._path} was cut short; copy it again and open the store again")
        return [
            ValueError("its bytes are cut short or damaged") if number in damaged else self._values(data, dtype)
            for number, data in enumerate(found)
        ]

    def _pieces(self, boxes: Sequence[Box]) -> Iterator[tuple[tuple[int, ...], int, Box]]:
        """Yield the parts of boxes, each with the corner of its chunk and the number of its box."""
        sizes = (1,) * len(self.shape) if self._chunked is None else self._chunked.chunks
        for number, box in enumerate(boxes):
            is_empty = any(one.start == one.stop for one in box)
            for part in () if is_empty else [box] if self._chunked is None else self._chunked.iter_chunks(box):
                yield tuple(one.start - one.start % size for one, size in zip(part, sizes, strict=True)), number, part

    def _values(self, data: Array, dtype: str) -> Array:
        if self._dtype.kind == "b":
            truths: Array = data[..., 0] != 0
            return truths
        values: Array = data.view(self._dtype)[..., 0].astype(dtype, copy=False)
        return values


def _from_library(library: _Slices, corner: tuple[int, ...], part: Box, out: Array) -> None:
    """Let libhdf5 read a part."""
    if out.flags.c_contiguous:
        library.box(part, out)
    else:
        out[...] = library.box(part)


def _from_gzip(
    chunk: Callable[[tuple[int, ...]], Array | None], library: _Fill, corner: tuple[int, ...], part: Box, out: Array
) -> None:
    """Read a part of a chunk that `chunk` inflates, or of one that is not compressed."""
    data = chunk(corner)
    if data is None:
        library(corner, part, out)
    else:
        out[...] = data[moved(part, corner)]


def _from_file(
    descriptor: int, offset: int, shape: Sequence[int], corner: tuple[int, ...], box: Box, out: Array
) -> None:
    """Read a box of an array that begins at an offset of a file; raises ValueError if the file is cut short.

    Reads what lies between rows of the box too, where that is less than a page.
    """
    itemsize = out.shape[-1]
    starts, wide, sides, strides = Spans.of(shape, [(one.start, one.stop) for one in box], itemsize, _PAGE)
    buffer = memoryview(bytearray(wide))  # which stays in the cache of the processor
    rows: Array = np.ndarray((*sides, itemsize), "u1", buffer, strides=(*strides, 1))
    for at, start in zip(np.ndindex(*out.shape[: len(shape) - len(sides)]), (starts + offset).tolist(), strict=True):
        if read_into(buffer, descriptor, start) != wide:
            raise ValueError("its bytes are cut short")
        out[at] = rows
