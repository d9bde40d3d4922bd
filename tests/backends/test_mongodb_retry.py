"""Which failures are waited out, for how long, and what is said in the end."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from storeds.backends.mongodb import parse_location, pymongo_errors, with_retries
from storeds.errors import UnavailableError

URL = "mongodb://user:hunter2@127.0.0.1:9/db/c?timeoutMS=1000&serverSelectionTimeoutMS=50"
LOCATION = parse_location(URL)


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("storeds.backends.mongodb.retry.time", clock)
    return clock


def ask(server: Callable[[], str]) -> str:
    return with_retries(LOCATION, server, lambda: True)


@pytest.mark.parametrize(
    "failure",
    [
        AutoReconnect("connection closed"),
        NetworkTimeout("timed out"),
        NotPrimaryError("not primary"),
        ServerSelectionTimeoutError("No primary available"),
        OperationFailure("cursor id not found", 43),
        OperationFailure("operation was interrupted", 11602),
        OperationFailure("operation exceeded time limit", 50),
    ],
    ids=lambda failure: f"{type(failure).__name__}-{getattr(failure, 'code', None)}",
)
def test_temporary_failures_are_retried_and_logged(failure: PyMongoError, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "storeds"):
        assert ask(server := Server(failure, failure)) == "answer"
    assert server.calls == 3
    assert [("trying again" in line, "answers again" in line) for line in caplog.messages] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("code", [13, 18, 59, 11000, 14031, 361])
def test_what_stays_is_an_error_at_once(code: int) -> None:
    server = Server(OperationFailure("no", code))
    with pytest.raises(UnavailableError):
        ask(server)
    assert server.calls == 1


def test_what_does_not_pass_in_time_names_the_place_the_attempts_and_the_deadline(clock: Clock) -> None:
    server, start = Server(always=AutoReconnect("connection closed")), clock.now
    with pytest.raises(
        UnavailableError, match=r"connection closed \(tried: \d+ attempts within [\d.]+ s; the "
    ) as error:
        ask(server)
    assert 0.3 < clock.now - start < 1.1
    assert server.calls > 2
    assert str(error.value).startswith("mongodb://user:***@127.0.0.1:9/db/c")
    assert "timeoutMS=1000" in str(error.value)


def test_a_server_that_is_not_there_at_all_is_looked_for_three_times() -> None:
    server = Server(always=ServerSelectionTimeoutError("connection refused"))
    with pytest.raises(UnavailableError, match="3 attempts"):
        ask(server)
    assert server.calls == 3


def test_no_deadline_is_no_deadline() -> None:
    location = parse_location(URL.replace("timeoutMS=1000", "timeoutMS=0"))
    assert location.deadline is None
    server = Server(*[AutoReconnect("connection closed")] * 3)
    assert with_retries(location, server, lambda: True) == "answer"
