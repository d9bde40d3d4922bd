"""Reads the values of one field of a native HDF5 store at many positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from storeds.backends.blocks import StoredBytes
from storeds.backends.hdf5.rows import UNREADABLE, FlatRows, Rows, gather, read_ranges
from storeds.protocols import Array, Field
from storeds.records.columns import SCALARS, text_offsets

__all__ = ["OFFSET", "Column", "Datasets", "datasets_of", "fixed_values", "steps"]

_STEP = 1 << 20  # bytes
_TRUSTED = 1 << 20  # bytes of a value that are read without a look at the offsets around its own
_AROUND = 8  # offsets on each side of them
_BYTE, OFFSET, _UNSIGNED = np.dtype("u1"), np.dtype("<i8"), np.dtype("<u8")


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
        sizes = stops - starts
        # As an unsigned number, a negative one is greater than any count.
        highest = (int(np.maximum.reduce(each.view(_UNSIGNED))) for each in (sizes, starts, stops))
        lengths, largest = sizes.tolist(), next(highest)
        if max(largest, *highest, sum(lengths)) > self.rows.count:
            raise ValueError(UNREADABLE)
        if largest > _TRUSTED:
            for at in np.flatnonzero(sizes > _TRUSTED).tolist():
                if not self._fits_between_others(int(positions[at]), starts[at], stops[at]):
                    raise ValueError(UNREADABLE)
        found: list[Any] = read_ranges(self.rows, starts, stops)
        if list(map(len, found)) != lengths:
            raise ValueError(UNREADABLE)
        if self.field.kind in ("str", "json"):
            return list(map(bytes.decode, found))
        if self.shapes is None:
            return found
        shapes = gather(self.shapes, positions).view(OFFSET).tolist()
        return [[self.field.dtype, shape, data] for data, shape in zip(found, shapes, strict=True)]

    def stored(self, positions: Array) -> list[StoredBytes] | None:
        """Return the elements of arrays, which are not read yet; None if libhdf5 reads them, or some are not there."""
        if not isinstance(self.rows, FlatRows):
            return None
        if self.offsets is None:
            starts, stops = positions, positions + 1
        else:
            starts, stops = gather(self.offsets, positions, 2).view(OFFSET).T
        if (starts < 0).any() or (stops < starts).any() or (stops > self.rows.count).any():
            return None
        return [*map(self.rows.stored, starts.tolist(), stops.tolist())]

    def _fits_between_others(self, position: int, start: int, stop: int) -> bool:
        """Whether few of the offsets around those of a record contradict them.

        Offsets have no checksum: a damaged one may claim most of the file for one record.
        """
        assert self.offsets is not None
        spans = (max(position - _AROUND, 0), position), (position + 2, min(position + 2 + _AROUND, self.offsets.count))
        before, after = (np.frombuffer(each[: len(each) // 8 * 8], OFFSET) for each in self.offsets.read(spans))
        return int((before > start).sum() + (after < stop).sum()) <= _AROUND // 2


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
