"""The source for another store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

from storeds.backends.opening import open_backend
from storeds.backends.view import describe
from storeds.errors import ConfigError, RecordError
from storeds.formats.format import Format
from storeds.layouts.files.rows import Bad, Row, Rows
from storeds.protocols import Array, Backend

__all__ = ["STORE", "rows_at", "store"]

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
    return rows_at(backend, np.arange(len(backend)), describe(backend).faults)


def rows_at(backend: Backend, positions: Array, faults: Sequence[str] = ()) -> Rows:
    """Return the rows at `positions` of a store, read in batches, and then `faults` of it as bad items."""
    meta, bad = backend.meta, [Bad(backend.url, fault) for fault in faults]

    def read(start: int, size: int = _BATCH, fields: Sequence[str] | None = None) -> Iterator[Row | Bad]:
        for first in range(start, len(positions), size):
            batch = positions[first : first + size].tolist()
            for position, record in zip(batch, backend.get_many(batch, fields), strict=True):
                name = f"record {position} of {backend.url}"
                if isinstance(record, RecordError):
                    yield Bad(name, record.reason or str(record))
                else:
                    yield Row(name, record)
        yield from bad[max(start - len(positions), 0) :]

    return Rows(
        fields=meta.fields,
        attrs=meta.attrs,
        items=read,
        state=(meta.id, xxhash.xxh3_64_hexdigest(positions.tobytes()), *faults),
        count=len(positions) + len(bad),
        strata=lambda: read(0, _COLUMNS, [name for name in ("key", "label") if name in meta.fields]),
        stores=(backend,),
    )


STORE = Format(about="another store, with its fields", read=store, takes_objects=True)
