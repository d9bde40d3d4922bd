"""Repeats operations after transient MongoDB failures, with backoff and jitter, within one deadline."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pymongo.errors import ConfigurationError, ConnectionFailure, OperationFailure

from storeds.backends.handles import HandleRef
from storeds.backends.mongodb.client import Location, durable, leased_database, within
from storeds.errors import UnavailableError

__all__ = ["on_primary", "with_retries"]

_LOG = logging.getLogger("storeds")

T = TypeVar("T")

# Only a time limit detects a frozen node. The first attempt gets a part of the deadline, and each later one twice as
# much as the one before, so that a slow answer still gets through.
_FIRST_SHARE = 1 / 6
_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds
_SHORTEST = 0.001  # seconds; PyMongo reads 0 as no limit
# Not the global generator: a failover must not change a program's random numbers, and forked workers must differ.
_DRAW = random.SystemRandom()
# PyMongo's own, and others: an interrupted or killed operation, a cursor that was lost with its server, a restarted
# secondary that has no keys for the cluster's time yet.
_TRANSIENT = frozenset((6, 7, 43, 50, 89, 91, 133, 134, 175, 189, 202, 211, 237, 262, 290, 9001))
_TRANSIENT |= frozenset((10107, 11600, 11601, 11602, 13435, 13436))


def with_retries(location: Location, operation: Callable[[], T]) -> T:
    """Call `operation` until it succeeds, and return its result; only transient failures are repeated.

    Parameters
    ----------
    location : Location
        Its `deadline` limits all attempts together.
    operation : callable
        Must be idempotent and respect ``pymongo.timeout``.

    Raises
    ------
    UnavailableError
        The deadline has passed, or the failure is permanent, such as a refusal or a replaced collection.
    """
    start, deadline = time.monotonic(), location.deadline
    limit, pause, attempt = deadline * _FIRST_SHARE, _PAUSE, 0
    while True:
        attempt += 1
        left = max(_SHORTEST, start + deadline - time.monotonic())
        try:
            return within(None if limit == math.inf else min(limit, left), operation)
        except UnavailableError as error:
            if not _may_pass(error.__cause__):
                raise
            delay, spent = pause * _DRAW.uniform(0.5, 1), time.monotonic() - start
            if spent + delay >= deadline:
                raise UnavailableError(
                    f"{error} (tried: {attempt} attempts within {spent:.1f} s; the deadline is "
                    f"timeoutMS={deadline * 1000:.0f})"
                ) from error.__cause__
            _LOG.warning("%s; trying again in %.1f s", error, delay)
            time.sleep(delay)
            limit, pause = limit * 2, min(pause * 2, _LONGEST_PAUSE)


def on_primary(ref: HandleRef[Any], location: Location, operation: Callable[[Any], T]) -> T:
    """Call `operation` with the `durable` database through the client of `ref`, as `with_retries` does."""

    def attempt() -> T:
        with leased_database(ref, location) as database:
            return operation(durable(database))

    return with_retries(location, attempt)


def _may_pass(cause: BaseException | None) -> bool:
    if isinstance(cause, OperationFailure):
        return cause.code in _TRANSIENT
    return isinstance(cause, (ConnectionFailure, ConfigurationError))  # this one is a failed DNS lookup
