"""Reads ahead: runs a function over jobs in threads ahead of the consumer, and tells the kernel what will be read."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

from storeds.errors import ClosedError
from storeds.protocols import Array

__all__ = ["ADVISED", "ReadAhead", "blocks_read", "will_need"]

ADVISED = 1 << 17  # bytes; kernels load no more than their read-ahead for one piece of advice, by default this much


def blocks_read() -> int:
    """Return how many disk blocks this thread has read, also by `will_need`.

    Where it grows while a batch is read, the file is not in the page cache: only then `will_need` is worth its system calls,
    which cost 1 to 5 µs for each range of 40 to 400 KiB that is cached.
    """
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def will_need(descriptor: int, starts: Array, stops: Array) -> None:
    """Have the kernel load byte ranges of a file all at once, and return before they are there.

    Without it, each read waits for the disk on its own, and a memory map for each page.

    Parameters
    ----------
    descriptor : int
        Of the file.
    starts, stops : array of int
        Begins and ends of the ranges. A range that is outside of the file has no effect. The kernel is called once for each
        `ADVISED` bytes, so sizes must come from a source that was verified.
    """
    for begin, end in zip(starts.tolist(), stops.tolist(), strict=True):
        with suppress(OSError):  # a negative number, from a damaged file
            for at in range(begin, end, ADVISED):
                os.posix_fadvise(descriptor, at, min(ADVISED, end - at), os.POSIX_FADV_WILLNEED)


J = TypeVar("J")
R = TypeVar("R")


class ReadAhead(Generic[J, R]):
    """An iterator over ``function(job)``, in the order of the jobs.

    Parameters
    ----------
    function : callable
        Called in several threads at once. It must not refer to this iterator, which could then never be collected.
    jobs : iterator
        Consumed in the thread that iterates.
    ahead : int
        How many jobs run or are finished ahead of the consumer; 0 uses no threads.
    threads : int, optional
        Number of threads; `ahead` by default.
    begin : callable, optional
        Called once at the start of each thread.

    Notes
    -----
    The threads start with the first ``next`` and end after the last result, an error, `close`, or garbage collection.
    Use an iterator only in one thread of the process that created it.
    """

    def __init__(
        self,
        function: Callable[[J], R],
        jobs: Iterator[J],
        ahead: int,
        *,
        threads: int | None = None,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self._function, self._jobs, self._ahead = function, jobs, ahead
        self._threads, self._begin = threads or ahead, begin
        self._pending: deque[Future[R]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._closed = False
        self._begun, self._failed = 0, [math.inf]

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        if self._closed:
            raise StopIteration
        try:
            return self._result()
        except BaseException:
            self.close()
            raise

    def _result(self) -> R:
        if not self._ahead:
            return self._function(next(self._jobs))
        if self._pool is not None and self._pid != os.getpid():  # a fork does not copy threads
            raise ClosedError(
                "this iterator belongs to the process that created it: create another one here with iter()"
            )
        self._submit(self._ahead)
        if not self._pending:
            raise StopIteration
        result = self._pending.popleft().result()
        self._submit(self._ahead)
        return result

    def _submit(self, wanted: int) -> None:
        while len(self._pending) < wanted:
            try:
                job = next(self._jobs)
            except StopIteration:
                return
            if self._pool is None:
                self._pid = os.getpid()
                self._pool = ThreadPoolExecutor(self._threads, "storeds-read-ahead", self._begin)
            self._begun += 1
            self._pending.append(self._pool.submit(_do, self._function, job, self._begun, self._failed))

    def close(self, *, wait: bool = True, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        """Stop iterating; with `wait`, block until running jobs end."""
        self._closed = True
        if exiting():  # module globals may be gone, and the interpreter has already joined the threads
            return
        self._pending.clear()
        pool, self._pool = self._pool, None
        # In a forked child, a thread that no longer exists may hold the pool's lock.
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=wait, cancel_futures=True)

    def __del__(self) -> None:
        # Do not wait: garbage collection may run while this thread holds a lock that a job needs.
        if hasattr(self, "_pool"):
            self.close(wait=False)


def _do(function: Callable[[J], R], job: J, number: int, failed: list[float]) -> R:
    """Run a job unless an earlier one failed, which ends the iteration; this job might wait for the same server."""
    if failed[0] < number:
        raise ClosedError("an earlier job failed")
    try:
        return function(job)
    except BaseException:
        failed[0] = min(failed[0], number)
        raise
