"""Finds values in documents by dotted paths, infers their kinds, and converts values to these kinds."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from bson import Decimal128, ObjectId, json_util

from storeds.layouts.codecs import image_of_text, is_image, numbers_of
from storeds.protocols import JSON, Array, Field
from storeds.records.codec import canonical_value

__all__ = ["Column", "infer", "paths_of", "pick", "projection_of", "to_json"]

_TEXTUAL = (ObjectId, datetime.datetime, Decimal128, UUID)
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Column:
    """The place of a field in a document, and its kind.

    Parameters
    ----------
    path : str
        Dotted.
    field : Field
    as_text : bool
        Whether values other than text are converted to text: ids, dates, decimal numbers.
    """

    path: str
    field: Field
    as_text: bool = False

    def value(self, document: Mapping[str, Any]) -> Any:
        """Return the value of the field; raises ValueError with the reason."""
        found = pick(document, self.path)
        if found is None:
            raise ValueError(f"its document has no field {self.path!r}, or null in it")
        try:
            return _convert(found, self)
        except TypeError:
            why = f"found {type(found).__name__}"
        except (OverflowError, ValueError) as error:
            why = str(error)
        raise ValueError(f"field {self.path!r} of its document is not {self.field.kind}: {why}")


def pick(document: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or None."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is _ABSENT:
            return None
    return value


def paths_of(document: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted paths of all values in a document."""
    paths: list[str] = []
    for name, value in document.items():
        inner = isinstance(value, Mapping) and value and prefix.count(".") < 3
        paths += paths_of(value, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return paths


def projection_of(paths: Iterable[str]) -> dict[str, bool]:
    """Return a projection of `paths` and ``_id``; MongoDB rejects a path together with one that contains it."""
    wanted = {"_id", *paths}
    return {path: True for path in sorted(wanted) if not any(path.startswith(f"{other}.") for other in wanted)}


def infer(values: Sequence[Any]) -> tuple[Field, bool]:
    """Return the field for all of `values`, none of which is None, and whether they are converted to text."""
    if _all(values, bytes):
        images = sum(is_image(value) for value in values)
        return Field("image" if 2 * images > len(values) else "bytes"), False
    if _all(values, bool):
        return Field("bool"), False
    if not any(isinstance(value, bool) for value in values) and _all(values, (int, float)):
        return Field("int" if _all(values, int) else "float"), False
    if _all(values, str):
        # Text is an image if every value is the base64 of an image.
        return Field("image" if all(image_of_text(value) is not None for value in values) else "str"), False
    if _all(values, (str, *_TEXTUAL)):
        return Field("str"), True
    arrays = [numbers_of(value) for value in values]
    if all(numbers is not None for numbers in arrays):
        return _array_field([numbers for numbers in arrays if numbers is not None]) or Field("json"), False
    return Field("json"), False


def _all(values: Sequence[Any], types: type | tuple[type, ...]) -> bool:
    return all(isinstance(value, types) for value in values)


def _array_field(arrays: Sequence[Array]) -> Field | None:
    filled = [numbers for numbers in arrays if numbers.size]  # an empty list does not tell of what
    kinds = {numbers.dtype for numbers in filled}
    if not filled or len({numbers.ndim for numbers in filled}) > 1 or (np.dtype(bool) in kinds and len(kinds) > 1):
        return None
    shapes = {numbers.shape for numbers in arrays}
    if len({len(shape) for shape in shapes}) > 1:
        return None
    shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
    return Field("array", np.result_type(*kinds).newbyteorder("<").str, shape)


def to_json(value: Any) -> JSON:
    """Convert a value of a document to JSON; types that JSON lacks become MongoDB's Extended JSON."""
    found: JSON = json.loads(json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS))
    return found


def _convert(value: Any, column: Column) -> Any:
    kind = column.field.kind
    if kind == "json":
        return to_json(value)
    if kind == "array":
        return _array(value, column.field)
    if isinstance(value, str) and kind in ("image", "bytes"):
        value = image_of_text(value)
        if value is None:
            raise ValueError("found text that is not a base64 image")
    elif column.as_text and isinstance(value, _TEXTUAL):
        value = value.isoformat() if isinstance(value, datetime.datetime) else str(value)
    return canonical_value(column.field, value)


def _array(value: Any, field: Field) -> Array:
    dtype, shape = np.dtype(field.dtype), field.shape or ()
    numbers = numbers_of(value)
    if numbers is None:
        raise ValueError("found no list of numbers")
    if numbers.size and not np.can_cast(numbers.dtype, dtype):
        raise ValueError(f"a list of {numbers.dtype} where {dtype} was expected")
    fits = numbers.ndim == len(shape) and all(
        want in (None, size) for want, size in zip(shape, numbers.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"its shape is {numbers.shape}, expected {shape}")
    found = numbers.astype(dtype)
    if numbers.dtype.kind == "i" and dtype.kind == "f" and not np.array_equal(found.astype(np.int64), numbers):
        raise ValueError("a binary64 cannot hold its integers exactly")
    return found
