"""Builds the columns of a manifest: little memory for many rows, one kind a column."""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

from storeds._utils.text import counted
from storeds.errors import ConfigError, suggest
from storeds.ops.packing.sources.base import Texts
from storeds.protocols import Kind
from storeds.records.codec import canonical_json

__all__ = [
    "Column",
    "JsonColumn",
    "LabelStyle",
    "Labels",
    "TextColumn",
    "check_classes",
    "class_notes",
    "field_names",
    "is_int",
    "is_number",
]


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


LabelStyle: TypeAlias = Literal["auto", "int", "names"]


def check_classes(classes: Sequence[str] | None, style: str) -> list[str] | None:
    """Return `classes` as a list; raises ConfigError for what are no class names, or an unknown style."""
    if style not in get_args(LabelStyle):
        raise ConfigError(f"label_type={style!r}; {suggest(style, get_args(LabelStyle), 'choices')}")
    if classes is None:
        return None
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise ConfigError(f"classes={classes!r} must be a list of class names")
    names = list(classes)
    doubled = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if doubled or not names:
        raise ConfigError(f"classes: {f'{doubled[0]!r} is there twice' if doubled else 'there is none'}")
    return names


def class_notes(classes: Sequence[str]) -> tuple[str, ...]:
    """Return warnings about class names that are easily mistaken for one another, or for their labels."""
    notes, by_look = [], dict[str, list[str]]()
    for name in classes:
        by_look.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    alike = [names for names in by_look.values() if len(names) > 1]
    if alike:
        shown = "; ".join(", ".join(ascii(name) for name in names) for names in alike[:4])
        notes.append(
            f"{counted(len(alike), 'group')} of classes differ only in capitals, blanks or Unicode form, and stay apart: "
            f"{shown}{' …' if len(alike) > 4 else ''}"
        )
    if classes and all(map(is_int, classes)):
        moved = next((label for label, name in enumerate(classes) if int(name) != label), None)
        if moved is not None and sorted(classes, key=int) != list(classes):
            notes.append(
                "classes are sorted as text, as ImageFolder sorts them, so labels are not the numbers in their names: "
                f"class {classes[moved]!r} is label {moved}"
            )
    return tuple(notes)


def _as_int(text: str) -> int | None:
    """Return the integer that a label is, also one that a table with missing cells wrote as ``3.0``; None for others."""
    text = text.removesuffix(".0")
    return int(text) if is_int(text) else None


class Labels:
    """Collects labels as texts; `finish` decides what they are.

    Parameters
    ----------
    where : str
        What messages call the list.
    classes : list of str or None
        The class names there are, in the order of their labels.
    style : str
        ``int``: labels are integers, also as 3.0; ``names``: they are class names, whatever they look like; ``auto``: all integers,
        or none of them a number.
    """

    def __init__(self, where: str, classes: list[str] | None, style: LabelStyle) -> None:
        self._where, self._given, self._style = where, classes, style
        self._index = {name: label for label, name in enumerate(classes or ())}
        self._texts = Texts()
        self._sorts: dict[str, str] = {}
        self.classes = classes

    def append(self, text: str, place: str) -> None:
        """Take the label of the next row, which lies at `place`."""
        if text not in self._index:
            text = text.strip()
        self._texts.append(text)
        if _as_int(text) is not None:
            sort = "integer"
        else:
            sort = "number" if is_number(text) else "name"
        if self._given is None or text not in self._index:
            self._sorts.setdefault(sort, f"{text!r} at {place}")

    def finish(self) -> tuple[array[int], dict[int, str]]:
        """Return the labels, and the reason for each row that has no valid one; sets `classes`."""
        if self._given is not None:
            return self._look_up()
        style = self._decide() if self._style == "auto" else self._style
        if style == "int":
            faults = {
                row: f"label {text!r} is no integer" for row, text in enumerate(self._texts) if _as_int(text) is None
            }
            return array("q", (_as_int(text) or 0 for text in self._texts)), faults
        self.classes = sorted(set(self._texts))
        self._index = {name: label for label, name in enumerate(self.classes)}
        return array("q", (self._index[text] for text in self._texts)), {}

    def _decide(self) -> str:
        if self._sorts.keys() <= {"integer"}:
            return "int"
        if self._sorts.keys() <= {"name"}:
            return "names"
        # To guess here would be to number the classes anew because of one stray cell among integers.
        found = ", ".join(f"{sort}s such as {example}" for sort, example in sorted(self._sorts.items()))
        raise ConfigError(
            f"{self._where}: labels are {found}; pass label_type='names' (--label-type names) if all are class names, 'int' to "
            "take integers only, classes=[…] to say which there are, or label=False (--no-label) to keep them as another field"
        )

    def _look_up(self) -> tuple[array[int], dict[int, str]]:
        labels, faults = array("q"), dict[int, str]()
        as_index = self._style == "int" or (self._style == "auto" and self._sorts.keys() == {"integer"})
        as_index = as_index and self._none_named()
        for row, text in enumerate(self._texts):
            label = self._label(text, as_index)
            if isinstance(label, str):
                faults[row] = label
            labels.append(label if isinstance(label, int) else 0)
        return labels, faults

    def _none_named(self) -> bool:
        return self._style == "int" or not any(text in self._index for text in self._texts)

    def _label(self, text: str, as_index: bool) -> int | str:
        given = self._given or []
        if not as_index:
            known = self._index.get(text)
            return f"unknown label {text!r}; {suggest(text, given, 'classes')}" if known is None else known
        number = _as_int(text)
        if number is None:
            return f"label {text!r} is no integer"
        return (
            number
            if 0 <= number < len(given)
            else f"label {text} is outside the {counted(len(given), 'class', 'classes')} given"
        )
