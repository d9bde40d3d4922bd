"""Repeats operations after transient MongoDB failures, with backoff and jitter, within one deadline."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import pymongo
from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from storeds.backends.mongodb.client import Location, is_lookup_failure
from storeds.errors import UnavailableError

__all__ = ["shared_deadline", "with_retries"]

_LOG = logging.getLogger("storeds")

T = TypeVar("T")

_since: ContextVar[float | None] = ContextVar("_since", default=None)


@contextmanager
def shared_deadline() -> Iterator[None]:
    """Make all operations in the body, and in copies of its context, share one deadline."""
    token = _since.set(time.monotonic())
    try:
        yield
    finally:
        _since.reset(token)


# Only a time limit detects a frozen node. The first attempt gets a part of the deadline, and each later one twice as
# much as the one before, so that a slow answer still gets through.
_FIRST_SHARE = 1 / 6
_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds
# Not the global generator: a failover must not change a program's random numbers, and forked workers must differ.
_DRAW = random.SystemRandom()
# Give up after this many server selections in a row that found no server.
_SELECTIONS = 3
# In addition to PyMongo's own: an interrupted or killed operation, a cursor that was lost with its server.
_TRANSIENT = frozenset((6, 7, 43, 50, 89, 91, 133, 134, 175, 189, 202, 237, 262, 290, 9001))
_TRANSIENT |= frozenset((10107, 11600, 11601, 11602, 13435, 13436))


def with_retries(location: Location, operation: Callable[[], T], knows_server: Callable[[], bool]) -> T:
    """Call `operation` until it succeeds, and return its result; only transient failures are repeated.

    Parameters
    ----------
    location : Location
        Its `deadline` limits all attempts together.
    operation : callable
        Must be idempotent and respect ``pymongo.timeout``.
    knows_server : callable
        Whether a server has been found. Until then, `Location.selection` limits each attempt, because PyMongo ignores
        ``serverSelectionTimeoutMS`` within ``pymongo.timeout``.

    Raises
    ------
    UnavailableError
        The deadline has passed, or the failure is permanent, such as a refusal or a replaced collection.
    """
    start, selections, attempt = _since.get() or time.monotonic(), 0, 0
    limit = None if location.deadline is None else location.deadline * _FIRST_SHARE
    while True:
        attempt += 1
        try:
            longest = limit if knows_server() else _shorter(limit, location.selection)
            with pymongo.timeout(_positive(_shorter(longest, _left(location, start)))):
                result = operation()
        except UnavailableError as error:
            cause = error.__cause__
            if not _may_pass(cause):
                raise
            selections = selections + 1 if isinstance(cause, ServerSelectionTimeoutError) else 0
            if limit is not None and isinstance(cause, PyMongoError) and cause.timeout:
                limit *= 2
            pause = min(_LONGEST_PAUSE, _PAUSE * 2**attempt) * _DRAW.uniform(0.5, 1)
            left = _left(location, start)
            if is_lookup_failure(cause):
                # A failed DNS lookup may return at once, so limit these attempts by time, not by number.
                left = _shorter(left, _SELECTIONS * location.selection - (time.monotonic() - start))
            if selections >= _SELECTIONS or (left is not None and left <= pause):
                spent = f"{attempt} attempts within {time.monotonic() - start:.1f} s"
                deadline = "there is no deadline"
                if location.deadline is not None:
                    deadline = f"the deadline is timeoutMS={location.deadline * 1000:.0f}"
                raise UnavailableError(f"{error} (tried: {spent}; {deadline})") from cause
            _LOG.warning("%s; trying again in %.1f s", error, pause)
            time.sleep(pause)
        else:
            if attempt > 1:
                _LOG.warning(
                    "%s answers again, after %.1f s and %d attempts", location.url, time.monotonic() - start, attempt
                )
            return result


def _left(location: Location, start: float) -> float | None:
    return None if location.deadline is None else max(0.0, location.deadline - (time.monotonic() - start))


def _positive(limit: float | None) -> float | None:
    return limit if limit is None else max(limit, 0.001)  # PyMongo reads 0 as no limit


def _shorter(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _may_pass(cause: BaseException | None) -> bool:
    if isinstance(cause, (ConnectionFailure, ExecutionTimeout)) or is_lookup_failure(cause):
        return True
    return isinstance(cause, OperationFailure) and (cause.code in _TRANSIENT or cause.has_error_label("RetryableError"))
