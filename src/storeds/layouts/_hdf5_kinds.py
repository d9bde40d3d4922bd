"""Tells which kind of field the bytes of a foreign HDF5 dataset make, and makes values of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storeds.jpeg.sniff import sniff
from storeds.protocols import Array, Field, Kind

__all__ = ["SCALAR_KINDS", "is_encoded", "kind_of", "numeric_field", "to_value"]

SCALAR_KINDS: Mapping[str, Kind] = {"b": "bool", "i": "int", "u": "int", "f": "float"}
"""The field of single numbers, by the kind of their dtype."""

_PICTURES = {"PNG", "GIF", "TIFF", "JPEG 2000", "JPEG XL", "WebP", "AVIF", "HEIC", "HEIF"}


def numeric_field(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    """Return the field for rows of a numeric dataset: a number where there is one in each, whatever its dimensions."""
    if math.prod(shape) == 1 and dtype.kind in SCALAR_KINDS:
        return Field(SCALAR_KINDS[dtype.kind])
    return Field("array", dtype.newbyteorder("<").str, shape)


def _numbers(data: bytes, dtype: np.dtype[Any]) -> Array:
    # A byte other than 0 and 1 makes a bool that NumPy computes with wrongly.
    return np.frombuffer(data, "u1") != 0 if dtype.kind == "b" else np.frombuffer(data, dtype)


def to_value(
    field: Field,
    data: Any,
    dtype: np.dtype[Any] | None = None,
    shape: tuple[int, ...] = (),
    *,
    text: bool = False,
    padded: bool = False,
) -> Any:
    """Return what a field holds, made of the bytes in the file; a ValueError if it cannot be made.

    `padded` says that values of several lengths share one size in the file, so that NULs follow the shorter ones.
    """
    if isinstance(data, ValueError):
        return data
    if field.kind == "array":
        assert dtype is not None
        return np.array(_numbers(data, dtype).reshape(shape), dtype=field.dtype)
    if field.is_scalar:
        assert dtype is not None
        number = _numbers(data, dtype)[0].item()
        return (
            ValueError(f"{number} is beyond the int64 range") if field.kind == "int" and number >= 1 << 63 else number
        )
    if field.kind == "str":
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            return ValueError(f"its text is not UTF-8: {error}")
    return _picture(data, text=text, padded=padded) if field.kind == "image" else data


def _picture(data: bytes, *, text: bool, padded: bool) -> bytes | ValueError:
    # Every JPEG and PNG has NULs near its beginning, so one without was cut there: by the program that wrote it.
    if text and b"\0" not in data and is_encoded(data):
        return ValueError(
            f"it was kept as a string, and of its image only the {len(data)} bytes before the first NUL were written: the "
            "rest is lost; write it again as bytes (opaque, or uint8 of variable length)"
        )
    return data.rstrip(b"\0") if padded and (data[:2] == b"\xff\xd8" or data[:4] == b"\x89PNG") else data


def is_encoded(data: bytes) -> bool:
    """Whether these are the bytes of an image file, as far as its beginning tells."""
    return data[:2] == b"\xff\xd8" or sniff(data) in _PICTURES


def kind_of(samples: Sequence[bytes], text: bool) -> Kind:
    """Return ``image``, ``str`` or ``bytes``: what most of the samples are."""
    told = [data for data in samples if data]
    # Most of them, because a store may have a damaged one.
    if told and 2 * sum(map(is_encoded, told)) > len(told):
        return "image"
    return "str" if text and all(isinstance(to_value(Field("str"), data), str) for data in told) else "bytes"
