"""`Join`: columns of a table for the records of a store, by key."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np

from storeds._utils.settings import Settings
from storeds.backends.keyed_tables import is_parquet, read_table
from storeds.backends.overlay import Overlay
from storeds.errors import ConfigError, UnavailableError, suggest
from storeds.protocols import Array, Backend, Field
from storeds.records.columns import column_of, read_column
from storeds.records.index import Index
from storeds.values.columns import name_columns
from storeds.values.infer import fit
from storeds.values.text import values_of_cells

__all__ = ["Join", "JoinedView"]

_LISTED = 3  # keys in a message
_WHOLE = re.compile(r"(-?\d+)\.0+")
_Rows: TypeAlias = tuple[Array, dict[str, Array], dict[str, Field]]
"""The positions of the records with a row; field → its value for each of them; field → its declaration."""


def _absolute(path: Any) -> Any:
    """Return a path that workers find too, wherever they run."""
    return os.path.abspath(os.path.expanduser(path)) if isinstance(path, (str, os.PathLike)) and str(path) else path


class Join(Settings, frozen=True):
    """A table beside a store, and how its rows belong to the records.

    Parameters
    ----------
    path : str
        A CSV or TSV file with a header, or a Parquet file.
    on : str or mapping
        The field that is the key, which the table has as a column; ``{field: column}`` if that has another name.
    fields : mapping, optional
        Field → column of the table. A field of the store with this name is replaced. By default, all columns but the key are added.
    missing : str
        ``error`` if a record has no row, or a row no record; ``drop`` leaves out these records, and these rows.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"path": _absolute}

    path: Annotated[str, msgspec.Meta(min_length=1)]
    on: str | dict[str, str] = "key"
    fields: dict[str, str] | None = None
    missing: Literal["error", "drop"] = "error"

    def key(self) -> tuple[str, str]:
        """Return the field and the column that are the key."""
        if isinstance(self.on, str):
            return self.on, self.on
        if len(self.on) != 1:
            raise ConfigError(f"join: on is one field, or {{field: column}} of one, not {self.on!r}")
        ((field, column),) = self.on.items()
        return field, column


class _Found:
    """The rows of a table that belong to records of a store. A pickle has no rows: they are found again.

    Attributes
    ----------
    digest : str
        Of the content of the table, when the user opened the store.
    fields : dict of str to Field
    """

    def __init__(self, backend: Backend, join: Join) -> None:
        self._backend, self._join = backend, join
        self.digest, table = read_table(join.path, "join")
        self._kept: _Rows | None = self._match(table)
        self.fields: dict[str, Field] = self._kept[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __repr__(self) -> str:
        return f"join={{'on': {self._join.on!r}, 'fields': {self._join.fields!r}, 'missing': {self._join.missing!r}}} of {self.digest}"

    def positions(self) -> Array:
        """Return the positions of the records that have a row, ascending."""
        return self._rows[0]

    @property
    def columns(self) -> dict[str, Array]:
        """Field → its value for each of these records."""
        return self._rows[1]

    @property
    def _rows(self) -> _Rows:
        # Not functools.cached_property: up to Python 3.11 all instances share a lock, which a fork may copy locked.
        if self._kept is None:
            digest, table = read_table(self._join.path, "join")
            if digest != self.digest:
                raise UnavailableError(
                    f"join: {self._join.path} was replaced while in use or changed; open the store again"
                )
            self._kept = self._match(table)
        return self._kept

    def _match(self, table: Mapping[str, Sequence[Any]]) -> _Rows:
        path, (field, column) = self._join.path, self._join.key()
        names = self._names([*table], column)
        found = [*map(str, table[column])]
        if self._backend.meta.fields[field].kind == "int":  # a column with a missing value becomes one of floats
            found = [match[1] if (match := _WHOLE.fullmatch(text)) else text for text in found]
        row_of = {key: row for row, key in enumerate(found)}
        if len(row_of) < len(found):
            twice = next(key for row, key in enumerate(found) if row_of[key] != row)
            raise ConfigError(f"join: {path} has several rows of {column} {twice!r}; each record has one")
        keys = list(map(str, read_column(self._backend, field).tolist()))
        rows = [row_of.get(key, -1) for key in keys]
        if self._join.missing == "error":
            self._check(keys, rows, row_of)
        positions = np.flatnonzero(np.asarray(rows, np.int64) >= 0)
        fields, columns = dict[str, Field](), dict[str, Array]()
        for name, own in names.items():
            fields[name], columns[name] = self._column(name, own, table, [rows[at] for at in positions.tolist()])
        return positions, columns, fields

    def _names(self, columns: Sequence[str], key: str) -> dict[str, str]:
        """Return field → column of the table."""
        given, path = self._join.fields, self._join.path
        for column in [key, *(given or {}).values()]:
            if column not in columns:
                raise ConfigError(f"join: {path} has no column {column!r}; {suggest(column, columns, 'columns')}")
        if given is not None:
            return given
        names, _ = name_columns([column for column in columns if column != key], self._backend.meta.fields)
        return {name: column for column, name in names.items()}

    def _check(self, keys: Sequence[str], rows: Sequence[int], row_of: Mapping[str, int]) -> None:
        without = [key for key, row in zip(keys, rows, strict=True) if row < 0]
        spare = sorted(row_of.keys() - {*keys})
        if without or spare:
            parts = [
                f"{len(found):,} {what} ({', '.join(map(repr, found[:_LISTED]))}{', …' if len(found) > _LISTED else ''})"
                for found, what in ((without, "records have no row"), (spare, "rows have no record"))
                if found
            ]
            raise ConfigError(
                f"join: {self._join.path} and {self._backend.url}: {' and '.join(parts)}; missing='drop' leaves them out"
            )

    def _column(
        self, name: str, column: str, table: Mapping[str, Sequence[Any]], rows: Sequence[int]
    ) -> tuple[Field, Array]:
        """Return a field, and its value in some rows."""
        where, (_, key) = f"join: column {column!r} of {self._join.path}", self._join.key()
        values = table[column] if is_parquet(self._join.path) else values_of_cells(table[column])
        for row in rows:
            if values[row] is None:
                raise ConfigError(
                    f"{where}: the row of {key} {table[key][row]!r} has no value; fill it, or leave the row out"
                )
        field, fitted = fit([value for value in values if value is not None])
        if field.is_blob or field.kind == "json":
            raise ConfigError(f"{where} holds {field.kind}, and a joined field is a number, a truth value or a text")
        by_row = iter(fitted)
        stored = [None if value is None else next(by_row) for value in values]
        return field, column_of(field, [stored[row] for row in rows])


class JoinedView(Overlay):
    """The records of a backend that have a row in a table, with columns of it as fields of their own.

    Parameters
    ----------
    backend : Backend
    join : Join

    Raises
    ------
    ConfigError
        The table lacks the key or a column; a key is there twice, or on one side alone; a value is missing.
    StoreNotFoundError
        There is no such table.
    """

    def __init__(self, backend: Backend, join: Join) -> None:
        found = _Found(backend, join)
        super().__init__(backend, found, Index(found.positions, backend.url, backend.meta.build, repr(found)), found)
