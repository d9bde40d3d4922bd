"""Reads the rows of CSV and JSONL files, and reports by line what cannot be read."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TextIO, TypeAlias

from storeds._utils.locations import nearest
from storeds._utils.text import counted
from storeds.errors import ConfigError, StoreNotFoundError

__all__ = [
    "TOKEN_COLUMNS",
    "BadRow",
    "Dialect",
    "Rows",
    "csv_rows",
    "is_token_file",
    "jsonl_rows",
    "open_text",
    "token_rows",
]


_DELIMITERS = ",\t;|"
_SAMPLE = 4096  # characters; csv.Sniffer scans its sample many times


@dataclass(frozen=True)
class BadRow:
    """Stands in for a row that cannot be read."""

    reason: str


Rows: TypeAlias = Iterator[tuple[int, Mapping[str, Any] | BadRow]]
"""Line number, and the values of the row by column."""


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written. None is detected."""

    delimiter: str | None = None
    quotechar: str | None = None
    escapechar: str | None = None
    skip_space: bool = False

    def __post_init__(self) -> None:
        for name in ("delimiter", "quotechar", "escapechar"):
            value = getattr(self, name)
            empty = value == "" and name == "quotechar"
            if value is not None and not empty and (not isinstance(value, str) or len(value) != 1 or value in "\r\n"):
                raise ConfigError(f"{name}={value!r} must be one character, and not a line end")

    def reader(self, file: Iterator[str]) -> Any:
        """Return the `csv.reader` for it."""
        try:
            return csv.reader(
                file,
                delimiter=self.delimiter or ",",
                quotechar=self.quotechar or '"',
                escapechar=self.escapechar,
                skipinitialspace=self.skip_space,
                quoting=csv.QUOTE_NONE if self.quotechar == "" else csv.QUOTE_MINIMAL,
                strict=True,  # otherwise the reader drops quotes silently
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self} is not a possible CSV dialect: {error}") from None

    def complete(self, sample: str, wanted: Collection[str]) -> Dialect:
        """Return the dialect of `sample`, the beginning of a file whose header has one of the `wanted` columns."""
        if self.delimiter is not None and self.quotechar is not None:
            return self
        guess = self._sniff(sample)
        if self.delimiter is None:
            for delimiter in dict.fromkeys((guess.delimiter or ",", *_DELIMITERS)):
                tried = replace(guess, delimiter=delimiter)
                if any(name.strip().lower() in wanted for name in tried.header(sample)):
                    guess = tried
                    break
        others = guess.header(sample)[1:]
        return replace(guess, skip_space=bool(others) and all(name.startswith(" ") for name in others))

    def header(self, sample: str) -> list[str]:
        """Return the first row of `sample`."""
        try:
            return next(self.reader(io.StringIO(sample, newline="")), [])
        except csv.Error:
            return []

    def _sniff(self, sample: str) -> Dialect:
        # Quotes and spaces come from the header: the sniffer would take an apostrophe in a cell (l'œil) for a quote.
        quotechar = self.quotechar
        if quotechar is None:
            quotechar = "'" if sample.startswith("'") else '"'
        lines, end, _ = sample.rpartition("\n")
        try:
            found = csv.Sniffer().sniff(lines + end or sample, self.delimiter or _DELIMITERS).delimiter
        except csv.Error:
            found = ","
        return Dialect(self.delimiter or found, quotechar, self.escapechar)


def csv_rows(
    file: TextIO, dialect: Dialect, columns: Sequence[str] | None, wanted: Collection[str], where: str
) -> tuple[list[str], Rows]:
    """Return the columns and the rows of a CSV file.

    Parameters
    ----------
    file : text file
        Opened with ``newline=""``.
    dialect : Dialect
        How it is written.
    columns : sequence of str or None
        The column names of a file without a header.
    wanted : collection of str
        Column names of which a header has at least one.
    where : str
        The name of the file in messages.
    """
    sample = file.read(_SAMPLE)
    dialect = dialect.complete(sample, wanted if columns is None else ())
    file.seek(0)
    reader = dialect.reader(file)
    if columns is None:
        try:
            columns = next(filter(None, reader), [])
        except csv.Error as error:
            raise ConfigError(f"{where}: its header cannot be read: {error}") from None
    if not columns:
        raise ConfigError(f"{where} is empty; expected a line of column names, and one line per image")
    for name in columns:
        if "\0" in name:
            raise ConfigError(f"{where}: its header contains NUL characters; if it is UTF-16, pass encoding='utf-16'")
        if list(columns).count(name) > 1:
            raise ConfigError(f"{where}: there are two columns {name!r}; rename one")
    return list(columns), _csv_rows(reader, list(columns))


def _csv_rows(reader: Any, columns: list[str]) -> Rows:
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, BadRow(_csv_reason(str(error), reader.line_num))
            continue
        if len(row) == len(columns):
            nul = any("\0" in cell for cell in row)
            yield line, BadRow("contains a NUL character") if nul else dict(zip(columns, row, strict=True))
        elif row:  # empty lines are skipped
            yield line, BadRow(f"has {counted(len(row), 'column')} instead of {len(columns)}")


