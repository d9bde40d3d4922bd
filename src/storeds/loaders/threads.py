"""Makes the batches of a loader in threads of the training process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch

from storeds._utils.prefetch import ReadAhead

__all__ = ["in_threads"]

J = TypeVar("J")
R = TypeVar("R")


def in_threads(
    fetch: Callable[[J], R], requests: Iterator[J], threads: int, ahead: int, has_failed: Callable[[R], bool]
) -> ReadAhead[J, R]:
    """Return an iterator over the results of requests, of which each thread makes so many ahead of the training loop.

    After a result that has failed, no other request begins: each thread might wait for the same lost server.
    """
    failures: list[R] = []

    def unless_failed(request: J) -> R:
        if failures:
            return failures[0]
        result = fetch(request)
        if has_failed(result):
            failures.append(result)
        return result

    begin = partial(_compute_alone, torch.get_num_threads())
    return ReadAhead(unless_failed, requests, threads * ahead, threads=threads, begin=begin)


def _compute_alone(elsewhere: int) -> None:
    """Make torch compute with one thread in this thread, and with as many as before in threads that begin later."""
    torch.get_num_threads()  # torch initialises the number once in each thread, which must not happen later
    torch.set_num_threads(1)
    # The setting also becomes the default of later threads. A thread that ends at once restores that default.
    last = threading.Thread(target=torch.set_num_threads, args=(elsewhere,))
    last.start()
    last.join()
