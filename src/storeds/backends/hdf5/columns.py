"""Reads the values of one field of a native HDF5 store at many positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from storeds.backends.hdf5.rows import UNREADABLE, Rows, gather, read_ranges
from storeds.protocols import Array, Field
from storeds.records.columns import SCALARS, text_offsets

__all__ = ["OFFSET", "Column", "Datasets", "datasets_of", "fixed_values", "steps"]

_STEP = 1 << 20  # bytes
_BYTE, OFFSET = np.dtype("u1"), np.dtype("<i8")


@dataclass(frozen=True)
class Column:
    """Where the values of one field lie: fixed-size rows, or ``rows`` of bytes divided by ``offsets``."""

    field: Field
    rows: Rows
    offsets: Rows | None = None
    shapes: Rows | None = None

    def parts(self, name: str) -> Iterator[tuple[str, Rows]]:
        """Yield what may have a checksum in the meta, by its name there."""
        yield name, self.rows
        if self.offsets is not None:
            yield text_offsets(name), self.offsets

    def read(self, positions: Array) -> list[Any]:
        """Return the values at `positions` as msgpack unpacks them; raises ValueError if one is unreadable.

        JSON is text, and an array is ``[dtype, shape, bytes]``.
        """
        if self.offsets is None:
            return fixed_values(gather(self.rows, positions), self.field)
        starts, stops = gather(self.offsets, positions, 2).view(OFFSET).T
        if not ((starts >= 0) & (starts <= stops) & (stops <= self.rows.count)).all():
            raise ValueError(UNREADABLE)
        found: list[Any] = read_ranges(self.rows, starts, stops)
        if list(map(len, found)) != (stops - starts).tolist():
            raise ValueError(UNREADABLE)
        if self.field.kind in ("str", "json"):
            return list(map(bytes.decode, found))
        if self.shapes is None:
            return found
        shapes = gather(self.shapes, positions).view(OFFSET).tolist()
        return [[self.field.dtype, shape, data] for data, shape in zip(found, shapes, strict=True)]


Datasets: TypeAlias = dict[str, tuple[np.dtype[Any], tuple[int | None, ...]]]


def datasets_of(name: str, field: Field, count: int) -> Datasets:
    """Return the datasets of a field in group ``records``, in the order of `Column`: name → dtype and shape.

    None is the number of bytes of all values.
    """
    if field.is_fixed:
        dtype = SCALARS[field.kind] if field.is_scalar else np.dtype(field.dtype)
        return {name: (dtype, (count, *(field.shape or ())))}
    found: Datasets = {f"{name}/data": (_BYTE, (None,)), f"{name}/offsets": (OFFSET, (count + 1,))}
    if field.kind == "array":
        found[f"{name}/shapes"] = OFFSET, (count, len(field.shape or ()))
    return found


def fixed_values(raw: Array, field: Field) -> list[Any]:
    """Return values of fixed size, given as rows of bytes, as `Column.read` does."""
    if field.is_scalar:
        numbers: list[Any] = raw.view(SCALARS[field.kind])[:, 0].tolist()
        return numbers
    data, size, dtype, shape = raw.reshape(-1).data, raw.shape[1], field.dtype, list(field.shape or ())
    return [[dtype, shape, data[at * size : (at + 1) * size]] for at in range(len(raw))]


def steps(rows: Rows) -> Iterator[bytes]:
    """Yield the bytes of all rows, about `_STEP` at a time; fewer bytes where they are unreadable."""
    step = max(1, _STEP // max(rows.size, 1))
    for start in range(0, rows.count, step):
        yield from rows.read([(start, min(start + step, rows.count))])
