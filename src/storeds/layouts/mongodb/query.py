"""Any collection: the documents that a query finds, with fields from dotted paths or inferred from some documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

import bson
import numpy as np
from bson import json_util
from bson.errors import BSONError
from pydantic import BeforeValidator

from storeds._utils.text import counted
from storeds.backends.base import BackendOptions, check_most_is_read
from storeds.backends.mongodb.documents import BUILD
from storeds.errors import ConfigError, StoreNotFoundError, suggest
from storeds.layouts.mongodb.base import Connection, MongodbLayout, listed
from storeds.layouts.mongodb.packing import IdPacker, Packed, id_of, key_of, pack_ids
from storeds.layouts.mongodb.values import Column, infer, paths_of, pick
from storeds.protocols import Array, Field, Record
from storeds.records.columns import TEXT, check_where
from storeds.records.fields import parse_fields
from storeds.records.seals import SEAL

__all__ = [
    "ColumnLayout",
    "ColumnOptions",
    "Mapped",
    "QueryLayout",
    "QueryOptions",
    "elements",
    "size_of",
]


_MOST = 64  # elements from which fields are inferred


def size_of(path: str) -> dict[str, Any]:
    """Return a projection that computes the length of the list at `path` as ``n``; 0 if there is no list."""
    return {"_id": 1, "n": {"$cond": [{"$isArray": f"${path}"}, {"$size": f"${path}"}, 0]}}


def _element_of(document: Mapping[str, Any], path: str, number: int) -> dict[str, Any]:
    """Return the document with one element instead of its list; raises ValueError if it has no such element."""
    found = pick(document, path)
    if not isinstance(found, list) or number >= len(found):
        there = f"{len(found)} elements" if isinstance(found, list) else "no list"
        raise ValueError(f"its document now has {there} in {path!r}, and no element {number}")
    return _with(document, path.split("."), found[number])


def _with(document: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    name, *rest = path
    return {**document, name: _with(document[name], rest, value) if rest else value}


def elements(document: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Yield the document once per element, for the first elements of its list."""
    found = pick(document, path)
    for number in range(min(len(found), _MOST) if isinstance(found, list) else 0):
        yield _element_of(document, path, number)


def _lists_of_documents(value: Any) -> bool:
    """Whether `value` is a list that contains only documents."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _holds_data(value: Any) -> bool:
    """Whether `value` contains bytes or an image in base64."""
    if isinstance(value, Mapping):
        return any(map(_holds_data, value.values()))
    if _lists_of_documents(value):
        return any(map(_holds_data, value))
    return value is not None and infer([value])[0].is_blob


def _places_of(
    documents: Sequence[Mapping[str, Any]], unwind: str | None, url: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the path of each field, and the reason for each path that is no field.

    Nested documents that hold data, and elements, give one field each.

    Raises
    ------
    ConfigError
        A list of documents that hold data would be one field.
    """
    columns, left = dict[str, str](), dict[str, str]()
    for path in _paths(documents, unwind):
        values = [pick(document, path) for document in documents]
        if any(value is None for value in values):
            left[path] = "absent or null in some documents"
            continue
        lists = [value for value in values if isinstance(value, list)]
        if any(map(_lists_of_documents, lists)) and any(map(_holds_data, lists)):
            raise ConfigError(
                f"{url}: field {path!r} holds lists of documents with images or other data, {sum(map(len, lists))} in "
                f"{len(lists)} documents: unwind={path!r} gives one record for each of them; columns= names other fields to read instead"
            )
        name = _name_of(path, unwind, columns)
        if name is None:
            left[path] = "not a valid field name; columns= gives it one"
        else:
            columns[name] = path
    return columns, left


def _paths(documents: Sequence[Mapping[str, Any]], unwind: str | None) -> Iterator[str]:
    """Yield the paths of all fields of the documents."""
    for name in dict.fromkeys(name for document in documents for name in document if name != "_id"):
        values = [document.get(name) for document in documents]
        is_inside = unwind is not None and unwind.partition(".")[0] == name
        if is_inside or (all(isinstance(value, Mapping) for value in values) and any(map(_holds_data, values))):
            yield from dict.fromkeys(
                path
                for value in values
                for path in paths_of({name: value})
                if path != name or not isinstance(value, Mapping)
            )
        else:
            yield name


def _name_of(path: str, unwind: str | None, taken: Mapping[str, str]) -> str | None:
    """Return the name of a column: the field's own name in an element, otherwise the path; None if no valid name is free."""
    if "." not in path:
        return path if _is_field_name(path) and path not in taken else None
    whole = re.sub(r"[^a-z0-9_]", "_", path.lower())
    short = path[len(unwind) + 1 :] if unwind and path.startswith(f"{unwind}.") else whole
    return next((name for name in (short, whole) if _is_field_name(name) and name not in taken), None)


def _is_field_name(name: str) -> bool:
    try:
        return bool(parse_fields({name: "json"})) and "." not in name
    except ConfigError:
        return False


