"""The engine: reads a file with one row per record, which holds the encoded record and its seal."""

import json
import os
import sqlite3
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from storeds import plugins
from storeds.errors import FormatError, StoreNotFoundError
from storeds_sqlite.sink import SqliteSink


class SqliteOptions(plugins.BackendOptions):
    """The options after ``?`` in a URL, or as keyword arguments."""

    table: str | None = None


class Database:
    """An open file; threads take turns."""

    def __init__(self, path: str) -> None:
        # A published file never changes, so open it `immutable`: without locks, which are not safe in a forked process.
        place = f"file:{quote(path)}?mode=ro&immutable=1"
        self.db, self._lock = sqlite3.connect(place, uri=True, check_same_thread=False), threading.Lock()

    def rows(self, query: str, *given: object) -> list[Any]:
        """Return the rows of a query."""
        with self._lock:
            return self.db.execute(query, given).fetchall()


class SqliteStore(plugins.RawStore):
    """A store that was written through `SqliteSink`."""

    def __init__(self, database: Database, url: str) -> None:
        self._database, self._url = database, url
        with explain_damage(url):
            found = database.rows("SELECT text FROM storeds_meta WHERE name = 'meta'")
        self.meta, self.verifier = plugins.native_meta(found[0][0] if found else "", url)

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> plugins.Rows:
        """Return the rows at these positions, whole."""
        query = "SELECT position, body FROM records WHERE position IN (SELECT value FROM json_each(?))"
        with explain_damage(self._url):
            found = dict(self._database.rows(query, json.dumps(positions)))
        return plugins.Rows.of_sealed(map(found.get, positions))


@dataclass(frozen=True)
class SqliteOpener(plugins.Opener[Database]):
    """Opens files; holds only configuration, so it pickles."""

    path: str
    settings: SqliteOptions

    @property
    def url(self) -> str:
        """The path of the store."""
        return f"sqlite://{self.path}" + (f"?table={self.settings.table}" if self.settings.table else "")

    def key(self) -> Hashable:
        """Return the key of the open file; stores with equal keys share it."""
        if not os.path.isfile(self.path):
            raise StoreNotFoundError(f"no store at {self.url}")
        status = os.stat(self.path)
        # A table that another tool changed in place is opened again: SQLite detects no changes with `immutable`.
        return "sqlite", status.st_dev, status.st_ino, status.st_mtime_ns

    def open(self) -> Database:
        """Open the file, read-only."""
        with explain_damage(self.url):
            return Database(self.path)

    def close(self, handle: Database, /) -> None:
        """Close a file of this process."""
        handle.db.close()

    def attach(self, handle: Database, /) -> plugins.RawStore:
        """Return the native store in a file; raises FormatError if there is none."""
        if self.settings.table is not None:
            raise FormatError(f"{self.url}: a native store has no table to choose")
        return SqliteStore(handle, self.url)


def _opener(url: Any, **options: Any) -> SqliteOpener:
    path, in_url = plugins.file_path(url)
    return SqliteOpener(path, plugins.parse_options(SqliteOptions, in_url, options, url))


def _sink(url: Any, **options: Any) -> SqliteSink:
    return SqliteSink(_opener(url, **options).path)


def holds_foreign(url: Any, options: Any) -> bool:
    """Return whether a database of another tool is there, in which no sink has written."""
    opener = _opener(url)
    if not os.path.isfile(opener.path):
        return False
    with plugins.POOL.leased(opener) as database, explain_damage(opener.url):
        return not database.rows("SELECT 1 FROM sqlite_schema WHERE name = 'storeds_meta'")


SQLITE = plugins.Engine(_opener, _sink, holds_foreign)
"""The engine of ``sqlite://``."""


@contextmanager
def explain_damage(url: str) -> Iterator[None]:
    """Turn SQLite's errors about a damaged or foreign file into FormatError."""
    try:
        yield
    except sqlite3.Error as error:
        raise FormatError(f"{url} is not a complete SQLite store: {error}") from error
