"""Makes columns: one field of all records as an array."""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import Array, Backend, Field, Record, SupportsColumns

__all__ = [
    "SCALARS",
    "TEXT",
    "ColumnCollector",
    "check_has_column",
    "check_one_value",
    "column_from_records",
    "column_of",
    "read_column",
    "text_column",
    "text_offsets",
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


class ColumnCollector:
    """Collects the fields of kind int, float, bool and str of all records of a store, 8 bytes for each number."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._numbers = {name: array.array(_CODES[f.kind]) for name, f in fields.items() if f.kind in _CODES}
        self._dtypes = {name: SCALARS[fields[name].kind] for name in self._numbers}
        self._texts = {name: (bytearray(), array.array("q", [0])) for name, f in fields.items() if f.kind == "str"}

    def add(self, stored: Record) -> None:
        """Add the next record, in stored form."""
        for name, numbers in self._numbers.items():
            numbers.append(stored[name])
        for name, (data, bounds) in self._texts.items():
            data += stored[name].encode()
            bounds.append(len(data))

    def columns(self) -> dict[str, Array]:
        """Return the columns as `storeds.backends.writer.Sink.finish` takes them."""
        found = {name: np.frombuffer(numbers, self._dtypes[name]) for name, numbers in self._numbers.items()}
        for name, (data, bounds) in self._texts.items():
            found[name] = np.frombuffer(data, np.uint8)
            found[text_offsets(name)] = np.frombuffer(bounds, "<i8")
        return found


def text_offsets(name: str) -> str:
    """Return the name of the column with the bounds of the texts in column `name`."""
    return f"{name}.offsets"


_CODES = {"int": "q", "float": "d", "bool": "b"}


def text_column(data: bytes, offsets: Iterable[int]) -> Array:
    """Return the texts that lie end to end in `data`; ``offsets`` has one more entry than there are texts."""
    bounds = list(offsets)
    texts = [data[start:stop].decode() for start, stop in itertools.pairwise(bounds)]
    return np.array(texts, dtype=TEXT)


def check_has_column(url: str, name: str, field: Field) -> None:
    """Raise ConfigError if the values of a field make no array."""
    if field.kind != "str" and not field.is_fixed:
        raise ConfigError(
            f"{url}: field {name!r} is of kind {field.kind}, which has no column; "
            "columns are int, float, bool, str and arrays of fixed shape"
        )


def read_column(backend: Backend, name: str) -> Array:
    """Return field `name` of all records: by `SupportsColumns`, else record by record.

    Raises
    ------
    ConfigError
        The field does not exist, or has no column.
    RecordError
        A record on the way is bad.
    """
    return backend.column(name) if isinstance(backend, SupportsColumns) else column_from_records(backend, name)


def check_one_value(column: Array, setting: str, name: str) -> Array:
    """Return a column unchanged if each record has one value in it that can be compared; `setting` uses the field `name`.

    Raises
    ------
    ConfigError
        The values are arrays, or some are NaN.
    """
    if column.ndim != 1:
        raise ConfigError(
            f"{setting}={name!r}: the field is of kind array, of shape {list(column.shape[1:])}, and each sample needs one "
            "value. Store a field of kind int, float, bool or str, such as the number of the class"
        )
    missing = np.flatnonzero(column != column)  # only NaN differs from itself
    if missing.size:
        raise ConfigError(
            f"{setting}={name!r}: the field is of kind float, and {len(missing):,} of {len(column):,} values are NaN, the "
            f"first at {missing[0]}. Leave these records out, or give them a value of their own"
        )
    return column


def column_from_records(backend: Backend, name: str) -> Array:
    """Return field `name` of all records, read in batches; raises as `read_column` does."""
    known = backend.meta.fields
    if name not in known:
        raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, known, 'fields')}")
    check_has_column(backend.url, name, known[name])
    values: list[Any] = []
    for start in range(0, len(backend), _BATCH):
        for record in backend.get_many(range(start, min(start + _BATCH, len(backend))), (name,)):
            if isinstance(record, RecordError):
                raise record
            values.append(record[name])
    return column_of(known[name], values)
