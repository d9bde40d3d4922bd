"""Any collection: the documents that a query finds, with fields from dotted paths or inferred from some documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from bson import json_util

from storeds._utils.text import counted
from storeds.backends.raw import BackendOptions
from storeds.backends.unread import SHOWN, bounded
from storeds.errors import ConfigError, StoreNotFoundError, suggest
from storeds.layouts.mongodb.backend import IDS, MongodbLayout, key_of, listed
from storeds.layouts.mongodb.documents import TEXTS, Column, column_at, column_of_part, paths_of, pick, shown_to_infer
from storeds.layouts.names import pack_names
from storeds.layouts.pattern import ATTRIBUTES, EVERYTHING, Pattern, Place, parse_pattern
from storeds.protocols import Array, Field, Record
from storeds.values.infer import holds_data, infer
from storeds.values.names import field_names

__all__ = ["ColumnLayout", "ColumnOptions", "QueryLayout", "data_of", "elements", "size_of"]


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


def _check_lists(documents: Sequence[Mapping[str, Any]], url: str) -> None:
    """Raise ConfigError if a field is a list of documents with images or other data, which would be one field."""
    for path in dict.fromkeys(path for document in documents for path in paths_of(document)):
        lists = [value for document in documents if _lists_of_documents(value := pick(document, path))]
        if any(map(holds_data, lists)):
            names = [name for name in lists[0][0] if "." not in name]
            inside = {field: f"{path}[].{name}" for field, name in zip(field_names(names), names, strict=True)}
            raise ConfigError(
                f"{url}: field {path!r} holds lists of documents with images or other data, {sum(map(len, lists))} in "
                f"{len(lists)} documents: columns={inside!r} gives one record for each of them; paths without [] are those of "
                "the whole document"
            )


def data_of(document: Mapping[str, Any]) -> list[str]:
    """Return the fields of a document that contain bytes, an image in base64, or a list of numbers."""
    return [name for name, value in document.items() if name != "_id" and _is_blob(value)]


def _is_blob(value: Any) -> bool:
    if isinstance(value, Mapping) or _lists_of_documents(value):
        return any(map(_is_blob, value.values() if isinstance(value, Mapping) else value))
    return value is not None and column_at("", [value]).field.is_blob


def _query_text(given: Any) -> str:
    """Return a query as canonical text in MongoDB's Extended JSON, which is accepted too."""
    text = given if isinstance(given, str) else json_util.dumps(given)
    query = json_util.loads(text)
    if not isinstance(query, dict):
        raise ValueError("expected a mapping such as {'split': 'train'}, or JSON of one")
    return json_util.dumps(query, sort_keys=False, json_options=json_util.CANONICAL_JSON_OPTIONS)


def _parsed(given: Any) -> Pattern | None:
    """Return the pattern of documents: dotted paths, of which one list may have ``[]``."""
    if given is None:
        return None
    pattern = parse_pattern(given, attributes=False)
    for name, place in pattern.places:
        path = dotted(place)
        if place.names or place.deep or place.file or place.ranges or name in (EVERYTHING, ATTRIBUTES):
            raise ConfigError(
                f"columns[{name!r}]: {place.text!r}: documents have fields, not names to match: write a dotted path such as "
                "'payload.jpg', or 'crops[].image' for the elements of a list"
            )
        if not all(path.split(".")) or path.startswith("$") or "\0" in path:
            raise ConfigError(f"columns[{name!r}]: {place.text!r} is not a dotted path")
    if len(_lists_in(pattern)) > 1:
        shown = " and ".join(_lists_in(pattern))
        raise ConfigError(f"columns: a record is an element of one list, and {shown} are two")
    return pattern


def dotted(place: Place) -> str:
    """Return the path of a place in a document whose list is replaced by one of its elements."""
    return f"{place.path}.{place.inner}" if place.inner else str(place.path)


def _lists_in(pattern: Pattern) -> list[str]:
    return list(dict.fromkeys(str(place.path) for _, place in pattern.places if place.rows))


