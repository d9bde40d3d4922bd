"""Declares the fields of a store, and converts declarations to and from JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from storeds.errors import ConfigError
from storeds.protocols import JSON, KINDS, Field
from storeds.records.roles import ROLE_KEYS, check_rows, parse_role, role_to_json

__all__ = ["fields_from_json", "fields_to_json", "parse_fields"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")  # short enough for the keys and file names of every engine
_DTYPE_KINDS = "biufc"


def fields_to_json(fields: Mapping[str, Field]) -> JSON:
    """Return the declared fields as a list, which keeps their order in every JSON implementation."""
    rows: list[JSON] = []
    for name, field in fields.items():
        row: dict[str, JSON] = {"name": name, "kind": field.kind}
        if field.kind == "array":
            row["dtype"] = field.dtype
            row["shape"] = list(field.shape or ())
        rows.append({**row, **role_to_json(field)})
    return rows


def fields_from_json(rows: Any) -> dict[str, Field]:
    """Return the fields that `fields_to_json` wrote; raises ConfigError for invalid rows."""
    return parse_fields({row["name"]: {key: row[key] for key in row if key != "name"} for row in rows})


def parse_fields(fields: Mapping[str, Any]) -> dict[str, Field]:
    """Validate a declaration such as ``{"image": "image", "x": {"kind": "array", "dtype": "float32", "shape": [3, None]}}``.

    Raises
    ------
    ConfigError
        A name or kind is invalid, or there is no field.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise ConfigError(f"fields: expected a mapping of at least one name to its kind, got {fields!r}")
    return check_rows({name: _parse_field(name, spec) for name, spec in fields.items()})


def _parse_field(name: object, spec: object) -> Field:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        hint = "; a leading underscore is reserved" if str(name).startswith("_") else ""
        raise ConfigError(f"field name {name!r} must match [a-z][a-z0-9_]* and have at most 100 characters{hint}")
    if isinstance(spec, str):
        spec = Field(spec)  # type: ignore[arg-type]  # the kind is checked below
    elif isinstance(spec, Mapping):
        unknown = set(spec) - {"kind", "dtype", "shape", *ROLE_KEYS}
        if unknown or "kind" not in spec:
            raise ConfigError(
                f"field {name!r}: expected kind, dtype and shape, and for a role {', '.join(ROLE_KEYS)}, got {dict(spec)!r}"
            )
        role = {key: spec[key] for key in ROLE_KEYS if key in spec}
        spec = Field(spec["kind"], spec.get("dtype"), spec.get("shape"), **role)
    if not isinstance(spec, Field) or spec.kind not in KINDS:
        kind = spec.kind if isinstance(spec, Field) else spec
        raise ConfigError(f"field {name!r}: unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
    if spec.kind == "array":
        spec = _parse_array_field(name, spec)
    elif spec.dtype is not None or spec.shape is not None:
        raise ConfigError(f"field {name!r}: only an array has a dtype and a shape, not {spec.kind}")
    return parse_role(name, spec)


def _parse_array_field(name: str, spec: Field) -> Field:
    if spec.dtype is None or spec.shape is None:
        raise ConfigError(
            f"field {name!r}: an array needs its dtype and shape, for example dtype='float32', shape=(3, None)"
        )
    try:
        dtype = np.dtype(spec.dtype)
    except (TypeError, ValueError, SyntaxError) as error:  # NumPy evaluates the text of some dtypes
        raise ConfigError(f"field {name!r}: {spec.dtype!r} is not a NumPy dtype ({error})") from None
    if dtype.kind not in _DTYPE_KINDS or dtype.itemsize > 16 or dtype.char in "gG":
        raise ConfigError(
            f"field {name!r}: dtype {dtype} cannot be stored; booleans, integers, floats up to 64 bit and complex can"
        )
    if not isinstance(spec.shape, (list, tuple)) or not all(map(_is_size, spec.shape)):
        raise ConfigError(f"field {name!r}: shape {spec.shape!r} must be a list of sizes or None")
    return dataclasses.replace(spec, dtype=dtype.newbyteorder("<").str, shape=tuple(spec.shape))


def _is_size(size: object) -> bool:
    return size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0)
