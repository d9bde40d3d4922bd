"""Reads chunks of HDF5 datasets at their place in the file and undoes their filters, outside of libhdf5's lock."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import h5py
import numpy as np

from storeds.backends.hdf5.rows import FlatRows
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.protocols import Array

__all__ = ["Chunks", "Filters", "spread"]


_DEFLATE, _SHUFFLE, _FLETCHER32 = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_UNDONE = {_DEFLATE, _SHUFFLE, _FLETCHER32}
_SUM = 4  # bytes that a checksum takes, behind the bytes that it is of
_BLOCK = 1 << 16  # words; the sums of so many stay far below 64 bits


class Filters:
    """The filters of a dataset, as pairs of a filter's number and its first parameter, in the order of writing."""

    def __init__(self, filters: list[tuple[int, int]]) -> None:
        self._filters = filters
        self._steps: dict[int, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._filters)

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Filters | None:
        """Return the filters of a dataset, or None if only libhdf5 can undo them."""
        plan = dataset.id.get_create_plist()
        found = [plan.get_filter(number) for number in range(plan.get_nfilters())]
        codes = [code for code, _, _, _ in found]
        if not _UNDONE.issuperset(codes) or len(set(codes)) < len(codes):
            return None
        return cls([(code, values[0] if values else 1) for code, _, values, _ in found])

    def undo(self, data: bytes, skipped: int, size: int) -> bytes | memoryview:
        """Return the bytes of a chunk that lies in the file as `data`: `size`, or more where the file has too many.

        Parameters
        ----------
        data : bytes
        skipped : int
            Filter mask of the chunk: bit 0 is set where the first filter was not applied, and so on.
        size : int

        Raises
        ------
        ValueError
            The bytes are damaged, fewer than `size`, or decompress to more than twice as many; no more are ever made by that.
        """
        steps = self._steps.get(skipped)
        if steps is None:
            steps = self._steps[skipped] = self._undone(skipped)
        out: bytes | memoryview = data
        for code, number in steps:
            if code == _DEFLATE:
                out = _inflate(out, size + number)
            elif code == _SHUFFLE:
                out = _unshuffle(out, number)
            else:
                out = _checked(out)
        if len(out) < size:
            raise ValueError(f"a chunk has {len(out)} bytes, not {size}")
        return out

    def _undone(self, skipped: int) -> list[tuple[int, int]]:
        """Return the filters, last one first: of deflate, how many bytes were added before; of shuffle, the items' size."""
        added, steps = 0, []
        for number, (code, width) in enumerate(self._filters):
            if not skipped >> number & 1:
                steps.append((code, added if code == _DEFLATE else width))
                added += _SUM if code == _FLETCHER32 else 0
        return steps[::-1]


def _inflate(data: bytes | memoryview, size: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        out = inflating.decompress(data, size + 1)  # with one byte to spare, the end is found in the same call
        if len(out) > size:
            out += inflating.decompress(inflating.unconsumed_tail, size)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be decompressed: {error}") from error
    if len(out) > 2 * size or not inflating.eof:
        raise ValueError(f"a chunk's compressed bytes do not end within {2 * size} bytes")
    return out


def _unshuffle(data: bytes | memoryview, width: int) -> bytes | memoryview:
    """Put bytes, all first ones of the items before all second ones, back together; what is no whole item comes last."""
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


def _checked(data: bytes | memoryview) -> memoryview:
    """Return what the checksum behind it is of; raises ValueError where it is not."""
    body, stored = memoryview(data)[:-_SUM], bytes(data[-_SUM:])
    first, second = _sums(body)
    # As libhdf5 does: versions before 1.6.3 wrote both the other way round.
    if all(stored != first.to_bytes(2, way) + second.to_bytes(2, way) for way in ("big", "little")):
        raise ValueError("a chunk does not match its checksum")
    return body


def _sums(data: memoryview) -> tuple[int, int]:
    """Return the two Fletcher sums over `data` as little-endian words.

    HDF5 sums big-endian ones. To swap the bytes of a word is to multiply it by 256, modulo 65,535, so its sums are these
    with their bytes swapped: written big-endian, these are the bytes of those written little-endian.
    """
    words = np.frombuffer(data if len(data) % 2 == 0 else bytes(data) + b"\0", "<u2")
    first = second = 0
    for start in range(0, len(words), _BLOCK):
        running = np.cumsum(words[start : start + _BLOCK], dtype=np.uint64)
        second += first * len(running) + int(running.sum())
        first += int(running[-1])
    return _folded(first), _folded(second)


def _folded(total: int) -> int:
    # Carries are added back in, so that only a sum of nothing is 0.
    return (total - 1) % 0xFFFF + 1 if total else 0


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


J = TypeVar("J")
R = TypeVar("R")

_RECENT = 0.25  # seconds
_BUDGET = 256 << 20  # bytes that the threads which one read starts may hold, however many CPUs there are

# When each thread read last. No lock: the operations are atomic, and a number that is off costs only time.
_readers: dict[int, float] = {}
os.register_at_fork(after_in_child=_readers.clear)


def spread(function: Callable[[J], R], jobs: Sequence[J], *, alone: bool, needs: int = 0) -> list[R]:
    """Return ``[function(job) for job in jobs]``.

    Parameters
    ----------
    function : callable
    jobs : sequence
    alone : bool
        Work in the calling thread only, because starting others would cost more than they save. Worker processes always
        do: the others have their CPUs. So do threads where as many read as there are CPUs.
    needs : int
        Bytes that a thread holds while it does a job: the more, the fewer are started.
    """
    _readers[threading.get_ident()] = time.monotonic()
    helpers = 0 if alone else min(len(jobs) - 1, _share_of_cpus() - 1, _BUDGET // max(needs, 1))
    return [function(job) for job in jobs] if helpers < 1 else _share(function, jobs, helpers)


def _share_of_cpus() -> int:
    """Return how many CPUs there are for each thread that read just now: it will again, also if it does not now."""
    if multiprocessing.parent_process() is not None:
        return 1
    since = time.monotonic() - _RECENT
    for reader, last in list(_readers.items()):
        if last < since:
            _readers.pop(reader, None)
    return len(os.sched_getaffinity(0)) // max(len(_readers), 1)


def _share(function: Callable[[J], R], jobs: Sequence[J], helpers: int) -> list[R]:
    todo, done, failed = deque(range(len(jobs))), dict[int, R](), list[BaseException]()

    def take() -> int | None:
        try:
            return todo.popleft()
        except IndexError:
            return None

    def work() -> None:
        try:
            for at in iter(take, None):
                done[at] = function(jobs[at])
        except BaseException as error:  # raised again in the thread that reads
            failed.append(error)
            todo.clear()

    threads = _started(work, helpers)
    try:
        work()
    finally:
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return [done[at] for at in range(len(jobs))]


def _started(work: Callable[[], None], count: int) -> list[threading.Thread]:
    threads: list[threading.Thread] = []
    for _ in range(count):
        thread = threading.Thread(target=work, name="storeds-chunks")
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached, or the interpreter is about to end
            break
        threads.append(thread)
    return threads