class ColumnOptions(BackendOptions, frozen=True):
    """The documents to read, and their fields.

    Attributes
    ----------
    query : mapping or str
        A MongoDB query, or its JSON: ``{"split": "train"}``. All documents by default.
    columns : mapping or str, optional
        The pattern: field → dotted path, ``{"image": "payload.jpg"}``. With ``crops[].image`` every element of the list is a
        record.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"query": _query_text, "columns": _parsed}

    query: str = "{}"
    columns: Pattern | None = None

    @property
    def unwind(self) -> str | None:
        """The path of the list whose elements are records."""
        lists = [] if self.columns is None else _lists_in(self.columns)
        return lists[0] if lists else None


ColumnOpts = TypeVar("ColumnOpts", bound=ColumnOptions)


class ColumnLayout(MongodbLayout[ColumnOpts]):
    """A layout whose fields are at dotted paths of documents."""

    @property
    def _query(self) -> dict[str, Any]:
        query: dict[str, Any] = json_util.loads(self._settings.query)
        return query

    def _nothing(self) -> StoreNotFoundError:
        """Return the error for a query without results."""
        url, one = self._location.url, self._one()
        if not one:
            return StoreNotFoundError(f"{url}: collection {self._collection!r} is empty")
        shown = json_util.dumps(self._query)
        return StoreNotFoundError(
            f"{url}: no document matches the query {shown}; a document there has the fields {listed(paths_of(one))}"
        )

    def _columns_at(self, paths: Mapping[str, str], kinds: Mapping[str, Field]) -> dict[str, Column]:
        """Return the columns at dotted paths, with kinds inferred from documents across the store."""
        sample = self._sample(paths.values()) if paths else []
        return {name: self._column_at(path, kinds.get(name), sample) for name, path in paths.items()}

    def _column_at(self, path: str, declared: Field | None, sample: Sequence[Mapping[str, Any]]) -> Column:
        values = [value for document in sample if (value := pick(document, path)) is not None]
        if not values:
            found = self._one({"$and": [self._query, {path: {"$exists": True, "$ne": None}}]})
            values = [value for value in [pick(found, path)] if value is not None]
        if not values:
            raise ConfigError(f"{self._location.url}: no document has the field {path!r}; {self._suggested(path)}")
        return column_at(path, values, declared)

    def select(self, where: Mapping[str, Sequence[Any]]) -> Array | None:
        # docstring inherited; by a query, if the server compares values as storeds does
        columns = [self._columns.get(name) for name in where]
        if any(column is None or not column.as_stored or self._is_inside(column.path) for column in columns):
            return None
        paths = [column.path for column in columns if column is not None]
        conditions = [{path: {"$in": values}} for path, values in zip(paths, where.values(), strict=True)]
        found = {key_of(document["_id"]) for document in self._find({"$and": [self._query, *conditions]}, ())}
        mask = np.fromiter((key in found for key in self._list(IDS)), bool, self.meta.count)
        return np.flatnonzero(mask).astype(np.int64)

    def _is_inside(self, path: str) -> bool:
        """Whether a path leads into the elements of the list that is unwound."""
        unwind = self._settings.unwind
        return unwind is not None and f"{path}.".startswith(f"{unwind}.")

    def _suggested(self, path: str) -> str:
        return suggest(path, paths_of(self._one(self._query)), "fields of a document there")


class QueryLayout(ColumnLayout[ColumnOptions]):
    """Reads the documents that a query finds, in the order of ``_id``.

    Its options are `ColumnOptions`. Without ``columns``, every field that all sampled documents have becomes a column. A nested document
    that holds data gives one column per field, named by its path: ``image_data``.

    Raises
    ------
    ConfigError
        No document has a field, most fields would be left out, a list of images needs ``[]``, or MongoDB rejects the query.
    StoreNotFoundError, UnavailableError
        No such collection, or the query matches nothing; no server.

    Notes
    -----
    Opening finds the documents by one query for their ids; documents inserted later are not seen.
    """

    layout = "query"

    def _resolve(self) -> dict[str, Array]:
        # docstring inherited
        if self._settings.unwind is not None:
            return self._resolve_elements(self._settings.unwind)
        ids = pack_names(key_of(document["_id"]) for document in self._find(self._query, (), ordered=True))
        if not ids[1]:  # their number
            raise self._nothing()
        return {IDS: ids}

    def _resolve_elements(self, path: str) -> dict[str, Array]:
        """Return the id of the document of each element, and the number of the element in its list."""
        ids, numbers = list[bytes](), list[int]()
        documents = empty = 0
        for document in self._connection.find(self._collection, self._query, size_of(path), ordered=True):
            documents, empty = documents + 1, empty + (not document["n"])
            ids += [key_of(document["_id"])] * document["n"]
            numbers += range(document["n"])
        if not documents:
            raise self._nothing()
        if not ids:
            why = f"no document has a list in {path!r} (columns); {self._suggested(path)}"
            raise ConfigError(f"{self._location.url}: {why}")
        if empty:
            self._left.append(f"{counted(empty, 'document')} without an element in {path!r}")
        return {IDS: pack_names(ids, numbers)}

    def _describe(self) -> tuple[dict[str, Column], dict[str, Field]]:
        # docstring inherited
        pattern = self._settings.columns
        if pattern is None:
            columns = self._all_fields()
        else:
            paths = {name: dotted(place) for name, place in pattern.places}
            columns = self._columns_at(paths, dict(pattern.kinds))
        return columns, {name: column.field for name, column in columns.items()}

    def _sample(self, paths: Iterable[str] | None) -> list[dict[str, Any]]:
        # docstring inherited; with [], a document per element
        found, unwind = super()._sample(paths), self._settings.unwind
        return found if unwind is None else [one for document in found for one in elements(document, unwind)]

    def _all_fields(self) -> dict[str, Column]:
        """Return the columns of the fields that most of the sampled documents have."""
        url, sample = self._location.url, self._sample(None)
        _check_lists(sample, url)
        documents = [{name: value for name, value in document.items() if name != "_id"} for document in sample]
        found = infer([*map(shown_to_infer, documents)], texts=TEXTS)
        columns, left = dict[str, Column](), [each.replace("part ", "field ", 1) for each in found.left]
        for part in found.parts:
            column = column_of_part(part, documents)
            names = part.path[: len(part.path) - len(column.inner)]
            if any("." in name for name in names):
                left.append(
                    f"field {'.'.join(names)!r}: a name in it has a dot, so no path of MongoDB leads there; rename it"
                )
            else:
                columns[part.name] = column
        self._left += left
        if not columns:
            raise ConfigError(
                f"{url}: {'; '.join(self._left[:SHOWN])}; name fields with columns={{'image': 'Path.To'}}"
            )
        if replace(
            found, parts=tuple(part for part in found.parts if part.name in columns), left=(*left,)
        ).reads_little:
            given = {name: column.path for name, column in columns.items() if not column.inner}
            raise ConfigError(
                f"{url}: most of it would not be read, {len(left):,} of {len(left) + len(columns):,} fields: "
                f"{'; '.join(bounded(self._left, SHOWN))}; columns={given!r} reads the others"
            )
        return columns

    def _name(self, position: int, document: Mapping[str, Any] | None) -> str | None:
        column = self._columns.get("key")
        return None if document is None or column is None else str(pick(document, column.path))

    def _values(self, position: int, document: Mapping[str, Any], fields: Sequence[str]) -> Record:
        if self._settings.unwind is not None:
            document = _element_of(document, self._settings.unwind, int(self._list(IDS).numbers[position]))
        return super()._values(position, document, fields)

    def _fetch(self, keys: Sequence[bytes], fields: Sequence[str]) -> dict[bytes, dict[str, Any]]:
        # docstring inherited
        paths = [self._columns[name].path for name in fields if name in self._columns]
        unwind = self._settings.unwind
        if unwind is not None and not any(self._is_inside(path) for path in paths):
            paths.append(unwind)  # to check that the element still exists
        return self._documents(keys, paths)
