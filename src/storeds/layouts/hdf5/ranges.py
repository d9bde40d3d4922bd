"""Rows of a dataset that belong together: a record is a range of them, whose bounds another dataset holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from storeds.backends.hdf5.rows import Rows, read_ranges
from storeds.errors import FormatError
from storeds.layouts.hdf5.chunks import check_claim
from storeds.layouts.hdf5.files import Address, Hdf5Files
from storeds.layouts.hdf5.values import (
    DAMAGED,
    TableRows,
    Values,
    is_numeric,
    kind_of,
    raw_rows,
    to_value,
    unsupported,
    values_of,
)
from storeds.protocols import Array, Field
from storeds.values.infer import evenly

__all__ = ["MOST_COLUMNS", "Ranges", "rows_of", "whole_numbers"]

_SAMPLED = 9  # ranges that show whether bytes are pictures
MOST_COLUMNS = 8  # of a dataset that holds several bounds of each record
_MOST_WHOLE = 2**53  # from here on, a float does not tell whole numbers apart


def rows_of(
    files: Hdf5Files, dataset: h5py.Dataset, column: str, field: Field | None, bounds: Mapping[str, Address]
) -> Mapping[str, Values]:
    """Return the fields of a dataset as `values_of` does; with `bounds`, a range of its rows is a value.

    Raises
    ------
    FormatError
        The bounds are not whole numbers, or those of starts and ends differ in number; the rows are no numbers.
    """
    if not bounds:
        return values_of(files, dataset, column, field)
    starts, stops = _bounds(files, bounds)
    dtype = dataset.dtype
    rows = raw_rows(files, dataset, dtype) if dataset.shape and not dtype.hasobject else None
    if rows is None or (column and column not in (dtype.names or ())):
        raise unsupported(files, dataset, "a range of ")
    parts: dict[str, Values] = {}
    for name in [column] if column or dtype.names is None else dtype.names:
        whole, offset = (dtype, 0) if dtype.names is None else dtype.fields[name][:2]
        if not is_numeric(whole.base):
            raise unsupported(files, dataset, f"a range of column {name!r} of " if name else "a range of ")
        own = rows if dtype.names is None else TableRows(rows, offset, whole.itemsize)
        inner = tuple(dataset.shape[1:]) if dtype.names is None else whole.shape
        check = functools.partial(check_claim, files, dataset)
        parts[name] = Ranges(own, whole.base, inner, starts, stops, field, check)
    return parts


def _bounds(files: Hdf5Files, bounds: Mapping[str, Address]) -> tuple[Array, Array]:
    """Return where the range of each record starts and stops."""
    found: dict[str, Array] = {}
    for name, address in bounds.items():
        dataset, column = files.find(address)
        if not isinstance(dataset, h5py.Dataset):
            raise FormatError(f"{files.url}: {address}, which gives {name} of ranges, is not a dataset")
        part = column if dataset.dtype.names is None else ""  # the number of a column of plain numbers
        values = values_of(files, dataset, "" if part else column)["" if part else column]
        try:
            numbers = whole_numbers(values).get(part)
        except ValueError as error:
            raise FormatError(f"{files.url}: {address} cannot be read: {error}") from None
        if numbers is None:
            raise FormatError(
                f"{files.url}: {address} gives {name} of ranges, so it holds one whole number for each record; of several columns, "
                f"{str(address).removesuffix(f'/{column}')}/0 is the first"
            )
        found[name] = numbers
    if "offsets" in found:
        return found["offsets"][:-1], found["offsets"][1:]
    if "starts" not in found:
        stops = found["ends"] if "ends" in found else np.cumsum(found["lengths"])
        return np.concatenate([[0], stops[:-1]])[: len(stops)], stops
    starts, other = found["starts"], found.get("ends", found.get("lengths", found["starts"]))
    if len(starts) != len(other):
        shown = " and ".join(map(str, bounds.values()))
        raise FormatError(f"{files.url}: {shown} have {len(starts)} and {len(other)} rows, and bound the same ranges")
    return starts, other if "ends" in found else starts + other


def whole_numbers(values: Values) -> dict[str, Array]:
    """Return what may bound ranges: a column of integers under ``""``, or each of a few columns under its number.

    Floats that are all whole, as MATLAB writes them, are integers too.
    """
    shape = values.field.shape or ()
    if values.field.kind in ("int", "float"):
        columns = {"": values.column()}
    elif values.field.kind == "array" and len(shape) == 1 and (shape[0] or MOST_COLUMNS) < MOST_COLUMNS:
        columns = {str(number): column for number, column in enumerate(values.column().T)}
    else:
        columns = {}
    found = {name: _integers(column) for name, column in columns.items()}
    return {name: column for name, column in found.items() if column is not None}


def _integers(column: Array) -> Array | None:
    if column.dtype.kind == "f" and (not (np.abs(column) < _MOST_WHOLE).all() or (column % 1).any()):
        return None
    return column.astype(np.int64) if column.dtype.kind in "iuf" else None


class Ranges(Values):
    """Arrays of any length, or pictures, each of which is a range of rows."""

    def __init__(
        self,
        rows: Rows,
        dtype: np.dtype[Any],
        inner: tuple[int, ...],
        starts: Array,
        stops: Array,
        field: Field | None,
        check: Callable[[int], None],
    ) -> None:
        self._check = check  # raises FormatError for more bytes than the file can hold: ranges may share their rows
        self._rows, self._dtype, self._inner = rows, dtype, inner
        self._starts, self._stops, self.count = starts, stops, len(stops)
        self.field = field or self._field()

    def _field(self) -> Field:
        if self._dtype == "u1" and not self._inner:
            loaded = self._load(evenly(self.count, _SAMPLED))
            if kind_of([data for data in loaded if isinstance(data, bytes)], text=False) == "image":
                return Field("image")
        return Field("array", self._dtype.newbyteorder("<").str, (None, *self._inner))

    def _load(self, positions: Sequence[int]) -> list[bytes | ValueError]:
        at = np.asarray(positions, np.int64)
        starts, stops = self._starts[at], self._stops[at]
        are_good = (starts >= 0) & (starts <= stops) & (stops <= self._rows.count)
        self._check(int((stops - starts)[are_good].sum()) * self._rows.size)
        found = iter(read_ranges(self._rows, starts[are_good], stops[are_good]))
        out: list[bytes | ValueError] = []
        for start, stop, is_good in zip(starts.tolist(), stops.tolist(), are_good.tolist(), strict=True):
            data = next(found) if is_good else b""
            if not is_good:
                out.append(ValueError(f"its range is rows {start} to {stop}, of {self._rows.count}"))
            else:
                out.append(data if len(data) == (stop - start) * self._rows.size else ValueError(DAMAGED))
        return out

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        sizes = (self._stops - self._starts)[np.asarray(positions, np.int64)].tolist()
        return [
            to_value(self.field, data, self._dtype, (size, *self._inner))
            for data, size in zip(self._load(positions), sizes, strict=True)
        ]

    @property
    def spare(self) -> int:
        """How many rows are behind all ranges; negative if a range reaches beyond the rows."""
        return self._rows.count - int(self._stops.max(initial=0))
