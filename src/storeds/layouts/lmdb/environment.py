"""Opens LMDB environments that other tools wrote, and reads their entries.

Stores of one environment share it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import lmdb

from storeds.backends.lmdb.files import MOST_DATABASES, Environment, build_of, open_environment
from storeds.backends.lmdb.format import LmdbOptions
from storeds.errors import ConfigError, FormatError
from storeds.layouts.pattern import Pattern, parse_pattern
from storeds.layouts.tree import FileTreeLocation

__all__ = [
    "DATA",
    "EnvironmentLocation",
    "ForeignOptions",
    "LmdbReader",
    "check_main_database",
    "database_of",
    "is_database",
    "key_text",
    "reading",
]

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


def database_of(environment: Environment, name: str | None, url: str) -> Any:
    """Return the handle of a named database, or of the main one for None; raises ConfigError."""
    try:
        return environment.database(None if name is None else name.encode())
    except lmdb.NotFoundError:
        held = ", ".join(repr(key_text(key)) for key in environment.first_keys(_SHOWN)) or "nothing"
        raise ConfigError(f"{url} has no database {name!r}; its main database holds {held}") from None
    except (lmdb.IncompatibleError, lmdb.BadValsizeError) as error:
        raise ConfigError(f"{url}: {name!r} is not a database ({error})") from None
    except lmdb.DbsFullError:
        raise ConfigError(f"{url}: more than {MOST_DATABASES} of its databases are open; close some backends") from None


def is_database(environment: Environment, name: bytes) -> bool:
    """Whether an entry of the main database stands for a named database."""
    try:
        database_of(environment, name.decode(), "")
    except (ConfigError, UnicodeDecodeError):
        return False
    return True


def check_main_database(environment: Environment, url: str) -> None:
    """Raise ConfigError if the main database holds nothing but named databases."""
    names = environment.first_keys(_SHOWN)
    if names and all(is_database(environment, name) for name in names):
        shown = ", ".join(f"database={key_text(name)!r}" for name in names)
        raise ConfigError(f"{url} has no records in its main database, only named databases; pass one of them: {shown}")


def value_size(environment: Environment, database: str | None) -> float:
    """Return the mean size of the values that have pages of their own, in bytes; 0 if that is unknown."""
    with suppress(ConfigError, lmdb.Error):  # opening the store reports them
        found = database_of(environment, database, "")
        with environment.env.begin() as txn:
            stat = txn.stat(found)
        return float(stat["overflow_pages"] * stat["psize"] / max(stat["entries"], 1))
    return 0.0


def key_text(key: bytes) -> str:
    r"""Return a key as text: bytes that are not UTF-8 as ``\xff``."""
    return key.decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class EnvironmentLocation(FileTreeLocation[ForeignOptions]):
    """Opens an environment, a folder or one file, read-only and without a lock file."""

    engine = "lmdb"

    @property
    def data_path(self) -> str:
        """The data file; in a folder it is ``data.mdb``."""
        return os.path.join(self.path, DATA) if os.path.isdir(self.path) else self.path

    def key(self) -> Hashable:
        path = self.data_path
        if path != self.path and not os.path.exists(path):
            raise FormatError(f"{self.url} is a folder without {DATA}, so it is not an LMDB environment")
        return super().key()

    def open(self) -> Environment:
        path, readahead = self.data_path, self.settings.readahead
        found = open_environment(path, self.url, readahead=bool(readahead))
        if readahead is None and value_size(found, self.settings.database) > _LARGE:
            found.close()
            found = open_environment(path, self.url, readahead=True)
        return found

    def close(self, handle: Environment, /) -> None:
        handle.close()

    def is_current(self, handle: Environment, /) -> bool:
        # docstring inherited; other tools change their files in place
        return handle.build == build_of(self.data_path)


@dataclass(frozen=True)
class LmdbReader:
    """A read transaction on the database that holds the records."""

    txn: Any
    database: Any
    opener: EnvironmentLocation
    environment: Environment

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
        with suppress(lmdb.CorruptedError), self.environment.env.begin() as txn:
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


@contextmanager
def reading(environment: Environment, location: EnvironmentLocation) -> Iterator[LmdbReader]:
    """Begin a transaction on the database that holds the records."""
    database = database_of(environment, location.settings.database, location.url)
    with environment.env.begin(db=database, buffers=True) as txn:
        yield LmdbReader(txn, database, location, environment)
