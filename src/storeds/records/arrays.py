"""Makes arrays of fields of fixed size of many records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import Array, Backend, Field, Record
from storeds.records.columns import column_of

__all__ = ["read_arrays", "stack_packed", "stack_records", "stackable"]


def read_arrays(backend: Backend, positions: Sequence[int], fields: Sequence[str] | None = None) -> dict[str, Array]:
    """Return the same as `SupportsBatchArrays.get_arrays`, from records if the backend lacks that method."""
    # Asking the protocol itself takes as long as copying a hundred rows.
    read: Callable[..., dict[str, Array]] | None = getattr(backend, "get_arrays", None)
    return stack_records(backend, positions, fields) if read is None else read(positions, fields)


def stack_records(backend: Backend, positions: Sequence[int], fields: Sequence[str] | None = None) -> dict[str, Array]:
    """Return the same as `read_arrays`, from records."""
    names = stackable(backend, fields)
    records = []
    for record in backend.get_many(positions, names):
        if isinstance(record, RecordError):
            raise record
        records.append(record)
    return {name: column_of(backend.meta.fields[name], [record[name] for record in records]) for name in names}


def stack_packed(records: Sequence[Record], names: Sequence[str], declared: Mapping[str, Field]) -> dict[str, Array]:
    """Return fields of records whose arrays are ``[dtype, shape, bytes]``; raises ValueError if one is not as declared."""
    found = {}
    for name in names:
        field, values = declared[name], [record[name] for record in records]
        if field.kind != "array":
            found[name] = column_of(field, values)
            continue
        dtypes, shapes, data = zip(*values, strict=True)
        shape = list(field.shape or ())
        if set(dtypes) != {field.dtype} or any(each != shape for each in shapes):
            raise ValueError(f"field {name!r} has arrays of another dtype or shape")
        found[name] = np.frombuffer(bytearray().join(data), field.dtype).reshape(len(values), *shape)
    return found


def stackable(backend: Backend, fields: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the wanted fields, each once; by default all that are of fixed size. Raises ConfigError."""
    declared = backend.meta.fields
    if fields is None:
        return tuple(name for name, field in declared.items() if field.is_fixed)
    for name in fields:
        if name not in declared:
            raise ConfigError(f"{backend.url} has no field {name!r}; {suggest(name, declared, 'fields')}")
        if not declared[name].is_fixed:
            fixed = ", ".join(other for other, field in declared.items() if field.is_fixed) or "there are none here"
            raise ConfigError(
                f"{backend.url} has a field {name!r} of kind {declared[name].kind}, whose values make no array: those of "
                f"int, float, bool and arrays of fixed shape do ({fixed}). get_many reads the others"
            )
    return tuple(dict.fromkeys(fields))
