"""Reads the stored values of one field of a native HDF5 store at many positions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds._columns import SCALARS
from storeds.backends._hdf5_rows import Rows, gather
from storeds.protocols import Array, Field

__all__ = ["Column", "read_values"]

_CUT = ValueError("its bytes are cut short, or its offsets are damaged")


@dataclass(frozen=True)
class Column:
    """Where the values of one field lie: rows of fixed size, or ``rows`` of bytes cut by ``offsets``."""

    field: Field
    rows: Rows
    offsets: Rows | None = None
    shapes: Rows | None = None


def read_values(column: Column, positions: Array) -> list[Any]:
    """Return stored values, in the order of `positions`, which ascend; a ValueError in the place of an unreadable one."""
    field = column.field
    if column.offsets is None:
        return _fixed(*gather(column.rows, positions), field)
    bounds, whole = gather(column.offsets, positions, 2)
    starts, stops = bounds.view("<i8").T
    good = whole & (starts >= 0) & (starts <= stops) & (stops <= column.rows.count)
    values = _between(column.rows, starts, stops, good)
    if field.kind in ("image", "bytes"):
        return values
    shapes: Sequence[Any] = gather(column.shapes, positions)[0].view("<i8").tolist() if column.shapes else values
    return [_variable(value, field, shape) for value, shape in zip(values, shapes, strict=True)]


def _between(rows: Rows, starts: Array, stops: Array, good: Array) -> list[Any]:
    """Return the bytes between `starts` and `stops` where that is `good`."""
    if good.all() and (starts[1:] >= stops[:-1]).all():
        wanted = list(zip(starts.tolist(), stops.tolist(), strict=True))
        return [
            data if len(data) == stop - start else _CUT
            for data, (start, stop) in zip(rows.read(wanted), wanted, strict=True)
        ]
    # Offsets of a damaged store need not ascend; reads must.
    order = sorted((int(starts[at]), int(stops[at]), int(at)) for at in np.flatnonzero(good))
    values: list[Any] = [_CUT] * len(good)
    for (start, stop, at), data in zip(order, rows.read([(start, stop) for start, stop, _ in order]), strict=True):
        if len(data) == stop - start:
            values[at] = data
    return values


def _fixed(raw: Array, whole: Array, field: Field) -> list[Any]:
    if field.is_scalar:
        values: list[Any] = raw.view(SCALARS[field.kind])[:, 0].tolist()
    else:
        shape = (len(raw), *(size or 0 for size in field.shape or ()))
        values = [np.array(one) for one in raw.reshape(-1).view(np.dtype(field.dtype)).reshape(shape)]
    return values if whole.all() else [value if good else _CUT for value, good in zip(values, whole, strict=True)]


def _variable(value: Any, field: Field, shape: Any) -> Any:
    try:
        if isinstance(value, ValueError):
            return value
        if field.kind in ("str", "json"):
            return value.decode()
        return np.frombuffer(value, field.dtype).reshape(shape).copy()
    except ValueError as error:
        return ValueError(f"its bytes are no {field.kind}: {error}")
