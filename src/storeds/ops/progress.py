"""How an operation goes through its items: in order, while threads work on the next ones, and with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from storeds._utils.prefetch import ReadAhead

__all__ = ["Progress", "ProgressHook", "in_order"]

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an operation.

    Attributes
    ----------
    done, total : int
        Items or records.
    bytes : int
        Bytes of blobs processed.
    bad : int
        Items with a problem.
    damaged : int
        Damaged pictures that are kept.
    """

    done: int
    total: int
    bytes: int
    bad: int = 0
    damaged: int = 0


ProgressHook: TypeAlias = Callable[[Progress], None]


def in_order(tasks: Iterable[T], work: Callable[[T], R], threads: int) -> Iterator[tuple[T, R]]:
    """Yield each task with its result, in order, while threads work on the next ones.

    Parameters
    ----------
    tasks : iterable
        Drawn in this thread. One more than `threads` is in memory.
    work : callable
        Thread-safe. Its errors are raised here.
    threads : int
        0 means this thread, for work that takes less time than handing it over.
    """

    def done(task: T) -> tuple[T, R]:
        return task, work(task)

    results = ReadAhead(done, iter(tasks), threads)
    try:
        yield from results
    finally:
        results.close()
