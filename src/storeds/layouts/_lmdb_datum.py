"""Parses Caffe's ``Datum``, a protocol-buffers message, by its wire format; strict about every length."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from storeds.protocols import Array

__all__ = ["Datum", "parse_datum"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_INT32 = {_CHANNELS: "channels", _HEIGHT: "height", _WIDTH: "width", _LABEL: "label"}


@dataclass
class Datum:
    """One message; `data` lies in the bytes that it was parsed from."""

    channels: int = 0
    height: int = 0
    width: int = 0
    data: memoryview = field(default_factory=lambda: memoryview(b""))
    label: int = 0
    floats: Array = field(default_factory=lambda: np.empty(0, "<f4"))
    encoded: bool = False


def parse_datum(message: bytes | memoryview) -> Datum:
    """Return the message; raises ValueError if it is cut short or no ``Datum``."""
    view = memoryview(message)
    datum, floats, at = Datum(), list[memoryview](), 0
    if not len(view):
        raise ValueError("its Datum is empty")
    while at < len(view):
        tag, at = _varint(view, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(view, at)
            _set_number(datum, number, value)
        else:
            start, at = _extent(view, at, wire, number)
            _set_bytes(datum, floats, number, wire, view[start:at])
    if floats:
        joined = b"".join(floats)
        datum.floats = np.frombuffer(joined, "<f4")
    if min(datum.channels, datum.height, datum.width) < 0:
        raise ValueError("its Datum has a negative size")
    return datum


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(view):
            raise ValueError(f"its Datum is cut short at byte {at}")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise ValueError(f"its Datum is damaged at byte {at}: a number without an end")


def _extent(view: memoryview, at: int, wire: int, number: int) -> tuple[int, int]:
    """Return where the value of a field that is no varint begins and ends."""
    if wire == _BYTES:
        size, at = _varint(view, at)
    elif wire in (_FIXED32, _FIXED64):
        size = 4 if wire == _FIXED32 else 8
    else:
        raise ValueError(f"its Datum is damaged at byte {at}: field {number} is of wire type {wire}")
    if number == 0:
        raise ValueError(f"its Datum is damaged at byte {at}: a field without a number")
    if at + size > len(view):
        raise ValueError(f"its Datum is cut short: field {number} has {size} bytes, {len(view) - at} are there")
    return at, at + size


def _set_number(datum: Datum, number: int, value: int) -> None:
    if number in _INT32:
        low = value & (2**32 - 1)
        setattr(datum, _INT32[number], low - 2**32 if low >= 2**31 else low)
    elif number == _ENCODED:
        datum.encoded = bool(value)
    elif number in (0, _DATA, _FLOATS):
        raise ValueError(f"its Datum is damaged: field {number} is a number")


def _set_bytes(datum: Datum, floats: list[memoryview], number: int, wire: int, value: memoryview) -> None:
    if number == _DATA and wire == _BYTES:
        datum.data = value
    elif number == _FLOATS and wire in (_BYTES, _FIXED32) and len(value) % 4 == 0:
        floats.append(value)
    elif number <= _ENCODED:
        raise ValueError(f"its Datum is damaged: field {number} is of wire type {wire}")
