"""Reads CSV and JSONL files as lists of lines."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeAlias

from storeds._utils.files import nearest
from storeds._utils.text import counted, printable
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.layouts.files.rows import BadItem, read_file
from storeds.layouts.files.walk import is_text

__all__ = ["Line", "csv_lines", "jsonl_lines", "open_text"]

Line: TypeAlias = tuple[int, list[Any] | str]
"""The number of a line, and its cells in the order of the columns, or why it cannot be read."""


def open_text(path: str, encoding: str = "utf-8-sig") -> TextIO:
    """Return the text of a regular file, with its line ends unchanged.

    Raises
    ------
    StoreNotFoundError
        The file does not exist.
    ConfigError
        It is not a regular file, or not in this encoding; or the encoding is unknown.
    """
    if not os.path.lexists(path):
        raise StoreNotFoundError(f"no file at {printable(path)}: {nearest(os.path.abspath(path))}")
    try:
        data = read_file(path)
        data.decode(encoding)  # the error of a stream would count from its last block
        return io.TextIOWrapper(io.BytesIO(data), encoding, newline="")
    except BadItem as error:
        raise ConfigError(f"{path} {error}") from None
    except LookupError:
        raise ConfigError(f"encoding={encoding!r} is not a text encoding that Python knows") from None
    except UnicodeError as error:
        line = data.count(b"\n", 0, getattr(error, "start", 0)) + 1
        raise ConfigError(
            f"{path} line {line}: {error}; pass the encoding of the file, such as encoding='cp1252' (--option encoding=cp1252)"
        ) from None


def csv_lines(file: TextIO, where: str, columns: Sequence[str], **dialect: Any) -> tuple[list[str], list[Line]]:
    """Return the columns and the lines of a CSV file. Empty lines are left out.

    Parameters
    ----------
    file : text file
        With its line ends unchanged.
    where : str
        The name of the file in messages.
    columns : sequence of str
        The column names of a file without a header.
    **dialect
        Arguments of `csv.reader`.

    Raises
    ------
    ConfigError
        The header cannot be read, names a column twice, or has another delimiter; or the dialect is not possible.
    """
    with _cells_of_any_size():
        return _csv_lines(file, where, columns, **dialect)


_LIMIT = threading.Lock()


@contextmanager
def _cells_of_any_size() -> Iterator[None]:
    """Lift the limit of the csv module, 131,072 characters. It is one for the process, so one thread lifts it at a time."""
    with _LIMIT:
        before = csv.field_size_limit(sys.maxsize)
        try:
            yield
        finally:
            csv.field_size_limit(before)


def _csv_lines(file: TextIO, where: str, columns: Sequence[str], **dialect: Any) -> tuple[list[str], list[Line]]:
    try:
        reader = csv.reader(file, strict=True, **dialect)  # without strict, the reader drops quotes silently
        names = list(columns) or next(filter(None, reader), [])
    except (TypeError, ValueError, csv.Error) as error:
        raise ConfigError(f"{where}: its header cannot be read: {error}") from None
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise ConfigError(f"{where}: there are two columns {doubled!r}; rename one")
    other = next((each for each in ";\t|" if len(names) == 1 and each in names[0]), None)
    if other is not None:
        text = r"\t" if other == "\t" else other
        raise ConfigError(
            f"{where} has one column, {names[0]!r:.80}; pass delimiter='{text}' (--option 'delimiter={text}')"
        )
    return names, list(_lines_of(reader, len(names)))


def _lines_of(reader: Any, columns: int) -> Iterator[Line]:
    """Yield the lines that a `csv.reader` has left, except empty ones."""
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, f"is not CSV: {error}; is a quote opened and not closed?"
            continue
        if len(cells) == columns:
            yield number, cells
        elif cells:
            yield number, f"has {counted(len(cells), 'column')} instead of {columns}"


def jsonl_lines(file: TextIO) -> tuple[list[str], list[Line]]:
    """Return the keys of all objects in a JSONL file, and its lines. A key that an object lacks is null."""
    names: dict[str, None] = {}
    lines: list[Line] = []
    for number, text in enumerate(file, 1):
        if text.strip():
            row = _parse(text)
            if isinstance(row, dict):
                names.update(dict.fromkeys(row))
            lines.append((number, row if isinstance(row, str) else [row.get(name) for name in names]))
    for _, cells in lines:
        if isinstance(cells, list):
            cells += [None] * (len(names) - len(cells))
    return list(names), lines


def _parse(text: str) -> dict[str, Any] | str:
    """Return a JSON object, or why a line is not one that can be stored."""
    try:
        row = json.loads(text)
        is_storable = "\\u" not in text or is_text(json.dumps(row, ensure_ascii=False))
    except (RecursionError, ValueError) as error:  # or nested too deeply
        return f"is not JSON that can be stored: {error}"
    if not isinstance(row, dict):
        return f"is a JSON {type(row).__name__}; expected an object with a path"
    return row if is_storable else "contains half of a surrogate pair, which UTF-8 cannot encode"
