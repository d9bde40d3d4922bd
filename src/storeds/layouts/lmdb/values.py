"""Infers the fields of values that nobody declared, and converts values to the form of their fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storeds.errors import ConfigError
from storeds.layouts.codecs import image_of_text, is_image, is_video
from storeds.protocols import KINDS, Array, Field, Kind
from storeds.records.fields import parse_fields

__all__ = [
    "Wanted",
    "are_videos",
    "coerce",
    "fitting",
    "kind_of",
    "merge",
    "names_for",
    "parse_wanted",
    "plain",
]

Wanted = tuple[tuple[str, Field | None], ...]
"""Names in the order of a record's parts, each with its declared field or None."""

_NAMES = {"image": "image", "int": "label", "str": "text", "array": "array", "float": "value", "bool": "flag"}
_ARRAY_KINDS = "biufc"
_SCALARS: tuple[tuple[Kind, type], ...] = (
    ("bool", bool),
    ("int", int),
    ("float", float),
    ("str", str),
    ("bytes", bytes),
)


def kind_of(value: Any) -> Field:
    """Return the field that can hold a value; raises ValueError."""
    if isinstance(value, (bytes, memoryview)):
        return Field("image" if is_image(value) else "bytes")
    if isinstance(value, np.ndarray):
        return _array_field(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple, dict)) or value is None:
        return Field("json")
    if isinstance(value, str) and image_of_text(value) is not None:
        return Field("image")
    for kind, types in _SCALARS:
        if isinstance(value, types):
            return Field(kind)
    raise ValueError(f"no field can hold a {type(value).__name__}")


def _array_field(value: Array) -> Field:
    if _is_encoded(value):
        return Field("image")
    if value.dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"no field can hold an array of {value.dtype}, only arrays of booleans or numbers")
    return parse_fields({"a": Field("array", value.dtype.str, value.shape)})["a"]


def _is_encoded(value: Array) -> bool:
    """Whether an array of bytes is an encoded image, as OpenCV's imencode returns them."""
    flat = value.dtype == np.uint8 and value.ndim in (1, 2) and value.size == max(value.shape)
    return flat and is_image(value.reshape(-1)[:64].tobytes())


def merge(found: Sequence[Field], *, any_shape: bool) -> Field:
    """Return one field for the values of several records in one place; raises ValueError if they do not agree."""
    kinds = {field.kind for field in found}
    if kinds <= {"image", "bytes"}:  # an image with a damaged beginning looks like bytes
        return Field("image" if "image" in kinds else "bytes")
    if kinds == {"int", "float"}:
        return Field("float")
    if len(kinds) > 1:
        raise ValueError(f"some records hold {' and others '.join(sorted(kinds))}")
    if kinds != {"array"}:
        return found[0]
    dtypes, ranks = {field.dtype for field in found}, {len(field.shape or ()) for field in found}
    if len(dtypes) > 1 or len(ranks) > 1:
        raise ValueError(f"its arrays differ in dtype ({', '.join(map(str, sorted(dtypes, key=str)))}) or dimensions")
    sizes = zip(*(field.shape or () for field in found), strict=True)
    return Field("array", found[0].dtype, tuple(None if any_shape or len(set(s)) > 1 else s[0] for s in sizes))


def are_videos(values: Sequence[Any]) -> bool:
    """Whether every value is an encoded video."""
    return all(isinstance(value, (bytes, memoryview)) and is_video(value) for value in values)


def names_for(fields: Sequence[Field], videos: Sequence[bool] = ()) -> list[str]:
    """Return field names by kind: image, label, text, array, value, flag, json, bytes; numbered if a kind occurs twice.

    `videos` says for each field whether all its values are encoded videos; such a field is called video.
    """
    bases = [_NAMES.get(field.kind, field.kind) for field in fields]
    bases = ["video" if is_clip else base for base, is_clip in zip(bases, videos or [False] * len(bases), strict=True)]
    several, seen = Counter(bases), Counter[str]()
    out = []
    for base in bases:
        out.append(f"{base}{seen[base]}" if several[base] > 1 else base)
        seen[base] += 1
    return out


def coerce(field: Field, value: Any) -> Any:
    """Convert `value` to the form of its field's kind; the codec checks values that do not fit."""
    if isinstance(value, np.ndarray) and field.kind in ("image", "bytes"):
        return value.tobytes() if value.dtype == np.uint8 else value
    if field.kind == "array":
        return fitting(field, np.asarray(value) if isinstance(value, np.generic) else value)
    if field.kind == "image" and isinstance(value, str):
        return image_of_text(value) or value
    if isinstance(value, np.generic):
        value = value.item()
    if field.kind == "str" and isinstance(value, (bytes, memoryview)):
        return str(value, "utf-8")
    return plain(value) if field.kind == "json" else value


def fitting(field: Field, value: Any) -> Any:
    """Return an array; raises ValueError if its shape differs from the shape inferred when the store was opened."""
    if isinstance(value, np.ndarray) and field.shape is not None:
        fits = value.ndim == len(field.shape) and all(
            size in (None, there) for size, there in zip(field.shape, value.shape, strict=True)
        )
        if not fits:
            advice = "; any_shape=True reads arrays of any sizes" if value.ndim == len(field.shape) else ""
            raise ValueError(f"its array has the shape {value.shape}, others {field.shape}{advice}")
    return value


def plain(value: Any) -> Any:
    """Convert values of Python and NumPy to JSON: tuples to lists, NumPy's numbers to numbers, bytes to text."""
    if isinstance(value, dict):
        return {coerce(Field("str"), key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value


def parse_wanted(given: Any) -> Wanted | None:
    """Parse the option ``fields``: ``"image,label:int"``, a list of such names, or a mapping of names to declarations.

    Raises ValueError.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        return tuple(parse_fields(given).items())
    parts: list[Any] = given.split(",") if isinstance(given, str) else list(given)
    if all(isinstance(part, tuple) for part in parts):  # parsed already
        return tuple(parts)
    return tuple(_parse_one(part) for part in parts)


def _parse_one(part: Any) -> tuple[str, Field | None]:
    if not isinstance(part, str):
        raise ConfigError(f"fields: expected names such as image or label:int, got {part!r}")
    name, colon, kind = (piece.strip() for piece in part.partition(":"))
    if kind == "array":
        raise ConfigError(f"fields: {part!r}: a mapping declares arrays, with dtype and shape; leave the kind out here")
    if colon and kind not in KINDS:
        raise ConfigError(f"fields: unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    declared = parse_fields({name: kind or "bytes"})[name]
    return name, declared if colon else None
