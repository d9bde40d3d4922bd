"""Reads fields of fixed size of many records as one array each, whether or not the engine has a fast way to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from storeds._columns import column_of
from storeds._suggest import suggest
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array, Backend, Field

__all__ = ["read_arrays", "stack_records", "stackable"]

_Read: TypeAlias = Callable[[Sequence[int], Sequence[str] | None], dict[str, Array]]


def read_arrays(backend: Backend, positions: Sequence[int], fields: Sequence[str] | None = None) -> dict[str, Array]:
    """Return what `SupportsBatchArrays.get_arrays` promises, made of records where a backend lacks it; raises as that does."""
    # Asking the protocol itself takes as long as copying a hundred rows.
    read: _Read | None = getattr(backend, "get_arrays", None)
    return stack_records(backend, positions, fields) if read is None else read(positions, fields)


def stack_records(backend: Backend, positions: Sequence[int], fields: Sequence[str] | None = None) -> dict[str, Array]:
    """Return the same, made of records."""
    names = stackable(backend, fields)
    records = []
    for record in backend.get_many(positions, names):
        if isinstance(record, RecordError):
            raise record
        records.append(record)
    return {name: _stacked(backend.meta.fields[name], [record[name] for record in records]) for name in names}


def _stacked(field: Field, values: list[Any]) -> Array:
    if field.kind != "array" or not values:
        return column_of(field, values)
    dtype = np.dtype(field.dtype).newbyteorder("=")
    return np.concatenate([value[np.newaxis] for value in values]).astype(dtype, copy=False)


def stackable(backend: Backend, fields: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the wanted fields, each once; by default all that are of fixed size. Raises ConfigError."""
    declared = backend.meta.fields
    if fields is None:
        return tuple(name for name, field in declared.items() if field.is_fixed)
    for name in fields:
        if name not in declared or not declared[name].is_fixed:
            raise ConfigError(f"{backend.url} {_refusal(name, declared)}")
    return tuple(dict.fromkeys(fields))


def _refusal(name: str, declared: Mapping[str, Field]) -> str:
    if name not in declared:
        return f"has no field {name!r}; {suggest(name, declared, 'fields')}"
    fixed = ", ".join(other for other, field in declared.items() if field.is_fixed) or "there are none here"
    return (
        f"has a field {name!r} of kind {declared[name].kind}, whose values make no array: those of int, float, bool and "
        f"arrays of fixed shape do ({fixed}). get_many reads the others"
    )
