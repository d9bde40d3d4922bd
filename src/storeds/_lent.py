"""Memory for batches that a worker process lends to the one that trains, and uses again once that has let go of it.

Fresh shared memory costs a worker more than filling it does, page by page, and the main process pays for each page once
more when it lets go. So a worker keeps some pieces. The one that trains is given a tensor in such a piece, and counts in
the piece itself, where the worker sees it, that nobody holds that tensor or a view of it any more.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import get_worker_info

from storeds._by_value import goes_by_value
from storeds._known_pieces import KnownPieces
from storeds._plain import PlainTensor
from storeds.protocols import Array

__all__ = ["Lender", "LentTensor", "lent_memory"]

# Pieces that a worker keeps: for batches ahead, the one in use, and some that are held for longer.
_MOST_LARGE, _MOST_SMALL, _LARGE = 8, 16, 4 << 20  # beyond so many bytes a piece is large
_HEAD = 64  # bytes before a batch, which keep it aligned; the words below are in them
_SENT, _LET_GO, _RETIRED, _KNOWN, _DROPPED, _RECEIVED = range(6)
_serials = itertools.count()


class LentTensor(PlainTensor):
    """A whole batch in a worker, in a piece that is lent with it."""

    _piece: _Piece


class _Piece:
    """Some shared memory: how often a tensor in it was sent, how often one was let go, and the bytes of the tensor."""

    def __init__(self, size: int) -> None:
        storage = torch.UntypedStorage._new_shared(_HEAD + size)  # type: ignore[no-untyped-call]  # torch leaves it without types
        self.whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.words, self.bytes = _parts(self.whole)
        self.sender = os.getpid(), next(_serials)
        self._array: weakref.ref[Array] | None = None
        self._sent_before = 0

    @property
    def is_retired(self) -> bool:
        """Whether a process was forked while it held a batch in here, of whose end nobody will hear."""
        return bool(self.words[_RETIRED])

    @property
    def is_held(self) -> bool:
        """Whether a tensor in here, or a view of one, is in use in this process."""
        return self._array is not None and self._array() is not None

    @property
    def is_lost(self) -> bool:
        """Whether a tensor was lent, and is gone without having been sent: who knows what was made of it."""
        return self._array is not None and not self.is_held and bool(self.words[_SENT] == self._sent_before)

    def is_free(self) -> bool:
        return not self.is_held and bool(self.words[_SENT] == self.words[_LET_GO])

    def drop(self) -> None:
        """Tell the process that trains that it need not keep this piece."""
        self.words[_DROPPED] = 1

    def lend(self, shape: Sequence[int], dtype: torch.dtype) -> LentTensor:
        """Return a tensor in here; it and every view of it hold an array that tells when the last is gone."""
        array = self.bytes[: math.prod(shape) * dtype.itemsize]
        self._array, self._sent_before = weakref.ref(array), int(self.words[_SENT])
        lent = torch.from_numpy(array).view(dtype).view(tuple(shape)).as_subclass(LentTensor)
        lent._piece = self
        return lent


def _parts(whole: torch.Tensor) -> tuple[Array, Array]:
    memory = whole.numpy()
    return memory[:_HEAD].view(np.int64), memory[_HEAD:]


class Lender:
    """Lends memory, a piece for each batch. Thread-safe; for one process.

    It stops for good, and keeps the memory that it has, once a batch was not sent as it is: torch moves what else is made
    of it into other memory, and does not say when an array that was made of it before is gone.
    """

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._lock = threading.Lock()
        self._stopped = False

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> LentTensor | None:
        """Return a tensor that nobody else sees, its values undefined; None if all pieces are held, or it is too small."""
        size = math.prod(shape) * dtype.itemsize
        if goes_by_value(size):
            return None
        with self._lock:  # until the tensor holds the piece
            self._stopped = self._stopped or any(piece.is_lost for piece in self._pieces)
            piece = None if self._stopped else self._free_piece(size)
            return None if piece is None else piece.lend(shape, dtype)

    def _free_piece(self, size: int) -> _Piece | None:
        for piece in [piece for piece in self._pieces if piece.is_retired]:
            self._drop(piece)
        alike = [piece for piece in self._pieces if _is_large(len(piece.bytes)) == _is_large(size)]
        free = [piece for piece in alike if piece.is_free()]
        fitting = [piece for piece in free if len(piece.bytes) >= size]
        if fitting:
            return min(fitting, key=lambda piece: len(piece.bytes))
        if free:
            self._drop(free[0])
        elif len(alike) >= (_MOST_LARGE if _is_large(size) else _MOST_SMALL):
            return None
        self._pieces.append(_Piece(size))
        return self._pieces[-1]

    def _drop(self, piece: _Piece) -> None:
        piece.drop()
        self._pieces.remove(piece)


def _is_large(size: int) -> bool:
    return size > _LARGE


def _reduce(tensor: LentTensor) -> Any:
    """Send the piece that a tensor lies in, or a copy of a tensor that was changed into something else."""
    plain, piece = tensor.plain(), tensor._piece
    if not plain.is_contiguous() or plain.data_ptr() != piece.bytes.ctypes.data or plain.requires_grad:
        return tensor.reduce_copy()
    piece.words[_SENT] += 1
    # To open its file once more would take longer than to fill a small batch.
    if piece.words[_KNOWN] and not piece.words[_DROPPED]:
        return _receive_known, (*piece.sender, tuple(plain.shape), plain.dtype)
    return _receive, (*piece.sender, piece.whole, tuple(plain.shape), plain.dtype)


ForkingPickler.register(LentTensor, _reduce)


# --- In the process that trains ---

_numbers = itertools.count()
_held: dict[int, Array] = {}  # the words of the pieces that batches here lie in


def _is_over(words: Array) -> bool:
    """Whether a piece was dropped, and nothing is under way that was sent before."""
    return bool(words[_DROPPED] and words[_SENT] == words[_RECEIVED])


_known = KnownPieces(known=_KNOWN, is_over=_is_over)


def _receive(worker: int, serial: int, whole: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a plain tensor in a piece that is new here; when nobody holds it any more, say so in its piece."""
    words, memory = _parts(whole)
    if not words[_DROPPED]:
        _known.add(worker, serial, words, memory)
    return _batch(words, memory, shape, dtype)


