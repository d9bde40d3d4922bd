"""Finds values in documents by dotted paths, and converts them to the kinds of fields."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from bson import Decimal128, ObjectId, json_util

from storeds.errors import ConfigError
from storeds.protocols import JSON, Field
from storeds.records.codec import canonical_value
from storeds.values.infer import coerce, field_of

__all__ = ["Column", "column_at", "label_column", "label_of", "paths_of", "pick", "projection_of", "to_json"]

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
            if self.field.kind == "json":
                return to_json(found)
            if self.as_text and isinstance(found, _TEXTUAL):
                found = found.isoformat() if isinstance(found, datetime.datetime) else str(found)
            return canonical_value(self.field, coerce(self.field, found))
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


def column_at(path: str, values: Sequence[Any], declared: Field | None = None) -> Column:
    """Return the column at a path, with the kind of all of `values`, none of which is None.

    If they do not agree, it is the kind of bytes if most are bytes, else JSON.
    """
    if declared is not None:
        return Column(path, declared, declared.kind == "str")
    try:
        field = field_of(values, lists=True, texts=_TEXTUAL)
    except ValueError:
        blobs = [value for value in values if isinstance(value, bytes)]
        field = field_of(blobs) if 2 * len(blobs) > len(values) else Field("json")
    return Column(path, field, field.kind == "str" and not all(isinstance(value, str) for value in values))


def to_json(value: Any) -> JSON:
    """Convert a value of a document to JSON; types that JSON lacks become MongoDB's Extended JSON."""
    found: JSON = json.loads(json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS))
    return found


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
