"""Memory for batches that is used again once nobody holds a tensor in it: fresh memory costs as much as filling it."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from storeds.protocols import Array

__all__ = ["BufferPool", "reused_memory", "use_buffer_pool"]

_LEAST = 1 << 20  # bytes; smaller ones the allocator keeps itself


def _holders(arrays: Sequence[Array], at: int) -> int:
    return sys.getrefcount(arrays[at])


_IDLE = _holders([np.empty(1, np.uint8)], 0)


class BufferPool:
    """Tensors out of a few arrays.

    A tensor that was made from an array holds it, and every view of that tensor does, until the last one is gone: so the
    number of those who hold the array tells whether anybody can still see it. Thread-safe. A pickle or copy is empty.

    Parameters
    ----------
    limit : int
        How many arrays are kept. Who holds more batches than that gets memory of its own.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._arrays: list[Array] = []
        self._lock = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that nobody else sees, its values undefined."""
        size = math.prod(shape) * dtype.itemsize
        array = self._take(size) if size >= _LEAST else None
        if array is None:
            return torch.empty(tuple(shape), dtype=dtype)
        return torch.from_numpy(array[:size]).view(dtype).view(tuple(shape))

    def _take(self, size: int) -> Array | None:
        with self._lock:
            for at in range(len(self._arrays)):
                if _holders(self._arrays, at) == _IDLE:
                    if not size <= len(self._arrays[at]) <= 2 * size:
                        self._arrays[at] = np.empty(size, np.uint8)
                    return self._arrays[at]
            if len(self._arrays) < self._limit:
                self._arrays.append(np.empty(size, np.uint8))
                return self._arrays[-1]
        return None

    def __reduce__(self) -> tuple[type[BufferPool], tuple[int]]:
        return BufferPool, (self._limit,)


_here = threading.local()


@contextmanager
def use_buffer_pool(memory: BufferPool | None) -> Iterator[None]:
    """Have batches that this thread makes in the body lie in `memory`."""
    _here.memory = memory
    try:
        yield
    finally:
        _here.memory = None


def reused_memory() -> BufferPool | None:
    """Return where a batch of this thread may lie, or None for memory of its own."""
    return getattr(_here, "memory", None)