def _receive_known(worker: int, serial: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return the same in a piece that was received earlier."""
    return _batch(*_known.find(worker, serial), shape, dtype)


def _batch(words: Array, memory: Array, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    words[_RECEIVED] += 1
    array = memory[: math.prod(shape) * dtype.itemsize]
    number = next(_numbers)
    _held[number] = words
    # Not at exit: then nobody uses the piece again.
    weakref.finalize(array, _let_go, number, os.getpid()).atexit = False
    return torch.from_numpy(array).view(dtype).view(shape)


def _let_go(number: int, process: int) -> None:
    # A process that was forked while the batch was held lets go of its copy; the batch is still another's.
    words = _held.pop(number, None) if os.getpid() == process else None
    if words is not None:
        words[_LET_GO] += 1


def _retire_held() -> None:
    # The child will hold these batches too, and nobody is told when it lets go.
    for words in list(_held.values()):
        words[_RETIRED] = 1


def _forget() -> None:
    _held.clear()
    _known.clear()


os.register_at_fork(before=_retire_held, after_in_child=_forget)


# --- In a worker ---

_lender: tuple[int, Lender] | None = None


def lent_memory(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return a tensor for a whole batch if this is a worker process that has memory to lend, else None."""
    global _lender
    # Files in shared memory would outlive the worker.
    if get_worker_info() is None or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]  # the same
        return None
    if _lender is None or _lender[0] != os.getpid():
        _lender = os.getpid(), Lender()
    return _lender[1].empty(shape, dtype)
