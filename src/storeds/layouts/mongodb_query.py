"""Any collection: the documents that a query finds, with fields from dotted paths."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from storeds.backends.base import BackendOptions
from storeds.errors import ConfigError
from storeds.fields import parse_fields
from storeds.layouts._mongodb_base import listed
from storeds.layouts._mongodb_columns import ColumnLayout, ColumnOptions, Mapped
from storeds.layouts._mongodb_connection import Connection
from storeds.layouts._mongodb_packed import Packed, pack_ids
from storeds.layouts._mongodb_values import Column, infer, paths_of, pick
from storeds.protocols import Field, Record
from storeds.record import CHECKSUM

__all__ = ["QueryLayout"]

_LOG = logging.getLogger("storeds")


class QueryLayout(ColumnLayout[ColumnOptions]):
    """Reads the documents that a query finds, by ``_id``.

    Parameters
    ----------
    url : str
        Of the collection or view, as for a native store.
    client_factory : callable, optional
        As for a native store.
    **options
        `ColumnOptions`; without ``columns``, every field that all of some documents have is one.

    Raises
    ------
    ConfigError
        A field exists nowhere, or MongoDB does not understand the query.
    StoreNotFoundError, UnavailableError
        No such collection, or the query matches nothing; no server.

    Notes
    -----
    Documents are found at opening, by one query for their ids; what is inserted later is not seen.
    """

    Options: ClassVar[type[BackendOptions]] = ColumnOptions
    layout = "query"

    @classmethod
    def _seen(cls, connection: Connection, settings: ColumnOptions) -> str | None:
        name = connection.location.collection
        first = next(connection.find(name, {}, limit=1), None)
        if first is None or name.endswith((".files", ".chunks", ".meta")) or CHECKSUM in first:
            return None  # of a bucket, or of a native store
        if settings.columns:
            paths = [path for _, path, _ in settings.columns]
            found = all(pick(first, path) is not None for path in paths)
            return f"its first document has the columns {listed(paths)}" if found else None
        data = [path for path in paths_of(first) if infer([pick(first, path)])[0].is_blob]
        if not data:
            return None
        return f"its first document has the fields {listed(paths_of(first))}, of which {listed(data)} hold data"

    def _resolve(self) -> list[Packed]:
        ids = pack_ids(document["_id"] for document in self._find(self._query, (), ordered=True))
        if not len(ids):
            raise self._nothing()
        return [ids]

    def _describe(self, lists: Sequence[Packed]) -> tuple[dict[str, Column], dict[str, Field]]:
        columns = self._mapped_columns(lists[0], self._settings.columns or self._all_fields(lists[0]))
        return columns, {name: column.field for name, column in columns.items()}

    def _all_fields(self, ids: Packed) -> list[Mapped]:
        """Return the fields that all of some documents have, as columns of the same names."""
        sample = self._sample(ids, None)
        names = list(dict.fromkeys(name for document in sample for name in document if name != "_id"))
        usable = [name for name in names if _is_field_name(name) and all(name in document for document in sample)]
        if not usable:
            raise ConfigError(
                f"{self._location.url}: none of the fields {listed(names)} has a name that a field can have and stands in every "
                "document; name them with columns={'image': 'Path.To'}"
            )
        left_out = [name for name in names if name not in usable]
        if left_out:
            _LOG.warning("%s: fields %s are left out; columns= names them", self._location.url, listed(left_out))
        return [(name, name, None) for name in usable]

    def _name(self, position: int, document: Mapping[str, Any] | None) -> str | None:
        column = self._columns.get("key")
        return None if document is None or column is None else str(pick(document, column.path))

    def _values(self, position: int, document: Mapping[str, Any], fields: Sequence[str]) -> Record:
        return {name: self._columns[name].value(document) for name in fields}


def _is_field_name(name: str) -> bool:
    try:
        return bool(parse_fields({name: "json"})) and "." not in name
    except ConfigError:
        return False
