"""Reads chunks of HDF5 datasets by file offset and undoes their filters without libhdf5, so without its lock.

Fletcher-32 checksums come from numcodecs. Two filters are ours: ``zlib`` is called with a limit, because
``numcodecs.Zlib`` decompresses without one, and our shuffle was 1.1 to 1.6 times as fast as numcodecs'.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, TypeVar

import h5py
import numpy as np

from storeds.backends.hdf5.rows import FlatRows
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.protocols import Array

__all__ = ["ChunkedRows", "Chunks", "Filters", "WholeDataset", "parallel_map"]


_DEFLATE, _SHUFFLE, _FLETCHER32 = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_CHECKSUM = 4  # bytes, stored behind the bytes that they cover


class Filters:
    """The filters of a dataset, as pairs (filter code, first parameter), in the order of writing."""

    def __init__(self, filters: list[tuple[int, int]]) -> None:
        self._filters = filters
        self._steps: dict[int, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._filters)

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Filters | None:
        """Return the filters of a dataset, or None if only libhdf5 can undo them."""
        properties = dataset.id.get_create_plist()
        found = [properties.get_filter(number) for number in range(properties.get_nfilters())]
        codes = [code for code, _, _, _ in found]
        if not {_DEFLATE, _SHUFFLE, _FLETCHER32}.issuperset(codes) or len(set(codes)) < len(codes):
            return None
        if _FLETCHER32 in codes and find_spec("numcodecs") is None:
            return None
        return cls([(code, values[0] if values else 1) for code, _, values, _ in found])

    def undo(self, data: bytes, skipped: int, size: int) -> bytes | memoryview:
        """Return the unfiltered bytes of a chunk: `size`, or more if the file holds too many.

        Parameters
        ----------
        data : bytes
            The chunk as it lies in the file.
        skipped : int
            Filter mask of the chunk: bit 0 is set if the first filter was not applied, and so on.
        size : int

        Raises
        ------
        ValueError
            The bytes are damaged, fewer than `size`, or would decompress to more than twice `size`.
            Decompression stops there, so a damaged chunk cannot use up the memory.
        """
        steps = self._steps.get(skipped)
        if steps is None:
            steps = self._steps[skipped] = self._undo_steps(skipped)
        out: bytes | memoryview = data
        for code, number in steps:
            if code == _DEFLATE:
                out = _inflate(out, size + number)
            elif code == _SHUFFLE:
                out = _unshuffle(out, number)
            else:
                out = _verify_checksum(out)
        if len(out) < size:
            raise ValueError(f"a chunk has {len(out)} bytes, expected {size}")
        return out

    def _undo_steps(self, skipped: int) -> list[tuple[int, int]]:
        """Return (code, number) per filter, last filter first.

        The number is, for deflate, how many checksum bytes earlier filters added; for shuffle, the item size.
        """
        added, steps = 0, []
        for number, (code, width) in enumerate(self._filters):
            if not skipped >> number & 1:
                steps.append((code, added if code == _DEFLATE else width))
                added += _CHECKSUM if code == _FLETCHER32 else 0
        return steps[::-1]


def _inflate(data: bytes | memoryview, size: int) -> bytes:
    decompressor = zlib.decompressobj()
    try:
        out = decompressor.decompress(data, size + 1)  # with one spare byte, zlib reaches the end in the same call
        if len(out) > size:
            out += decompressor.decompress(decompressor.unconsumed_tail, size)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be decompressed: {error}") from error
    if len(out) > 2 * size or not decompressor.eof:
        raise ValueError(f"a chunk does not decompress to at most {2 * size} bytes")
    return out


def _unshuffle(data: bytes | memoryview, width: int) -> bytes | memoryview:
    """Undo HDF5's shuffle: first bytes of all items, then all second bytes, …, then a rest shorter than an item."""
    count = len(data) // width if width > 1 else 0
    if count < 2:
        return data
    planes = np.frombuffer(data, np.uint8)
    out = np.empty(len(data), np.uint8)
    items = out[: count * width].reshape(count, width)
    for at in range(width):  # several times as fast as a transposed copy
        items[:, at] = planes[at * count : (at + 1) * count]
    out[count * width :] = planes[count * width :]
    return out.data


