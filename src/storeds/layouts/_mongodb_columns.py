"""Documents chosen by a query, fields of them by dotted paths: what layouts ``query`` and ``gridfs`` have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import bson
import numpy as np
from bson import json_util
from bson.errors import BSONError
from pydantic import BeforeValidator

from storeds._columns import TEXT
from storeds._suggest import suggest
from storeds._where_checks import check_where
from storeds.backends.base import BackendOptions
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.fields import parse_fields
from storeds.layouts._mongodb_base import MongodbLayout, listed
from storeds.layouts._mongodb_packed import Packed, key_of
from storeds.layouts._mongodb_values import Column, infer, paths_of, pick
from storeds.protocols import Array, Field

__all__ = ["ColumnLayout", "ColumnOptions", "Mapped"]

_FORCEABLE = ("image", "bytes", "str", "int", "float", "bool", "json")

Mapped: TypeAlias = tuple[str, str, str | None]
"""A field's name, where it lies, and its kind if that is not to be inferred."""


def _query_text(given: Any) -> str:
    """Return a query as one canonical text; ObjectIds and dates as MongoDB's Extended JSON, which is read too."""
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
        raise ValueError(f"{name}: {path!r} is no dotted path")
    if kind not in (None, *_FORCEABLE):
        raise ValueError(f"{name}: kind {kind!r} is none of {', '.join(_FORCEABLE)}")
    return name, path, kind


class ColumnOptions(BackendOptions):
    """Which documents, and what of them.

    Attributes
    ----------
    query : mapping or str
        As MongoDB takes it, or JSON of it: ``{"split": "train"}``. All documents by default.
    columns : mapping or str, optional
        Field → dotted path (or ``{"path": …, "kind": …}``), or JSON of it: ``{"image": "payload.jpg"}``.
    """

    query: Annotated[str, BeforeValidator(_query_text)] = "{}"
    columns: Annotated[tuple[Mapped, ...], BeforeValidator(_mapped)] = ()


ColumnOpts = TypeVar("ColumnOpts", bound=ColumnOptions)


class ColumnLayout(MongodbLayout[ColumnOpts]):
    """A layout whose fields lie in documents at dotted paths."""

    @property
    def _query(self) -> dict[str, Any]:
        query: dict[str, Any] = json_util.loads(self._settings.query)
        return query

    def _nothing(self) -> StoreNotFoundError:
        """Return the error for no document at all."""
        url = f"{self._location.url}: "
        if next(self._find({}, (), limit=1), None) is None:
            return StoreNotFoundError(f"{url}collection {self._collection!r} is empty")
        shown = json_util.dumps(self._query)
        one = next(self._find({}, None, limit=1), {})
        return StoreNotFoundError(
            f"{url}no document matches the query {shown}; a document there has the fields {listed(paths_of(one))}"
        )

    def _mapped_columns(self, ids: Packed, mapped: Sequence[Mapped]) -> dict[str, Column]:
        """Return the columns, of kinds that some documents from all over the store have."""
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
        """Whether a query by the column's path finds the documents whose records have the value."""
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
    """Whether a document can hold it; 10**400 and a lone surrogate equal nothing there."""
    try:
        bson.encode({"": value})
    except (BSONError, OverflowError, ValueError):
        return False
    return True
