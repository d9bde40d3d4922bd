"""The shared memory of worker processes that the one that trains has received, so that each piece is sent once."""

from __future__ import annotations

import multiprocessing.process
import resource
import weakref
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from storeds.protocols import Array

__all__ = ["KnownPieces"]

_MOST = 256  # each takes a file descriptor


class _Worker:
    """A child process, and its pieces by their numbers: their words and their memory."""

    def __init__(self, process: BaseProcess) -> None:
        self.process = weakref.ref(process)
        self.pieces: dict[int, tuple[Array, Array]] = {}


class KnownPieces:
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
