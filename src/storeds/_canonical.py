"""What a record may hold: the one form that stands for a value in every engine, and what is refused."""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any

import numpy as np

from storeds.protocols import JSON, Array, Field

__all__ = ["canonical_json", "canonical_value", "preview"]

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_MAX_DEPTH = 100  # so that JSON which one process wrote never exhausts the stack of another


def canonical_value(field: Field, value: Any) -> Any:
    """Return `value` in stored form: JSON as its text, arrays little-endian.

    Raises ValueError, TypeError or OverflowError for what a store would not give back equal.
    """
    return _CANONICAL[field.kind](field, value)


def canonical_json(value: JSON) -> str:
    """Return the one text that stands for `value`: sorted keys, no spaces, no NaN. Raises ValueError."""
    _check_json(value, 0)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _check_json(value: object, depth: int) -> None:
    # json.dumps would turn tuples into lists and other keys into strings without a word.
    if depth > _MAX_DEPTH:
        raise ValueError(f"JSON nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"JSON keys are str, not {type(key).__name__} ({key!r})")
            _check_text(key)
            _check_json(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_json(item, depth + 1)
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value!r}")
    elif value is not None and not isinstance(value, (int, float)):
        raise ValueError(f"JSON holds dict, list, str, int, float, bool and None, not {type(value).__name__}")


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text with a lone surrogate at character {error.start} has no UTF-8 form") from None


def preview(value: object) -> str:
    """Return a value for a message: short, whatever it is, and with its type."""
    if isinstance(value, np.ndarray):
        text = f"array of {value.dtype} {value.shape}"
    elif isinstance(value, (str, bytes, bytearray)):
        text = repr(value[:61])
    else:
        text = _short_repr(value)
    return f"{text[:60]}{'…' if len(text) > 60 else ''} ({type(value).__name__})"


def _short_repr(value: object) -> str:
    try:
        return _REPR.repr(value)
    except Exception:  # an integer of 5000 digits, or a stranger's __repr__
        return f"<{type(value).__name__}>"


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxother, _REPR.maxlong, _REPR.maxstring = 4, 70, 70, 70


def _canonical_bytes(field: Field, value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):  # np.bytes_ and bson.Binary are bytes that msgpack refuses
        return bytes(memoryview(value))
    raise TypeError("expected bytes")


def _canonical_str(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected str")
    _check_text(value)
    return str.__str__(value)  # its characters: the __str__ of an enumeration gives the member's name


def _canonical_int(field: Field, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError("expected int")
    number = int(value)
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise ValueError("outside the int64 range")
    return number


def _canonical_float(field: Field, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (float, int, np.floating, np.integer)):
        raise TypeError("expected float")
    number = float(value)
    if isinstance(value, (int, np.integer)) and int(number) != int(value):
        raise ValueError("a binary64 cannot hold this integer exactly")
    if isinstance(value, np.longdouble) and not np.isnan(value) and np.longdouble(number) != value:
        raise ValueError("a binary64 cannot hold this number exactly")
    return number


def _canonical_bool(field: Field, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError("expected bool")
    return bool(value)


def _canonical_array(field: Field, value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected a NumPy array of {np.dtype(field.dtype)}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("an array cannot keep its mask")
    dtype, shape = np.dtype(field.dtype), field.shape or ()
    if value.dtype.newbyteorder("<") != dtype:
        raise TypeError(f"expected dtype {dtype}")
    fits = len(shape) == value.ndim and all(want in (None, got) for want, got in zip(shape, value.shape, strict=True))
    if not fits:
        raise ValueError(f"expected shape {shape}")
    # A copy, because the caller may reuse its buffer before the batch is written.
    return np.array(value, dtype=dtype, order="C")


def _canonical_json(field: Field, value: Any) -> str:
    return canonical_json(value)


_CANONICAL = {
    "image": _canonical_bytes,
    "bytes": _canonical_bytes,
    "str": _canonical_str,
    "int": _canonical_int,
    "float": _canonical_float,
    "bool": _canonical_bool,
    "array": _canonical_array,
    "json": _canonical_json,
}
