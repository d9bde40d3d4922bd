"""Makes one array of one field of all records, whether or not the engine has a fast way to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import Array, Backend, Field, SupportsColumns
from storeds.records.verdicts import readable_fields

__all__ = [
    "SCALARS",
    "TEXT",
    "column_from_records",
    "column_of",
    "read_arrays",
    "read_column",
    "stack_records",
    "stackable",
    "text_column",
]


_BATCH = 1024

SCALARS = {"int": np.dtype("<i8"), "float": np.dtype("<f8"), "bool": np.dtype("?")}
# Variable width and NUL-safe, unlike "U", which pads to the longest and strips trailing NULs.
TEXT = np.dtypes.StringDType()


def column_of(field: Field, values: Sequence[Any]) -> Array:
    """Return user values of a scalar, text or fixed-shape array field as one array."""
    if field.kind == "str":
        return np.array(values, dtype=TEXT)
    if field.kind == "array":
        shape = (len(values), *(size or 0 for size in field.shape or ()))
        return np.array(values, dtype=field.dtype).reshape(shape)
    return np.array(values, dtype=SCALARS[field.kind])


def text_column(data: bytes, offsets: Iterable[int]) -> Array:
    """Return the texts that lie end to end in `data`; ``offsets`` has one more entry than there are texts."""
    bounds = list(offsets)
    texts = [data[start:stop].decode() for start, stop in itertools.pairwise(bounds)]
    return np.array(texts, dtype=TEXT)


def read_column(backend: Backend, name: str) -> Array:
    """Return field `name` of all records: by `SupportsColumns`, else record by record.

    Raises
    ------
    ConfigError
        There is no such field, or it has no column.
    RecordError
        A record on the way is bad.
    """
    return backend.column(name) if isinstance(backend, SupportsColumns) else column_from_records(backend, name)


def column_from_records(backend: Backend, name: str) -> Array:
    """Return field `name` of all records, read in batches; raises as `read_column` does."""
    known = readable_fields(backend.meta)
    if name not in known:
        raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, known, 'fields')}")
    values: list[Any] = []
    for start in range(0, len(backend), _BATCH):
        for record in backend.get_many(range(start, min(start + _BATCH, len(backend))), (name,)):
            if isinstance(record, RecordError):
                raise record
            values.append(record[name])
    return column_of(known[name], values)


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
