"""Packs one scalar or text field of all records as one array, and reads it back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from storeds.protocols import Array, Field

__all__ = ["SCALARS", "TEXT", "column_of", "text_column"]

SCALARS = {"int": np.dtype("<i8"), "float": np.dtype("<f8"), "bool": np.dtype("?")}
# Variable width and NUL-safe, unlike "U", which pads to the longest and strips trailing NULs.
TEXT = np.dtypes.StringDType()


def column_of(field: Field, values: Sequence[Any]) -> Array:
    """Return user values of a scalar, text or fixed-shape array field as one array."""
    if field.kind == "str":
        return np.array(values, dtype=TEXT)
    if field.kind == "array":
        shape = (len(values), *(size or 0 for size in field.shape or ()))
        return np.array(values, dtype=field.dtype).reshape(shape)
    return np.array(values, dtype=SCALARS[field.kind])


def text_column(data: bytes, offsets: Iterable[int]) -> Array:
    """Return the texts that lie end to end in `data`; ``offsets`` has one more entry than there are texts."""
    bounds = list(offsets)
    texts = [data[start:stop].decode() for start, stop in itertools.pairwise(bounds)]
    return np.array(texts, dtype=TEXT)
