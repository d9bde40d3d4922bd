"""Finds values in documents by dotted paths, and converts them to the kinds of fields."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bson import Decimal128, ObjectId, json_util
from bson.binary import VECTOR_SUBTYPE, Binary

from storeds.errors import ConfigError
from storeds.protocols import JSON, Array, Field
from storeds.records.codec import canonical_value
from storeds.values.codecs import CODECS, inspect, sniff
from storeds.values.coerce import TEXTUAL, any_inside, coerce, missing, text_of
from storeds.values.infer import WHOLE, Part, Path, field_of, part_of

__all__ = [
    "TEXTS",
    "Column",
    "column_at",
    "column_of_part",
    "label_column",
    "label_of",
    "paths_of",
    "pick",
    "projection_of",
    "shown_to_infer",
    "to_json",
]

TEXTS: tuple[type, ...] = (ObjectId, Decimal128)
"""Types of BSON that become text, beside dates."""
_AS_TEXT = (*TEXTS, *TEXTUAL)
_JSON = frozenset({str, int, bool, type(None), list, dict})
_ABSENT = object()
_VECTOR = "vector"
_DECODED = (_VECTOR, "npy", "pickle")
"""The forms of binary values that hold arrays."""
_VECTOR_TYPES = {0x03: "i1", 0x27: "<f4"}
_PACKED_BITS = 0x10


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
    form : str
        What binary values there hold: ``npy``, ``pickle``, ``vector`` or ``""``.
    inner : tuple
        The part of a pickle that the field holds.
    optional : bool
        Whether the value may be absent or null, where the field has NaN, or null in JSON.
    """

    path: str
    field: Field
    as_text: bool = False
    form: str = ""
    inner: Path = WHOLE
    optional: bool = False

    @property
    def as_stored(self) -> bool:
        """Whether the server compares values as storeds does."""
        return not (self.as_text or self.form or self.optional)

    def value(self, document: Mapping[str, Any]) -> Any:
        """Return the value of the field; raises ValueError with the reason."""
        found = pick(document, self.path)
        if found is None and self.optional:
            return missing(self.field)
        if found is None:
            raise ValueError(f"its document has no field {self.path!r}, or null in it")
        try:
            if self.form:
                found = part_of(_decoded(self.form, found), self.inner)
            if self.field.kind == "json":
                return to_json(coerce(self.field, found) if self.form else found)
            if self.as_text and isinstance(found, _AS_TEXT):
                found = text_of(found)
            return canonical_value(self.field, coerce(self.field, found))
        except TypeError:
            is_array = isinstance(found, np.ndarray)
            why = f"found {f'an array of {found.dtype}' if is_array else type(found).__name__}"
        except (OverflowError, ValueError) as error:
            why = str(error)
        raise ValueError(f"field {self.path!r} of its document is not {self.field.kind}: {why}")


def _decoded(form: str, value: Any) -> Any:
    """Return what a binary value holds; raises ValueError."""
    if not isinstance(value, bytes):
        raise ValueError(f"found {type(value).__name__}, and the others are {form} in binary values")
    return _decode_vector(value) if form == _VECTOR else CODECS[form](value)


def _decode_vector(value: bytes) -> Array:
    """Return the numbers of a vector of BSON, or its bits; raises ValueError."""
    kind, padding = value[:2].ljust(2, b"\0")
    if kind == _PACKED_BITS and padding < 8 and len(value) > 1:
        bits = np.unpackbits(np.frombuffer(value, np.uint8, offset=2))
        return bits[: len(bits) - padding].astype(bool)
    if kind not in _VECTOR_TYPES or (len(value) - 2) % np.dtype(_VECTOR_TYPES[kind]).itemsize or len(value) < 2:
        raise ValueError(f"its vector is damaged: {len(value)} bytes of type {kind:#x}")
    return np.frombuffer(value, _VECTOR_TYPES[kind], offset=2)


