"""Finds the records whose fields have given values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storeds.errors import ConfigError, suggest
from storeds.protocols import Array, Backend, Field, SupportsWhere
from storeds.records.codec import canonical_value, preview
from storeds.records.columns import TEXT, read_column

__all__ = ["check_where", "matching_positions", "positions_by_columns"]


def matching_positions(backend: Backend, where: Mapping[str, Sequence[Any]]) -> Array:
    """Return the int64 positions, ascending, of records each of whose fields in `where` has one of its values.

    `where` is a result of `check_where`.
    """
    return backend.select(where) if isinstance(backend, SupportsWhere) else positions_by_columns(backend, where)


def positions_by_columns(backend: Backend, where: Mapping[str, Sequence[Any]]) -> Array:
    """Return the same as `matching_positions`, from the columns of the fields."""
    mask = np.ones(len(backend), dtype=bool)
    for name, values in where.items():
        column, found = read_column(backend, name), np.zeros(len(backend), dtype=bool)
        for value in values:
            # NumPy strips trailing NULs when it converts a Python str.
            found |= column == (np.array(value, TEXT) if isinstance(value, str) else value)
        mask &= found
    return np.flatnonzero(mask).astype(np.int64)


_WHERE_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def check_where(where: Mapping[str, Any], fields: Mapping[str, Field], url: str) -> dict[str, list[Any]]:
    """Return field → accepted values; raises ConfigError for values that cannot be compared.

    A value means equality, a list membership. Values that no record can equal are dropped: NaN, and values that no store
    accepts, such as 10**400 and text with a lone surrogate.
    """
    checked: dict[str, list[Any]] = {}
    for name, wanted in where.items():
        if name not in fields:
            raise ConfigError(f"where: {url} has no field {name!r}; {suggest(name, fields, 'fields')}")
        types = _WHERE_TYPES.get(fields[name].kind)
        if types is None:
            raise ConfigError(
                f"where: field {name!r} is of kind {fields[name].kind}; only int, float, bool and str compare"
            )
        values = list(wanted) if isinstance(wanted, (list, tuple, set, frozenset)) else [wanted]
        for value in values:
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise ConfigError(f"where: field {name!r} is {fields[name].kind}, so it never equals {preview(value)}")
        checked[name] = [value for value in values if _equals_something(fields[name], value)]
    return checked


def _equals_something(field: Field, value: Any) -> bool:
    try:
        stored = canonical_value(field, value)
    except (ValueError, OverflowError):
        return False
    return bool(stored == value)
