"""Reads a JSON index of names and labels, and keeps the labels packed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds._columns import column_of
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.layouts._mongodb_packed import Packed, pack_items
from storeds.layouts._mongodb_values import infer
from storeds.protocols import Array, Field

__all__ = ["NameIndex", "label_column", "label_field", "label_value", "pack_labels", "read_name_index"]

_NAMES, _LABELS = "path_list", "label_list"
_KINDS = ("json", "int", "float", "bool", "str")  # by the number that stands for each in a packed list
_DTYPES = {"int": "<i8", "float": "<f8", "bool": "?"}


@dataclass(frozen=True)
class NameIndex:
    """Names, as UTF-8, and the label of each."""

    path: str
    names: list[bytes]
    labels: list[Any]


def read_name_index(path: str) -> NameIndex:
    """Return what is in the JSON file at `path`.

    Raises
    ------
    StoreNotFoundError
        There is no such file.
    ConfigError
        It is no JSON object with equally long ``path_list`` and ``label_list``, or a name is no text.
    """
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except FileNotFoundError:
        raise StoreNotFoundError(f"no index at {path} (from {os.getcwd()})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"index {path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(
            f"index {path}: expected an object with {_NAMES} and {_LABELS}, found a {type(found).__name__}"
        )
    for key in (_NAMES, _LABELS):
        if not isinstance(found.get(key), list):
            has = ", ".join(map(repr, list(found)[:10])) or "nothing"
            raise ConfigError(f"index {path}: expected the lists {_NAMES} and {_LABELS}; {key} is none (it has {has})")
    names, labels = found[_NAMES], found[_LABELS]
    if len(names) != len(labels):
        raise ConfigError(
            f"index {path}: {_NAMES} has {len(names)} names and {_LABELS} {len(labels)} labels; each name needs one label"
        )
    if not names:
        raise ConfigError(f"index {path}: {_NAMES} is empty")
    return NameIndex(path, [_encoded(name, at, path) for at, name in enumerate(names)], labels)


def _encoded(name: Any, at: int, path: str) -> bytes:
    try:
        if isinstance(name, str):
            return name.encode()
    except UnicodeEncodeError:
        pass
    raise ConfigError(f"index {path}: entry {at} of {_NAMES} is no text: {name!r}")


def pack_labels(labels: Sequence[Any], path: str) -> Packed:
    """Return labels, packed: numbers as such, texts as UTF-8, anything else as JSON."""
    kind = "json" if any(label is None for label in labels) else infer(labels)[0].kind
    if kind in _DTYPES:
        try:
            numbers = np.array(labels, dtype=_DTYPES[kind])
        except OverflowError:
            raise ConfigError(f"index {path}: a label is outside the int64 range") from None
        return Packed(_KINDS.index(kind), numbers.itemsize, numbers.view(np.uint8), np.empty(0, np.int64))
    try:
        packed = pack_items([(label if kind == "str" else json.dumps(label)).encode() for label in labels])
    except UnicodeEncodeError as error:
        raise ConfigError(f"index {path}: a label is no text: {error}") from None
    packed.kind = _KINDS.index(kind) if kind == "str" else 0
    return packed


def label_field(labels: Packed) -> Field:
    """Return the field that holds packed labels."""
    kind = _KINDS[labels.kind]
    if kind != "json":
        return Field(kind)  # type: ignore[arg-type]  # one of those above
    values = [json.loads(text) for text in labels]
    return Field("json") if None in values else infer(values)[0]


def label_value(labels: Packed, at: int, field: Field) -> Any:
    """Return one label."""
    item = labels[at]
    if field.kind in _DTYPES:
        return np.frombuffer(item, _DTYPES[field.kind])[0].item()
    if field.kind == "str":
        return item.decode()
    value = json.loads(item)
    return np.array(value, field.dtype) if field.kind == "array" else value


def label_column(labels: Packed, field: Field) -> Array:
    """Return all labels as one array, which is the caller's."""
    if field.kind in _DTYPES:
        return labels.data.view(_DTYPES[field.kind]).copy()
    return column_of(field, [label_value(labels, at, field) for at in range(len(labels))])
