"""Reads parts of large arrays: of backends that can read them, and of records in memory. `Spans` is where their bytes lie."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from storeds.errors import RecordError
from storeds.protocols import Array, Backend, Box, ChooseBoxes, Field, Record
from storeds.records.codec import Fault

__all__ = [
    "Spans",
    "StoredArray",
    "choose_at",
    "parts_of_records",
    "parts_of_stored",
    "read_parts",
    "size_of_values",
]

_AT_ONCE = 64 << 20  # bytes of whole records in memory
_MOST = 1 << 18  # bytes of a span, which fit in the cache of a processor
_LEAST = 1 << 14  # bytes of a span that are worth a call


class StoredArray(ABC):
    """An array that is still in its store.

    Attributes
    ----------
    shape : tuple of int
    """

    shape: tuple[int, ...]

    @abstractmethod
    def read(self, boxes: Sequence[Box]) -> list[Array | ValueError]:
        """Return parts of it, which share no memory, with a ValueError in place of each that is damaged."""
        ...


class Spans(NamedTuple):
    """The bytes of a box of an array in C order: equal spans, with what lies between the rows of the box.

    Attributes
    ----------
    starts : array of int64
        Where each begins, ascending.
    wide : int
        Bytes of each.
    sides, strides : tuple of int
        The elements of the box in a span: along its last axes, and the bytes from one to the next.
    """

    starts: Array
    wide: int
    sides: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], box: Sequence[tuple[int, int]], itemsize: int, gap: int) -> Spans:
        """Return the spans of a box, the start and end along each axis; they contain gaps of less than `gap` bytes."""
        sides = tuple(high - low for low, high in box)
        strides = tuple(math.prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape)))
        if 0 in sides:
            return cls(np.empty(0, np.int64), 0, sides, strides)
        split, wide = len(shape), itemsize  # a span is the axes from `split` on
        while split and (sides[split - 1] == 1 or strides[split - 1] - wide < gap):
            more = wide + (sides[split - 1] - 1) * strides[split - 1]
            if more > _MOST and wide >= _LEAST:
                break
            split, wide = split - 1, more
        starts = np.array(sum(low * stride for (low, _), stride in zip(box, strides, strict=True)), np.int64)
        for side, stride in zip(sides[:split], strides, strict=False):
            starts = np.add.outer(starts, np.arange(side) * stride)
        return cls(starts.reshape(-1), wide, sides[split:], strides[split:])


def read_parts(
    backend: Backend, positions: Sequence[int], choose: ChooseBoxes, fields: Sequence[str]
) -> list[Record | RecordError]:
    """Return the same as `SupportsParts.get_parts`, from whole records if the backend lacks that method."""
    # Asking the protocol itself takes as long as reading a small part.
    read: Callable[..., list[Record | RecordError]] | None = getattr(backend, "get_parts", None)
    return parts_of_records(backend, positions, choose, fields) if read is None else read(positions, choose, fields)


def parts_of_records(
    backend: Backend, positions: Sequence[int], choose: ChooseBoxes, fields: Sequence[str]
) -> list[Record | RecordError]:
    """Return parts of records that are read whole, of which few are in memory at once."""
    unique, places = np.unique(np.asarray(positions, np.int64), return_inverse=True)
    step = max(_AT_ONCE // max(sum(size_of_values(backend.meta.fields[name]) for name in fields), 1), 1)
    out: list[Any] = [None] * len(positions)
    for first in range(0, len(unique), step):
        records = backend.get_many(unique[first : first + step].tolist(), fields)
        asked = np.flatnonzero((places >= first) & (places < first + step)).tolist()
        found = parts_of_stored(records, (places[asked] - first).tolist(), partial(choose_at, choose, asked))
        for at, part in zip(asked, found, strict=True):
            is_fault = isinstance(part, Fault)
            out[at] = RecordError.at(backend.url, int(positions[at]), part.reason, key=part.key) if is_fault else part
    return out


def size_of_values(field: Field) -> int:
    """Return how many bytes a value may take; a lot for arrays of varying shape."""
    if field.kind == "array" and field.is_fixed:
        return math.prod(side or 0 for side in field.shape or ()) * np.dtype(field.dtype).itemsize
    return _AT_ONCE if field.is_blob else 0


def choose_at(choose: ChooseBoxes, order: Sequence[int], at: int, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Return what `choose` gives for the part whose place in the whole request is ``order[at]``."""
    return choose(order[at], shapes)


def parts_of_stored(records: Sequence[Any], places: Sequence[int], choose: ChooseBoxes) -> list[Any]:
    """Return a part of the record at each of `places`.

    Parameters
    ----------
    records : sequence
        Records, whose arrays may be a `StoredArray`. Others, which are errors, are returned as they are.
    places : sequence of int
        Indices into `records`.
    choose : callable
        Which part, as for `SupportsParts.get_parts`.

    Returns
    -------
    list
        With a `Fault` in place of each part that cannot be read.
    """
    out: list[Any] = [records[place] for place in places]
    chosen: dict[int, list[tuple[int, Mapping[str, Box]]]] = {}
    for at, place in enumerate(places):
        record = records[place]
        if isinstance(record, dict):
            shapes = {name: each.shape for name, each in record.items() if isinstance(each, (np.ndarray, StoredArray))}
            try:
                boxes = choose(at, shapes)
            except ValueError as error:
                out[at] = _fault(record, str(error))
            else:
                chosen.setdefault(place, []).append((at, boxes))
    for place in sorted(chosen):
        wanted = chosen[place]
        columns = {
            name: _column(value, [each.get(name) for _, each in wanted]) for name, value in records[place].items()
        }
        for number, (at, _) in enumerate(wanted):
            part = {name: values[number] for name, values in columns.items()}
            bad = next((name for name, value in part.items() if isinstance(value, ValueError)), None)
            out[at] = part if bad is None else _fault(part, f"field {bad!r}: {part[bad]}")
    return out


def _column(value: Any, boxes: Sequence[Box | None]) -> list[Any]:
    """Return a part of a value for each box, and for None all of it."""
    if isinstance(value, StoredArray):
        return value.read([tuple(slice(0, size) for size in value.shape) if box is None else box for box in boxes])
    return [copy.deepcopy(value) if box is None else value[box].copy() for box in boxes]


def _fault(record: Record, reason: str) -> Fault:
    key = record.get("key")
    return Fault(reason, key if isinstance(key, str) else None)
