"""The layout ``sqlite/table``: a table that any tool wrote; each row is a record, each column a field."""

import os
import sqlite3
from functools import partial

import numpy as np

from storeds.errors import ConfigError, FormatError, RecordError
from storeds.protocols import Field, Kind, Meta, Record
from storeds_sqlite.backend import Handle, SqliteBackend, SqliteOpener, explain_damage

_KINDS: dict[str, Kind] = {"INTEGER": "int", "REAL": "float", "TEXT": "str", "BLOB": "image"}
_TYPES = {"int": int, "float": float, "str": str, "image": bytes}


class TableOpener(SqliteOpener):
    """Opens one table of a database."""

    def describe(self, db: sqlite3.Connection) -> Handle:
        """Return a handle with the row id of each position, 8 bytes per record."""
        if os.path.exists(f"{self.path}-wal"):
            raise FormatError(f"{self.url} is being written: there is a write-ahead log beside it")
        tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        names = [name for (name,) in tables if not name.startswith("sqlite_")]  # SQLite's internal tables
        table = self.settings.table or (names[0] if len(names) == 1 else None)
        if table not in names:
            raise ConfigError(f"{self.url}: choose one of its tables with ?table=…: {', '.join(names) or 'none'}")
        columns = db.execute("SELECT name, type FROM pragma_table_info(?)", [table]).fetchall()
        for name, kind in columns:
            if kind.upper() not in _KINDS:
                raise FormatError(f"{self.url}: column {name!r} is of type {kind!r}, not one of {', '.join(_KINDS)}")
        fields = {name: Field(_KINDS[kind.upper()]) for name, kind in columns}
        rowids = np.fromiter((row[0] for row in db.execute(f'SELECT rowid FROM "{table}" ORDER BY rowid')), np.int64)
        # Report invalid UTF-8 for its record, not for the whole batch.
        db.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        build = str(os.stat(self.path).st_mtime_ns)
        return Handle(db, Meta(build, build, len(rowids), f"sqlite/{table}", fields), rowids=rowids)


class TableBackend(SqliteBackend):
    """Reads one table of any SQLite database."""

    opener = TableOpener

    @classmethod
    def guess_can_open(cls, url: str, **options: object) -> str | None:
        """Return why the store at `url` looks like this layout, or None."""
        with cls(url, **options) as found:
            return f"a SQLite database with a table of {', '.join(found.meta.fields)}"

    def _build_of(self, handle: Handle) -> str:
        return str(os.stat(self._opener.path).st_mtime_ns)  # at every read: the file may change in place

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        columns, table = ", ".join(f'"{name}"' for name in fields), self.meta.layout.partition("/")[2]
        query = f'SELECT rowid, {columns} FROM "{table}" WHERE rowid IN (SELECT value FROM json_each(?))'
        with self._lease() as handle, explain_damage(self.url):
            rowids = handle.rowids[positions].tolist()  # type: ignore[index]  # describe sets it
            found = {row[0]: dict(zip(fields, row[1:], strict=True)) for row in handle.rows(query, rowids)}
        return [self._checked(at, found.get(rowid)) for at, rowid in zip(positions, rowids, strict=True)]

    def _checked(self, position: int, record: Record | None) -> Record | RecordError:
        if record is None:
            return self._fault(position, "its row is gone")
        for name, value in record.items():
            if type(value) is not _TYPES[self.meta.fields[name].kind]:
                return self._fault(position, f"field {name!r} is {type(value).__name__}")
            if isinstance(value, str) and value.encode(errors="replace").decode() != value:
                return self._fault(position, f"field {name!r} is not UTF-8")
        return record
