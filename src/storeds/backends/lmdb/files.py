"""Opens LMDB files of any tool, and checks what LMDB does not: that they are complete."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lmdb

from storeds._utils.files import CutShortError
from storeds.errors import ConfigError, FormatError, UnavailableError
from storeds.records.meta import WRITTEN_BY

__all__ = ["check_length", "lmdb_errors", "open_environment"]

_META = struct.Struct("<40xI92xQQ")  # of page 0 and 1: page size, last page, transaction id


def open_environment(path: str, *, readahead: bool, databases: int) -> Any:
    """Open a published file read-only and without a lock file."""
    return lmdb.open(
        path, subdir=False, readonly=True, lock=False, meminit=False, readahead=readahead, max_dbs=databases
    )


@contextmanager
def lmdb_errors(url: str) -> Iterator[None]:
    """Convert LMDB's errors about a file that is damaged, or that is no native store, to FormatError."""
    try:
        yield
    except lmdb.NotFoundError as error:
        raise FormatError(f"{url} is an LMDB file, but not a native store: {error}; {WRITTEN_BY}") from error
    except lmdb.Error as error:
        if "already open" in str(error):
            raise ConfigError(
                f"{url} was changed while this process has it open; close every backend of it first"
            ) from error
        if "MDB_" not in str(error):  # a system call failed
            raise UnavailableError(f"{url} cannot be read by LMDB: {error}") from error
        raise FormatError(f"{url} cannot be read by LMDB: {error}; copy it again") from error


def check_length(descriptor: int, url: str) -> None:
    """Raise FormatError if an LMDB file is cut short: its reader would die of SIGBUS at the first missing page."""
    size = os.fstat(descriptor).st_size
    first = os.pread(descriptor, _META.size, 0)
    page_size: int = _META.unpack(first)[0] if len(first) == _META.size else 0
    second = os.pread(descriptor, _META.size, page_size)
    if not page_size or len(second) < _META.size:
        raise FormatError(f"{url} is cut short or damaged: {size} bytes do not hold an LMDB header; copy it again")
    last, _ = max((_META.unpack(page)[1:] for page in (first, second)), key=lambda meta: int(meta[1]))
    if (last + 1) * page_size > size:
        raise CutShortError(
            f"{url} is cut short: its header says {(last + 1) * page_size} bytes, the file has {size}; copy it again"
        )