def _csv_reason(text: str, line: int) -> str:
    if "unexpected end of data" in text:
        return f"a quote is opened and not closed before the file ends at line {line}"
    if "field larger" in text:
        return f"{text}; is a quote opened and not closed?"
    return f"is not CSV: {text}"


def jsonl_rows(file: TextIO) -> tuple[list[str], Rows]:
    """Return the keys and the rows of a JSONL file. It is read twice, because any line may add a key."""
    names: dict[str, None] = {}
    for _, row in _json_rows(file):
        if not isinstance(row, BadRow):
            names.update(dict.fromkeys(row))
    file.seek(0)
    return list(names), _json_rows(file)


def _json_rows(file: TextIO) -> Rows:
    for line, text in enumerate(file, 1):
        if text.strip():
            yield line, _parse(text)


def _parse(text: str) -> dict[str, Any] | BadRow:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        return BadRow(f"is not JSON at column {error.colno}: {error.msg}")
    except RecursionError:
        return BadRow("is JSON nested too deeply")
    except ValueError as error:  # an integer of thousands of digits
        return BadRow(f"is JSON that cannot be stored: {error}")
    if not isinstance(row, dict):
        return BadRow(f"is a JSON {type(row).__name__}; expected an object with a path")
    return row


TOKEN_COLUMNS = ("image", "caption")
_TOKEN = re.compile(r"(?P<image>[^\t]+\.\w+)#\d+\t(?P<caption>.*)")


def is_token_file(sample: str) -> bool:
    """Whether a file begins as the captions of Flickr8k and Flickr30k do: ``1.jpg#0``, a tab, and a caption."""
    return _TOKEN.fullmatch(sample.partition("\n")[0].rstrip("\r")) is not None


def token_rows(file: TextIO) -> Rows:
    """Yield the rows of a file for which `is_token_file` is true, with ``TOKEN_COLUMNS``."""
    for line, text in enumerate(file, 1):
        found = _TOKEN.fullmatch(text.rstrip("\r\n"))
        if found is not None:
            yield line, found.groupdict()
        elif text.strip():
            yield (
                line,
                BadRow(
                    "is not an image, # with the number of the caption, a tab and the caption, as the first line is"
                ),
            )


_MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


@contextmanager
def open_text(path: str, encoding: str | None) -> Iterator[TextIO]:
    r"""Open a regular file as text, with its line ends unchanged.

    Parameters
    ----------
    path : str
        The file.
    encoding : str or None
        None means UTF-8, with or without a byte order mark.

    Raises
    ------
    StoreNotFoundError
        The file does not exist.
    ConfigError
        It is not a regular file, or the encoding is unknown. Also raised instead of a UnicodeError in the body of the
        ``with`` statement.
    """
    _check_regular(path)
    try:
        codecs.lookup(encoding or "utf-8")
        file = open(path, encoding=encoding or "utf-8-sig", newline="")  # noqa: SIM115  # closed below
    except LookupError:
        raise ConfigError(f"encoding={encoding!r} is not a text encoding that Python knows") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        if encoding is None:
            _check_mark(path)
        try:
            yield file
        except UnicodeError as error:
            raise ConfigError(_encoding_fault(path, encoding or "utf-8") or f"{path}: {error}") from None
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _check_regular(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"no file at {path}: {nearest(os.path.abspath(path))}") from None
    except (OSError, ValueError) as error:
        raise StoreNotFoundError(f"{path!r} cannot be inspected: {error}") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is not a regular file")


def _check_mark(path: str) -> None:
    with open(path, "rb") as file:
        head = file.read(4)
    for encoding, marks in _MARKS.items():
        if head.startswith(marks):
            raise ConfigError(f"{path} begins like {encoding.upper()}, not UTF-8; pass encoding={encoding!r}")


def _encoding_fault(path: str, encoding: str) -> str | None:
    # The error of a stream counts from its last block. Decoding the whole file gives the position in the file.
    with open(path, "rb") as file:
        data = file.read()
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return (
            f"{path}: byte {error.start} (0x{data[error.start]:02x}, line {line}) is not {encoding}: {error.reason}; "
            "pass encoding= with the encoding of the file, for example 'cp1252'"
        )
    except UnicodeError as error:
        return f"{path} is not {encoding}: {error}"
    return None


def begins_like_csv(path: str) -> bool:
    """Whether a text file begins with column names, one of which is a usual one for paths, or with a caption of Flickr8k."""
    from storeds.ops.packing.sources.list_columns import PATH_COLUMNS

    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        sample = file.read(4096)
    if is_token_file(sample):
        return True
    header = Dialect().complete(sample, PATH_COLUMNS).header(sample)
    return any(name.strip().lower() in PATH_COLUMNS for name in header)
