"""Finds the classes of labels whose role says that they are the distinct values of the store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from storeds.backends.view import whole
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Backend
from storeds.readers.paths import JsonPath, split_path, value_at
from storeds.records.columns import read_column
from storeds.values.classes import distinct_classes

__all__ = ["DISTINCT", "with_classes"]

DISTINCT = "distinct"
_BATCH = 1000  # records


def with_classes(roles: Any, fields: Any, backend: Backend) -> Any:
    """Return roles with a list in place of each ``classes="distinct"``: the sorted texts or numbers that occur.

    It reads the field of such a label in all records of the store, also those that ``where`` leaves out, so that each part
    of a store numbers its classes alike. Bad records are left out.

    Parameters
    ----------
    roles : mapping or None
        As the user gives them.
    fields : sequence of str, mapping of str to str, or None
        The elements of a sample, each with its field or path.
    backend : Backend

    Raises
    ------
    ConfigError
        There is no such field, some values are texts and others numbers, or there are none.
    """
    if not isinstance(roles, Mapping):
        return roles
    found = {}
    for name, spec in roles.items():
        is_distinct = isinstance(spec, Mapping) and spec.get("classes") == DISTINCT
        found[name] = {**spec, "classes": _classes(name, fields, whole(backend))} if is_distinct else spec
    return found


def _classes(name: str, fields: Any, backend: Backend) -> list[Any]:
    path = fields.get(name, name) if isinstance(fields, Mapping) else name
    place = split_path(path, backend.meta.fields)
    if place is None:
        raise ConfigError(
            f"roles: the classes of {name!r} are distinct values, and {backend.url} has no field {path!r}"
        )
    try:
        classes = distinct_classes(_scalars(_values(place, path, backend)))
    except ValueError as error:
        raise ConfigError(f"roles: the classes of {name!r} cannot be found: {error}; list them: classes=[…]") from None
    if not classes:
        raise ConfigError(f"roles: {name!r} has no value in {backend.url}, and so no classes")
    return classes


def _values(place: JsonPath, path: str, backend: Backend) -> Iterator[Any]:
    """Return the values of a label in all good records."""
    if not place.steps and backend.meta.fields[place.field].kind in ("int", "str"):
        with contextlib.suppress(RecordError):  # the others are read one by one
            return iter(np.unique(read_column(backend, place.field)).tolist())
    return _each(place, path, backend)


def _each(place: JsonPath, path: str, backend: Backend) -> Iterator[Any]:
    for start in range(0, len(backend), _BATCH):
        for record in backend.get_many(range(start, min(start + _BATCH, len(backend))), (place.field,)):
            if not isinstance(record, RecordError):
                try:
                    yield value_at(record[place.field], place.steps, path)
                except ValueError:
                    continue  # reading the sample says so


def _scalars(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, np.ndarray)):
            yield from _scalars(value.tolist() if isinstance(value, np.ndarray) else value)
        elif value is not None:
            yield value
