"""The backend: reads a file with one row per record, which holds the encoded record and its seal."""

import json
import os
import sqlite3
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote

from storeds import plugins
from storeds.errors import FormatError, RecordError, StoreNotFoundError
from storeds.protocols import Array, Field, Meta, Record
from storeds_sqlite.sink import SqliteSink


class SqliteOptions(plugins.BackendOptions):
    """The options after ``?`` in a URL, or as keyword arguments."""

    table: str | None = None


@dataclass(frozen=True)
class Handle:
    """An open database, and the meta of the store in it."""

    db: sqlite3.Connection
    meta: Meta
    seals: plugins.Seals | None = None
    rowids: Array | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self, query: str, wanted: list[int]) -> list[Any]:
        """Return the rows of a query; threads take turns."""
        with self.lock:
            return self.db.execute(query, [json.dumps(wanted)]).fetchall()


@dataclass(frozen=True)
class SqliteOpener:
    """Opens handles; holds only configuration, so it pickles."""

    path: str
    settings: SqliteOptions

    @property
    def url(self) -> str:
        """The path of the store."""
        return f"sqlite://{self.path}" + (f"?table={self.settings.table}" if self.settings.table else "")

    def key(self) -> Hashable:
        """Return the key of the handle; backends with equal keys share one."""
        if not os.path.isfile(self.path):
            raise StoreNotFoundError(f"no store at {self.url}")
        status = os.stat(self.path)
        # A table that another tool changed in place needs a new handle: SQLite detects no changes with `immutable`.
        return type(self), status.st_dev, status.st_ino, status.st_mtime_ns, self.settings.table

    def open(self) -> Handle:
        """Open the file, read-only; raises FormatError if it is not a store of this kind."""
        # A published file never changes, so open it `immutable`: without locks, which are not safe in a forked process.
        place = f"file:{quote(self.path)}?mode=ro&immutable=1"
        with explain_damage(self.url):
            db = sqlite3.connect(place, uri=True, check_same_thread=False)
            try:
                return self.describe(db)
            except BaseException:
                db.close()
                raise

    def describe(self, db: sqlite3.Connection) -> Handle:
        """Return the handle of a database that has just been opened."""
        if self.settings.table is not None:
            raise FormatError(f"{self.url}: a native store has no table to choose")
        row = db.execute("SELECT text FROM storeds_meta WHERE name = 'meta'").fetchone()
        meta, body = plugins.meta_from_text(row[0] if row else "", self.url)
        return Handle(db, meta, plugins.Seals.of(body.get("salt"), meta.count, self.url))

    def close(self, handle: Handle, /) -> None:
        """Close a handle of this process."""
        handle.db.close()

    abandon_after_fork = close  # without locks, a forked child may close what its parent opened


class SqliteBackend(plugins.HandleBackend[Handle, SqliteOpener]):
    """Reads a store that was written through `SqliteSink`."""

    pool: ClassVar[plugins.HandlePool[Handle]] = plugins.HandlePool(limit=64, quiesce=True)
    opener = SqliteOpener

    def __init__(self, url: str, **options: Any) -> None:
        path, in_url = plugins.file_path(url)
        super().__init__(self.opener(path, plugins.parse_options(SqliteOptions, in_url, options, url)))

    @staticmethod
    def sink(url: str, **options: Any) -> SqliteSink:
        """Return what keeps the records of a store that is written; `open_writer` does everything else."""
        path, in_url = plugins.file_path(url)
        plugins.parse_options(plugins.BackendOptions, in_url, options, url)
        return SqliteSink(path)

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        query = "SELECT position, body FROM records WHERE position IN (SELECT value FROM json_each(?))"
        with self._lease() as handle, explain_damage(self.url):
            found, seals = dict(handle.rows(query, positions)), handle.seals
        return [self._unsealed(position, found.get(position), seals) for position in positions]

    def _column(self, name: str, field: Field) -> Array:
        return plugins.column_from_records(self, name)


@contextmanager
def explain_damage(url: str) -> Iterator[None]:
    """Turn SQLite's errors about a damaged or foreign file into FormatError."""
    try:
        yield
    except sqlite3.Error as error:
        raise FormatError(f"{url} is not a complete SQLite store: {error}") from error
