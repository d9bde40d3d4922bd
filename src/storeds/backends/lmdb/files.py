"""Opens LMDB files of any tool, and checks what LMDB does not: that they are complete."""

from __future__ import annotations

import itertools
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, MADV_RANDOM, mmap
from typing import Any

import lmdb

from storeds.errors import ConfigError, FormatError, UnavailableError
from storeds.protocols import Array
from storeds.records.meta import WRITTEN_BY

__all__ = ["MOST_DATABASES", "Environment", "build_of", "lmdb_errors", "open_environment"]

MOST_DATABASES = 32  # named ones that are open at once

_META = struct.Struct("<40xI92xQQ")  # of page 0 and 1: page size, last page, transaction id


class Environment:
    """An open environment: the handle of every store in its file.

    Attributes
    ----------
    env : lmdb.Environment
    build : str
        Inode, size and modification time of the file when it was opened.
    pages : array or None
        Where the records of a native store lie, see `storeds.backends.lmdb.format.PAGES`: a view of the map.
    """

    def __init__(self, path: str, *, readahead: bool) -> None:
        self.build = build_of(path)
        # Published files never change, so they are opened without a lock file.
        options: dict[str, Any] = {"readonly": True, "lock": False, "meminit": False, "max_dbs": MOST_DATABASES}
        self.env: Any = lmdb.open(path, subdir=False, readahead=readahead, **options)
        self.pages: Array | None = None
        self._databases: dict[bytes | None, Any] = {}
        self._lock = threading.Lock()
        self._path = path
        self._map: mmap | None = None

    def map(self) -> mmap | None:
        """Return a map of the file, besides that of LMDB; None if the file is not there any more.

        LMDB gives no part of a value without reading all of it.
        """
        if self._map is None:
            with suppress(OSError), open(self._path, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_ino == int(self.build.partition("-")[0], 16):
                    self._map = mmap(file.fileno(), 0, access=ACCESS_READ)
                    self._map.madvise(MADV_RANDOM)
        return self._map

    def database(self, name: bytes | None) -> Any:
        """Return the handle of a named database, or of the main one for None; raises errors of LMDB."""
        with self._lock:  # LMDB must not open databases in two threads at once
            if name not in self._databases:
                self._databases[name] = self.env.open_db(name, create=False)
            return self._databases[name]

    def first_keys(self, count: int) -> list[bytes]:
        """Return the first keys of the main database."""
        with self.env.begin() as txn:
            return [bytes(key) for key in itertools.islice(txn.cursor().iternext(values=False), count)]

    def close(self) -> None:
        """Close the environment."""
        self.pages = self._map = None
        self.env.close()


def build_of(path: str) -> str:
    """Return the inode, size and modification time of a file."""
    status = os.stat(path)
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def open_environment(path: str, url: str, *, readahead: bool) -> Environment:
    """Open a published file read-only and without a lock file; raises FormatError unless it is complete."""
    with open(path, "rb", buffering=0) as file:
        _check_length(file.fileno(), url)
    with lmdb_errors(url):
        return Environment(path, readahead=readahead)


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


def _check_length(descriptor: int, url: str) -> None:
    """Raise FormatError if an LMDB file is cut short: its reader would die of SIGBUS at the first missing page."""
    size = os.fstat(descriptor).st_size
    first = os.pread(descriptor, _META.size, 0)
    page_size: int = _META.unpack(first)[0] if len(first) == _META.size else 0
    second = os.pread(descriptor, _META.size, page_size)
    if not page_size or len(second) < _META.size:
        raise FormatError(f"{url} is cut short or damaged: {size} bytes do not hold an LMDB header; copy it again")
    last, _ = max((_META.unpack(page)[1:] for page in (first, second)), key=lambda meta: int(meta[1]))
    if (last + 1) * page_size > size:
        raise FormatError(
            f"{url} is cut short: its header says {(last + 1) * page_size} bytes, the file has {size}; copy it again"
        )
