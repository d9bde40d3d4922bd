"""Repeats what a failover, a frozen node or a cut network ended, with backoff and jitter, inside one deadline."""

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
    """Give all operations in the body, and in copies of its context, one deadline together."""
    token = _since.set(time.monotonic())
    try:
        yield
    finally:
        _since.reset(token)


# A frozen node answers nothing and closes nothing: only a time limit tells. The first attempt gets a share of the deadline,
# each later one twice as much as the one before, so that a slow answer still has its time.
_FIRST_SHARE = 1 / 6
_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds
# A failover must not change what a seeded program draws next, nor may forked workers all pause alike.
_DRAW = random.SystemRandom()
# A server that is not there at all is not waited for longer than serverSelectionTimeoutMS says, a few times.
_SELECTIONS = 3
# Beyond those of PyMongo: an interrupted or killed operation, a cursor that died with its server.
_TRANSIENT = frozenset((6, 7, 43, 50, 89, 91, 133, 134, 175, 189, 202, 237, 262, 290, 9001))
_TRANSIENT |= frozenset((10107, 11600, 11601, 11602, 13435, 13436))


def with_retries(location: Location, operation: Callable[[], T], knows_server: Callable[[], bool]) -> T:
    """Return what `operation` returns, repeated until it succeeds while what stops it may pass.

    Parameters
    ----------
    location : Location
        Its `deadline` is what all attempts together may take.
    operation : callable
        Must do the same however often it is called, and end as PyMongo's own time limit says.
    knows_server : callable
        Whether a server has been found. While none has, an attempt has no longer than looking for one may take, which
        PyMongo itself ignores within a time limit.

    Raises
    ------
    UnavailableError
        The deadline has passed, or the cause is not one that passes: refused, replaced.
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
            pause = min(_LONGEST_PAUSE, _PAUSE * 2**attempt) * _DRAW.uniform(0.5, 1)  # keeps workers apart
            left = _left(location, start)
            if is_lookup_failure(cause):
                # A name server may say at once that there is no such name: a few attempts would be no time at all.
                left = _shorter(left, _SELECTIONS * location.selection - (time.monotonic() - start))
            if selections >= _SELECTIONS or (left is not None and left <= pause):
                spent = f"{attempt} attempts within {time.monotonic() - start:.1f} s"
                raise UnavailableError(f"{error} (tried: {spent}; {_told(location.deadline)})") from cause
            _LOG.warning("%s; trying again in %.1f s", error, pause)
            time.sleep(pause)
        else:
            if attempt > 1:
                _LOG.warning(
                    "%s answers again, after %.1f s and %d attempts", location.url, time.monotonic() - start, attempt
                )
            return result


def _told(deadline: float | None) -> str:
    return "there is no deadline" if deadline is None else f"the deadline is timeoutMS={deadline * 1000:.0f}"


def _left(location: Location, start: float) -> float | None:
    return None if location.deadline is None else max(0.0, location.deadline - (time.monotonic() - start))


def _positive(limit: float | None) -> float | None:
    return limit if limit is None else max(limit, 0.001)  # to PyMongo, 0 is no limit


def _shorter(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _may_pass(cause: BaseException | None) -> bool:
    if isinstance(cause, (ConnectionFailure, ExecutionTimeout)) or is_lookup_failure(cause):
        return True
    return isinstance(cause, OperationFailure) and (cause.code in _TRANSIENT or cause.has_error_label("RetryableError"))
