"""Opens LMDB environments that other tools wrote: one handle for every layout, shared with native stores' pool."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import lmdb
from pydantic import field_validator

from storeds._utils.text import counted
from storeds.backends.base import FileOpener
from storeds.backends.handles import OpenStore
from storeds.backends.lmdb.backend import COLUMNS, META, RECORDS, LmdbOptions, open_environment
from storeds.backends.lmdb.pages import check_lmdb_file
from storeds.errors import ConfigError, FormatError
from storeds.protocols import Meta

__all__ = [
    "DATA",
    "EnvironmentOpener",
    "ForeignHandle",
    "ForeignOptions",
    "Look",
    "damage_is_format_error",
    "key_text",
    "listed_keys",
]

_MAX_DATABASES = 32
DATA = "data.mdb"
_SHOWN = 8
_DATABASES = 16  # of an environment that are looked for


class ForeignOptions(LmdbOptions):
    """Options of every foreign LMDB layout.

    Attributes
    ----------
    database : str or None
        The named database inside the environment that holds the records; the main one by default, or ``""``.
    partial : bool
        Open a store that holds fewer records, or more, than it says: those that it lists are its records, and one that
        is missing is a `RecordError`.
    exclude : str or list, optional
        Keys of entries that are not records, beside those that certainly are not; ``""`` if all doubtful ones are records.
    """

    database: str | None = None
    partial: bool = False
    exclude: tuple[bytes, ...] | None = None

    @field_validator("exclude", mode="before")
    @classmethod
    def _keys(cls, given: Any) -> Any:
        names = given.split(",") if isinstance(given, str) else given
        if isinstance(names, (list, tuple)):
            return tuple(name.encode() if isinstance(name, str) else name for name in names if name)
        return names


_NATIVE = {COLUMNS, META, RECORDS}


class ForeignHandle:
    """An open environment, and which state of its file was opened."""

    def __init__(self, env: Any, url: str) -> None:
        self.env, self.url = env, url
        self.build = self.build_now()
        self._databases: dict[str | None, Any] = {}
        self._lock = threading.Lock()

    def build_now(self) -> str:
        """Return inode, size and modification time of the file as they are now."""
        status = os.stat(self.env.path())
        return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"

    @property
    def meta(self) -> Meta:
        """What only a native store has: a backend of ours that is opened beside a foreign one hears so from here."""
        raise FormatError(f"{self.url} is an LMDB file, but no native store: a foreign layout has it open")

    def is_native(self) -> bool:
        """Whether these are the databases of a native store and nothing else."""
        with self.env.begin() as txn:
            return (
                set(map(bytes, txn.cursor().iternext(values=False))) == _NATIVE if txn.stat()["entries"] == 3 else False
            )

    def database(self, name: str | None) -> Any:
        """Return the handle of a named database; None stands for the main one. Raises ConfigError."""
        with self._lock:  # LMDB opens databases in one thread at a time
            if name not in self._databases:
                try:
                    self._databases[name] = self.env.open_db(None if name is None else name.encode(), create=False)
                except lmdb.NotFoundError:
                    raise ConfigError(f"{self.url} has no database {name!r}; {self._what_there_is()}") from None
                except (lmdb.IncompatibleError, lmdb.BadValsizeError) as error:
                    raise ConfigError(f"{self.url}: {name!r} is no database ({error})") from None
                except lmdb.DbsFullError:
                    raise ConfigError(
                        f"{self.url}: more than {_MAX_DATABASES} of its databases are open; close some backends"
                    ) from None
            return self._databases[name]

    def check_main_database(self) -> None:
        """Raise ConfigError if the main database holds nothing but named ones, which are then where the records are."""
        with self.env.begin() as txn:
            names = _first_keys(txn)
        if names and set(names) != _NATIVE and all(map(self.is_database, names[:_SHOWN])):
            sizes = ", ".join(
                f"database={name!r} ({counted(count, 'entry', 'entries')})" for name, count in self.databases().items()
            )
            raise ConfigError(f"{self.url} holds no records but named databases; pass one of them: {sizes}")

    def databases(self) -> dict[str, int]:
        """Return the named databases, as far as the first keys of the main one tell, each with its number of entries."""
        with self.env.begin() as txn:
            names = [key.decode() for key in _first_keys(txn, count=_DATABASES) if self.is_database(key)]
        with self.env.begin() as txn:  # an older transaction does not know a database that was opened since
            return {name: int(txn.stat(self.database(name))["entries"]) for name in names}

    def is_database(self, name: bytes) -> bool:
        try:
            self.database(name.decode())
        except (ConfigError, UnicodeDecodeError):
            return False
        return True

    def _what_there_is(self) -> str:
        with self.env.begin() as txn:
            keys = _first_keys(txn)
        return f"its main database holds the keys {listed_keys(keys)}" if keys else "it is empty"


def _first_keys(txn: Any, count: int = _SHOWN + 1) -> list[bytes]:
    """Return as many keys as a message shows, and one more."""
    return [bytes(key) for key in itertools.islice(txn.cursor().iternext(values=False), count)]


def key_text(key: bytes) -> str:
    r"""Return a key as text: bytes that are not UTF-8 as ``\xff``."""
    return key.decode("utf-8", "backslashreplace")


def listed_keys(keys: Sequence[bytes]) -> str:
    """Return the first keys, and whether there are more."""
    shown = ", ".join(repr(key_text(key)) for key in keys[:_SHOWN])
    return f"{shown} …" if len(keys) > _SHOWN else shown


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
            raise FormatError(f"{self.url} is a folder without {DATA}, so no LMDB environment")
        return super().key(opened)

    def options(self) -> Hashable:
        # Of the same form as a native store's, so that an equal choice is no conflict whatever the layout.
        return tuple(LmdbOptions(readahead=self.settings.readahead).model_dump().items())

    def open(self) -> ForeignHandle:
        path = self.data_path
        check_lmdb_file(path, self.url)
        with damage_is_format_error(self.url):
            return ForeignHandle(open_environment(path, self.settings, databases=_MAX_DATABASES), self.url)

    def close(self, handle: ForeignHandle, /) -> None:
        handle.env.close()

    def abandon_after_fork(self, handle: ForeignHandle, /) -> None:
        # Without a lock file nothing is shared with the parent; unclosed, the inode could not be opened again here.
        handle.env.close()


@dataclass(frozen=True)
class Look:
    """A transaction on the database that holds the records, for finding out what they are."""

    txn: Any
    database: Any
    build: str
    opener: EnvironmentOpener
    handle: ForeignHandle
    memo: dict[str, Any] = field(default_factory=dict, compare=False)
    """What was found out already, for as long as the transaction."""

    @property
    def url(self) -> str:
        """The store, for messages."""
        return self.opener.url

    @property
    def entries(self) -> int:
        """How many keys there are."""
        return int(self.txn.stat(self.database)["entries"])

    def get(self, key: bytes) -> memoryview | None:
        """Return a value, valid as long as the transaction, or None."""
        return self.txn.get(key, db=self.database) if key else None

    def first(self, count: int) -> list[tuple[bytes, memoryview]]:
        """Return the first few keys and values in the database's own order."""
        cursor = self.txn.cursor(self.database)
        return [(bytes(key), value) for key, value in itertools.islice(cursor.iternext(), count)]

    def last(self) -> list[tuple[bytes, memoryview]]:
        """Return the last key and value in the database's own order; nothing from an empty one."""
        cursor = self.txn.cursor(self.database)
        return [(bytes(key), value) for key, value in itertools.islice(cursor.iterprev(), 1)]

    def first_keys(self, count: int) -> list[bytes]:
        """Return the first few keys; fewer where a damaged record comes before."""
        return self._keys_up_to_damage("iternext", count)

    def last_keys(self, count: int) -> list[bytes]:
        """Return the last few keys, the last one first; fewer where a damaged record comes before."""
        return self._keys_up_to_damage("iterprev", count)

    def _keys_up_to_damage(self, direction: str, count: int) -> list[bytes]:
        found: list[bytes] = []
        # A transaction of its own: LMDB reads values too, and after damage a transaction gives nothing else.
        with suppress(lmdb.CorruptedError), self.handle.env.begin() as txn:
            keys = getattr(txn.cursor(self.database), direction)(values=False)
            found.extend(map(bytes, itertools.islice(keys, count)))
        return found

    def first_from(self, key: bytes) -> bytes | None:
        """Return the first key that is `key` or behind it; None where there is none."""
        cursor = self.txn.cursor(self.database)
        found = cursor.set_range(key) if key else cursor.first()
        return bytes(cursor.key()) if found else None

    def entries_of_database(self, key: bytes) -> int | None:
        """Return how many entries the named database under `key` has; None if no database is there."""
        if self.opener.settings.database or not self.handle.is_database(key):
            return None
        database = self.handle.database(key.decode())
        with self.handle.env.begin() as txn:  # an older transaction does not know a database that was opened since
            return int(txn.stat(database)["entries"])

    def walk(self) -> Iterator[bytes]:
        """Yield every key in the database's own order."""
        return map(bytes, self.txn.cursor(self.database).iternext(values=False))


@contextmanager
def damage_is_format_error(url: str) -> Iterator[None]:
    """Turn what LMDB says of a damaged file into FormatError."""
    try:
        yield
    except lmdb.Error as error:
        if "already open" in str(error):
            raise ConfigError(
                f"{url} was changed while this process has it open; close every backend of it first"
            ) from error
        raise FormatError(f"{url} cannot be read by LMDB: {error}; copy it again") from error
