"""The columns and labels of a manifest: little memory for many rows, and one kind per column."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from storeds._utils.text import counted
from storeds.errors import ConfigError, suggest
from storeds.ops.packing.sources.base import StringArray, is_int
from storeds.ops.packing.sources.class_names import unique_classes
from storeds.protocols import Field
from storeds.records.fields import canonical_json

__all__ = [
    "LABEL_COLUMNS",
    "LESS_CERTAIN",
    "CaptionColumn",
    "Column",
    "JsonColumn",
    "LabelStyle",
    "Labels",
    "TextColumn",
    "check_classes",
    "field_names",
    "likely_label",
    "no_label",
]


_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][+-]?[0-9]+)?|[+-]?inf|nan", re.I)
_DIGITS = re.compile(r"0|-?[1-9][0-9]*")
_EXACT = 2**53


def _is_number(text: str) -> bool:
    """Whether `text` is a number that a float64 represents."""
    if _DIGITS.fullmatch(text):
        return len(text) < 20 and abs(int(text)) <= _EXACT
    return _FLOAT.fullmatch(text) is not None


class Column:
    """A finished column: its field, and its values by row."""

    def __init__(self, field: Field, values: Sequence[Any], load: Callable[[Any], Any] | None = None) -> None:
        self.field = field
        self._values, self._load = values, load

    def raw(self, index: int) -> Any:
        """Return what is kept for a value, such as the path of a file."""
        return self._values[index]

    def __getitem__(self, index: int) -> Any:
        value = self._values[index]
        return value if self._load is None else self._load(value)

    def select(self, rows: Sequence[int]) -> Column:
        """Return the column with only these rows."""
        values, chosen = self._values, (self._values[row] for row in rows)
        selected = array(values.typecode, chosen) if isinstance(values, array) else StringArray(chosen)
        return Column(self.field, selected, self._load)


class TextColumn:
    """Collects the cells of a CSV column."""

    def __init__(self) -> None:
        self.texts = StringArray()
        self._all_int = self._all_number = True

    def fault(self, text: str) -> str | None:
        """Return None: every cell is valid."""
        return None

    def append(self, text: str) -> None:
        """Add the cell of the next row."""
        self.texts.append(text)
        self._all_int = self._all_int and is_int(text)
        self._all_number = self._all_number and _is_number(text)

    def finish(self) -> Column:
        """Return the column: int if every cell is an int, else float if every cell is a number, else str."""
        if self._all_int and len(self.texts):
            return Column(Field("int"), array("q", map(int, self.texts)))
        if self._all_number and len(self.texts):
            return Column(Field("float"), array("d", map(float, self.texts)))
        return Column(Field("str"), self.texts)


class JsonColumn:
    """Collects the values of a key of JSON objects; a missing key counts as null."""

    def __init__(self) -> None:
        self.texts = StringArray()
        self._kinds: set[str] = set()

    def fault(self, value: Any) -> str | None:
        """Return None: every value is valid."""
        return None

    def append(self, value: Any) -> None:
        """Add the value of the next object."""
        self.texts.append(json.dumps(value, ensure_ascii=False))
        self._kinds.add(_kind_of(value))

    def finish(self) -> Column:
        """Return the column: of the kind that all values have, else json."""
        if self._kinds and self._kinds <= {"int", "exact"}:
            return Column(Field("int"), array("q", map(int, self.texts)))
        if self._kinds and self._kinds <= {"exact", "float"}:
            return Column(Field("float"), array("d", map(float, self.texts)))
        if self._kinds == {"bool"}:
            return Column(Field("bool"), array("b", (text == "true" for text in self.texts)), bool)
        if self._kinds == {"str"}:
            return Column(Field("str"), StringArray(map(json.loads, self.texts)))
        return Column(Field("json"), self.texts, _load_json)


class CaptionColumn:
    """Collects captions. If an image has several rows, the captions of each image become a list.

    Parameters
    ----------
    name : str
        The column, for messages.
    each : TextColumn or JsonColumn
        Collects the captions of all rows.
    """

    def __init__(self, name: str, each: TextColumn | JsonColumn) -> None:
        self._name, self._each = name, each
        self._items = array("q")  # the item of each row: rows of one image need not follow each other
        self._count = 0

    def fault(self, value: Any) -> str | None:
        """Return why a value is not captions, or None."""
        wrong = [text for text in _as_list(value) if not isinstance(text, str)]
        return f"its {self._name} contains {wrong[0]!r:.80}; expected text, or a list of texts" if wrong else None

    def append(self, value: Any) -> None:
        """Add the captions of the next item."""
        self.join(self._count, value)
        self._count += 1

    def join(self, item: int, value: Any) -> None:
        """Add the captions of a further row of an item."""
        self._each.append(value)
        self._items.append(item)

    def finish(self) -> Column:
        """Return the column: lists of texts in the order of the rows, or what `each` returns if every item has one row."""
        if len(self._items) == self._count:
            return self._each.finish()
        texts = self._each.texts
        values: Iterable[Any] = texts if isinstance(self._each, TextColumn) else map(json.loads, texts)
        lists: list[list[str]] = [[] for _ in range(self._count)]
        for item, value in zip(self._items, values, strict=True):
            lists[item] += _as_list(value)
        joined = StringArray(json.dumps(each, ensure_ascii=False) for each in lists)
        return Column(Field("json"), joined, _load_json)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


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


def _load_json(text: str) -> Any:
    value = json.loads(text)
    canonical_json(value)  # rejects NaN, which JSON does not have
    return value


def field_names(columns: Iterable[str], taken: Iterable[str], where: str) -> dict[str, str]:
    """Return the field name for each column: in lower case, with ``_`` for every character that a name cannot contain.

    Raises
    ------
    ConfigError
        Two columns would become the same field.
    """
    owners = dict.fromkeys(taken, "")
    names: dict[str, str] = {}
    for number, column in enumerate(columns, 1):
        name = re.sub(r"[^a-z0-9]+", "_", column.lower()).lstrip("_")
        if not name or name[0].isdigit():
            name = f"column_{name or number}"
        if name in owners:
            other = f"column {owners[name]!r}" if owners[name] else "a field that pack adds"
            raise ConfigError(f"{where}: column {column!r} becomes field {name!r}, and so does {other}; rename one")
        owners[name], names[column] = column, name
    return names


LABEL_COLUMNS = ("label", "class", "target")
# Used if none of LABEL_COLUMNS and exactly one of these exists.
LESS_CERTAIN = (
    "labels",
    "classes",
    "targets",
    "category",
    "class_name",
    "class_id",
    "class_idx",
    "class_index",
    "label_name",
    "label_id",
    "label_idx",
    "category_name",
    "category_id",
)


def likely_label(where: str, named: Mapping[str, str], likely: Sequence[str]) -> str | None:
    """Return the column that contains labels, or None; `named` are columns by their names in lower case.

    Raises
    ------
    ConfigError
        None has a name of LABEL_COLUMNS, and there are several `likely` ones.
    """
    certain = next((named[name] for name in LABEL_COLUMNS if name in named), None)
    if certain is not None or len(likely) < 2:
        return certain or next(iter(likely), None)
    listed = ", ".join(map(repr, likely))
    raise ConfigError(f"{where}: columns {listed} all look like labels; choose with label_column= (--label-column)")


def no_label(where: str, what: str, beside: str, others: Sequence[str], say: str, also: str = "") -> ConfigError:
    """Return the error that no column, or whatever `what` is, looks like labels, and what to do."""
    return ConfigError(
        f"{where}: no {what} looks like labels ({also}{', '.join(LABEL_COLUMNS)}); beside the {beside} there "
        f"{'is' if len(others) == 1 else 'are'} {', '.join(map(repr, others[:20]))}; {say}, or pass label=False "
        "(--no-label) to pack without labels"
    )


LabelStyle: TypeAlias = Literal["auto", "int", "names"]


def check_classes(classes: Sequence[str] | os.PathLike[str] | None, style: str = "auto") -> list[str] | None:
    """Return `classes` as a list, read from a file if they are a path.

    Raises
    ------
    ConfigError
        They are not class names, or the style is unknown.
    """
    if style not in get_args(LabelStyle):
        raise ConfigError(f"label_type={style!r}; {suggest(style, get_args(LabelStyle), 'choices')}")
    return unique_classes(classes)


def _as_int(text: str) -> int | None:
    """Return a label as an integer, or None. A table with missing cells writes integers as ``3.0``."""
    text = text.removesuffix(".0")
    return int(text) if is_int(text) else None


class Labels:
    """Collects labels as text. `finish` decides what they are.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    classes : list of str or None
        The class names in the order of their labels.
    style : str
        ``int``: labels are integers, also as 3.0. ``names``: they are class names, whatever they look like. ``auto``: all
        are integers, or none is a number.
    """

    def __init__(self, where: str, classes: list[str] | None, style: LabelStyle) -> None:
        self._where, self._given, self._style = where, classes, style
        self._index = {name: label for label, name in enumerate(classes or ())}
        self._texts = StringArray()
        self._examples: dict[str, str] = {}  # integer, number or name → the first such label
        self.classes = classes

    def append(self, text: str, place: str) -> None:
        """Add the label of the next row, which is at `place`."""
        if text not in self._index:
            text = text.strip()
        self._texts.append(text)
        if _as_int(text) is not None:
            sort = "integer"
        else:
            sort = "number" if _is_number(text) else "name"
        if self._given is None or text not in self._index:
            self._examples.setdefault(sort, f"{text!r} at {place}")

    def finish(self) -> tuple[array[int], dict[int, str]]:
        """Return the labels, and the reason for each row without a valid one; sets `classes`."""
        if self._given is not None:
            return self._look_up(self._given)
        style = self._decide() if self._style == "auto" else self._style
        if style == "int":
            faults = {
                row: f"label {text!r} is not an integer"
                for row, text in enumerate(self._texts)
                if _as_int(text) is None
            }
            return array("q", (_as_int(text) or 0 for text in self._texts)), faults
        self.classes = sorted(set(self._texts))
        self._index = {name: label for label, name in enumerate(self.classes)}
        return array("q", (self._index[text] for text in self._texts)), {}

    def _decide(self) -> str:
        if self._examples.keys() <= {"integer"}:
            return "int"
        if self._examples.keys() <= {"name"}:
            return "names"
        # A guess could renumber all classes because of one stray cell among integers.
        found = ", ".join(f"{sort}s such as {example}" for sort, example in sorted(self._examples.items()))
        raise ConfigError(
            f"{self._where}: labels are {found}; pass label_type='names' (--label-type names) if all are class names, 'int' "
            "to accept integers only, classes=[…] to list the class names, or label=False (--no-label) to keep them as "
            "another field"
        )

    def _look_up(self, classes: list[str]) -> tuple[array[int], dict[int, str]]:
        labels, faults = array("q"), dict[int, str]()
        named = any(text in self._index for text in self._texts)
        integers = self._style == "auto" and self._examples.keys() == {"integer"} and not named
        for row, text in enumerate(self._texts):
            label = self._label(text, classes, as_int=integers or self._style == "int")
            if isinstance(label, str):
                faults[row] = label
            labels.append(label if isinstance(label, int) else 0)
        return labels, faults

    def _label(self, text: str, classes: list[str], *, as_int: bool) -> int | str:
        """Return the label, or why it is not valid."""
        if not as_int:
            known = self._index.get(text)
            return f"unknown label {text!r}; {suggest(text, classes, 'classes')}" if known is None else known
        number = _as_int(text)
        if number is None:
            return f"label {text!r} is not an integer"
        if 0 <= number < len(classes):
            return number
        return f"label {text} is outside the {counted(len(classes), 'class', 'classes')} given"
