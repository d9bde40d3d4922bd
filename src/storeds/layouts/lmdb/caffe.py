"""Caffe's ``Datum`` messages: encoded images, or raw pixels and numbers, with a label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from pydantic import field_validator

from storeds.errors import ConfigError, FormatError
from storeds.layouts.embedded import is_image
from storeds.layouts.lmdb.base import ForeignLmdb, LayoutInfo
from storeds.layouts.lmdb.entries import entries_of, sample_records
from storeds.layouts.lmdb.environment import ForeignOptions, LmdbReader
from storeds.layouts.lmdb.keys import Keys
from storeds.layouts.lmdb.values import fitting, merge
from storeds.protocols import Array, Field
from storeds.records.fields import parse_fields

__all__ = ["CaffeLmdb", "CaffeOptions", "Datum", "parse_datum"]


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NUMBERS = {1: "channels", 2: "height", 3: "width", 5: "label"}  # int32
_DATA, _FLOATS, _ENCODED = 4, 6, 7
_WIRES = {**dict.fromkeys((*_NUMBERS, _ENCODED), (_VARINT,)), _DATA: (_BYTES,), _FLOATS: (_BYTES, _FIXED32)}
"""The wire types of protobuf that the fields may have. Fields of other numbers are skipped."""
_ANY_WIRE = (_VARINT, _FIXED64, _BYTES, _FIXED32)


@dataclass
class Datum:
    """One message; `data` is a view into the bytes that it was parsed from."""

    channels: int = 0
    height: int = 0
    width: int = 0
    data: memoryview = field(default_factory=lambda: memoryview(b""))
    label: int = 0
    floats: Array = field(default_factory=lambda: np.empty(0, "<f4"))
    encoded: bool = False


def parse_datum(message: bytes | memoryview) -> Datum:
    """Parse a message; raises ValueError if it is cut short or not a ``Datum``."""
    datum, floats = Datum(), bytearray()
    value: Any
    for number, value in _message_fields(memoryview(message)):
        if number in _NUMBERS:
            low = value & (2**32 - 1)
            setattr(datum, _NUMBERS[number], low - 2**32 if low >= 2**31 else low)
        elif number == _DATA:
            datum.data = value
        elif number == _ENCODED:
            datum.encoded = bool(value)
        elif number == _FLOATS:
            floats += value
    if floats:
        datum.floats = np.frombuffer(floats, "<f4")
    if min(datum.channels, datum.height, datum.width) < 0:
        raise ValueError("its Datum has a negative size")
    return datum


def _message_fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field of a message: a varint, or bytes."""
    at, end = 0, len(view)
    if not end:
        raise ValueError("its Datum is empty")
    while at < end:
        tag, at = _varint(view, at)
        number, wire = tag >> 3, tag & 7
        if not number or wire not in _WIRES.get(number, _ANY_WIRE):
            raise ValueError(f"its Datum is damaged at byte {at}: field {number} is of wire type {wire}")
        if wire == _VARINT:
            value, at = _varint(view, at)
            yield number, value
            continue
        size, at = _varint(view, at) if wire == _BYTES else (4 if wire == _FIXED32 else 8, at)
        if at + size > end:
            raise ValueError(f"its Datum is cut short: field {number} has {size} bytes, {end - at} are there")
        yield number, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends."""
    value = 0
    for end in range(at, min(at + 10, len(view))):
        byte = view[end]
        if byte < 0x80:
            return (value | byte << 7 * (end - at)) & (2**64 - 1), end + 1
        value |= (byte & 0x7F) << 7 * (end - at)
    raise ValueError(f"its Datum is cut short or damaged at byte {at}: a number does not end")


_SAMPLES = 16
_PARTS = 3


class CaffeOptions(ForeignOptions):
    """Options of the ``caffe`` layout.

    Attributes
    ----------
    fields : str or list
        Other names for the image or array, the label and the key: ``"picture,class_id,name"``.
    any_shape : bool
        Allow every dimension of an array to differ between records.
    """

    fields: tuple[str, ...] | None = None
    any_shape: bool = False

    @field_validator("fields", mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        return tuple(given.split(",")) if isinstance(given, str) else given


class CaffeLmdb(ForeignLmdb):
    """Datum messages under text keys, in the order of the keys' bytes, as in Caffe.

    Fields: ``image`` (encoded) or ``array`` (raw, channels x height x width: uint8, or float32 from ``float_data``),
    ``label`` (int) and ``key`` (str).
    """

    layout = "caffe"
    Options: ClassVar[type[ForeignOptions]] = CaffeOptions

    @classmethod
    def _guess(cls, reader: LmdbReader) -> str | None:
        first = sample_records(reader, 2)[:2]
        if not first:
            return None
        try:
            found = [parse_datum(value) for _, value in first]
            kinds = {_field_of(datum).kind for datum in found}
        except ValueError:
            return None
        # A few bytes may be a message by chance, but not one with an image or the right number of pixels.
        if any(datum.encoded and not is_image(datum.data) for datum in found) or not all(map(_has_pixels, found)):
            return None
        return f"Caffe Datum messages ({' and '.join(sorted(kinds))})"

    def _inspect(self, reader: LmdbReader) -> LayoutInfo:
        keys = self._index_keys(reader)
        self._check_count(reader, keys.count + len(entries_of(reader).keys), f"its index lists {keys.count} keys")
        field = self._data_field(reader, keys)
        given = self._settings.fields
        names = given or (field.kind, "label", "key")
        if len(names) != _PARTS:
            raise ConfigError(f"{reader.url}: fields names {len(names)} of {_PARTS} parts: {field.kind}, label, key")
        fields = parse_fields(dict(zip(names, (field, Field("int"), Field("str")), strict=True)))
        if len(fields) != _PARTS:
            raise ConfigError(f"{reader.url}: fields names one part twice: {', '.join(names)}")
        return LayoutInfo(keys, fields, how=names)

    def _data_field(self, reader: LmdbReader, keys: Keys) -> Field:
        found, failed = [], ""
        for position, key in self._sample_keys(reader, keys, _SAMPLES):
            try:
                found.append(_field_of(parse_datum(reader.get(key) or memoryview(b""))))
            except ValueError as error:
                failed = failed or f"record {position}: {error}"
        if failed and not found:
            raise FormatError(f"{reader.url}: no record is a Datum message; {failed}")
        if not found:
            return Field("image")
        try:
            return merge(found, any_shape=self._settings.any_shape)
        except ValueError as error:
            raise FormatError(f"{reader.url}: its messages differ: {error}") from None

    def _values(self, reader: LmdbReader, key: bytes, fields: tuple[str, ...]) -> dict[str, Any]:
        data, label, key_field = self._info.how
        values: dict[str, Any] = {key_field: key.decode()}
        if fields == (key_field,):
            return values
        datum = parse_datum(self._fetch(reader, key))
        values[label] = datum.label
        if data in fields:
            values[data] = _value_of(datum, self._info.fields[data])
        return values


def _has_pixels(datum: Datum) -> bool:
    return datum.encoded or (datum.channels > 0 and datum.height > 0 and datum.width > 0)


def _field_of(datum: Datum) -> Field:
    if datum.encoded:
        return Field("image")
    array = _pixels(datum)
    return Field("array", array.dtype.str, array.shape)


def _value_of(datum: Datum, field: Field) -> Any:
    if datum.encoded != (field.kind == "image"):
        raise ValueError(f"its Datum holds {'an encoded image' if datum.encoded else 'raw pixels'}, unlike the others")
    return datum.data if datum.encoded else fitting(field, _pixels(datum))


def _pixels(datum: Datum) -> Array:
    shape = (datum.channels, datum.height, datum.width)
    flat: Array = np.frombuffer(datum.data, np.uint8) if len(datum.data) else datum.floats
    if flat.size != shape[0] * shape[1] * shape[2]:
        raise ValueError(f"its Datum says {shape} and holds {flat.size} values")
    return flat.reshape(shape)
