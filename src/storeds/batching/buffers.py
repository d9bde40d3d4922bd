"""Memory that one process uses again for the tensors of batches: `BufferPool`, and `SharedPool` in plain workers."""

from __future__ import annotations

import fcntl
import functools
import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import rebuild_storage_fd, reduce_storage

from storeds.protocols import Array

__all__ = ["BufferPool", "SharedPool", "as_tensor", "grown", "map_file", "shared_pool", "tensor_at"]


def tensor_at(memory: Array, start: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a memory; it and every view of it refer to one array, which is made here."""
    return as_tensor(memory[start : start + math.prod(shape) * dtype.itemsize], shape, dtype)


def as_tensor(array: Array, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor whose bytes are those of an array."""
    if not len(array):  # NumPy's stride of nothing may be 0, which torch does not view as another dtype
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return torch.from_numpy(array).view(dtype).view(tuple(shape))


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
        return tensor_at(array, 0, shape, dtype)

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


# --- Memory that a worker of a plain DataLoader reuses ---

_MAX_BUFFERS = 32  # of one worker
_SMALLEST_SHARED = 1 << 16  # bytes; PyTorch sends smaller tensors by a copy
_PAGES = 1 << 16  # bytes: a file grows in steps of so many


class SharedPool:
    """Makes the tensors of a worker in anonymous memory, which PyTorch sends without a copy, and which is used again.

    Each use of a buffer opens its file once more and locks it. PyTorch sends that descriptor with the tensor, and keeps
    it open as long as the tensor lives. Only when all processes have closed it, also those that were forked or killed,
    the kernel drops the lock, and the buffer can be locked again. In no process does another hold the memory.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[int, Array]] = []  # file and memory
        self._leases: dict[int, int] = {}  # address → descriptor, of tensors that this process holds
        ForkingPickler.register(torch.UntypedStorage, self._reduced)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor in memory that no process uses."""
        size = math.prod(shape) * dtype.itemsize
        found = self._acquire(size) if size >= _SMALLEST_SHARED else None
        if found is None:
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        lease, memory = found
        array = memory[:size]
        self._leases[array.ctypes.data] = lease
        weakref.finalize(array, self._release, array.ctypes.data).atexit = False
        return as_tensor(array, shape, dtype)

    def _acquire(self, size: int) -> tuple[int, Array] | None:
        """Return a locked descriptor and memory of at least so many bytes; None where files cannot be opened."""
        try:
            for file, memory in self._buffers:
                lease = _locked(file) if size <= len(memory) <= 2 * size else None
                if lease is not None:
                    return lease, memory
            file = os.memfd_create("storeds-buffer")
            memory = grown(file, size)
            weakref.finalize(memory, os.close, file).atexit = False
            # Where a process holds the oldest one, its memory stays.
            self._buffers = [*self._buffers[1 - _MAX_BUFFERS :], (file, memory)]
            lease = _locked(file)
        except OSError:  # no /proc, or too many open files
            return None
        return None if lease is None else (lease, memory)

    def _release(self, address: int) -> None:
        os.close(self._leases.pop(address))

    def _reduced(self, storage: torch.UntypedStorage) -> tuple[Any, ...]:
        """Return what PyTorch sends: the descriptor of a tensor in a buffer; of other memory what it always sends."""
        lease = self._leases.get(storage.data_ptr())
        if lease is None or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]  # torch leaves it without types
            return reduce_storage(storage)  # type: ignore[no-any-return, no-untyped-call]  # torch leaves it without types
        return rebuild_storage_fd, (type(storage), DupFd(lease), storage.nbytes())


@functools.cache
def shared_pool() -> SharedPool:
    """Return the pool of this worker."""
    return SharedPool()


def _locked(file: int) -> int | None:
    """Return a new descriptor of a file, which it locks; None if another one has the lock."""
    lease = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lease)
        return None
    return lease


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
