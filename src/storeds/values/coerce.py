"""Converts values to the form of their fields."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from storeds.protocols import Array, Field
from storeds.values.codecs import image_of_text, is_image, numbers_of

__all__ = [
    "TEXTUAL",
    "any_inside",
    "as_numpy",
    "coerce",
    "is_array",
    "is_encoded",
    "is_file",
    "is_nan",
    "is_picture",
    "missing",
    "plain",
    "stacked",
    "text_of",
]

TEXTUAL: Final[tuple[type, ...]] = (datetime.date, datetime.time, decimal.Decimal, uuid.UUID)
"""Types whose values a field holds as text."""
_PLAIN, _BYTES = frozenset({int, float, bool, str}), frozenset({bytes})
_READY = {**dict.fromkeys(("int", "float", "bool", "str"), _PLAIN), **dict.fromkeys(("image", "bytes"), _BYTES)}
"""Types of values that are in the form of a kind, or that the codec refuses."""
_ARRAY_KINDS = "biufc"


def coerce(field: Field, value: Any) -> Any:
    """Convert `value` to the form of its field's kind; the codec checks values that do not fit.

    Raises
    ------
    ValueError
        It is of another kind than the other values.
    """
    kind = field.kind
    if type(value) in _READY.get(kind, ()):
        return value
    if kind == "array" and type(value) is np.ndarray and value.shape == field.shape:
        return value
    value = stacked(value)
    if kind == "array":
        return _fitting(field, _array(field, value))
    if kind in ("image", "bytes"):
        return _blob(kind, value)
    if kind == "json" and any_inside(value, is_array) and not isinstance(value, np.generic):
        raise ValueError("it holds an array, unlike the others")
    if kind == "str" and isinstance(value, (bytes, memoryview)):
        return str(value, "utf-8")
    return plain(value) if kind in ("json", "str") else value.item() if isinstance(value, np.generic) else value


def _blob(kind: str, value: Any) -> Any:
    """Return the bytes of an array of bytes, and of an image in base64; anything else as it is."""
    if isinstance(value, np.ndarray):
        if kind == "image" and not is_encoded(value):
            raise ValueError(f"its array {value.dtype} {value.shape} is no encoded image, unlike the others")
        return value.tobytes() if value.dtype == np.uint8 else value
    if isinstance(value, str) and (value := image_of_text(value)) is None:
        raise ValueError("found text that is not an image in base64")
    return value


def missing(field: Field) -> Any:
    """Return what stands for a value that is absent or null: NaN, or null in JSON; raises ValueError for other kinds."""
    if field.kind not in ("float", "json"):
        raise ValueError("is absent or null")
    return math.nan if field.kind == "float" else None


def stacked(value: Any) -> Any:
    """Return a list of equal arrays, or of NumPy's numbers of one type, as one array; anything else as it is."""
    if not isinstance(value, (list, tuple)) or not value or not isinstance(value[0], (np.ndarray, np.generic)):
        return value
    forms = {(item.dtype, item.shape) if isinstance(item, (np.ndarray, np.generic)) else None for item in value}
    return np.stack(value) if len(forms) == 1 and value[0].dtype.kind in _ARRAY_KINDS else value


def is_encoded(value: Array) -> bool:
    """Whether an array of bytes is an encoded image, as OpenCV's imencode returns them."""
    flat = value.dtype == np.uint8 and value.ndim in (1, 2) and value.size == max(value.shape)
    return flat and is_image(value.reshape(-1)[:64].tobytes())


def is_picture(value: Any) -> bool:
    """Whether `value` is a PIL image."""
    return callable(getattr(value, "tobytes", None)) and hasattr(value, "getbands")


def is_file(value: Any) -> bool:
    """Whether `value` is an undecoded image of 🤗 datasets."""
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


