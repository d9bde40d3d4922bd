"""Reads fields of fixed size of many records as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import Array, Backend
from storeds.records.columns import column_of

__all__ = ["read_arrays", "stack_records", "stackable"]


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
