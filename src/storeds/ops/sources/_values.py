"""Turns what samples of datasets hold into values of fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from storeds.errors import ConfigError
from storeds.fields import parse_fields
from storeds.ops.sources._images import encoded, is_encoded
from storeds.ops.sources._paths import is_text
from storeds.ops.sources.base import BadItem, read_file
from storeds.protocols import Field
from storeds.record import canonical_json

__all__ = ["infer", "take"]


def infer(name: str, value: Any) -> Field:
    """Return the field that `value` of the first sample asks for; raises ConfigError."""
    try:
        value = _plain(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor whose dtype NumPy lacks
        raise ConfigError(f"{name!r} of the first sample has no NumPy array: {error}") from None
    if isinstance(value, np.ndarray):
        return parse_fields({name: {"kind": "array", "dtype": value.dtype.str, "shape": list(value.shape)}})[name]
    if isinstance(value, bytes):
        return Field("image" if is_encoded(value) else "bytes")
    if _is_image(value) or _is_file(value):
        return Field("image")
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return Field(kind.__name__)  # type: ignore[arg-type]  # these names are kinds
    if isinstance(value, (list, tuple, dict)):
        return Field("json")
    raise ConfigError(
        f"{name!r} of the first sample is {'None' if value is None else f'a {type(value).__name__}'}, which no field "
        "holds; pass fields= to say what each element is"
    )


def take(field: Field, value: Any) -> Any:
    """Return `value` as the field takes it; raises BadItem or TypeError."""
    value = _plain(value)
    if value is None and field.kind != "json":
        raise BadItem("is None")
    return _TAKE[field.kind](field, value)


def _plain(value: Any) -> Any:
    """Return tensors as arrays, what has no dimension as a number, buffers as bytes."""
    if not isinstance(value, np.ndarray) and callable(getattr(value, "detach", None)):  # a tensor, torch not imported
        value = value.detach().cpu().contiguous().numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.shape):
        value = value.item()
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _is_image(value: Any) -> bool:
    return callable(getattr(value, "tobytes", None)) and hasattr(value, "getbands")


def _is_file(value: Any) -> bool:
    """Whether `value` is an image as Hugging Face's datasets hand it out undecoded."""
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


def _image(field: Field, value: Any) -> bytes:
    if _is_image(value):
        return encoded(value)
    if _is_file(value):
        return value["bytes"] if value["bytes"] is not None else read_file(str(value["path"]))
    return _bytes(field, value)


def _bytes(field: Field, value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return value


def _array(field: Field, value: Any) -> Any:
    array = np.asarray(value)
    dtype, shape = np.dtype(field.dtype), field.shape or ()
    fits = array.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, array.shape, strict=True))
    if array.dtype.newbyteorder("<") != dtype or not fits:
        raise BadItem(
            f"is {array.dtype} {array.shape}, and the field {dtype} {shape}; pass fields= with None for a dimension "
            "that differs"
        )
    return array


def _number(kind: type) -> Callable[[Field, Any], Any]:
    def check(field: Field, value: Any) -> Any:
        number: Any = value
        # bool is an int to Python, and an int a float to most people, but True is no 1.
        if not isinstance(value, (int, float) if kind is float else kind):
            raise TypeError
        if kind is not bool and isinstance(value, bool):
            raise TypeError
        if kind is int and not -(2**63) <= number < 2**63:
            raise BadItem("is outside the int64 range")
        return kind(value)

    return check


def _str(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not is_text(value):
        raise BadItem("holds a lone surrogate, which has no UTF-8 form")
    return value


def _json(field: Field, value: Any) -> Any:
    value = _lists(value)
    try:
        canonical_json(value)
    except ValueError as error:
        raise BadItem(str(error)) from None
    return value


def _lists(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


_TAKE: dict[str, Callable[[Field, Any], Any]] = {
    "image": _image,
    "bytes": _bytes,
    "str": _str,
    "int": _number(int),
    "float": _number(float),
    "bool": _number(bool),
    "array": _array,
    "json": _json,
}
