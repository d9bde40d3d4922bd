"""Makes one array of one field of all records, whether or not the engine has a fast way to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from storeds._suggest import suggest
from storeds._verdicts import readable_fields
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array, Backend, Field, SupportsColumns

__all__ = ["SCALARS", "TEXT", "column_from_records", "column_of", "read_column", "text_column"]

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
