"""Memory for batches: reused within a process (`BufferPool`), or shared by a worker with the training process.

Fresh shared memory costs a worker more than filling it does, page by page, and the training process pays again for each
page that it frees. So a worker keeps some shared buffers. The training process gets a tensor in such a buffer. When
nothing refers to that tensor or a view of it any more, it counts the release in the buffer itself, where the worker sees
it. docs/decisions/0019-workers-reuse-shared-memory.md has the measurements.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing.process
import os
import resource
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import get_worker_info

from storeds.protocols import Array
from storeds.transforms.functional import DeferredImage

__all__ = [
    "MAX_INLINE",
    "BufferPool",
    "ReceivedBuffers",
    "ScaledInPool",
    "SharedBatchTensor",
    "SharedBufferPool",
    "batch_memory",
    "fits_inline",
    "send_inline",
    "use_buffer_pool",
]

# --- Memory that one process reuses ---


def _references(arrays: Sequence[Array], at: int) -> int:
    return sys.getrefcount(arrays[at])


_UNUSED = _references([np.empty(1, np.uint8)], 0)


class BufferPool:
    """Makes tensors from a few arrays, and reuses an array when nothing refers to its tensor any more. Thread-safe.

    A tensor made from an array refers to it, and so does every view of that tensor. So the array's reference count shows
    whether anything can still see it. A pickle or copy of the pool is empty.

    Parameters
    ----------
    limit : int
        The number of arrays to keep. Tensors that are kept beyond that get memory of their own.
    smallest : int
        Bytes from which memory is reused.
    """

    def __init__(self, limit: int, smallest: int = 1 << 20) -> None:
        self._limit, self._smallest = limit, smallest
        self._arrays: list[Array] = []
        self._lock = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor in memory that nothing else uses."""
        size = math.prod(shape) * dtype.itemsize
        array = self._acquire(size) if size >= self._smallest else None
        if array is None:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        return torch.from_numpy(array[:size]).view(dtype).view(tuple(shape))

    def _acquire(self, size: int) -> Array | None:
        # Never wait: a fork may have copied the lock while another thread held it.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._unused(size)
        finally:
            self._lock.release()

    def _unused(self, size: int) -> Array | None:
        for at in range(len(self._arrays)):
            if _references(self._arrays, at) == _UNUSED:
                if not size <= len(self._arrays[at]) <= 2 * size:
                    self._arrays[at] = np.empty(size, np.uint8)
                return self._arrays[at]
        if len(self._arrays) < self._limit:
            self._arrays.append(np.empty(size, np.uint8))
            return self._arrays[-1]
        return None

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int, int]]:
        return BufferPool, (self._limit, self._smallest)


class ScaledInPool:
    """Scales deferred images in memory that the process reuses; applies `finish` to other values.

    Fresh memory for every image costs a worker of a plain DataLoader about as much as resizing it.
    """

    def __init__(self, finish: Callable[[Any], Any] | None) -> None:
        self._finish = finish
        self._pool = BufferPool(limit=_MAX_SAMPLES, smallest=1 << 18)

    def __call__(self, value: Any) -> Any:
        if isinstance(value, DeferredImage):
            return value.scaled(self._pool.empty)
        return value if self._finish is None else self._finish(value)


_MAX_SAMPLES = 64  # a usual batch
_thread = threading.local()


@contextmanager
def use_buffer_pool(pool: BufferPool | None) -> Iterator[None]:
    """Make the batches of this thread in memory of `pool`."""
    _thread.pool = pool
    try:
        yield
    finally:
        _thread.pool = None


