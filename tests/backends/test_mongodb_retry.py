"""Which MongoDB failures are waited out, for how long, and what the error says in the end."""

from __future__ import annotations

import logging
import math
from typing import Any

import dns.resolver
import pytest
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from storeds.backends.mongodb import parse_location, pymongo_errors, with_retries
from storeds.errors import UnavailableError

URL = "mongodb://user:hunter2@127.0.0.1:9/db/c?timeoutMS=1000"
LOCATION = parse_location(URL)
RESOLVER: Any = dns.resolver


class Server:
    """Fails with these, one a call, then answers; `always` fails for ever."""

    def __init__(self, *failures: PyMongoError, always: PyMongoError | None = None) -> None:
        self.failures, self.always, self.calls = list(failures), always, 0

    def __call__(self) -> str:
        self.calls += 1
        with pymongo_errors(LOCATION):
            if self.failures:
                raise self.failures.pop(0)
            if self.always:
                raise self.always
        return "answer"


class Clock:
    """Stands for the module `time`: a pause takes no time, and each attempt 10 ms."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.005
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("storeds.backends.mongodb.retry.time", clock)
    return clock


def no_lookup() -> PyMongoError:
    failure = ConfigurationError("The resolution lifetime expired")
    failure.__cause__ = RESOLVER.LifetimeTimeout(timeout=1.0, errors=[])
    return failure


@pytest.mark.parametrize(
    "failure",
    [
        AutoReconnect("connection closed"),
        NetworkTimeout("timed out"),
        ServerSelectionTimeoutError("No primary available"),
        OperationFailure("cursor id not found", 43),
        OperationFailure("operation exceeded time limit", 50),
        no_lookup(),
    ],
    ids=lambda failure: f"{type(failure).__name__}-{getattr(failure, 'code', None)}",
)
@pytest.mark.parametrize("deadline", [1.0, math.inf])
def test_temporary_failures_are_retried_and_logged(
    failure: PyMongoError, deadline: float, caplog: pytest.LogCaptureFixture
) -> None:
    location = LOCATION if deadline < math.inf else parse_location(URL.replace("1000", "0"))
    assert location.deadline == deadline
    with caplog.at_level(logging.WARNING, "storeds"):
        assert with_retries(location, server := Server(failure, failure)) == "answer"
    assert server.calls == 3
    assert [message for message in caplog.messages if "trying again" in message] == caplog.messages
    assert len(caplog.messages) == 2
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("code", [13, 11000, 14031])
def test_what_stays_is_an_error_at_once(code: int) -> None:
    server = Server(OperationFailure("no", code))
    with pytest.raises(UnavailableError):
        with_retries(LOCATION, server)
    assert server.calls == 1


def test_what_does_not_pass_in_time_names_the_place_the_attempts_and_the_deadline(clock: Clock) -> None:
    server, start = Server(always=AutoReconnect("connection closed")), clock.now
    says = r"^mongodb://user:\*\*\*@127.0.0.1:9/db/c.*connection closed \(tried: \d+ attempts within [\d.]+ s; .*timeoutMS=1000\)"
    with pytest.raises(UnavailableError, match=says):
        with_retries(LOCATION, server)
    assert 0.3 < clock.now - start < 1.1
    assert server.calls > 2