def _verify_checksum(data: bytes | memoryview) -> memoryview:
    """Return `data` without its checksum; raises ValueError if they do not match."""
    from numcodecs import Fletcher32  # type: ignore[import-untyped]  # optional, and slow to import

    view = memoryview(data)
    body, (first, second, third, fourth) = view[:-_CHECKSUM], view[-_CHECKSUM:]
    try:
        Fletcher32().decode(view)
    except RuntimeError:
        # libhdf5 before 1.6.3 swapped the bytes of both sums, and newer versions still accept that.
        try:
            Fletcher32().decode(b"".join((body, bytes((second, first, fourth, third)))))
        except RuntimeError:
            raise ValueError("a chunk does not match its checksum") from None
    return body


# Older libhdf5 gives no chunk addresses, or ignores a user block at the start of the file (HDF5 #3003).
_HAS_CHUNK_ADDRESSES = h5py.version.hdf5_version_tuple >= (1, 14, 4)
_CHUNKS_PER_LOOKUP = 64  # looking up this many addresses takes about as long as decompressing one chunk
_FILTER_OVERHEAD = 4096  # bytes that filters may add to a chunk, beyond doubling it
_LARGEST_CHUNK = 1 << 30  # bytes


class Chunks:
    """The chunks of a dataset, each of which holds whole rows.

    Methods return None for what libhdf5 has to read: chunks that were never written or look damaged, and all of them
    until looking up the addresses pays. Thread-safe.

    Parameters
    ----------
    descriptor : int
        Of the file.
    dataset : h5py.Dataset
    filters : Filters
    size : int
        Bytes of a row.
    axis : int
        The axis of the rows.
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
        self._requests = 0
        self._lock = threading.Lock()
        self._table: Array | None = None
        self._cache = _ChunkCache(cache_bytes)

    @classmethod
    def of(cls, files: Hdf5Files, dataset: h5py.Dataset, size: int, axis: int) -> Chunks | None:
        """Return the chunks of a dataset whose values need no conversion, or None if only libhdf5 can read them."""
        shape, chunk = dataset.shape, dataset.chunks
        if not _HAS_CHUNK_ADDRESSES or not chunk or not 0 < chunk[axis] * size <= _LARGEST_CHUNK:
            return None
        if any(chunk[at] != shape[at] for at in range(len(shape)) if at != axis):
            return None  # a row lies in several chunks, or not in one piece
        filters = Filters.of(dataset)
        if filters is None:
            return None
        descriptor = files.descriptor(dataset.file.filename)
        return cls(descriptor, dataset, filters, size, axis, files.settings.cache_bytes)

    def flat_rows(self, chunk: int) -> FlatRows | None:
        """Return the rows of a chunk without filters, numbered from 0."""
        address = self._address(chunk) if self.is_unfiltered else None
        return address and FlatRows(self._descriptor, address[0], self._size, self.per_chunk)

    def load(self, start: int, stop: int) -> bytes | memoryview | None:
        """Return the bytes of rows of one chunk; raises ValueError if they are damaged."""
        chunk = start // self.per_chunk
        data = self._cache.get(chunk)
        if data is None:
            address = self._address(chunk)
            if address is None:
                return None
            offset, stored, skipped = address
            raw = os.pread(self._descriptor, stored, offset)
            if len(raw) != stored:
                raise ValueError(f"a chunk has {len(raw)} bytes in the file, expected {stored}")
            data = self._filters.undo(raw, skipped, self.nbytes)
            if len(data) > self.nbytes:
                return None  # libhdf5 cuts it; it must not get too few bytes, behind which it reads on or crashes
            self._cache.put(chunk, data)
        if stop - start == self.per_chunk:
            return data
        first = chunk * self.per_chunk
        return memoryview(data)[(start - first) * self._size : (stop - first) * self._size]

    def needs_decompression(self, chunk: int) -> bool:
        """Whether reading a chunk means decompressing it."""
        return not self.is_unfiltered and chunk not in self._cache

    def _address(self, chunk: int) -> tuple[int, int, int] | None:
        """Return offset in the file, size in the file and filter mask of a chunk."""
        table = self._table
        if table is None:
            with self._lock:
                self._requests += 1
                if self._table is None and self._requests * _CHUNKS_PER_LOOKUP >= self._count:
                    self._table = self._load_table()
                table = self._table
        if table is None:
            return None
        offset, stored, skipped = table[chunk].item()
        return (offset, stored, skipped) if stored else None

    def _load_table(self) -> Array:
        table = np.zeros(self._count, [("offset", "u8"), ("size", "u4"), ("skipped", "u4")])
        axis, per_chunk, available = self._axis, self.per_chunk, os.fstat(self._descriptor).st_size

        def note(chunk: Any) -> None:
            position, skipped, offset, stored = chunk
            if stored <= 2 * self.nbytes + _FILTER_OVERHEAD and offset + stored <= available:
                table[position[axis] // per_chunk] = offset, stored, skipped

        # In a damaged file libhdf5 reads the chunks that this misses, and reports what is wrong.
        with contextlib.suppress(OSError, RuntimeError, ValueError, IndexError):
            self._dataset.id.chunk_iter(note)
        if self.is_unfiltered:
            table["size"][table["size"] != self.nbytes] = 0
        elif self._rows % self.per_chunk and table["size"][-1] == self.nbytes:
            table["size"][-1] = 0  # H5Pset_chunk_opts leaves a partial last chunk unfiltered without saying so
        return table


class _ChunkCache:
    """The most recently used chunks, up to a number of bytes. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
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
        if len(data) > self._limit:
            return
        with self._lock:
            if chunk not in self._chunks:
                self._chunks[chunk] = data
                self._bytes += len(data)
            while self._bytes > self._limit:
                self._bytes -= len(self._chunks.popitem(last=False)[1])