def batch_memory(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return an uninitialised tensor for a whole batch in reused memory.

    That is memory of this thread's pool or, in a worker process, shared memory; None where there is neither.
    """
    pool: BufferPool | None = getattr(_thread, "pool", None)
    return _shared_batch_memory(shape, dtype) if pool is None else pool.empty(shape, dtype)


# --- Tensors that carry how they are sent ---


class _TaggedTensor(torch.Tensor):
    """Base of tensors that carry how they are sent. Results, copies and pickles are plain, with memory of their own."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own subclasses do

    def plain(self) -> torch.Tensor:
        """Return the same tensor in the same memory, as a plain one."""
        return self.as_subclass(torch.Tensor)

    def reduce_copy(self) -> Any:
        """Return how torch sends a copy; for a tensor that was changed in place since it was made."""
        copied = self.plain().detach().clone().requires_grad_(self.requires_grad)
        return reduce_tensor(copied)  # type: ignore[no-untyped-call]  # torch leaves it without types

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copied = memo[id(self)] = self.plain().clone()
        return copied

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.plain().clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch leaves it without types


MAX_INLINE = 1 << 14  # bytes; more would fill the pipe, which workers write to in turns, and is faster through a buffer


class _InlineTensor(_TaggedTensor):
    """A tensor whose bytes are sent through the pipe, instead of a reference to shared memory."""


def fits_inline(size: int) -> bool:
    """Return whether a tensor of `size` bytes is sent inline, so that it need not be in shared memory."""
    return size <= MAX_INLINE


def send_inline(tensor: torch.Tensor) -> torch.Tensor:
    """Return a small tensor so that this worker process sends it inline; any other tensor unchanged."""
    if get_worker_info() is None or type(tensor) is not torch.Tensor or not _is_inline(tensor):
        return tensor
    return tensor.as_subclass(_InlineTensor)


def _is_inline(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not plain or not fits_inline(tensor.nbytes) or not tensor.is_contiguous():
        return False
    shared = tensor.is_shared()  # type: ignore[no-untyped-call]  # torch leaves it without types
    return not (shared or tensor.is_conj() or tensor.is_neg())


def _reduce_inline(tensor: _InlineTensor) -> Any:
    plain = tensor.plain()
    if not _is_inline(plain):
        return tensor.reduce_copy()
    return _receive_inline, (plain.reshape(-1).view(torch.uint8).numpy().tobytes(), tuple(plain.shape), plain.dtype)


def _receive_inline(data: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


ForkingPickler.register(_InlineTensor, _reduce_inline)


class SharedBatchTensor(_TaggedTensor):
    """A whole batch in a worker, in a shared buffer."""

    _buffer: SharedBuffer


# --- In a worker ---

# A worker keeps these buffers: for prefetched batches, the one in use, and some that the training loop keeps longer.
_MAX_LARGE, _MAX_SMALL, _LARGE = 8, 16, 4 << 20  # beyond so many bytes a buffer is large
_HEADER = 64  # bytes before a batch, which keep it aligned; they hold the words below
_SENT, _RELEASED, _RETIRED, _KNOWN, _DROPPED, _RECEIVED = range(6)
_serials = itertools.count()


class SharedBuffer:
    """Shared memory for one batch, with counters of how often a tensor in it was sent and released."""

    def __init__(self, size: int) -> None:
        storage = torch.UntypedStorage._new_shared(_HEADER + size)  # type: ignore[no-untyped-call]  # torch leaves it without types
        self.whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
        self.words, self.bytes = _parts(self.whole)
        self.sender = os.getpid(), next(_serials)
        self._array: weakref.ref[Array] | None = None
        self._sent_before = 0

    @property
    def is_retired(self) -> bool:
        """Whether a process was forked while it held a batch in here; the child's release cannot be observed."""
        return bool(self.words[_RETIRED])

    @property
    def is_in_use(self) -> bool:
        """Whether this process refers to a tensor in here, or to a view of one."""
        return self._array is not None and self._array() is not None

    @property
    def is_lost(self) -> bool:
        """Whether a tensor is gone without having been sent: something else may have been made of it."""
        return self._array is not None and not self.is_in_use and bool(self.words[_SENT] == self._sent_before)

    def is_free(self) -> bool:
        return not self.is_in_use and bool(self.words[_SENT] == self.words[_RELEASED])

    def drop(self) -> None:
        """Mark the buffer as one that the training process need not keep."""
        self.words[_DROPPED] = 1

    def acquire(self, shape: Sequence[int], dtype: torch.dtype) -> SharedBatchTensor:
        """Return a tensor in here; it and every view of it refer to an array whose end shows the release."""
        array = self.bytes[: math.prod(shape) * dtype.itemsize]
        self._array, self._sent_before = weakref.ref(array), int(self.words[_SENT])
        tensor = torch.from_numpy(array).view(dtype).view(tuple(shape)).as_subclass(SharedBatchTensor)
        tensor._buffer = self
        return tensor


def _parts(whole: torch.Tensor) -> tuple[Array, Array]:
    memory = whole.numpy()
    return memory[:_HEADER].view(np.int64), memory[_HEADER:]


class SharedBufferPool:
    """The shared buffers of a worker process. Thread-safe; for one process.

    It stops for good, and keeps its memory, once a batch was not sent as it is: torch moves other tensors made from it
    into other memory, and the release of an array that was made from it before cannot be observed.
    """

    def __init__(self) -> None:
        self._buffers: list[SharedBuffer] = []
        self._lock = threading.Lock()
        self._stopped = False

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> SharedBatchTensor | None:
        """Return an uninitialised tensor that nothing else uses; None if all buffers are in use, or it is too small."""
        size = math.prod(shape) * dtype.itemsize
        if fits_inline(size):
            return None
        with self._lock:  # until the tensor refers to the buffer
            self._stopped = self._stopped or any(buffer.is_lost for buffer in self._buffers)
            buffer = None if self._stopped else self._free_buffer(size)
            return None if buffer is None else buffer.acquire(shape, dtype)

    def _free_buffer(self, size: int) -> SharedBuffer | None:
        for buffer in [buffer for buffer in self._buffers if buffer.is_retired]:
            self._drop(buffer)
        alike = [buffer for buffer in self._buffers if _is_large(len(buffer.bytes)) == _is_large(size)]
        free = [buffer for buffer in alike if buffer.is_free()]
        fitting = [buffer for buffer in free if len(buffer.bytes) >= size]
        if fitting:
            return min(fitting, key=lambda buffer: len(buffer.bytes))
        if free:
            self._drop(free[0])
        elif len(alike) >= (_MAX_LARGE if _is_large(size) else _MAX_SMALL):
            return None
        self._buffers.append(SharedBuffer(size))
        return self._buffers[-1]

    def _drop(self, buffer: SharedBuffer) -> None:
        buffer.drop()
        self._buffers.remove(buffer)


def _is_large(size: int) -> bool:
    return size > _LARGE


_worker_pool: tuple[int, SharedBufferPool] | None = None


def _shared_batch_memory(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return a tensor for a whole batch in a shared buffer if this is a worker process with a free one, else None."""
    global _worker_pool
    # With the other strategy, file_system, files in shared memory would outlive the worker.
    if get_worker_info() is None or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]  # the same
        return None
    if _worker_pool is None or _worker_pool[0] != os.getpid():
        _worker_pool = os.getpid(), SharedBufferPool()
    return _worker_pool[1].empty(shape, dtype)


def _reduce(tensor: SharedBatchTensor) -> Any:
    """Send the buffer that a tensor lies in, or a copy of a tensor that was changed in place into another view."""
    plain, buffer = tensor.plain(), tensor._buffer
    if not plain.is_contiguous() or plain.data_ptr() != buffer.bytes.ctypes.data or plain.requires_grad:
        return tensor.reduce_copy()
    buffer.words[_SENT] += 1
    # Opening the buffer's file again would take longer than filling a small batch.
    if buffer.words[_KNOWN] and not buffer.words[_DROPPED]:
        return _receive_known, (*buffer.sender, tuple(plain.shape), plain.dtype)
    return _receive, (*buffer.sender, buffer.whole, tuple(plain.shape), plain.dtype)


ForkingPickler.register(SharedBatchTensor, _reduce)


# --- In the training process ---

_MAX_RECEIVED = 256  # buffers; each takes a file descriptor


class _Worker:
    """A worker process, and its buffers by serial number: their words and their memory."""

    def __init__(self, process: BaseProcess) -> None:
        self.process = weakref.ref(process)
        self.buffers: dict[int, tuple[Array, Array]] = {}


class ReceivedBuffers:
    """The buffers of each worker, kept until the worker ends or drops them. Thread-safe.

    A word of the buffer, which both processes see, says whether it is kept here. Only the process that started a worker
    keeps its buffers, because only that process sees the worker end.

    Parameters
    ----------
    known : int
        The word that says that a buffer is kept here.
    is_over : callable
        Tells from a buffer's words that nothing will arrive in it any more.
    """

    def __init__(self, *, known: int, is_over: Callable[[Array], bool]) -> None:
        self._is_known, self._is_over = known, is_over
        self._workers: dict[int, _Worker] = {}

    def __len__(self) -> int:
        return sum(len(worker.buffers) for worker in list(self._workers.values()))

    def add(self, pid: int, serial: int, words: Array, memory: Array) -> None:
        """Keep a buffer of a child process, unless there are too many."""
        process = _child(pid)
        if process is None:
            return
        worker = self._workers.get(pid)
        # The process id may have belonged to another worker, which has ended.
        if worker is None or worker.process() is not process:
            worker = self._workers[pid] = _Worker(process)
            # A loader's iterator keeps its Process objects: when one is gone, nothing of that worker arrives any more.
            weakref.finalize(process, self._end, pid, worker).atexit = False
        for old, (others, _) in list(worker.buffers.items()):
            if self._is_over(others):
                worker.buffers.pop(old, None)
        if len(self) < _max_received():
            worker.buffers[serial] = words, memory
            words[self._is_known] = 1

    def find(self, pid: int, serial: int) -> tuple[Array, Array]:
        """Return the words and the memory of a buffer; raises RuntimeError if another process keeps it."""
        try:
            return self._workers[pid].buffers[serial]
        except KeyError:
            raise RuntimeError(
                f"a batch of the worker process {pid} lies in memory that only the process which started the worker has: "
                "to send a batch to others too, send a copy, tensor.clone()"
            ) from None

    def clear(self) -> None:
        """Forget all buffers; for a forked child, whose parent receives the batches."""
        for worker in self._workers.values():
            worker.buffers.clear()
        self._workers.clear()

    def _end(self, pid: int, worker: _Worker) -> None:
        if self._workers.get(pid) is worker:
            del self._workers[pid]
        worker.buffers.clear()


def _child(pid: int) -> BaseProcess | None:
    # Not active_children(): it reaps ended workers before torch can report the signal that killed one.
    children: set[BaseProcess] = getattr(multiprocessing.process, "_children", set())
    return next((child for child in list(children) if _pid(child) == pid), None)


def _pid(child: BaseProcess) -> int | None:
    try:
        return child.pid
    except ValueError:  # it was closed meanwhile
        return None


def _max_received() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_RECEIVED if soft == resource.RLIM_INFINITY else min(_MAX_RECEIVED, soft // 4)


_numbers = itertools.count()
_in_use: dict[int, Array] = {}  # the words of the buffers of batches in use


def _is_over(words: Array) -> bool:
    """Return whether a buffer was dropped, and everything that was sent in it has arrived."""
    return bool(words[_DROPPED] and words[_SENT] == words[_RECEIVED])


_received = ReceivedBuffers(known=_KNOWN, is_over=_is_over)


def _receive(worker: int, serial: int, whole: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a plain tensor in a buffer that is new to this process."""
    words, memory = _parts(whole)
    if not words[_DROPPED]:
        _received.add(worker, serial, words, memory)
    return _batch(words, memory, shape, dtype)


def _receive_known(worker: int, serial: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a plain tensor in a buffer that this process keeps."""
    return _batch(*_received.find(worker, serial), shape, dtype)


def _batch(words: Array, memory: Array, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor whose end, and that of its last view, is counted in the buffer."""
    words[_RECEIVED] += 1
    array = memory[: math.prod(shape) * dtype.itemsize]
    number = next(_numbers)
    _in_use[number] = words
    # Not at exit: then no worker uses the buffer again.
    weakref.finalize(array, _release, number, os.getpid()).atexit = False
    return torch.from_numpy(array).view(dtype).view(shape)


def _release(number: int, process: int) -> None:
    # A process that was forked while the batch was in use releases only its copy.
    words = _in_use.pop(number, None) if os.getpid() == process else None
    if words is not None:
        words[_RELEASED] += 1


def _retire_in_use() -> None:
    # The child holds these batches too, and its release cannot be observed.
    for words in list(_in_use.values()):
        words[_RETIRED] = 1


def _forget() -> None:
    _in_use.clear()
    _received.clear()


os.register_at_fork(before=_retire_in_use, after_in_child=_forget)
