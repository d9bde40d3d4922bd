"""Decides what an error leaves of a half-written store: its work, unless the error lies in the records themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storeds.errors import ConfigError, RecordError
from storeds.protocols import Writer

__all__ = ["resumable"]


@contextmanager
def resumable(writer: Writer) -> Iterator[Writer]:
    """Use `writer` in the body; an error that may pass (a full disk, a lost server, Ctrl-C) keeps what is durable.

    Bad records and a wrong configuration abort instead: going on from there would meet them again.
    """
    with writer:
        try:
            yield writer
        except (RecordError, ConfigError):
            raise
        except BaseException:
            writer.suspend()
            raise
