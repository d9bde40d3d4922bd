"""`BufferPool`: memory for the tensors of batches, which is used again when nothing refers to it any more."""

from __future__ import annotations

import fcntl
import functools
import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import rebuild_storage_fd, reduce_storage

from storeds.protocols import Array

__all__ = ["Buffer", "BufferPool", "Empty", "empty_batch", "grown", "map_file", "tensor_at"]

Empty: TypeAlias = Callable[[Sequence[int], torch.dtype], torch.Tensor]
"""Returns an uninitialised tensor of a shape and a dtype."""


def tensor_at(memory: Array, start: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a memory; it and every view of it refer to one array, which refers to the memory."""
    array = memory[start : start + math.prod(shape) * dtype.itemsize]
    if not len(array):  # NumPy's stride of nothing may be 0, which torch does not view as another dtype
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return torch.from_numpy(array).view(dtype).view(tuple(shape))


class Buffer:
    """Memory of one process. Every tensor in it refers to `memory`, so that its reference count tells who uses it."""

    def __init__(self, size: int) -> None:
        self.memory: Array = np.empty(size, np.uint8)

    @property
    def references(self) -> int:
        return sys.getrefcount(self.memory)

    @property
    def is_used(self) -> bool:
        """Whether this process has a tensor in it, or a view of one."""
        return self.references > _UNUSED

    def acquire(self) -> bool:
        """Take this memory for a batch; return False if anything uses it."""
        return not self.is_used

    def fits(self, size: int) -> bool:
        """Return whether a tensor of so many bytes has room, and does not waste more than half."""
        return size <= len(self.memory) <= 2 * size


_UNUSED = Buffer(1).references


class BufferPool:
    """Some buffers, each of which is used again when nothing refers to it any more. Thread-safe.

    Parameters
    ----------
    limit : int
        The number of buffers to keep. Tensors that are kept beyond that get memory of their own.
    smallest : int
        Bytes from which memory is reused.

    Notes
    -----
    A pickle or copy of the pool is empty.
    """

    def __init__(self, limit: int, smallest: int = 1 << 20) -> None:
        self._limit, self._smallest = limit, smallest
        self._buffers: list[Any] = []
        self._lock = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor in memory that nothing else uses."""
        size = math.prod(shape) * dtype.itemsize
        memory = self._acquired(size, lambda buffer: buffer.memory) if size >= self._smallest else None
        if memory is None:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        return tensor_at(memory, 0, shape, dtype)

    def _acquired(self, size: int, get: Callable[[Any], Any]) -> Any:
        """Return what `get` takes from a buffer that nothing used; None if there may be no more of them."""
        # Never wait: a fork may have copied the lock while another thread held it.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            for buffer in self._buffers:
                if buffer.fits(size) and buffer.acquire():
                    return get(buffer)
            place = len(self._buffers)
            if place == self._limit:
                place = next((at for at, buffer in enumerate(self._buffers) if buffer.acquire()), -1)
            if place < 0:
                return None
            self._buffers[place : place + 1] = [self._made(place, size)]
            return get(self._buffers[place])
        finally:
            self._lock.release()

    def _made(self, place: int, size: int) -> Buffer:
        """Return a new buffer for a place in the list, acquired."""
        return Buffer(size)

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int, int]]:
        return BufferPool, (self._limit, self._smallest)


# --- Memory of a worker of a plain DataLoader ---

_MAX_BUFFERS = 32  # of one worker
_SMALLEST_SENT = 1 << 16  # bytes; PyTorch sends smaller tensors by a copy
_PAGES = 1 << 16  # bytes: a file grows in steps of so many


class _SentBuffer(Buffer):
    """Anonymous memory that PyTorch sends without a copy.

    Each use opens its file once more and locks it. PyTorch sends that descriptor with the tensor, and keeps it open as long
    as the tensor lives. Only when all processes have closed it, also those that were forked or killed, the kernel drops the
    lock, and the buffer can be locked again. In no process does another hold the memory.
    """

    def __init__(self, size: int) -> None:
        self.files = [os.memfd_create("storeds-buffer")]
        weakref.finalize(self, _close_all, self.files).atexit = False
        self.memory = grown(self.files[0], size)
        self.address = self.memory.ctypes.data

    def acquire(self) -> bool:
        # docstring inherited
        if self.is_used:
            return False
        _close_all(self.files[1:])
        del self.files[1:]
        lock = _locked(self.files[0])
        self.files += () if lock is None else (lock,)
        return lock is not None


class _SentPool(BufferPool):
    """The buffers of a worker. None where it can open no files: then PyTorch copies a batch to send it."""

    def __init__(self) -> None:
        super().__init__(_MAX_BUFFERS, _SMALLEST_SENT)
        ForkingPickler.register(torch.UntypedStorage, self._reduced)

    def _acquired(self, size: int, get: Callable[[Any], Any]) -> Any:
        try:
            return super()._acquired(size, get)
        except OSError:  # no /proc, or too many open files
            return None

    def _made(self, place: int, size: int) -> Buffer:
        buffer = _SentBuffer(size)
        buffer.acquire()
        return buffer

    def _reduced(self, storage: torch.UntypedStorage) -> tuple[Any, ...]:
        """Return what PyTorch sends: the locked descriptor of a tensor in a buffer; of other memory what it always sends."""
        address = storage.data_ptr()
        lock = next((each.files[1] for each in self._buffers if each.address == address and each.is_used), None)
        if lock is None or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]  # torch leaves it without types
            return reduce_storage(storage)  # type: ignore[no-any-return, no-untyped-call]  # torch leaves it without types
        return rebuild_storage_fd, (type(storage), DupFd(lock), storage.nbytes())


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _locked(file: int) -> int | None:
    """Return a new descriptor of a file, which it locks; None if another one has the lock."""
    lock = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def grown(file: int, size: int) -> Array:
    """Return the memory of a file, at least so many bytes."""
    try:
        held = os.fstat(file).st_size
        if held < size:
            held = -(-size // _PAGES) * _PAGES
            os.posix_fallocate(file, 0, held)  # fails here, where writing would end the process
        return map_file(file, held)
    except OSError as error:
        raise RuntimeError(
            f"no memory is left for a batch of {size:,} bytes, which a worker shares with the training process "
            f"({error}): use smaller batches, fewer workers or a smaller prefetch_factor, or raise the memory limit"
        ) from error


def map_file(file: int, size: int) -> Array:
    """Return the bytes of a file, in memory that other processes may map too."""
    return np.frombuffer(mmap.mmap(file, size), np.uint8) if size else np.empty(0, np.uint8)


# --- Memory for callers of storeds.collate ---


@functools.lru_cache(maxsize=1)
def _pool_of(process: int) -> BufferPool:
    """Return the pool of this process; a forked child has another one."""
    # Without workers one batch is in use, and the next one is made.
    return BufferPool(limit=2) if parent_process() is None else _SentPool()


def empty_batch(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in memory of this process; a child process, such as a worker, sends it without a copy."""
    return _pool_of(os.getpid()).empty(shape, dtype)
