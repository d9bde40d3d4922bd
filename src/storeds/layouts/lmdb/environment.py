"""Opens LMDB environments that other tools wrote, and reads their entries.

There is one handle for each environment, in the pool of native stores.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import lmdb

from storeds.backends.base import FileOpener, NativeStoreError
from storeds.backends.handles import OpenStore
from storeds.backends.lmdb.files import check_length, lmdb_errors, open_environment
from storeds.backends.lmdb.format import COLUMNS, META, RECORDS, LmdbOptions
from storeds.errors import ConfigError, FormatError
from storeds.layouts.pattern import Pattern, parse_pattern
from storeds.protocols import Meta
from storeds.records.meta import WRITTEN_BY

__all__ = [
    "DATA",
    "EnvironmentOpener",
    "ForeignHandle",
    "ForeignOptions",
    "LmdbReader",
    "key_text",
]

_MAX_DATABASES = 32
DATA = "data.mdb"
_SHOWN = 9  # keys in a message
_LARGE = 1 << 17  # bytes of a value: the kernel reads about as much ahead, so that most of it is needed


def _keys(given: Any) -> tuple[bytes, ...]:
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, (str, bytes)) for name in names):
        raise ValueError("expected keys, as a list or divided by commas")
    return tuple(name.encode() if isinstance(name, str) else name for name in names if name)


def _pattern(columns: Any) -> Pattern | None:
    return None if columns is None else parse_pattern(columns, attributes=False)


class ForeignOptions(LmdbOptions, frozen=True):
    """Options of every foreign LMDB layout.

    Attributes
    ----------
    database : str, optional
        The named database inside the environment that holds the records; by default the main one.
    exclude : str or list, optional
        Keys of further entries that are not records.
    columns : mapping or str, optional
        The pattern, as `storeds.layouts.pattern.parse_pattern` takes it.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "exclude": _keys,
        "columns": _pattern,
    }

    database: str | None = None
    exclude: Any = ()
    columns: Pattern | None = None


_NATIVE = {COLUMNS, META, RECORDS}

_DATABASE = 48  # bytes of the value that stands for a named database


class ForeignHandle:
    """An open environment, and the state of its file when it was opened."""

    def __init__(self, env: Any, url: str) -> None:
        self.env, self.url = env, url
        self.build = self.build_now()
        self._databases: dict[str | None, Any] = {}
        self._lock = threading.Lock()

    def build_now(self) -> str:
        """Return the current inode, size and modification time of the file."""
        status = os.stat(self.env.path())
        return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"

    @property
    def meta(self) -> Meta:
        """Raise FormatError: only a native store has it, and a native backend may share this handle."""
        raise FormatError(f"{self.url} is an LMDB file, but not a native store: a foreign layout has it open")

    def is_native(self) -> bool:
        """Whether the environment holds the databases of a native store."""
        with lmdb_errors(self.url), self.env.begin() as txn:
            return all(len(txn.get(name, b"")) == _DATABASE for name in _NATIVE)

    def database(self, name: str | None) -> Any:
        """Return the handle of a named database, or of the main one for None; raises ConfigError."""
        with self._lock:  # LMDB must not open databases in two threads at once
            if name not in self._databases:
                try:
                    self._databases[name] = self.env.open_db(None if name is None else name.encode(), create=False)
                except lmdb.NotFoundError:
                    held = ", ".join(repr(key_text(key)) for key in self.first_keys()) or "nothing"
                    raise ConfigError(f"{self.url} has no database {name!r}; its main database holds {held}") from None
                except (lmdb.IncompatibleError, lmdb.BadValsizeError) as error:
                    raise ConfigError(f"{self.url}: {name!r} is not a database ({error})") from None
                except lmdb.DbsFullError:
                    raise ConfigError(
                        f"{self.url}: more than {_MAX_DATABASES} of its databases are open; close some backends"
                    ) from None
            return self._databases[name]

    def value_size(self, database: str | None) -> float:
        """Return the mean size of the values in a named database, or in the main one, in bytes; 0 if that is unknown."""
        with suppress(ConfigError, lmdb.Error):  # opening the store reports them
            found = self.database(database)
            with self.env.begin() as txn:
                stat = txn.stat(found)
            return float(stat["overflow_pages"] * stat["psize"] / max(stat["entries"], 1))
        return 0.0

    def check_main_database(self) -> None:
        """Raise ConfigError if the main database holds nothing but named databases."""
        names = self.first_keys()
        if names and all(map(self.is_database, names)):
            if _NATIVE.issuperset(names):
                raise NativeStoreError(f"{self.url} is a native store that lacks a part; {WRITTEN_BY}")
            shown = ", ".join(f"database={key_text(name)!r}" for name in names)
            raise ConfigError(
                f"{self.url} has no records in its main database, only named databases; pass one of them: {shown}"
            )

    def first_keys(self) -> list[bytes]:
        """Return the first keys of the main database."""
        with self.env.begin() as txn:
            return [bytes(key) for key in itertools.islice(txn.cursor().iternext(values=False), _SHOWN)]

    def is_database(self, name: bytes) -> bool:
        """Whether an entry of the main database stands for a named database."""
        try:
            self.database(name.decode())
        except (ConfigError, UnicodeDecodeError):
            return False
        return True


