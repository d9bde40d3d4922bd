"""Any collection: the documents that a query finds, with fields from dotted paths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from storeds._seals import SEAL
from storeds._suggest import suggest
from storeds._text import counted
from storeds._unread import check_most_is_read
from storeds.backends.base import BackendOptions
from storeds.errors import ConfigError
from storeds.layouts._mongodb_base import listed
from storeds.layouts._mongodb_columns import ColumnLayout, ColumnOptions, Mapped
from storeds.layouts._mongodb_connection import Connection
from storeds.layouts._mongodb_packed import IdPacker, Packed, id_of, pack_ids
from storeds.layouts._mongodb_places import holds_data, places_of
from storeds.layouts._mongodb_unwind import element_of, elements, size_of
from storeds.layouts._mongodb_values import Column, paths_of, pick
from storeds.protocols import Field, Record

__all__ = ["QueryLayout", "QueryOptions"]

_GLANCES = 3


class QueryOptions(ColumnOptions):
    """Options of layout ``query``.

    Attributes
    ----------
    unwind : str, optional
        Dotted path of a list in each document, of which every element is a record: ``"crops"``. Paths in ``columns`` lead
        into the element as if it stood in the place of the list: ``"crops.image"``.
    """

    unwind: str | None = None


class QueryLayout(ColumnLayout[QueryOptions]):
    """Reads the documents that a query finds, by ``_id``.

    Parameters
    ----------
    url : str
        Of the collection or view, as for a native store.
    client_factory : callable, optional
        As for a native store.
    **options
        `QueryOptions`; without ``columns``, every field that all of some documents have is one. A document inside that holds
        data gives a column for each of its fields, called after the path: ``image_data``.

    Raises
    ------
    ConfigError
        A field exists nowhere, most fields would be left out, a list of pictures needs ``unwind``, or MongoDB does not
        understand the query.
    StoreNotFoundError, UnavailableError
        No such collection, or the query matches nothing; no server.

    Notes
    -----
    Documents are found at opening, by one query for their ids; what is inserted later is not seen.
    """

    Options: ClassVar[type[BackendOptions]] = QueryOptions
    layout = "query"

    @classmethod
    def _seen(cls, connection: Connection, settings: QueryOptions) -> str | None:
        name = connection.location.collection
        shown = list(connection.find(name, {}, limit=_GLANCES))
        if not shown or name.endswith((".files", ".chunks", ".meta")) or SEAL in shown[0]:
            return None  # of a bucket, or of a native store
        if settings.unwind:
            filled = next(
                connection.find(name, {f"{settings.unwind}.0": {"$exists": True}}, {"_id": True}, limit=1), None
            )
            return None if filled is None else f"it has documents with a list in {settings.unwind!r}"
        if settings.columns:
            paths = [path for _, path, _ in settings.columns]
            found = all(pick(shown[0], path) is not None for path in paths)
            return f"its first document has the columns {listed(paths)}" if found else None
        there = list(dict.fromkeys(path for document in shown for path in paths_of(document)))
        data = [path for path in there if any(holds_data(pick(document, path)) for document in shown)]
        if not data:
            return None
        return f"its first documents have the fields {listed(there)}, of which {listed(data)} hold data"

    def _resolve(self) -> list[Packed]:
        unwind = self._settings.unwind
        if unwind is not None:
            return self._resolve_elements(unwind)
        ids = pack_ids(document["_id"] for document in self._find(self._query, (), ordered=True))
        if not len(ids):
            raise self._nothing()
        return [ids]

    def _resolve_elements(self, path: str) -> list[Packed]:
        """Return the id of each element's document, and the element's number in it."""
        ids, numbers = IdPacker(), IdPacker()
        documents = empty = 0
        for document in self._connection.find(
            self._collection, self._query, size_of(path), identity=self._identity, ordered=True
        ):
            documents, empty = documents + 1, empty + (not document["n"])
            for number in range(document["n"]):
                ids.add(document["_id"])
                numbers.add(number)
        if not documents:
            raise self._nothing()
        if documents == empty:
            one = next(self._find(self._query, None, limit=1), {})
            there = suggest(path, paths_of(one), "fields of a document there")
            raise ConfigError(f"{self._location.url}: no document has a list in {path!r} (unwind); {there}")
        self._without_elements = empty
        return [ids.finish(), numbers.finish()]

    def _describe(self, lists: Sequence[Packed]) -> tuple[dict[str, Column], dict[str, Field]]:
        if self._settings.unwind is not None and self._without_elements:
            self._left.append(
                f"{counted(self._without_elements, 'document')} without an element in {self._settings.unwind!r}"
            )
        columns = self._mapped_columns(lists[0], self._settings.columns or self._all_fields(lists[0]))
        return columns, {name: column.field for name, column in columns.items()}

    def _sample(self, ids: Packed, paths: Iterable[str] | None) -> list[dict[str, Any]]:
        # docstring inherited; of an element, its document with the element in the place of the list
        found, unwind = super()._sample(ids, paths), self._settings.unwind
        return found if unwind is None else [one for document in found for one in elements(document, unwind)]

    def _all_fields(self, ids: Packed) -> list[Mapped]:
        """Return the fields that all of some documents have, as columns of the same names."""
        places = places_of(self._sample(ids, None), self._settings.unwind, self._location.url)
        if not places.columns:
            raise ConfigError(
                f"{self._location.url}: none of the fields {listed(list(places.left))} has a name that a field can have and stands in every "
                "document; name them with columns={'image': 'Path.To'}"
            )
        self._left += [f"field {path!r}: {why}" for path, why in places.left.items()]
        shown = json.dumps(places.columns)
        check_most_is_read(
            self._location.url,
            self._left,
            len(places.left),
            len(places.left) + len(places.columns),
            "fields",
            f"columns={shown} reads what all have",
        )
        return [(name, path, None) for name, path in places.columns.items()]

    def _name(self, position: int, document: Mapping[str, Any] | None) -> str | None:
        column = self._columns.get("key")
        return None if document is None or column is None else str(pick(document, column.path))

    def _values(self, position: int, document: Mapping[str, Any], fields: Sequence[str]) -> Record:
        if self._settings.unwind is not None:
            numbers = self._lists[1]
            document = element_of(document, self._settings.unwind, id_of(numbers.kind, numbers[position]))
        return {name: self._columns[name].value(document) for name in fields}

    def _fetch(self, keys: Sequence[bytes], kind: int, fields: Sequence[str]) -> dict[bytes, dict[str, Any]]:
        # docstring inherited
        paths = [self._columns[name].path for name in fields if name in self._columns]
        unwind = self._settings.unwind
        if unwind is not None and not any(self._is_inside(path) for path in paths):
            paths.append(unwind)  # it must be seen that the element is still there
        return self._documents(keys, kind, paths)

    def _is_inside(self, path: str) -> bool:
        unwind = self._settings.unwind
        return unwind is not None and f"{path}.".startswith(f"{unwind}.")

    def _is_known_to_server(self, column: Column) -> bool:
        return not self._is_inside(column.path)  # of a document, any element may have the value
