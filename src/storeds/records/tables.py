"""Takes packed records apart, many at once, whose values all have fixed size.

Such records differ only in their numbers and in the elements of arrays, and MessagePack stores an integer in 1, 2, 3, 5 or 9
bytes. So the records of a batch have few *forms*, and NumPy compares and converts those of one form together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from storeds.protocols import Array, Field
from storeds.records.codec import UNDECODABLE, decode, encode
from storeds.records.columns import SCALARS

__all__ = ["FixedRecords", "Stacked"]

# How MessagePack stores an integer: the least number of each way, and its bytes. It takes the shortest way, and in the two in
# the middle no byte stands in front of the number.
_LEAST = np.array([-(2**63), -(2**31), -(2**15), -(2**7), -(2**5), 0, 2**7, 2**8, 2**16, 2**32], np.int64)
_INTEGERS = [np.dtype(name) for name in (">i8", ">i4", ">i2", "i1", "i1", "u1", "u1", ">u2", ">u4", ">u8")]
_FALSE, _TRUE = 0xC2, 0xC3
_SEAL = 8  # bytes at the end
_COPIED = 4096  # bytes of a record; copying all of a larger one takes longer than taking it apart where it lies
_MOST_FORMS = 16  # of a batch; with more, one record after another is as fast


class Stacked(NamedTuple):
    """Fields of fixed size of many records, one array each; `digests` and `seals` as in `Rows`."""

    arrays: dict[str, Array]
    digests: bytes = b""
    seals: bytes = b""


class FixedRecords:
    """Unpacks many records of one declaration at once. Thread-safe.

    Parameters
    ----------
    fields : mapping of str to Field
        All of fixed size, in declared order.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = dict(fields)
        self._integers = [name for name, field in fields.items() if field.kind == "int"]
        self._forms: dict[tuple[int, ...], _Form] = {}

    @classmethod
    def of(cls, fields: Mapping[str, Field]) -> FixedRecords | None:
        """Return what unpacks records of these fields; None unless all are of fixed size."""
        return cls(fields) if all(field.is_fixed for field in fields.values()) else None

    def unpack(self, sealed: Sequence[memoryview | bytes | None], names: Sequence[str]) -> Stacked | None:
        """Return fields of packed records that end with their seals.

        None if a record is missing or packed otherwise, or if they have too many forms.
        """
        try:
            lengths = np.array(list(map(len, sealed)))  # type: ignore[arg-type]  # None raises the TypeError
        except TypeError:
            return None
        found = {name: _empty(self._fields[name], len(sealed)) for name in names}
        digests, seals = np.empty((2, len(sealed), _SEAL), np.uint8)
        is_left, forms = np.ones(len(sealed), bool), 0
        while len(waiting := np.flatnonzero(is_left)):
            alike = waiting[lengths[waiting] == lengths[waiting[0]]]
            packed: list[Any] = [sealed[at] for at in alike.tolist()]
            form = self._form_of(packed[0][:-_SEAL])
            if form is None or forms == _MOST_FORMS:
                return None
            records = _table(packed) if len(packed[0]) <= _COPIED else packed
            rest = form.rest(records)
            fitting = form.fits(rest)
            if not fitting[0]:
                return None
            if not fitting.all():
                alike, rest = alike[fitting], rest[fitting]
                records = [records[at] for at in np.flatnonzero(fitting).tolist()]
            for name, values in found.items():
                form.put(values, alike, records, rest, name)
            digests[alike], seals[alike] = _digests(records), rest[:, -_SEAL:]
            is_left[alike] = False
            forms += 1
        arrays = {name: _typed(values, self._fields[name]) for name, values in found.items()}
        return Stacked(arrays, digests.tobytes(), seals.tobytes())

    def _form_of(self, packed: memoryview | bytes) -> _Form | None:
        """Return the form that a packed record has, if it has any."""
        try:
            record = decode(packed)
            numbers = np.array([record[name] for name in self._integers], np.int64)
        except (*UNDECODABLE, LookupError, ValueError, OverflowError):
            return None
        ways = tuple(_ways(numbers).tolist())
        if ways not in self._forms:
            self._forms[ways] = _Form(self._fields, dict(zip(self._integers, ways, strict=True)))
        return self._forms[ways]


