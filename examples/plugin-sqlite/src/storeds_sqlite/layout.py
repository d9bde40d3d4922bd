"""The layout ``sqlite/table``: a table that any tool wrote; each row is a record, each column a field."""

import json
import os
from functools import partial
from typing import Any

import numpy as np

from storeds import plugins
from storeds.errors import ConfigError, FormatError
from storeds.protocols import Field, Kind, Meta
from storeds_sqlite.backend import Database, SqliteOpener, SqliteOptions, explain_damage

_KINDS: dict[str, Kind] = {"INTEGER": "int", "REAL": "float", "TEXT": "str", "BLOB": "image"}
_TYPES = {"int": int, "float": float, "str": str, "image": bytes}


class Table(plugins.RawStore):
    """One table of a database, with the row id of each position, 8 bytes per record."""

    def __init__(self, database: Database, opener: "TableOpener") -> None:
        self._database, self._opener = database, opener
        url = opener.url
        if os.path.exists(f"{opener.path}-wal"):
            raise FormatError(f"{url} is being written: there is a write-ahead log beside it")
        with explain_damage(url):
            tables = database.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
            names = [name for (name,) in tables if not name.startswith("sqlite_")]  # SQLite's internal tables
            self._table = opener.settings.table or (names[0] if len(names) == 1 else None)
            if self._table not in names:
                raise ConfigError(f"{url}: choose one of its tables with ?table=…: {', '.join(names) or 'none'}")
            columns = database.rows("SELECT name, type FROM pragma_table_info(?)", self._table)
            for name, kind in columns:
                if kind.upper() not in _KINDS:
                    raise FormatError(f"{url}: column {name!r} is of type {kind!r}, not one of {', '.join(_KINDS)}")
            rowids = database.rows(f'SELECT rowid FROM "{self._table}" ORDER BY rowid')
        self._rowids = np.fromiter((row[0] for row in rowids), np.int64)
        # Report invalid UTF-8 for its record, not for the whole batch.
        database.db.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        fields = {name: Field(_KINDS[kind.upper()]) for name, kind in columns}
        self.meta = Meta(self.build, self.build, len(rowids), f"sqlite/{self._table}", fields)

    @property
    def build(self) -> str:
        """The time of the last change, at every read: other tools change their files in place."""
        return str(os.stat(self._opener.path).st_mtime_ns)

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> plugins.Rows:
        """Return the rows at these positions, with some columns."""
        names = tuple(self.meta.fields) if fields is None else fields
        columns = ", ".join(f'"{name}"' for name in names)
        query = f'SELECT rowid, {columns} FROM "{self._table}" WHERE rowid IN (SELECT value FROM json_each(?))'
        rowids = self._rowids[positions].tolist()
        with explain_damage(self._opener.url):
            found = {
                row[0]: dict(zip(names, row[1:], strict=True)) for row in self._database.rows(query, json.dumps(rowids))
            }
        return plugins.Rows([self._checked(found.get(rowid)) for rowid in rowids])

    def _checked(self, record: dict[str, Any] | None) -> dict[str, Any] | plugins.Fault:
        if record is None:
            return plugins.Fault("its row is gone")
        for name, value in record.items():
            if type(value) is not _TYPES[self.meta.fields[name].kind]:
                return plugins.Fault(f"field {name!r} is {type(value).__name__}")
            if isinstance(value, str) and value.encode(errors="replace").decode() != value:
                return plugins.Fault(f"field {name!r} is not UTF-8")
        return record


class TableOpener(SqliteOpener):
    """Opens one table of a database."""

    def attach(self, handle: Database, /) -> Table:
        """Return the table."""
        return Table(handle, self)


def _opener(url: Any, **options: Any) -> TableOpener:
    path, in_url = plugins.file_path(url)
    return TableOpener(path, plugins.parse_options(SqliteOptions, in_url, options, url))


def guess_can_open(url: str, **options: object) -> str | None:
    """Return why the store at `url` is certainly a table, or None."""
    with TABLE(url, **options) as found:
        return f"a SQLite database with a table of {', '.join(found.meta.fields)}"


TABLE = plugins.Engine(_opener, guess_can_open=guess_can_open)
"""Reads one table of any SQLite database."""
