"""Reads the stored values of one field of a native HDF5 store at many positions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds._columns import SCALARS
from storeds.backends._hdf5_blocks import Blocks
from storeds.backends._hdf5_rows import Rows, gather, gather_any, read_spans
from storeds.protocols import Array, Field

__all__ = ["Column", "check_alone", "read_raw", "read_values", "typed"]

_CUT = ValueError("its bytes are cut short, or its offsets are damaged")


@dataclass(frozen=True)
class Column:
    """Where the values of one field lie: rows of fixed size, or ``rows`` of bytes cut by ``offsets``."""

    field: Field
    rows: Rows
    offsets: Rows | None = None
    shapes: Rows | None = None
    blocks: Blocks | None = None
    offset_blocks: Blocks | None = None


def read_values(column: Column, positions: Array, *, alone: bool = False) -> list[Any]:
    """Return stored values, in the order of `positions`, which ascend; a ValueError in the place of an unreadable one.

    Those that are read `alone`, without the records that they belong to, are checked: raises BlockError.
    """
    field = column.field
    if column.offsets is None:
        if alone:
            check_alone(column, positions)
        return _fixed(*gather(column.rows, positions), field)
    if alone and column.offset_blocks is not None and not column.offset_blocks.all_good:
        column.offset_blocks.check_rows(positions, positions + 2)
    bounds, whole = gather(column.offsets, positions, 2)
    starts, stops = bounds.view("<i8").T
    good = whole & (starts >= 0) & (starts <= stops) & (stops <= column.rows.count)
    if alone and column.blocks is not None and not column.blocks.all_good:
        column.blocks.check_rows(starts[good], stops[good])
    values = _between(column.rows, starts, stops, good)
    if field.kind in ("image", "bytes"):
        return values
    if field.kind in ("str", "json"):
        return _texts(values, field)
    shapes: Sequence[Any] = gather(column.shapes, positions)[0].view("<i8").tolist() if column.shapes else values
    return [_variable(value, field, shape) for value, shape in zip(values, shapes, strict=True)]


def check_alone(column: Column, positions: Array) -> None:
    """Raise BlockError unless values of fixed size lie in blocks that are what was written."""
    if column.blocks is not None and not column.blocks.all_good:
        column.blocks.check_rows(positions, positions + 1)


def read_raw(column: Column, positions: Array) -> Array | None:
    """Return the bytes of values of fixed size, shape (n, size), in any order; None if one cannot be read whole."""
    return gather_any(column.rows, positions)


def typed(raw: Array, field: Field) -> Array:
    """Return values of fixed size made of their bytes, shape (n, *shape)."""
    dtype = np.dtype(field.dtype) if field.kind == "array" else SCALARS[field.kind]
    shape = len(raw), *(size or 0 for size in field.shape or ())
    if dtype.kind == "b":  # a byte other than 0 and 1 makes a bool that NumPy computes with wrongly
        raw = (raw != 0).view(np.uint8)
    values: Array = raw.reshape(-1).view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    return values


def _between(rows: Rows, starts: Array, stops: Array, good: Array) -> list[Any]:
    """Return the bytes between `starts` and `stops` where that is `good`."""
    if good.all() and (starts[1:] >= stops[:-1]).all():
        found: list[Any] = read_spans(rows, starts, stops)
        lengths = (stops - starts).tolist()
        if list(map(len, found)) == lengths:
            return found
        return [data if len(data) == length else _CUT for data, length in zip(found, lengths, strict=True)]
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


def _texts(values: list[Any], field: Field) -> list[Any]:
    try:
        return [value.decode() for value in values]
    except (UnicodeDecodeError, AttributeError):  # a ValueError stands in the place of one
        return [_variable(value, field, None) for value in values]


def _variable(value: Any, field: Field, shape: Any) -> Any:
    try:
        if isinstance(value, ValueError):
            return value
        if field.kind in ("str", "json"):
            return value.decode()
        return np.frombuffer(value, field.dtype).reshape(shape).copy()
    except ValueError as error:
        return ValueError(f"its bytes are no {field.kind}: {error}")
