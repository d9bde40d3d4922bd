"""Repeats operations after transient MongoDB failures, with backoff and jitter, within one deadline."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pymongo
from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from storeds.backends.handles import HandleRef
from storeds.backends.mongodb.client import Location, is_lookup_failure, knows_server, leased_database
from storeds.errors import UnavailableError

__all__ = ["on_database", "with_retries"]

_LOG = logging.getLogger("storeds")

T = TypeVar("T")

# Only a time limit detects a frozen node. The first attempt gets a part of the deadline, and each later one twice as
# much as the one before, so that a slow answer still gets through.
_FIRST_SHARE = 1 / 6
_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds
_SHORTEST = 0.001  # seconds; PyMongo reads 0 as no limit
# Not the global generator: a failover must not change a program's random numbers, and forked workers must differ.
_DRAW = random.SystemRandom()
# Give up after this many server selections in a row that found no server.
_SELECTIONS = 3
# In addition to PyMongo's own: an interrupted or killed operation, a cursor that was lost with its server.
_TRANSIENT = frozenset((6, 7, 43, 50, 89, 91, 133, 134, 175, 189, 202, 237, 262, 290, 9001))
_TRANSIENT |= frozenset((10107, 11600, 11601, 11602, 13435, 13436))


def on_database(ref: HandleRef[Any], location: Location, operation: Callable[[Any], T]) -> T:
    """Call `operation` with the location's database by the client of `ref`; see `with_retries`."""

    def attempt() -> T:
        with leased_database(ref, location) as database:
            return operation(database)

    def knows() -> bool:
        with ref.lease() as client:
            return knows_server(client)

    return with_retries(location, attempt, knows)


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
    start, selections, attempt = time.monotonic(), 0, 0
    deadline = math.inf if location.deadline is None else location.deadline
    limit = deadline * _FIRST_SHARE
    while True:
        attempt += 1
        try:
            longest = limit if knows_server() else min(limit, location.selection)
            longest = max(_SHORTEST, min(longest, start + deadline - time.monotonic()))
            with pymongo.timeout(None if longest == math.inf else longest):
                result = operation()
        except UnavailableError as error:
            cause = error.__cause__
            if not _may_pass(cause):
                raise
            selections = selections + 1 if isinstance(cause, ServerSelectionTimeoutError) else 0
            if isinstance(cause, PyMongoError) and cause.timeout:
                limit *= 2
            pause = min(_LONGEST_PAUSE, _PAUSE * 2**attempt) * _DRAW.uniform(0.5, 1)
            # A failed DNS lookup may return at once, so limit these attempts by time, not by number.
            most = min(deadline, _SELECTIONS * location.selection) if is_lookup_failure(cause) else deadline
            spent = time.monotonic() - start
            if selections >= _SELECTIONS or most - spent <= pause:
                given = (
                    "there is no deadline"
                    if deadline == math.inf
                    else f"the deadline is timeoutMS={deadline * 1000:.0f}"
                )
                raise UnavailableError(f"{error} (tried: {attempt} attempts within {spent:.1f} s; {given})") from cause
            _LOG.warning("%s; trying again in %.1f s", error, pause)
            time.sleep(pause)
        else:
            if attempt > 1:
                spent = time.monotonic() - start
                _LOG.warning("%s answers again, after %.1f s and %d attempts", location.url, spent, attempt)
            return result


def _may_pass(cause: BaseException | None) -> bool:
    if isinstance(cause, (ConnectionFailure, ExecutionTimeout)) or is_lookup_failure(cause):
        return True
    return isinstance(cause, OperationFailure) and (cause.code in _TRANSIENT or cause.has_error_label("RetryableError"))
