"""Reads the tables of users that belong to the records of a store: CSV, TSV and Parquet files."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import xxhash

from storeds._utils.files import os_failure
from storeds.errors import ConfigError, StoreNotFoundError

__all__ = ["is_parquet", "read_table"]

_PARQUET = (".parquet", ".pq")


def is_parquet(path: str) -> bool:
    """Whether a table is read as Parquet; any other is CSV or TSV, whose cells are texts."""
    return os.path.splitext(path)[1].lower() in _PARQUET


def read_table(path: str, what: str) -> tuple[str, dict[str, list[Any]]]:
    """Return the digest of a file, and the columns of the table in it; the cells of CSV are texts, as written.

    Parameters
    ----------
    path : str
    what : str
        The argument that names the table, for messages.

    Raises
    ------
    StoreNotFoundError, UnavailableError, ConfigError
        There is no such file; it cannot be read; it is no table, or needs pyarrow.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise StoreNotFoundError(f"{what}: there is no file {path}") from None
    except OSError as error:
        raise os_failure(path, "read", error) from None
    return xxhash.xxh3_128_hexdigest(data), (_of_parquet if is_parquet(path) else _of_csv)(path, data, what)


def _of_parquet(path: str, data: bytes, what: str) -> dict[str, list[Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"{what}: {path} needs pyarrow ({error}): pip install 'storeds[hf]'") from None
    try:
        found: dict[str, list[Any]] = pyarrow.parquet.read_table(pyarrow.BufferReader(data)).to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{what}: {path} is not a Parquet file: {error}") from None
    return found


def _of_csv(path: str, data: bytes, what: str) -> dict[str, list[Any]]:
    try:
        delimiter = "\t" if path.lower().endswith(".tsv") else ","
        lines = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True, delimiter=delimiter)
        header, *rows = filter(None, lines)
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{what}: {path} is not a CSV file with a header: {error}") from None
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ConfigError(f"{what}: row {number + 1} of {path} has {len(row)} cells, and the header {len(header)}")
    if len({*header}) < len(header):
        raise ConfigError(f"{what}: {path} has two columns of one name: {', '.join(header)}")
    return {name: [row[at] for row in rows] for at, name in enumerate(header)}
