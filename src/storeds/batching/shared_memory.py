"""Memory for batches that a worker process lends to the one that trains, and uses again once that has let go of it.

Fresh shared memory costs a worker more than filling it does, page by page, and the main process pays for each page once
more when it lets go. So a worker keeps some pieces. The one that trains is given a tensor in such a piece, and counts in
the piece itself, where the worker sees it, that nobody holds that tensor or a view of it any more.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing.process
import os
import resource
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import get_worker_info

from storeds.protocols import Array

__all__ = [
    "MOST_BY_VALUE",
    "ReceivedBuffers",
    "SharedBatchTensor",
    "SharedBufferPool",
    "TaggedTensor",
    "goes_by_value",
    "lent_memory",
    "send_inline",
]


_MOST = 256  # each takes a file descriptor


class _Worker:
    """A child process, and its pieces by their numbers: their words and their memory."""

    def __init__(self, process: BaseProcess) -> None:
        self.process = weakref.ref(process)
        self.pieces: dict[int, tuple[Array, Array]] = {}


class ReceivedBuffers:
    """Pieces by the worker that lends them, kept until the worker ends or drops them. Thread-safe.

    A piece says in words of its own, which both processes see, whether it is kept here. Only the process that started a
    worker keeps any: it alone hears of the worker's end.

    Parameters
    ----------
    known : int
        Which word says that the piece is kept here.
    is_over : callable
        Whether, by its words, nothing in a piece will come any more.
    """

    def __init__(self, *, known: int, is_over: Callable[[Array], bool]) -> None:
        self._is_known, self._is_over = known, is_over
        self._workers: dict[int, _Worker] = {}

    def __len__(self) -> int:
        return sum(len(worker.pieces) for worker in list(self._workers.values()))

    def add(self, pid: int, serial: int, words: Array, memory: Array) -> None:
        """Keep a piece of a child process, unless there are too many."""
        process = _child(pid)
        if process is None:
            return
        worker = self._workers.get(pid)
        # The number may have been that of another, which has ended.
        if worker is None or worker.process() is not process:
            worker = self._workers[pid] = _Worker(process)
            # Whoever reads what workers send keeps these objects: when one is gone, nothing of it will come any more.
            weakref.finalize(process, self._end, pid, worker).atexit = False
        for old, (others, _) in list(worker.pieces.items()):
            if self._is_over(others):
                worker.pieces.pop(old, None)
        if len(self) < _most():
            worker.pieces[serial] = words, memory
            words[self._is_known] = 1

    def find(self, pid: int, serial: int) -> tuple[Array, Array]:
        """Return the words and the memory of a piece; raises RuntimeError if another process has it."""
        try:
            return self._workers[pid].pieces[serial]
        except KeyError:
            raise RuntimeError(
                f"a batch of the worker process {pid} lies in memory that only the process which started the worker has: "
                "to send a batch to others too, send a copy, tensor.clone()"
            ) from None

    def clear(self) -> None:
        """Forget all, in a child that was forked: its parent receives."""
        for worker in self._workers.values():
            worker.pieces.clear()
        self._workers.clear()

    def _end(self, pid: int, worker: _Worker) -> None:
        if self._workers.get(pid) is worker:
            del self._workers[pid]
        worker.pieces.clear()


def _child(pid: int) -> BaseProcess | None:
    # Not active_children(), which reaps those that ended before torch can say by which signal one was killed.
    children: set[BaseProcess] = getattr(multiprocessing.process, "_children", set())
    return next((child for child in list(children) if _pid(child) == pid), None)


def _pid(child: BaseProcess) -> int | None:
    try:
        return child.pid
    except ValueError:  # it was closed meanwhile
        return None


def _most() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft // 4)


class TaggedTensor(torch.Tensor):
    """Base of such tensors: results, copies and pickles are plain, and have memory of their own."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch's own subclasses do

    def plain(self) -> torch.Tensor:
        """Return the same tensor, in the same memory, without what it carries."""
        return self.as_subclass(torch.Tensor)

    def reduce_copy(self) -> Any:
        """Return how torch sends a copy of it to another process: for what was changed into something else since it was made."""
        copied = self.plain().detach().clone().requires_grad_(self.requires_grad)
        return reduce_tensor(copied)  # type: ignore[no-untyped-call]  # torch leaves it without types

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        made = memo[id(self)] = self.plain().clone()
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.plain().clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]  # torch leaves it without types


MOST_BY_VALUE = 1 << 14  # bytes; more is lent in less time, and does not fill the pipe, which workers take turns at


class _InlineTensor(TaggedTensor):
    """A tensor whose bytes are sent, and not the memory that they lie in."""


def goes_by_value(size: int) -> bool:
    """Whether a tensor of so many bytes is sent by value, so that it need not be made in shared memory."""
    return size <= MOST_BY_VALUE


def send_inline(tensor: torch.Tensor) -> torch.Tensor:
    """Return a small tensor so that this worker process will send its bytes; any other as it is."""
    if get_worker_info() is None or type(tensor) is not torch.Tensor or not _can_go(tensor):
        return tensor
    return tensor.as_subclass(_InlineTensor)