class _Form:
    """What packed records have in common whose integers are stored in the same ways.

    The *rest* of a record is what is left without its arrays, with its seal.
    """

    def __init__(self, fields: Mapping[str, Field], ways: Mapping[str, int]) -> None:
        self._fields, self._ways = fields, ways
        record: dict[str, Any] = {
            name: int(_LEAST[ways[name]]) if name in ways else _zero(field) for name, field in fields.items()
        }
        packed = encode(record)
        sizes = {name: len(encode(name)) + len(encode(value)) for name, value in record.items()}
        self._arrays: dict[str, slice] = {}
        self._numbers: dict[str, tuple[slice, np.dtype[Any]]] = {}
        self._gaps, gap, stop = list[slice](), 0, len(packed) - sum(sizes.values())
        for name, field in fields.items():
            stop += sizes[name]
            if field.kind == "array":
                self._arrays[name] = slice(stop - len(record[name][2]), stop)
                self._gaps.append(slice(gap, stop - len(record[name][2])))
                gap = stop
            else:
                dtype = _INTEGERS[ways[name]] if name in ways else np.dtype(">f8" if field.kind == "float" else "u1")
                end = stop - sum(place.stop - place.start for place in self._arrays.values())
                self._numbers[name] = slice(end - dtype.itemsize, end), dtype
        self._gaps.append(slice(gap, None))
        self._example = self.rest([packed + bytes(_SEAL)])[0]

    def rest(self, records: Sequence[Any] | Array) -> Array:
        """Return the rests of records of equal length, shape (n, bytes), uint8."""
        is_table = isinstance(records, np.ndarray)
        return np.concatenate(
            [records[:, gap] if is_table else _table([each[gap] for each in records]) for gap in self._gaps],  # type: ignore[call-overload]
            axis=1,
        )

    def fits(self, rest: Array) -> Array:
        """Return which records have this form: packing their values again would give the same bytes."""
        if rest.shape[1] != len(self._example):
            return np.zeros(len(rest), bool)
        fitting, start = np.ones(len(rest), bool), 0
        for name, (place, _) in [*self._numbers.items(), ("", (slice(-_SEAL, None), None))]:
            fitting &= (rest[:, start : place.start] == self._example[start : place.start]).all(axis=1)
            start = place.stop
            if name in self._ways:  # a number of one byte has no other mark of its way
                fitting &= _ways(self._number(rest, name)) == self._ways[name]
            elif name and self._fields[name].kind == "bool":
                fitting &= rest[:, place][:, 0] | 1 == _TRUE
        return fitting

    def put(self, values: Array, at: Array, records: Sequence[Any] | Array, rest: Array, name: str) -> None:
        """Copy a field of these records to these rows of `values`, as `_empty` makes them."""
        if self._fields[name].kind != "array":
            values[at] = self._number(rest, name)
        elif isinstance(records, np.ndarray):
            values[at] = records[:, self._arrays[name]]
        else:
            memory, size, place = values.reshape(-1).data, values.shape[1], self._arrays[name]
            for row, each in zip(at.tolist(), records, strict=True):
                memory[row * size : (row + 1) * size] = each[place]

    def _number(self, rest: Array, name: str) -> Array:
        place, dtype = self._numbers[name]
        stored = np.ascontiguousarray(rest[:, place]).view(dtype)[:, 0]
        return stored == _TRUE if self._fields[name].kind == "bool" else stored.astype(SCALARS[self._fields[name].kind])


def _table(packed: Sequence[Any]) -> Array:
    """Return records of equal length as the rows of an array of their bytes."""
    joined = bytearray().join(packed)
    return np.frombuffer(joined, np.uint8).reshape(len(packed), len(joined) // len(packed))


def _empty(field: Field, count: int) -> Array:
    """Return memory for the values of a field: numbers, or a row of bytes for each array."""
    if field.kind != "array":
        return np.empty(count, SCALARS[field.kind])
    return np.empty(
        (count, math.prod(size or 0 for size in field.shape or ()) * np.dtype(field.dtype).itemsize), np.uint8
    )


def _typed(values: Array, field: Field) -> Array:
    """Return what `_empty` made in native byte order, shape (n, *shape)."""
    if field.kind != "array":
        return values
    typed: Array = (
        values.reshape(-1).view(np.dtype(field.dtype)).reshape(len(values), *(size or 0 for size in field.shape or ()))
    )
    return typed.astype(typed.dtype.newbyteorder("="), copy=False)


def _digests(records: Sequence[Any] | Array) -> Array:
    """Return the checksums of records, which end with their seals, shape (n, 8), uint8."""
    is_table = isinstance(records, np.ndarray)
    bodies = records[:, :-_SEAL] if is_table else [each[:-_SEAL] for each in records]  # type: ignore[call-overload]
    return np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, bodies)), np.uint8).reshape(-1, _SEAL)


def _ways(numbers: Array) -> Array:
    """Return how MessagePack stores each of these integers: an index into `_INTEGERS`."""
    found: Array = np.searchsorted(_LEAST, numbers, "right") - 1
    return found


def _zero(field: Field) -> Any:
    """Return a value of a field, no integer, as msgpack takes it."""
    if field.kind == "array":
        size = math.prod(size or 0 for size in field.shape or ())
        return [field.dtype, field.shape, bytes(size * np.dtype(field.dtype).itemsize)]
    return False if field.kind == "bool" else 0.0
