"""Reads text files whose encoding may be another than was thought."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from storeds._files import nearest
from storeds.errors import ConfigError, StoreNotFoundError

__all__ = ["open_text"]

_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


@contextmanager
def open_text(path: str, encoding: str | None) -> Iterator[TextIO]:
    r"""Open a regular file as text, line ends as they are.

    Parameters
    ----------
    path : str
        The file.
    encoding : str or None
        None stands for UTF-8, with or without a byte order mark.

    Raises
    ------
    StoreNotFoundError
        It is not there.
    ConfigError
        It is no regular file, or there is no such encoding; also in place of a UnicodeError in the body of the ``with``.
    """
    _check(path)
    try:
        codecs.lookup(encoding or "utf-8")
        file = open(path, encoding=encoding or "utf-8-sig", newline="")  # noqa: SIM115  # closed below
    except LookupError:
        raise ConfigError(f"encoding={encoding!r} is no encoding of text that Python knows") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        if encoding is None:
            _check_mark(path)
        try:
            yield file
        except UnicodeError as error:
            raise ConfigError(_fault(path, encoding or "utf-8") or f"{path}: {error}") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _check(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"no file at {path}: {nearest(os.path.abspath(path))}") from None
    except (OSError, ValueError) as error:
        raise StoreNotFoundError(f"{path!r} cannot be looked at: {error}") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is no regular file")


def _check_mark(path: str) -> None:
    with open(path, "rb") as file:
        head = file.read(4)
    for encoding, marks in _MARKS.items():
        if head.startswith(marks):
            raise ConfigError(f"{path} begins as {encoding.upper()} does, not as UTF-8; pass encoding={encoding!r}")


def _fault(path: str, encoding: str) -> str | None:
    # A stream's error counts from where its last block began; only the whole tells which byte of the file it is.
    with open(path, "rb") as file:
        data = file.read()
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return (
            f"{path}: byte {error.start} (0x{data[error.start]:02x}, line {line}) is no {encoding}: {error.reason}; "
            "pass encoding= with the one that it is in, for example 'cp1252'"
        )
    except UnicodeError as error:
        return f"{path} is no {encoding}: {error}"
    return None
