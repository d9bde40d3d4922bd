"""How a refusal is judged: one error of the right class, in time, that shows no secret anywhere."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from urllib.parse import quote, unquote

import pytest
from typer.testing import CliRunner

import storeds
from storeds import errors
from storeds.cli import app

__all__ = ["ACTIONS", "SLACK", "assert_refused"]

SLACK = 10.0  # seconds beyond a deadline, for a busy machine; PyMongo itself waits 30


def _command(url: str) -> None:
    ended = CliRunner().invoke(app, ["info", url])
    assert ended.exit_code != 0
    # What a user sees: the message, in place of the exception.
    raise errors.UnavailableError(" ".join(ended.output.split()))


ACTIONS: dict[str, Callable[[str], object]] = {
    "open_backend": storeds.open_backend,
    "open_writer": lambda url: storeds.open_writer(url, {"x": "int"}),
    "overwrite": lambda url: storeds.open_writer(url, {"x": "int"}, overwrite=True),
    "verify": storeds.verify,
    "command": _command,
}
"""Every way to begin with a store, by name."""


def assert_refused(
    action: Callable[[], object],
    match: str,
    within: float,
    caplog: pytest.LogCaptureFixture,
    login: str = "",
    kind: type[Exception] = errors.UnavailableError,
) -> None:
    """Assert that `action` raises this error within so many seconds, and that nothing shows the password of `login`."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        start = time.monotonic()
        with pytest.raises(kind, match=match) as raised:
            action()
    assert time.monotonic() - start < within + SLACK
    shown = [repr(raised.value), *traceback.format_exception(raised.value), caplog.text]
    shown += [repr(record.__dict__) for record in caplog.records]
    password = login.partition(":")[2]
    for form in filter(None, {password, unquote(password), quote(unquote(password), safe="")}):
        assert not [text for text in shown if form in text]
