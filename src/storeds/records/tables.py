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
        parts: list[tuple[Array, dict[str, Array], Array]] = []
        waiting = np.arange(len(sealed))
        while len(waiting):
            alike = waiting[lengths[waiting] == lengths[waiting[0]]]
            packed: list[Any] = [sealed[at] for at in alike.tolist()]
            form = self._form_of(packed[0][:-_SEAL])
            if form is None or len(parts) == _MOST_FORMS:
                return None
            rest = form.rest(packed)
            fitting = form.fits(rest)
            if not fitting[0]:
                return None
            if not fitting.all():
                alike, rest = alike[fitting], rest[fitting]
                packed = [sealed[at] for at in alike.tolist()]
            parts.append((alike, {name: form.values(packed, rest, name) for name in names}, rest[:, -_SEAL:]))
            waiting = waiting[:0] if len(alike) == len(waiting) else np.setdiff1d(waiting, alike, assume_unique=True)
        digests = b"".join([xxhash.xxh3_64_digest(each[:-_SEAL]) for each in sealed])  # type: ignore[index]  # none is None
        if len(parts) == 1:
            ((_, arrays, seals),) = parts
            return Stacked(arrays, digests, seals.tobytes())
        order = np.argsort(np.concatenate([rows for rows, _, _ in parts]))
        arrays = {name: np.concatenate([found[name] for _, found, _ in parts])[order] for name in names}
        return Stacked(arrays, digests, np.concatenate([seals for _, _, seals in parts])[order].tobytes())

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

    def rest(self, packed: Sequence[Any]) -> Array:
        """Return the rests of records of equal length, shape (n, bytes), uint8."""
        tables = [
            np.frombuffer(b"".join([each[gap] for each in packed]), np.uint8).reshape(len(packed), -1)
            for gap in self._gaps
        ]
        return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)

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

    def values(self, packed: Sequence[Any], rest: Array, name: str) -> Array:
        """Return the values of a field, shape (n, *shape), in native byte order and writable."""
        field = self._fields[name]
        if field.kind != "array":
            return self._number(rest, name)
        place, dtype = self._arrays[name], np.dtype(field.dtype)
        joined = bytearray().join([each[place] for each in packed])
        values = np.frombuffer(joined, dtype).reshape(len(packed), *(size or 0 for size in field.shape or ()))
        return values.astype(dtype.newbyteorder("="), copy=False)

    def _number(self, rest: Array, name: str) -> Array:
        place, dtype = self._numbers[name]
        stored = np.ascontiguousarray(rest[:, place]).view(dtype)[:, 0]
        return stored == _TRUE if self._fields[name].kind == "bool" else stored.astype(SCALARS[self._fields[name].kind])


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
