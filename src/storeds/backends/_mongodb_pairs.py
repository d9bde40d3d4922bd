"""Asks for two parts of a batch at once: while one is decoded, the server sends the other."""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from storeds.backends._mongodb_retry import shared_deadline

__all__ = ["in_pairs"]

P = TypeVar("P")
R = TypeVar("R")

_THREADS = 4  # for several readers in one process; each has one part here and one in its own thread


def in_pairs(function: Callable[[P], R], parts: Iterable[P]) -> Iterator[R]:
    """Yield ``function(part)`` of each part in order, two at a time; nothing is under way when it raises."""
    remaining = iter(parts)
    while pair := list(islice(remaining, 2)):
        if len(pair) == 1:
            yield function(pair[0])
            return
        # The second may have to wait for a thread, and must not have the whole deadline once the first has spent it.
        with shared_deadline():
            try:
                second = _threads(os.getpid()).submit(contextvars.copy_context().run, function, pair[1])
            except RuntimeError:  # the interpreter is ending, and takes no more work
                both = [function(part) for part in pair]
            else:
                try:
                    first = function(pair[0])
                except BaseException:
                    if not second.cancel():
                        second.exception()  # waits
                    raise
                both = [first, second.result()]
        yield from both


@functools.lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    # Of each process its own: threads do not come along in a fork.
    return ThreadPoolExecutor(_THREADS, "storeds-mongodb")