def _form_of(value: Any) -> str:
    """Return what a binary value holds by its subtype or first bytes; ``""`` for anything else."""
    if not isinstance(value, bytes):
        return ""
    if isinstance(value, Binary) and value.subtype == VECTOR_SUBTYPE:
        return _VECTOR
    form = sniff(value)
    return form if form in _DECODED else ""


def shown_to_infer(value: Any) -> Any:
    """Return a value of a document with arrays for binary values that hold them, and mappings for types that JSON lacks."""
    if isinstance(value, Mapping):
        return {name: shown_to_infer(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shown_to_infer(item) for item in value]
    if form := _form_of(value):
        with contextlib.suppress(ValueError):  # such as a pickle that is refused
            return _decode_vector(value) if form == _VECTOR else inspect(form, value)
    return value if value is None or isinstance(value, (str, int, float, bytes, *_AS_TEXT)) else {}


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


def column_at(path: str, values: Sequence[Any], declared: Field | None = None) -> Column:
    """Return the column at a path, with the kind of all of `values`, none of which is None.

    If they do not agree, it is the kind of bytes if most are bytes, else JSON.
    """
    forms = set(map(_form_of, values))
    form = forms.pop() if len(forms) == 1 else ""
    if declared is not None:
        holds_bytes = declared.kind in ("image", "bytes")
        return Column(path, declared, declared.kind == "str", "" if holds_bytes else form)
    shown = [shown_to_infer(value) for value in values]
    try:
        field = field_of(shown, texts=TEXTS)
    except ValueError:
        form, blobs = "", [value for value in values if isinstance(value, bytes)]
        field = field_of(blobs) if 2 * len(blobs) > len(values) else Field("json")
    return Column(path, field, field.kind == "str" and not all(isinstance(value, str) for value in values), form)


def column_of_part(part: Part, documents: Sequence[Mapping[str, Any]]) -> Column:
    """Return the column that holds a part of documents, which may lie in a pickle in one of their fields."""
    values: list[Any] = [*documents]
    for depth, name in enumerate(part.path):
        if all(isinstance(value, bytes) for value in values):
            path, inner = part.path[:depth], part.path[depth:]
            return Column(".".join(path), part.field, False, _form_of(values[0]), inner, part.optional)
        values = [value for each in values if isinstance(each, Mapping) and (value := each.get(name)) is not None]
    as_text = part.field.kind == "str" and not all(isinstance(value, str) for value in values)
    forms = set(map(_form_of, values)) if part.field.kind not in ("image", "bytes") else set()
    form = forms.pop() if len(forms) == 1 else ""
    return Column(".".join(part.path), part.field, as_text, form, WHOLE, part.optional)


def to_json(value: Any) -> JSON:
    """Convert a value of a document to JSON; types that JSON lacks become MongoDB's Extended JSON."""
    if not any_inside(value, _is_extended):
        return value  # type: ignore[no-any-return]  # as just checked
    found: JSON = json.loads(json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS))
    return found


def _is_extended(value: Any) -> bool:
    kind = type(value)
    return kind not in _JSON and (kind is not float or not math.isfinite(value))


def label_column(labels: Sequence[Any], names: Sequence[str | bytes], where: str) -> tuple[Field, list[bytes]]:
    """Return the field of labels of any type, and each label as JSON; `names` are those of their records.

    Raises
    ------
    ConfigError
        One is outside the int64 range, or no valid text.
    """
    known = [label for label in labels if label is not None]
    column = column_at("label", known) if known and len(known) == len(labels) else Column("label", Field("json"))
    packed = []
    for label, name in zip(labels, names, strict=True):
        try:
            value = None if label is None else column.value({"label": label})
            packed.append(json.dumps(value.tolist() if isinstance(value, np.ndarray) else value).encode())
        except (ValueError, UnicodeEncodeError) as error:
            shown = name.decode() if isinstance(name, bytes) else name
            raise ConfigError(f"{where}: the label {label!r} of {shown!r} cannot be read: {error}") from None
    return column.field, packed


def label_of(field: Field, packed: bytes) -> Any:
    """Return a label from its JSON."""
    value = json.loads(packed)
    return np.array(value, field.dtype) if field.kind == "array" else value