J = TypeVar("J")
R = TypeVar("R")

_RECENT = 0.25  # seconds
_MEMORY = 256 << 20  # bytes that the helper threads of one read may hold together

# Thread id → when it last read. Without a lock: each operation is atomic, and a stale entry costs only time.
_readers: dict[int, float] = {}
_process = os.getpid()


def _begin_in_child() -> None:
    global _process
    _process = os.getpid()
    _readers.clear()


os.register_at_fork(after_in_child=_begin_in_child)


def parallel_map(function: Callable[[J], R], jobs: Sequence[J], *, serial: bool, needs: int = 0) -> list[R]:
    """Return ``[function(job) for job in jobs]``, in threads that end with the call.

    Worker processes start no helpers, since other workers use the CPUs. Neither does a process in which as many
    threads read as it has CPUs.

    Parameters
    ----------
    function : callable
    jobs : sequence
    serial : bool
        Start no helpers: they would cost more than they save.
    needs : int
        Bytes that a thread holds during a job. The helpers together hold at most 256 MiB.
    """
    _readers[threading.get_ident()] = time.monotonic()
    # C code that forks runs no hooks, and may leave the locks of concurrent.futures locked in the child.
    serial = serial or os.getpid() != _process
    helpers = 0 if serial else min(len(jobs) - 1, _cpus_per_reader() - 1, _MEMORY // max(needs, 1))
    if helpers > 0:
        threads = helpers + 1
        # RuntimeError: the limit of threads is reached, the interpreter ends, or a job raises it, below once more.
        with contextlib.suppress(RuntimeError), ThreadPoolExecutor(threads, "storeds-chunks") as pool:
            # One task for each thread: a task for each job costs 5 % of the time of small chunks.
            found = list(pool.map(lambda at: [function(job) for job in jobs[at::threads]], range(threads)))
            return [found[at % threads][at // threads] for at in range(len(jobs))]
    return [function(job) for job in jobs]


def _cpus_per_reader() -> int:
    """Return how many CPUs each thread has that read within the last quarter of a second: it is about to read again."""
    if multiprocessing.parent_process() is not None:
        return 1
    since = time.monotonic() - _RECENT
    for reader, last in list(_readers.items()):
        if last < since:
            _readers.pop(reader, None)
    return len(os.sched_getaffinity(0)) // max(len(_readers), 1)


_LONGEST_READ = 32 << 20  # bytes that one read may take beyond a single row
_PARALLEL = 1 << 19  # bytes; decompressing fewer is not worth starting a thread
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


class WholeDataset:
    """All rows of a dataset as a single row."""

    checksum = None
    count = 1

    def __init__(self, rows: ChunkedRows) -> None:
        self._rows, self.size = rows, rows.size * rows.count

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        return [self._rows.read([(0, self._rows.count)])[0] for _ in spans]
