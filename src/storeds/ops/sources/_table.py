"""Builds the columns of a manifest: little memory for many rows, one kind a column."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from storeds.errors import ConfigError
from storeds.ops.sources._packed import Texts
from storeds.protocols import Kind
from storeds.record import canonical_json

__all__ = ["Column", "JsonColumn", "TextColumn", "field_names", "is_int", "is_number"]

# Strict, because int("1_0") is 10 and a code such as 007 would lose its zeros: only a text that the number gives back.
_INT = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][+-]?[0-9]+)?|[+-]?inf|nan", re.I)
_EXACT = 2**53


def is_int(text: str) -> bool:
    """Whether `text` is an int64 as Python writes it."""
    return len(text) < 21 and _INT.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63


def is_number(text: str) -> bool:
    """Whether `text` is a number that a float64 stands for."""
    if _INT.fullmatch(text):
        return len(text) < 20 and abs(int(text)) <= _EXACT
    return _FLOAT.fullmatch(text) is not None


class Column:
    """A finished column: its kind, and its values by row."""

    def __init__(self, kind: Kind, values: Sequence[Any], revive: Callable[[Any], Any] | None = None) -> None:
        self.kind: Kind = kind
        self._values, self._revive = values, revive

    def __getitem__(self, index: int) -> Any:
        value = self._values[index]
        return value if self._revive is None else self._revive(value)


class TextColumn:
    """Collects the cells of a CSV column."""

    def __init__(self) -> None:
        self.texts = Texts()
        self._all_int = self._all_number = True

    def append(self, text: str) -> None:
        """Take the cell of the next row."""
        self.texts.append(text)
        self._all_int = self._all_int and is_int(text)
        self._all_number = self._all_number and is_number(text)

    def finish(self) -> Column:
        """Return the column: int if every cell is one, else float if every cell is a number, else str."""
        if self._all_int and len(self.texts):
            return Column("int", array("q", map(int, self.texts)))
        if self._all_number and len(self.texts):
            return Column("float", array("d", map(float, self.texts)))
        return Column("str", self.texts)


class JsonColumn:
    """Collects the values of a key of JSON objects; where one lacks it, null."""

    def __init__(self) -> None:
        self.texts = Texts()
        self._kinds: set[str] = set()

    def append(self, value: Any) -> None:
        """Take the value of the next object."""
        self.texts.append(json.dumps(value, ensure_ascii=False))
        self._kinds.add(_kind_of(value))

    def finish(self) -> Column:
        """Return the column: of the kind that all values have, else json."""
        if self._kinds and self._kinds <= {"int", "exact"}:
            return Column("int", array("q", map(int, self.texts)))
        if self._kinds and self._kinds <= {"exact", "float"}:
            return Column("float", array("d", map(float, self.texts)))
        if self._kinds == {"bool"}:
            return Column("bool", array("b", (text == "true" for text in self.texts)), bool)
        if self._kinds == {"str"}:
            return Column("str", Texts(map(json.loads, self.texts)))
        return Column("json", self.texts, _revive)


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        small = "int" if -(2**63) <= value < 2**63 else "json"
        return "exact" if abs(value) <= _EXACT else small
    if isinstance(value, float):
        return "float"
    if isinstance(value, str):
        return "str"
    return "null" if value is None else "json"


def _revive(text: str) -> Any:
    value = json.loads(text)
    canonical_json(value)  # which refuses NaN, as JSON does
    return value


def field_names(columns: Iterable[str], taken: Iterable[str], where: str) -> dict[str, str]:
    """Return the name of the field that each column becomes; raises ConfigError where two would become one.

    Letters become small, everything that a name may not hold ``_``.
    """
    owners = dict.fromkeys(taken, "")
    names: dict[str, str] = {}
    for number, column in enumerate(columns, 1):
        name = re.sub(r"[^a-z0-9]+", "_", column.lower()).lstrip("_")
        if not name or name[0].isdigit():
            name = f"column_{name or number}"
        if name in owners:
            other = f"column {owners[name]!r}" if owners[name] else "what pack makes itself"
            raise ConfigError(f"{where}: column {column!r} becomes field {name!r}, and so does {other}; rename one")
        owners[name], names[column] = column, name
    return names