def key_text(key: bytes) -> str:
    r"""Return a key as text: bytes that are not UTF-8 as ``\xff``."""
    return key.decode("utf-8", "backslashreplace")


class EnvironmentOpener(FileOpener[ForeignOptions]):
    """Opens an environment, a folder or one file, read-only and without a lock file."""

    engine = "lmdb"

    @property
    def data_path(self) -> str:
        """The data file; in a folder it is ``data.mdb``."""
        return os.path.join(self.path, DATA) if os.path.isdir(self.path) else self.path

    def key(self, opened: OpenStore | None = None) -> Hashable:
        path = self.data_path
        if path != self.path and not os.path.exists(path):
            raise FormatError(f"{self.url} is a folder without {DATA}, so it is not an LMDB environment")
        return super().key(opened)

    def open(self, opened: OpenStore | None = None) -> ForeignHandle:
        path = self.data_path
        with OpenStore.borrow(opened) as store:
            check_length(store.descriptor(path), self.url)
        with lmdb_errors(self.url):
            readahead = self.settings.readahead
            handle = self._open(path, bool(readahead))
            if readahead is None and handle.value_size(self.settings.database) > _LARGE:
                handle.env.close()
                handle = self._open(path, True)
            return handle

    def _open(self, path: str, readahead: bool) -> ForeignHandle:
        return ForeignHandle(open_environment(path, readahead=readahead, databases=_MAX_DATABASES), self.url)

    def close(self, handle: ForeignHandle, /) -> None:
        handle.env.close()

    def abandon_after_fork(self, handle: ForeignHandle, /) -> None:
        # Without a lock file the child shares nothing with the parent. LMDB refuses to open an inode that is still open.
        handle.env.close()


@dataclass(frozen=True)
class LmdbReader:
    """A read transaction on the database that holds the records."""

    txn: Any
    database: Any
    opener: EnvironmentOpener
    handle: ForeignHandle

    @property
    def url(self) -> str:
        """The redacted URL of the store, for messages."""
        return self.opener.url

    @property
    def settings(self) -> ForeignOptions:
        """The options."""
        return self.opener.settings

    @property
    def entries(self) -> int:
        """The number of entries."""
        return int(self.txn.stat(self.database)["entries"])

    def get(self, key: bytes) -> memoryview | None:
        """Return the value under `key`, valid until the transaction ends, or None."""
        return self.txn.get(key, db=self.database) if key else None

    def keys(self, count: int, start: bytes = b"", *, reverse: bool = False) -> list[bytes]:
        """Return the first `count` keys from `start` on, or the last ones before it, up to a damaged record."""
        found: list[bytes] = []
        # A separate transaction: LMDB reads values too, and damage makes a transaction unusable.
        with suppress(lmdb.CorruptedError), self.handle.env.begin() as txn:
            cursor = txn.cursor(self.database)
            is_there = cursor.set_range(start)  # as `first` for no start
            if reverse:
                is_there = cursor.prev() if start and is_there else cursor.last()
            if is_there:
                walk = cursor.iterprev if reverse else cursor.iternext
                found.extend(map(bytes, itertools.islice(walk(values=False), count)))
        return found

    def walk(self) -> Iterator[bytes]:
        """Yield every key in the order of the database."""
        return map(bytes, self.txn.cursor(self.database).iternext(values=False))