_FORCEABLE = ("image", "bytes", "str", "int", "float", "bool", "json")

Mapped: TypeAlias = tuple[str, str, str | None]
"""A field's name, its path, and its kind or None to infer it."""


def _query_text(given: Any) -> str:
    """Return a query as canonical text in MongoDB's Extended JSON, which is accepted too."""
    text = given if isinstance(given, str) else json_util.dumps(given)
    query = json_util.loads(text)
    if not isinstance(query, dict):
        raise ValueError("expected a mapping such as {'split': 'train'}, or JSON of one")
    return json_util.dumps(query, sort_keys=False, json_options=json_util.CANONICAL_JSON_OPTIONS)


def _mapped(given: Any) -> tuple[Mapped, ...]:
    columns = json.loads(given) if isinstance(given, str) else given
    if not isinstance(columns, Mapping) or not columns:
        raise ValueError("expected a mapping of field names to dotted paths such as {'image': 'payload.jpg'}")
    parse_fields(dict.fromkeys(columns, "json"))  # their names
    return tuple(_mapped_one(name, place) for name, place in columns.items())


def _mapped_one(name: str, place: Any) -> Mapped:
    spec = {"path": place} if isinstance(place, str) else place
    if not isinstance(spec, Mapping) or not isinstance(spec.get("path"), str) or set(spec) - {"path", "kind"}:
        raise ValueError(f"{name}: expected a dotted path, or a mapping of path and kind")
    path, kind = spec["path"], spec.get("kind")
    if not all(path.split(".")) or path.startswith("$") or "\0" in path:
        raise ValueError(f"{name}: {path!r} is not a dotted path")
    if kind not in (None, *_FORCEABLE):
        raise ValueError(f"{name}: kind {kind!r} is not one of {', '.join(_FORCEABLE)}")
    return name, path, kind


class ColumnOptions(BackendOptions):
    """The documents to read, and their fields.

    Attributes
    ----------
    query : mapping or str
        A MongoDB query, or its JSON: ``{"split": "train"}``. All documents by default.
    columns : mapping or str, optional
        Field → dotted path (or ``{"path": …, "kind": …}``), or the JSON of this mapping: ``{"image": "payload.jpg"}``.
    """

    query: Annotated[str, BeforeValidator(_query_text)] = "{}"
    columns: Annotated[tuple[Mapped, ...], BeforeValidator(_mapped)] = ()


ColumnOpts = TypeVar("ColumnOpts", bound=ColumnOptions)


class ColumnLayout(MongodbLayout[ColumnOpts]):
    """A layout whose fields are at dotted paths of documents."""

    @property
    def _query(self) -> dict[str, Any]:
        query: dict[str, Any] = json_util.loads(self._settings.query)
        return query

    def _nothing(self) -> StoreNotFoundError:
        """Return the error for a query without results."""
        url = f"{self._location.url}: "
        if next(self._find({}, (), limit=1), None) is None:
            return StoreNotFoundError(f"{url}collection {self._collection!r} is empty")
        shown = json_util.dumps(self._query)
        one = next(self._find({}, None, limit=1), {})
        return StoreNotFoundError(
            f"{url}no document matches the query {shown}; a document there has the fields {listed(paths_of(one))}"
        )

    def _mapped_columns(self, ids: Packed, mapped: Sequence[Mapped]) -> dict[str, Column]:
        """Return the columns, with kinds inferred from documents across the store."""
        sample = self._sample(ids, [path for _, path, _ in mapped]) if mapped else []
        return {name: self._column_at(path, kind, sample) for name, path, kind in mapped}

    def _column_at(self, path: str, kind: str | None, sample: Sequence[Mapping[str, Any]]) -> Column:
        values = [value for document in sample if (value := pick(document, path)) is not None]
        if not values:
            query = {"$and": [self._query, {path: {"$exists": True, "$ne": None}}]}
            found = next(self._find(query, [path], limit=1), {})
            values = [value for value in [pick(found, path)] if value is not None]
        if not values:
            one = next(self._find(self._query, None, limit=1), {})
            there = suggest(path, paths_of(one), "fields of a document there")
            raise ConfigError(f"{self._location.url}: no document has the field {path!r}; {there}")
        if kind is not None:
            return Column(path, Field(kind), as_text=kind == "str")  # type: ignore[arg-type]  # the options checked it
        return Column(path, *infer(values))

    def _is_known_to_server(self, column: Column) -> bool:
        """Whether a query by the column's path finds exactly the matching records."""
        return True

    def select(self, where: Mapping[str, Any], /) -> Array:
        # docstring inherited
        accepted = check_where(where, self.meta.fields, self.url)
        ids = self._lists[0]
        mask = np.ones(len(ids), bool)
        conditions: list[dict[str, Any]] = [self._query]
        for name, values in accepted.items():
            column = self._columns.get(name)
            if column is None or column.as_text or not self._is_known_to_server(column):
                there = self.column(name)
                mask &= np.logical_or.reduce([_equals(there, value) for value in values], initial=False)
            else:
                conditions.append({column.path: {"$in": [value for value in values if _is_storable(value)]}})
        if len(conditions) > 1:
            found = {key_of(ids.kind, document["_id"]) for document in self._find({"$and": conditions}, ())}
            mask &= np.fromiter((key in found for key in ids), bool, len(ids))
        return np.flatnonzero(mask).astype(np.int64)


