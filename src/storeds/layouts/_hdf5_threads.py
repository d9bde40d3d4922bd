"""Spreads the work of one read over CPUs that no other thread of this process reads with.

The threads end with the read, so none is there when nobody reads, or comes to harm when a process forks.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["spread"]

J = TypeVar("J")
R = TypeVar("R")

_RECENT = 0.25  # seconds
_BUDGET = 256 << 20  # bytes that the threads which one read starts may hold, however many CPUs there are

# When each thread read last. No lock: the operations are atomic, and a number that is off costs only time.
_readers: dict[int, float] = {}
os.register_at_fork(after_in_child=_readers.clear)


def spread(function: Callable[[J], R], jobs: Sequence[J], *, alone: bool, needs: int = 0) -> list[R]:
    """Return ``[function(job) for job in jobs]``.

    Parameters
    ----------
    function : callable
    jobs : sequence
    alone : bool
        Work in the calling thread only, because starting others would cost more than they save. Worker processes always
        do: the others have their CPUs. So do threads where as many read as there are CPUs.
    needs : int
        Bytes that a thread holds while it does a job: the more, the fewer are started.
    """
    _readers[threading.get_ident()] = time.monotonic()
    helpers = 0 if alone else min(len(jobs) - 1, _share_of_cpus() - 1, _BUDGET // max(needs, 1))
    return [function(job) for job in jobs] if helpers < 1 else _share(function, jobs, helpers)


def _share_of_cpus() -> int:
    """Return how many CPUs there are for each thread that read just now: it will again, also if it does not now."""
    if multiprocessing.parent_process() is not None:
        return 1
    since = time.monotonic() - _RECENT
    for reader, last in list(_readers.items()):
        if last < since:
            _readers.pop(reader, None)
    return len(os.sched_getaffinity(0)) // max(len(_readers), 1)


def _share(function: Callable[[J], R], jobs: Sequence[J], helpers: int) -> list[R]:
    todo, done, failed = deque(range(len(jobs))), dict[int, R](), list[BaseException]()

    def take() -> int | None:
        try:
            return todo.popleft()
        except IndexError:
            return None

    def work() -> None:
        try:
            for at in iter(take, None):
                done[at] = function(jobs[at])
        except BaseException as error:  # raised again in the thread that reads
            failed.append(error)
            todo.clear()

    threads = _started(work, helpers)
    try:
        work()
    finally:
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return [done[at] for at in range(len(jobs))]


def _started(work: Callable[[], None], count: int) -> list[threading.Thread]:
    threads: list[threading.Thread] = []
    for _ in range(count):
        thread = threading.Thread(target=work, name="storeds-chunks")
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached, or the interpreter is about to end
            break
        threads.append(thread)
    return threads
