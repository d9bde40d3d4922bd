"""Reads the bytes of foreign datasets as they lie in the file: by file offset if possible, else through libhdf5.

Nothing is converted: libhdf5 would cut a string at its first NUL, and a picture stored as a string holds NULs.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from storeds.backends.hdf5.rows import FlatRows, Rows
from storeds.errors import FormatError
from storeds.layouts.hdf5.chunks import Chunks, parallel_map
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.protocols import Array

__all__ = ["ChunkedRows", "TableRows", "bytes_of", "mislabels_byte_order", "raw_rows", "variable_items"]

_LONGEST_READ = 32 << 20  # bytes that one read may take beyond a single row
_PARALLEL = 1 << 19  # bytes; decompressing fewer is not worth starting a thread
_SMALL_VALUE = 1 << 18  # bytes; for a smaller value, looking up its chunks costs more than it saves
_SMALL_CHUNK = 1 << 12  # bytes; values in smaller chunks have too many for a loop in Python
_MOST_CHUNKS = 1 << 12  # that one call reads, because libhdf5 takes some KiB of memory for each
_COPIES = 3  # of each chunk that a thread holds: stored, decompressed, unshuffled


class ChunkedRows:
    """Rows in chunks. One read serves all rows of a chunk, so a batch decompresses each chunk once.

    Without `chunks`, libhdf5 reads everything; with them, only the chunks that they do not return.
    """

    checksum = None

    def __init__(
        self,
        files: Hdf5Files,
        dataset: h5py.Dataset,
        memory: Any,
        size: int,
        count: int,
        axis: int = 0,
        chunks: Chunks | None = None,
    ) -> None:
        self._files, self._dataset, self._memory, self._axis = files, dataset, memory, axis
        self.size, self.count = size, count
        self._chunks = chunks
        self._per_chunk = dataset.chunks[axis] if dataset.chunks and dataset.shape else 1

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        if self._chunks is not None:
            return self._read_chunks(self._chunks, spans)
        out = [data for group in self._groups(spans) for data in self._slices(group)]
        if self._dataset.is_virtual:
            self._files.check_sources()
        return out

    def _read_chunks(self, chunks: Chunks, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        per_chunk, size = chunks.per_chunk, chunks.nbytes
        if not all(0 < stop - start <= per_chunk - start % per_chunk for start, stop in spans):
            return self._read_across(per_chunk, spans)
        groups = self._groups(spans)
        serial = size * sum(chunks.needs_decompression(group[0][0] // per_chunk) for group in groups) < _PARALLEL
        return [
            data for found in parallel_map(self._slices, groups, serial=serial, needs=_COPIES * size) for data in found
        ]

    def _read_across(self, per_chunk: int, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        cut = [
            [(max(start, at), min(stop, at + per_chunk)) for at in range(start - start % per_chunk, stop, per_chunk)]
            if start < stop
            else []
            for start, stop in spans
        ]
        found = iter(self.read([piece for pieces in cut for piece in pieces]))
        return [_whole([next(found) for _ in pieces]) for pieces in cut]

    def _slices(self, group: list[tuple[int, int]]) -> list[bytes]:
        start, stop = group[0][0], group[-1][1]
        rows = None if self._chunks is None else self._chunks.flat_rows(start // self._per_chunk)
        if rows is not None:
            first = start - start % self._per_chunk
            return rows.read([(low - first, high - first) for low, high in group])
        try:
            data = self._load(start, stop)
        except (OSError, RuntimeError, ValueError):
            if self._chunks is not None or len(group) == 1:
                return [b""] * len(group)
            # Rows in other chunks than the damaged one are still good.
            return [self._slices([span])[0] for span in group]
        if len(group) == 1:
            return [bytes(data)]
        return [bytes(data[(low - start) * self.size : (high - start) * self.size]) for low, high in group]

    def _groups(self, spans: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        groups: list[list[tuple[int, int]]] = []
        for span in spans:
            last = groups[-1] if groups else None
            if last is not None and self._joins(last, span):
                last.append(span)
            else:
                groups.append([span])
        return groups

    def _joins(self, group: list[tuple[int, int]], span: tuple[int, int]) -> bool:
        same_chunk = (group[-1][1] - 1) // self._per_chunk == span[0] // self._per_chunk
        if self._chunks is not None:
            return same_chunk
        return (same_chunk or span[0] == group[-1][1]) and (span[1] - group[0][0]) * self.size <= _LONGEST_READ

    def _load(self, start: int, stop: int) -> bytes | memoryview:
        found = self._chunks.load(start, stop) if self._chunks is not None else None
        return self._load_by_library(start, stop) if found is None else found

    def _load_by_library(self, start: int, stop: int) -> bytes:
        data = np.empty((stop - start) * self.size, "u1")
        if not data.size:
            return b""
        step = _MOST_CHUNKS * self._per_chunk if self._dataset.chunks else stop - start
        for at in range(start, stop, step):
            end = min(at + step, stop)
            self._fill(data[(at - start) * self.size : (end - start) * self.size], at, end)
        return data.tobytes()

    def _fill(self, data: Array, start: int, stop: int) -> None:
        shape, space = self._dataset.shape, self._dataset.id.get_space()
        if shape:
            before, after = shape[: self._axis], shape[self._axis + 1 :]
            box = (*before, stop - start, *after)
            space.select_hyperslab((*(0 for _ in before), start, *(0 for _ in after)), box)
            memory = h5py.h5s.create_simple(box)
        else:
            memory = space
        self._dataset.id.read(memory, space, data, mtype=self._memory)


def _whole(pieces: list[bytes]) -> bytes:
    if len(pieces) == 1:
        return pieces[0]
    return b"".join(pieces) if all(pieces) else b""


class TableRows:
    """One column of a table."""

    checksum = None

    def __init__(self, table: Rows, offset: int, size: int) -> None:
        self._table, self._offset, self.size = table, offset, size
        self.count = table.count

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        whole, begin, end = self._table.size, self._offset, self._offset + self.size
        return [
            np.frombuffer(data, "u1").reshape(-1, whole)[:, begin:end].tobytes() if len(data) % whole == 0 else b""
            for data in self._table.read(spans)
        ]


def raw_rows(
    files: Hdf5Files, dataset: h5py.Dataset, dtype: np.dtype[Any], *, whole: bool = False, axis: int = 0
) -> Rows:
    """Return the rows of a dataset of values of fixed size; with `whole`, the dataset as a single row.

    Rows lie along `axis`; the axes before it have length 1.
    """
    shape = dataset.shape[axis:]
    count, inner = (1, shape) if whole or not shape else (shape[0], shape[1:])
    size = math.prod(inner) * dtype.itemsize
    stored = dataset.id.get_type()
    memory = stored if dtype.kind in "SV" else h5py.h5t.py_create(dtype, logical=True)
    if stored.get_size() != dtype.itemsize and dtype.kind in "SV":
        raise FormatError(f"{files.url}: dataset {dataset.name} has the type {dtype}, laid out in an unusual way")
    equal = bool(stored.equal(memory))
    if dataset.external:
        return _external_rows(files, dataset, size, count, flat=equal)
    offset = None if dataset.is_virtual or dataset.chunks else dataset.id.get_offset()
    if offset is not None and equal:
        path = dataset.file.filename
        return _flat_rows(files, dataset, path, offset, size, count)
    if whole and shape:
        size //= max(shape[0], 1)
        pays = equal and size * shape[0] >= _SMALL_VALUE and _chunk_bytes(dataset, dtype) >= _SMALL_CHUNK
        chunks = Chunks.of(files, dataset, size, 0) if pays else None
        return _WholeDataset(ChunkedRows(files, dataset, memory, size, shape[0], 0, chunks))
    chunks = Chunks.of(files, dataset, size, axis) if equal else None
    return ChunkedRows(files, dataset, memory, size, count, axis, chunks)


def _chunk_bytes(dataset: h5py.Dataset, dtype: np.dtype[Any]) -> int:
    return math.prod(dataset.chunks or ()) * dtype.itemsize


class _WholeDataset:
    """All rows of a dataset as a single row."""

    checksum = None
    count = 1

    def __init__(self, rows: ChunkedRows) -> None:
        self._rows, self.size = rows, rows.size * rows.count

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        return [self._rows.read([(0, self._rows.count)])[0] for _ in spans]


def _flat_rows(files: Hdf5Files, dataset: h5py.Dataset, path: str, offset: int, size: int, count: int) -> FlatRows:
    descriptor = files.descriptor(path)
    available = os.fstat(descriptor).st_size
    if offset + size * count > available:
        raise FormatError(
            f"{files.url} is cut short: dataset {dataset.name} ends at byte {offset + size * count} of {path}, which has "
            f"{available}; copy it again"
        )
    return FlatRows(descriptor, offset, size, count, None)


def _external_rows(files: Hdf5Files, dataset: h5py.Dataset, size: int, count: int, *, flat: bool) -> FlatRows:
    name, segments = dataset.name, dataset.external
    if len(segments) > 1 or not flat:
        raise FormatError(
            f"{files.url}: dataset {name} lies in {len(segments)} external files; gather them with h5repack"
        )
    folder = os.path.dirname(dataset.file.filename)
    path = files.resolve(segments[0][0], folder, f"the external storage of dataset {name}")
    return _flat_rows(files, dataset, path, segments[0][1], size, count)


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs (start, stop) of consecutive numbers in ascending `positions`."""
    runs: list[tuple[int, int]] = []
    for at in positions:
        if runs and runs[-1][1] == at:
            runs[-1] = runs[-1][0], at + 1
        else:
            runs.append((at, at + 1))
    return runs


def bytes_of(value: Any) -> bytes:
    """Return the bytes of an item of variable length, as in the file."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()


@functools.cache
def mislabels_byte_order(base: np.dtype[Any]) -> bool:
    """Whether h5py labels big-endian items of variable length as native without swapping their bytes (3.16 does)."""
    with h5py.File("probe", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("x", (1,), h5py.vlen_dtype(base))
        dataset[0] = np.ones(1, base)
        return bool(dataset[0][0] != 1)


def variable_items(dataset: Any, positions: Sequence[int]) -> list[Any]:
    """Return items of variable length, with one read for each run of positions, or for each item if that fails."""
    out: list[Any] = []
    for start, stop in _runs(positions):
        try:
            out.extend(dataset[start:stop])
        except (OSError, RuntimeError, ValueError) as error:
            if stop - start > 1:
                out.extend(item for at in range(start, stop) for item in variable_items(dataset, [at]))
            else:
                out.append(ValueError(f"it cannot be read: {error}"))
    return out