def _equals(column: Array, value: Any) -> Any:
    if column.dtype == TEXT:
        return column == np.array(value, TEXT)
    return column == value if _is_storable(value) else np.zeros(len(column), bool)


def _is_storable(value: Any) -> bool:
    """Whether a document can hold `value`; 10**400 and lone surrogates match nothing."""
    try:
        bson.encode({"": value})
    except (BSONError, OverflowError, ValueError):
        return False
    return True


_GLANCES = 3


class QueryOptions(ColumnOptions):
    """Options of layout ``query``.

    Attributes
    ----------
    unwind : str, optional
        Dotted path of a list in each document; every element becomes a record: ``"crops"``. Paths in ``columns`` treat the
        element as if it replaced the list: ``"crops.image"``.
    """

    unwind: str | None = None


class QueryLayout(ColumnLayout[QueryOptions]):
    """Reads the documents that a query finds, in the order of ``_id``.

    Parameters
    ----------
    url : str
        The URL of the collection or view, as for a native store.
    client_factory : callable, optional
        As for a native store.
    **options
        `QueryOptions`. Without ``columns``, every field that all sampled documents have becomes a column. A nested document
        that holds data gives one column per field, named by its path: ``image_data``.

    Raises
    ------
    ConfigError
        No document has a field, most fields would be left out, a list of images needs ``unwind``, or MongoDB rejects the
        query.
    StoreNotFoundError, UnavailableError
        No such collection, or the query matches nothing; no server.

    Notes
    -----
    Opening finds the documents by one query for their ids; documents inserted later are not seen.
    """

    Options: ClassVar[type[BackendOptions]] = QueryOptions
    layout = "query"

    @classmethod
    def _guess(cls, connection: Connection, settings: QueryOptions) -> str | None:
        name = connection.location.collection
        shown = list(connection.find(name, {}, limit=_GLANCES))
        if not shown or name.endswith((".files", ".chunks")) or any(SEAL in each or BUILD in each for each in shown):
            return None  # belongs to a bucket, or is a native store
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
        data = [path for path in there if any(_holds_data(pick(document, path)) for document in shown)]
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
        """Return for each element the id of its document, and its number in the list."""
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
        # docstring inherited; with unwind, a document per element
        found, unwind = super()._sample(ids, paths), self._settings.unwind
        return found if unwind is None else [one for document in found for one in elements(document, unwind)]

    def _all_fields(self, ids: Packed) -> list[Mapped]:
        """Return the fields that all sampled documents have, as columns."""
        columns, left = _places_of(self._sample(ids, None), self._settings.unwind, self._location.url)
        if not columns:
            raise ConfigError(
                f"{self._location.url}: none of the fields {listed(list(left))} is in every document and has a valid field name; "
                "name them with columns={'image': 'Path.To'}"
            )
        self._left += [f"field {path!r}: {why}" for path, why in left.items()]
        shown = json.dumps(columns)
        check_most_is_read(
            self._location.url,
            self._left,
            len(left),
            len(left) + len(columns),
            "fields",
            f"columns={shown} reads the fields that all have",
        )
        return [(name, path, None) for name, path in columns.items()]

    def _name(self, position: int, document: Mapping[str, Any] | None) -> str | None:
        column = self._columns.get("key")
        return None if document is None or column is None else str(pick(document, column.path))

    def _values(self, position: int, document: Mapping[str, Any], fields: Sequence[str]) -> Record:
        if self._settings.unwind is not None:
            numbers = self._lists[1]
            document = _element_of(document, self._settings.unwind, id_of(numbers.kind, numbers[position]))
        return {name: self._columns[name].value(document) for name in fields}

    def _fetch(self, keys: Sequence[bytes], kind: int, fields: Sequence[str]) -> dict[bytes, dict[str, Any]]:
        # docstring inherited
        paths = [self._columns[name].path for name in fields if name in self._columns]
        unwind = self._settings.unwind
        if unwind is not None and not any(self._is_inside(path) for path in paths):
            paths.append(unwind)  # to check that the element still exists
        return self._documents(keys, kind, paths)

    def _is_inside(self, path: str) -> bool:
        unwind = self._settings.unwind
        return unwind is not None and f"{path}.".startswith(f"{unwind}.")

    def _is_known_to_server(self, column: Column) -> bool:
        return not self._is_inside(column.path)  # a query matches a document if any of its elements has the value
