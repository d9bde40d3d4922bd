"""The shared memory of worker processes that the one that trains has received, so that each piece is sent once."""

from __future__ import annotations

import multiprocessing
import weakref
from typing import TypeAlias

from storeds.protocols import Array

__all__ = ["KnownPieces"]

_Pieces: TypeAlias = "dict[int, tuple[Array, Array]]"


class KnownPieces:
    """Pieces by the worker that lends them, kept until the worker ends or drops them. Thread-safe.

    A piece says in words of its own, which both processes see, whether it is kept here. Only the process that started a
    worker keeps any: it alone hears of the worker's end.

    Parameters
    ----------
    known, dropped : int
        Which word says that the piece is kept here, and which that the worker uses it no more.
    """

    def __init__(self, *, known: int, dropped: int) -> None:
        self._is_known, self._is_dropped = known, dropped
        self._workers: dict[int, _Pieces] = {}

    def add(self, worker: int, serial: int, words: Array, memory: Array) -> None:
        """Keep a piece of a child process."""
        pieces = self._workers.get(worker)
        if pieces is None:
            process = next((child for child in multiprocessing.active_children() if child.pid == worker), None)
            if process is None:
                return
            pieces = self._workers[worker] = {}
            # Whoever reads what workers send keeps these objects: when one is gone, nothing of it will come any more.
            weakref.finalize(process, self._end, worker, pieces).atexit = False
        for old in [old for old, (others, _) in list(pieces.items()) if others[self._is_dropped]]:
            del pieces[old]
        pieces[serial] = words, memory
        words[self._is_known] = 1

    def find(self, worker: int, serial: int) -> tuple[Array, Array]:
        """Return the words and the memory of a piece; raises RuntimeError if another process has it."""
        try:
            return self._workers[worker][serial]
        except KeyError:
            raise RuntimeError(
                f"a batch of worker {worker} lies in memory that another process was sent: batches of a DataLoader can "
                "only be received by the process that started its workers, and while the loader is kept"
            ) from None

    def clear(self) -> None:
        """Forget all, in a child that was forked: its parent receives."""
        self._workers.clear()

    def _end(self, worker: int, pieces: _Pieces) -> None:
        if self._workers.get(worker) is pieces:
            del self._workers[worker]
        pieces.clear()
