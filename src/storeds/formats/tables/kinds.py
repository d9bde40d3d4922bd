"""Returns the field for an Arrow type and what 🤗 datasets noted about the column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from storeds.protocols import Field, Kind
from storeds.records.fields import parse_fields
from storeds.values.coerce import text_of
from storeds.values.infer import field_of

__all__ = ["field_of_column"]

_TRIED = 16  # values that show whether bytes are images


def field_of_column(kind: Any, noted: Mapping[str, Any], values: Iterator[Any], types: Any) -> Field | None:
    """Return the field for an Arrow type, or None for one without values; raises ValueError if none can store it.

    Parameters
    ----------
    kind : pyarrow.DataType
    noted : mapping
        What 🤗 datasets noted about the column.
    values : iterator
        Of the column; the first ones show whether bytes or texts are images, and how long lists in lists are.
    types : module
        ``pyarrow.types``.
    """
    sort = str(noted.get("_type"))
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if sort in ("Audio", "Video"):
        raise ValueError(f"{sort} values")
    if re.fullmatch("Array[2-5]D", sort):
        return _array(noted["dtype"], noted["shape"])
    if types.is_null(kind):
        return None
    if _is_bytes(kind):
        return field_of([*islice(values, _TRIED)] or [b""])
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    if types.is_struct(kind) and {each.name for each in kind} == {"bytes", "path"} and any(map(_is_bytes, inner)):
        return Field("image")  # as 🤗 datasets stores it
    if inner and not types.is_struct(kind) and (types.is_primitive(inner[0]) and not types.is_temporal(inner[0])):
        return _array(inner[0].to_pandas_dtype(), [kind.list_size if types.is_fixed_size_list(kind) else None])
    if any(map(_has_bytes, inner)):
        raise ValueError("bytes or images in a list or a group")
    if inner:
        return _nested_field(kind, [*islice(values, _TRIED)], types)
    simple: dict[Kind, Any] = {"int": types.is_integer, "float": types.is_floating, "bool": types.is_boolean}
    number = next((name for name, is_kind in simple.items() if is_kind(kind)), None)
    return Field(number) if number else field_of([*map(_as_text, islice(values, _TRIED))] or [""])


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _nested_field(kind: Any, values: Sequence[Any], types: Any) -> Field:
    """Return an array for lists of equally long lists of numbers, by some of them; JSON for anything else."""
    found = field_of(values) if values and not types.is_struct(kind) else Field("json")
    if found.kind != "array":
        return Field("json")
    leaf = kind
    while leaf.num_fields:
        leaf = leaf.field(0).type
    return _array(leaf.to_pandas_dtype(), [None, *(found.shape or ())[1:]])


def _is_bytes(kind: Any) -> bool:
    return "binary" in str(kind).split("<")[0]


def _has_bytes(kind: Any) -> bool:
    return _is_bytes(kind) or any(_has_bytes(kind.field(number).type) for number in range(kind.num_fields))


def _array(dtype: Any, shape: Sequence[int | None]) -> Field:
    return parse_fields({"x": {"kind": "array", "dtype": np.dtype(dtype).str, "shape": list(shape)}})["x"]
