"""Checks what ``where=`` asks for against the fields of a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storeds._canonical import canonical_value, preview
from storeds._suggest import suggest
from storeds.errors import ConfigError
from storeds.protocols import Field

__all__ = ["check_where"]

_WHERE_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def check_where(where: Mapping[str, Any], fields: Mapping[str, Field], url: str) -> dict[str, list[Any]]:
    """Return field → accepted values; raises ConfigError for what cannot be compared.

    A value stands for equality, a list for membership. What equals nothing is left out: NaN, and values that no store
    holds, such as 10**400 and text with a lone surrogate, which engines would refuse, each in its own words.
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
