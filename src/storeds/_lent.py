"""Memory for batches that a worker process lends to the one that trains, and uses again once that has let go of it.

Fresh shared memory costs a worker more than filling it does, page by page, and the main process pays for each page once
more when it lets go. So a worker keeps some pieces. The one that trains is given a tensor in such a piece, and counts in
the piece itself, where the worker sees it, that nobody holds that tensor or a view of it any more.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import get_worker_info

from storeds.protocols import Array

__all__ = ["Lender", "LentTensor", "lent_memory"]

_LEAST = 1 << 20  # bytes; a smaller tensor goes into fresh memory for next to nothing
_MOST = 8  # pieces that a worker keeps: batches ahead, the one in use, and some that are held for longer
_HEAD = 64  # bytes before a batch, which keep it aligned; the two counts are in them


class LentTensor(torch.Tensor):
    """A whole batch in a worker, in a piece that is lent with it. What is computed from it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own subclasses do
    _piece: _Piece


class _Piece:
    """Some shared memory: how often a tensor in it was sent, how often one was let go, and the bytes of the tensor."""

    def __init__(self, size: int) -> None:
        storage = torch.UntypedStorage._new_shared(_HEAD + size)  # type: ignore[no-untyped-call]  # torch leaves it so
        self.whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.counts, self.bytes = _parts(self.whole)
        self._array: weakref.ref[Array] | None = None

    def is_free(self) -> bool:
        held = self._array is not None and self._array() is not None
        return not held and bool(self.counts[0] == self.counts[1])

    def tensor(self, size: int) -> torch.Tensor:
        """Return the first `size` bytes; it, and every view of it, holds an array that tells when the last is gone."""
        array = self.bytes[:size]
        self._array = weakref.ref(array)
        return torch.from_numpy(array)


def _parts(whole: torch.Tensor) -> tuple[Array, Array]:
    memory = whole.numpy()
    return memory[:16].view(np.int64), memory[_HEAD:]


class Lender:
    """Lends memory, a piece for each batch. Thread-safe; for one process."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._lock = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> LentTensor | None:
        """Return a tensor that nobody else sees, its values undefined; None if all pieces are held, or it is too small."""
        size = math.prod(shape) * dtype.itemsize
        if size < _LEAST:
            return None
        with self._lock:  # until the tensor holds the piece
            piece = self._free_piece(size)
            if piece is None:
                return None
            lent = piece.tensor(size).view(dtype).view(tuple(shape)).as_subclass(LentTensor)
            lent._piece = piece
            return lent

    def _free_piece(self, size: int) -> _Piece | None:
        free = [at for at, piece in enumerate(self._pieces) if piece.is_free()]
        fitting = [at for at in free if len(self._pieces[at].bytes) >= size]
        if fitting:
            return self._pieces[min(fitting, key=lambda at: len(self._pieces[at].bytes))]
        if free:
            self._pieces[free[0]] = _Piece(size)
            return self._pieces[free[0]]
        if len(self._pieces) < _MOST:
            self._pieces.append(_Piece(size))
            return self._pieces[-1]
        return None


def _reduce(tensor: LentTensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Send the piece that a tensor lies in, or a copy of a tensor that was changed into another view of it."""
    plain, piece = tensor.as_subclass(torch.Tensor), tensor._piece
    if not plain.is_contiguous() or plain.data_ptr() != piece.bytes.ctypes.data:
        return reduce_tensor(plain.clone())  # type: ignore[no-any-return,no-untyped-call]  # torch leaves it without types
    piece.counts[0] += 1
    return _receive, (piece.whole, tuple(plain.shape), plain.dtype)


ForkingPickler.register(LentTensor, _reduce)


def _receive(whole: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a plain tensor; when nobody holds it any more, say so in its piece."""
    counts, memory = _parts(whole)
    array = memory[: math.prod(shape) * dtype.itemsize]
    # Not at exit: then nobody uses the piece again.
    weakref.finalize(array, _let_go, counts, os.getpid()).atexit = False
    return torch.from_numpy(array).view(dtype).view(shape)


def _let_go(counts: Array, process: int) -> None:
    # A process that was forked while the batch was held lets go of its copy; the batch is still another's.
    if os.getpid() == process:
        counts[1] += 1


_lender: tuple[int, Lender] | None = None


def lent_memory(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return a tensor for a whole batch if this is a worker process that has memory to lend, else None."""
    global _lender
    if get_worker_info() is None:
        return None
    if _lender is None or _lender[0] != os.getpid():
        _lender = os.getpid(), Lender()
    return _lender[1].empty(shape, dtype)
