"""The source for another store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from storeds.backends.opening import open_backend
from storeds.errors import ConfigError, RecordError
from storeds.ops.packing.rows import Bad, Row, Rows
from storeds.protocols import Backend

__all__ = ["rows_at", "store"]

_BATCH, _COLUMNS = 64, 1024  # records


def store(source: str | os.PathLike[str] | Backend, **options: Any) -> Rows:
    """Rows of a store, with its fields and attrs.

    Parameters
    ----------
    source : str, path or Backend
        As for `open_backend`.
    **options
        Options of the backend.

    Raises
    ------
    StoreNotFoundError, FormatError, UnavailableError, ConfigError
        As `open_backend` raises them.
    """
    if isinstance(source, (str, os.PathLike)):
        backend = open_backend(source, **options)
    elif options:
        raise ConfigError(f"{source.url} is already open; pass {', '.join(options)} when opening it")
    else:
        backend = source
    meta, count = backend.meta, len(backend)

    def items(start: int) -> Iterator[Row | Bad]:
        for first in range(start, count, _BATCH):
            yield from rows_at(backend, range(first, min(first + _BATCH, count)))

    def strata() -> Iterator[Row | Bad]:
        wanted = [name for name in ("key", "label") if name in meta.fields]
        for first in range(0, count, _COLUMNS):
            yield from rows_at(backend, range(first, min(first + _COLUMNS, count)), wanted)

    return Rows(
        fields=meta.fields,
        attrs=meta.attrs,
        items=items,
        state=(meta.id, getattr(backend, "where", None)),
        count=count,
        strata=strata,
        stores=(backend,),
    )


def rows_at(backend: Backend, positions: Sequence[int], fields: Sequence[str] | None = None) -> Iterator[Row | Bad]:
    """Yield records of a store, read in one call."""
    for position, record in zip(positions, backend.get_many(positions, fields), strict=True):
        name = f"record {position} of {backend.url}"
        if isinstance(record, RecordError):
            yield Bad(name, record.reason or str(record))
        else:
            yield Row(name, record)
