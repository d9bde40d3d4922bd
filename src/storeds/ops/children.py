"""Runs checks in child processes that may die, as the reader of a damaged LMDB does, and tells where they died."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Self

from storeds.errors import StoredsError
from storeds.ops.checks import Finding, RunResult
from storeds.ops.child import Child, Death, share_of, start_child
from storeds.protocols import Meta

__all__ = ["Children"]

_STEP = 64
_TICK = 1.0
_PATIENCE = 50  # deaths; a record that makes a child hang costs as much as ten
_HANG = 10


class Children:
    """Child processes that check the store at `url`, `deep` or not, at most `workers` at a time; leaving the context ends them.

    The one that opens the store first goes on to check it, alone if there are few records: starting a process takes
    longer than checking some hundreds.
    """

    def __init__(self, url: str, workers: int, *, deep: bool = False) -> None:
        self._url = url
        self._deep = deep
        self._workers = workers
        self._running: list[Child] = []
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._skip: list[str] = []
        self._columns_told = False
        self._trouble = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._running:
            child.process.kill()
            child.process.wait()
            child.connection.close()

    def open(self) -> Meta | Finding:
        """Return the meta of the store, or how opening it killed the process that tried.

        Raises
        ------
        StoredsError
            It cannot be opened.
        """
        first = self._start(0, None, _STEP)
        while not self._ready():
            pass
        message = first.receive()
        if isinstance(message, StoredsError):
            raise message
        if not isinstance(message, Meta):
            self._running.remove(first)
            return Finding("crash", f"the process that opened the store {message.cause}")
        count, share = message.count, share_of(message.count, self._workers)
        first.stop = min(share, count)
        self._waiting.extend((start, min(start + share, count), _STEP) for start in range(share, count, share))
        return message

    def check(self) -> Iterator[RunResult]:
        """Yield what is wrong with all records, run by run, in no particular order.

        Findings about whole columns come with a run that is empty. A child that dies, or says nothing for too long,
        costs a finding of kind ``crash`` for the record or the column that it was at, and another goes on behind it.

        Raises
        ------
        StoredsError
            A child could not open the store, or was told that the engine is gone.
        """
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._workers:
                self._start(*self._waiting.popleft())
            for child in self._ready():
                message = child.receive()
                if isinstance(message, StoredsError):
                    raise message
                if isinstance(message, (int, str)):
                    child.at = message
                elif isinstance(message, Death):
                    self._running.remove(child)
                    yield from self._bury(child, message) if message.cause else ()
                elif message.start < message.stop or not self._columns_told:
                    self._columns_told = True
                    yield message

    def _ready(self) -> list[Child]:
        """Wait a little; return the children that sent something or took too long."""
        before = time.monotonic()
        ready = wait([child.connection for child in self._running], _TICK)
        waited = min(time.monotonic() - before, _TICK)  # not what passed while this process was stopped
        for child in self._running:
            child.silent = 0.0 if child.connection in ready else child.silent + waited
        return [child for child in self._running if child.connection in ready or child.silent > child.deadline]

    def _start(self, start: int, stop: int | None, step: int) -> Child:
        workers, skip, deep = self._workers, self._skip, self._deep
        child = start_child(self._url, start, stop, step, workers=workers, skip=skip, deep=deep)
        self._running.append(child)
        return child

    def _bury(self, child: Child, death: Death) -> Iterator[RunResult]:
        """Tell where a child died, and arrange for what it left undone."""
        assert child.stop is not None
        self._trouble += 1
        at, goes_on = child.at, child.start
        if at is None:
            yield _crash(child.start, child.stop, f"the process that opened the store for it {death.cause}")
            return
        if isinstance(at, str):
            if at not in self._skip:
                self._skip.append(at)
                message = f"the process that read column {at!r} {death.cause}"
                yield RunResult(child.start, child.start, findings=[Finding("crash", message)])
        elif self._trouble > _PATIENCE:
            message = f"too many checking processes died; the records up to {child.stop - 1} were not checked"
            yield _crash(at, child.stop, message)
            return
        else:
            goes_on = min(at + child.step, child.stop)
            if child.step > 1:
                # One by one it will show which record it was, or that the batch only took long.
                self._waiting.append((at, goes_on, 1))
            else:
                self._trouble += _HANG * death.hung
                yield _crash(at, goes_on, f"the process that read it {death.cause}")
        if goes_on < child.stop:
            self._waiting.append((goes_on, child.stop, child.step))


def _crash(at: int, stop: int, message: str) -> RunResult:
    return RunResult(at, stop, None, findings=[Finding("crash", message, at)])
