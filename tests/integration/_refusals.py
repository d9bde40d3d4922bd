"""How a refusal is judged: one error of the right class, in time, that shows no secret anywhere."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote, unquote

import pytest
from typer.testing import CliRunner

import storeds
from storeds import errors
from storeds.cli import app

__all__ = ["SLACK", "assert_refused", "no_secret", "readers_and_writers"]

SLACK = 10.0  # seconds beyond a deadline, for a busy machine; PyMongo itself waits 30
Action = Callable[[], object]


def readers_and_writers(url: str) -> dict[str, Action]:
    """Return each way to begin with a store, by name."""
    return {
        "open_backend": lambda: storeds.open_backend(url),
        "open_writer": lambda: storeds.open_writer(url, {"x": "int"}),
        "StoreDataset": lambda: storeds.StoreDataset(url, fields=("x",))[0],
        "info": lambda: storeds.info(url),
        "verify": lambda: storeds.verify(url),
        "command": lambda: _command("info", url),
    }


def _command(*arguments: str) -> None:
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code != 0
    # What a user sees: the message, in place of the exception.
    raise errors.UnavailableError(" ".join(ended.output.split()))


def assert_refused(
    action: Action, kind: type[Exception], match: str, within: float, caplog: pytest.LogCaptureFixture, login: str = ""
) -> None:
    """Assert that `action` raises this error within so many seconds, and shows nothing of `login`'s password."""
    with no_secret(login.partition(":")[2], caplog) as shown:
        start = time.monotonic()
        with pytest.raises(kind, match=match) as raised:
            action()
        took = time.monotonic() - start
        shown += [str(raised.value), repr(raised.value), *traceback.format_exception(raised.value)]
    assert took < within + SLACK


@contextmanager
def no_secret(password: str, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Give a list for texts; assert at the end that neither they nor any log record have the password."""
    shown: list[str] = []
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        yield shown
    _assert_hidden([*shown, caplog.text, *(repr(record.__dict__) for record in caplog.records)], password)


def _assert_hidden(texts: Sequence[str], password: str) -> None:
    for form in filter(None, {password, unquote(password), quote(password, safe="")}):
        assert not [text for text in texts if form in text]
