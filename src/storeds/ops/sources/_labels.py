"""Turns the labels of a list into integers, and says which class names they stand for."""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from storeds._suggest import suggest
from storeds._text import counted
from storeds.errors import ConfigError
from storeds.ops.sources._packed import Texts
from storeds.ops.sources._table import is_int, is_number

__all__ = ["LabelStyle", "Labels", "check_classes", "class_notes"]

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