def _array(field: Field, value: Any) -> Any:
    """Return a list of numbers, one of NumPy's numbers, or the bytes of an array as an array; raises ValueError."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, (bytes, memoryview)):
        return _raw(field, value)
    if isinstance(value, np.ndarray):
        return _without_rows(field, value)
    if not isinstance(value, (list, tuple)):
        return value
    found = numbers_of(value)
    if found is not None and found.size and found.dtype.str == field.dtype:
        return found
    if found is None or (found.size and not np.can_cast(found.dtype, np.dtype(field.dtype), "same_kind")):
        raise ValueError(f"its list has no numbers of type {field.dtype}, unlike the others")
    found = _without_rows(field, found)
    cast = found.astype(field.dtype)
    if found.dtype.kind in "iu" and cast.tolist() != found.tolist():
        raise ValueError(f"{field.dtype} cannot hold its integers exactly")
    return cast


def _without_rows(field: Field, value: Array) -> Array:
    """Return an empty array, of which nothing tells the number of dimensions, with those of the field."""
    if value.size or value.ndim != 1 or len(field.shape or ()) < 2:
        return value
    return value.reshape(tuple(size or 0 for size in field.shape or ()))


def _raw(field: Field, value: bytes | memoryview) -> Array:
    """Return the array whose numbers are these bytes; raises ValueError unless they fill the declared shape exactly."""
    dtype, shape = np.dtype(field.dtype), field.shape or ()
    count, rest = divmod(len(value), dtype.itemsize)
    known = math.prod(size for size in shape if size is not None)
    is_open = None in shape
    if rest or shape.count(None) > 1 or (count % (known or 1) if is_open else count != known):
        sizes = [size if size is not None else "n" for size in shape]
        raise ValueError(f"its {len(value)} bytes are no array of {dtype} with shape {sizes}")
    return np.frombuffer(value, dtype).reshape([-1 if size is None else size for size in shape])


def _fitting(field: Field, value: Any) -> Any:
    """Return an array; raises ValueError if its shape differs from the shape inferred when the store was opened."""
    if isinstance(value, np.ndarray) and field.shape is not None:
        fits = value.ndim == len(field.shape) and all(
            size in (None, there) for size, there in zip(field.shape, value.shape, strict=True)
        )
        if not fits:
            raise ValueError(f"its array has the shape {value.shape}, others {field.shape}")
    return value


# Values that no declaration concerns.


def any_inside(value: Any, fits: Callable[[Any], bool]) -> bool:
    """Whether `fits` is true of a value, or of anything in its lists and mappings."""
    if fits(value):
        return True
    if isinstance(value, (list, tuple, dict)):
        for item in (
            value.values() if isinstance(value, dict) else value
        ):  # a generator would take a second frame a level
            if any_inside(item, fits):
                return True
    return False


def is_array(value: Any) -> bool:
    """Whether a value is an array or a number of NumPy, whose type JSON would lose."""
    return isinstance(value, (np.ndarray, np.generic))


def is_nan(value: Any) -> bool:
    """Whether a value is NaN or an infinity, which Python's parsers of JSON read, and no store can hold."""
    return isinstance(value, float) and not math.isfinite(value)


def plain(value: Any) -> Any:
    """Convert values of Python and NumPy to JSON: tuples to lists, NumPy's numbers to numbers, bytes and dates to text."""
    if isinstance(value, dict):
        return {coerce(Field("str"), key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return text_of(value) if isinstance(value, TEXTUAL) else value


def text_of(value: Any) -> str:
    """Return a date, a decimal number or an id as text: dates as ISO 8601 writes them."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def as_numpy(value: Any) -> Any:
    """Return a value with its tensors as arrays, values without dimensions as numbers, and buffers as bytes, at any depth."""
    if isinstance(value, Mapping):
        return {key: as_numpy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_numpy(item) for item in value]
    if not isinstance(value, np.ndarray) and callable(getattr(value, "detach", None)):  # without importing torch
        value = value.detach().cpu().contiguous().numpy()
    if isinstance(value, np.ndarray) and not value.shape:
        return value[()]
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value