def _can_go(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not plain or not goes_by_value(tensor.nbytes) or not tensor.is_contiguous():
        return False
    shared = tensor.is_shared()  # type: ignore[no-untyped-call]  # torch leaves it without types
    return not (shared or tensor.is_conj() or tensor.is_neg())


def _reduce_inline(tensor: _InlineTensor) -> Any:
    plain = tensor.plain()
    if not _can_go(plain):
        return tensor.reduce_copy()
    return _receive_inline, (plain.reshape(-1).view(torch.uint8).numpy().tobytes(), tuple(plain.shape), plain.dtype)


def _receive_inline(data: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


ForkingPickler.register(_InlineTensor, _reduce_inline)


# Pieces that a worker keeps: for batches ahead, the one in use, and some that are held for longer.
_MOST_LARGE, _MOST_SMALL, _LARGE = 8, 16, 4 << 20  # beyond so many bytes a piece is large
_HEAD = 64  # bytes before a batch, which keep it aligned; the words below are in them
_SENT, _LET_GO, _RETIRED, _KNOWN, _DROPPED, _RECEIVED = range(6)
_serials = itertools.count()


class SharedBatchTensor(TaggedTensor):
    """A whole batch in a worker, in a piece that is lent with it."""

    _piece: SharedBuffer


class SharedBuffer:
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

    def lend(self, shape: Sequence[int], dtype: torch.dtype) -> SharedBatchTensor:
        """Return a tensor in here; it and every view of it hold an array that tells when the last is gone."""
        array = self.bytes[: math.prod(shape) * dtype.itemsize]
        self._array, self._sent_before = weakref.ref(array), int(self.words[_SENT])
        lent = torch.from_numpy(array).view(dtype).view(tuple(shape)).as_subclass(SharedBatchTensor)
        lent._piece = self
        return lent


def _parts(whole: torch.Tensor) -> tuple[Array, Array]:
    memory = whole.numpy()
    return memory[:_HEAD].view(np.int64), memory[_HEAD:]


class SharedBufferPool:
    """Lends memory, a piece for each batch. Thread-safe; for one process.

    It stops for good, and keeps the memory that it has, once a batch was not sent as it is: torch moves what else is made
    of it into other memory, and does not say when an array that was made of it before is gone.
    """

    def __init__(self) -> None:
        self._pieces: list[SharedBuffer] = []
        self._lock = threading.Lock()
        self._stopped = False

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> SharedBatchTensor | None:
        """Return a tensor that nobody else sees, its values undefined; None if all pieces are held, or it is too small."""
        size = math.prod(shape) * dtype.itemsize
        if goes_by_value(size):
            return None
        with self._lock:  # until the tensor holds the piece
            self._stopped = self._stopped or any(piece.is_lost for piece in self._pieces)
            piece = None if self._stopped else self._free_piece(size)
            return None if piece is None else piece.lend(shape, dtype)

    def _free_piece(self, size: int) -> SharedBuffer | None:
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
        self._pieces.append(SharedBuffer(size))
        return self._pieces[-1]

    def _drop(self, piece: SharedBuffer) -> None:
        piece.drop()
        self._pieces.remove(piece)


def _is_large(size: int) -> bool:
    return size > _LARGE


def _reduce(tensor: SharedBatchTensor) -> Any:
    """Send the piece that a tensor lies in, or a copy of a tensor that was changed into something else."""
    plain, piece = tensor.plain(), tensor._piece
    if not plain.is_contiguous() or plain.data_ptr() != piece.bytes.ctypes.data or plain.requires_grad:
        return tensor.reduce_copy()
    piece.words[_SENT] += 1
    # To open its file once more would take longer than to fill a small batch.
    if piece.words[_KNOWN] and not piece.words[_DROPPED]:
        return _receive_known, (*piece.sender, tuple(plain.shape), plain.dtype)
    return _receive, (*piece.sender, piece.whole, tuple(plain.shape), plain.dtype)


ForkingPickler.register(SharedBatchTensor, _reduce)


# --- In the process that trains ---

_numbers = itertools.count()
_held: dict[int, Array] = {}  # the words of the pieces that batches here lie in


def _is_over(words: Array) -> bool:
    """Whether a piece was dropped, and nothing is under way that was sent before."""
    return bool(words[_DROPPED] and words[_SENT] == words[_RECEIVED])


_known = ReceivedBuffers(known=_KNOWN, is_over=_is_over)


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

_lender: tuple[int, SharedBufferPool] | None = None


def lent_memory(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return a tensor for a whole batch if this is a worker process that has memory to lend, else None."""
    global _lender
    # Files in shared memory would outlive the worker.
    if get_worker_info() is None or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]  # the same
        return None
    if _lender is None or _lender[0] != os.getpid():
        _lender = os.getpid(), SharedBufferPool()
    return _lender[1].empty(shape, dtype)
