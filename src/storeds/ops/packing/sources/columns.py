"""What the columns of lists and tables hold: one kind of value each, class names, labels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from storeds._utils.text import counted
from storeds.errors import ConfigError, suggest
from storeds.ops.packing.rows import BadItem
from storeds.ops.packing.sources.class_names import unique_classes
from storeds.ops.packing.sources.paths import is_int
from storeds.protocols import Field
from storeds.records.fields import canonical_json

__all__ = [
    "LABEL_COLUMNS",
    "LESS_CERTAIN",
    "LabelStyle",
    "check_classes",
    "field_names",
    "json_column",
    "likely_label",
    "no_label",
    "number_labels",
    "text_column",
]


_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][+-]?[0-9]+)?|[+-]?inf|nan", re.I)
_DIGITS = re.compile(r"0|-?[1-9][0-9]*")
_EXACT = 2**53


def _is_number(text: str) -> bool:
    """Whether `text` is a number that a float64 represents."""
    if _DIGITS.fullmatch(text):
        return len(text) < 20 and abs(int(text)) <= _EXACT
    return _FLOAT.fullmatch(text) is not None


def text_column(cells: Sequence[str]) -> tuple[Field, list[Any]]:
    """Return the field and the values of a CSV column: int if every cell is an int64, else float if every one is a number."""
    if all(map(is_int, cells)):
        return Field("int"), list(map(int, cells))
    if all(map(_is_number, cells)):
        return Field("float"), list(map(float, cells))
    return Field("str"), list(cells)


def json_column(values: Sequence[Any]) -> tuple[Field, list[Any]]:
    """Return the field and the values of a key of JSON objects: of the kind that all values have, else json.

    A value that cannot be stored is replaced by a `BadItem`.
    """
    kinds = set(map(_kind_of, values))
    if kinds <= {"int", "exact"}:
        return Field("int"), list(values)
    if kinds <= {"exact", "float"}:
        return Field("float"), list(map(float, values))
    if kinds in ({"bool"}, {"str"}):
        return Field(kinds.pop()), list(values)
    return Field("json"), list(map(_as_json, values))


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        small = "int" if -(2**63) <= value < 2**63 else "json"
        return "exact" if abs(value) <= _EXACT else small
    if isinstance(value, (float, str)):
        return type(value).__name__
    return "json"


def _as_json(value: Any) -> Any:
    try:
        canonical_json(value)
    except ValueError as error:
        return BadItem(f"cannot be stored: {error}")
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
    raise ConfigError(
        f"{where}: columns {listed} all look like labels; choose with label_column= (--option label_column=NAME)"
    )


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


def _sort_of(text: str) -> str:
    if _as_int(text) is not None:
        return "integer"
    return "number" if _is_number(text) else "name"


def number_labels(
    where: str, labels: Sequence[str], lines: Sequence[int], classes: list[str] | None, style: LabelStyle
) -> tuple[list[int | BadItem], list[str] | None]:
    """Return labels as class numbers, with a `BadItem` for each that is not valid, and the class names.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    labels : sequence of str
        Each label as text.
    lines : sequence of int
        The line of each label.
    classes : list of str or None
        The class names in the order of their numbers. None sorts the names that occur.
    style : str
        ``int``: labels are integers, also as 3.0. ``names``: they are class names, whatever they look like. ``auto``: all
        are integers, or none is a number.

    Raises
    ------
    ConfigError
        Without class names, ``auto`` is not certain.
    """
    index = {name: number for number, name in enumerate(classes or ())}
    texts = [text if text in index else text.strip() for text in labels]
    unknown: dict[str, str] = {}  # integer, number or name → the first such label
    for text, line in zip(texts, lines, strict=True):
        if text not in index:
            unknown.setdefault(_sort_of(text), f"{text!r} at {where} line {line}")
    if style == "auto" and classes is None and unknown and unknown.keys() not in ({"integer"}, {"name"}):
        # A guess could renumber all classes because of one stray cell among integers.
        found = ", ".join(f"{sort}s such as {example}" for sort, example in sorted(unknown.items()))
        raise ConfigError(
            f"{where}: labels are {found}; pass label_type='names' (--option label_type=names) if all are class names, 'int' "
            "to accept integers only, classes=[…] (--classes) to list the class names, or label=False (--no-label) to keep "
            "them as another field"
        )
    are_integers = unknown.keys() == {"integer"} and not any(text in index for text in texts)
    if style == "int" or (style == "auto" and (are_integers or not texts)):
        return [_integer(text, classes) for text in texts], classes
    if classes is None:
        classes = sorted(set(texts))
        index = {name: number for number, name in enumerate(classes)}
    return [
        index[text] if text in index else BadItem(f"unknown label {text!r}; {suggest(text, classes, 'classes')}")
        for text in texts
    ], classes


def _integer(text: str, classes: Sequence[str] | None) -> int | BadItem:
    number = _as_int(text)
    if number is None:
        return BadItem(f"label {text!r} is not an integer")
    if classes is not None and not 0 <= number < len(classes):
        return BadItem(f"label {text} is outside the {counted(len(classes), 'class', 'classes')} given")
    return number
