"""Processes that belong to a command: Ctrl-C is its own to handle, from their first moment on, and none outlives it."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["become_dependent", "starting_dependents"]

_PR_SET_PDEATHSIG = 1


@contextmanager
def starting_dependents() -> Iterator[None]:
    """Hold Ctrl-C back while processes are started, which inherit that: they would print where it met them, importing."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def become_dependent() -> None:
    """Make this process one that Ctrl-C does not end, and the death of its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
