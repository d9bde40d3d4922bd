"""Collects columns of a list that hold more than text or numbers: further files, boxes, several labels."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from storeds.ops.packing.sources.base import BadItem, Root, StringArray, path_fault, read_file, show
from storeds.ops.packing.sources.columns import Column, Labels, LabelStyle
from storeds.protocols import Array, Field, Role
from storeds.records.roles import check_boxes

__all__ = ["BoxColumn", "FileColumn", "LabelLists", "OneHot"]

LABELS = Field("array", dtype="<i8", shape=(None,), role="labels")


class FileColumn:
    """Collects the paths of further images, or of masks.

    Parameters
    ----------
    name : str
        The column, for messages.
    root : Root
        The folder that paths are relative to.
    role : str
        ``image`` or ``mask``.
    """

    def __init__(self, name: str, root: Root, role: Role) -> None:
        self._name, self._root, self.role = name, root, role
        self.texts = StringArray()

    def fault(self, value: Any) -> str | None:
        """Return why a value is not the path of a file, or None."""
        if value is None or value == "":
            return f"no path is given in {self._name!r}"
        if not isinstance(value, str):
            return f"its {self._name} is a {type(value).__name__}, not the text of a path"
        fault = path_fault(value) or self._root.path_fault(value)
        return None if fault is None else f"its {self._name} {show(value)}: {fault}"

    def append(self, value: Any) -> None:
        """Add the path of the next row."""
        self.texts.append(value)

    def finish(self) -> Column:
        """Return the column of the bytes in the files."""
        field = Field("image", role=self.role)
        return Column(field, self.texts, partial(_read_below, self._root.path, self._name))


def _read_below(folder: str, name: str, path: str) -> bytes:
    try:
        return read_file(os.path.join(folder, path))
    except BadItem as error:
        raise BadItem(f"its {name} {show(path)} {error}") from None


class BoxColumn:
    """Collects boxes: lists of four numbers, or one such list; in CSV as JSON.

    Parameters
    ----------
    name : str
        The column, for messages.
    field : Field
        How boxes are stored.
    """

    def __init__(self, name: str, field: Field) -> None:
        self._name, self._field = name, field
        self.texts = StringArray()

    def _parse(self, value: Any) -> Array:
        if isinstance(value, str) and value.strip():
            value = json.loads(value)
        if value is None or value == "":
            raise ValueError(f"no boxes are given in {self._name!r}; write [] for an image without boxes")
        if isinstance(value, list) and value and not isinstance(value[0], list):
            value = [value]
        return check_boxes(self._name, value, self._field)

    def fault(self, value: Any) -> str | None:
        """Return why a value is not boxes, or None."""
        try:
            self._parse(value)
        except (RecursionError, json.JSONDecodeError) as error:
            return f"its {self._name} is not JSON: {error}"
        except ValueError as error:
            return str(error)
        return None

    def append(self, value: Any) -> None:
        """Add the boxes of the next row."""
        self.texts.append(json.dumps(self._parse(value).tolist()))

    def finish(self) -> Column:
        """Return the column of arrays of shape (n, 4)."""
        return Column(self._field, self.texts, _load_boxes)


def _load_boxes(text: str) -> Array:
    return np.array(json.loads(text), np.float64).reshape(-1, 4)


def _load_labels(text: str) -> Array:
    return np.array(json.loads(text), np.int64)


class LabelLists:
    """Collects several labels for each row: a list, or text with a separator.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    column : str
        The column, for messages.
    classes, style
        As for `Labels`.
    separator : str or None
        What separates the labels in a text.
    of_boxes : bool
        Whether labels belong to boxes, of which several may have one class.
    """

    def __init__(
        self,
        where: str,
        column: str,
        classes: list[str] | None,
        style: LabelStyle,
        separator: str | None,
        *,
        of_boxes: bool = False,
    ) -> None:
        self._column, self._separator, self._of_boxes = column, separator, of_boxes
        self._labels = Labels(where, classes, style)
        self._counts: list[int] = []

    @property
    def classes(self) -> list[str] | None:
        """The class names, once `finish` has decided what labels are."""
        return self._labels.classes

    def _parse(self, value: Any) -> list[Any]:
        if isinstance(value, str) and self._separator is not None:
            return [text.strip() for text in value.split(self._separator) if text.strip()]
        if value is None and self._separator is not None:
            return []
        if not isinstance(value, list):
            raise ValueError(f"its labels in {self._column!r} are a {type(value).__name__}; expected a list")
        return value

    def fault(self, value: Any) -> str | None:
        """Return why a value is not labels, or None."""
        try:
            labels = self._parse(value)
        except ValueError as error:
            return str(error)
        wrong = next((each for each in labels if isinstance(each, bool) or not isinstance(each, (str, int))), None)
        if wrong is not None:
            return f"one of its labels in {self._column!r} is {wrong!r}; expected class names or whole numbers"
        doubled = next((each for each in labels if labels.count(each) > 1), None)
        if doubled is not None and not self._of_boxes:
            return f"label {doubled!r} is listed twice in {self._column!r}"
        return None

    def append(self, value: Any, place: str) -> None:
        """Add the labels of the next row, which is at `place`."""
        labels = self._parse(value)
        for label in labels:
            self._labels.append(str(label), place)
        self._counts.append(len(labels))

    def finish(self) -> tuple[Column, dict[int, str]]:
        """Return the column of class ids, and the reason for each row with a label that is not valid."""
        numbers, wrong = self._labels.finish()
        texts, faults, start = StringArray(), dict[int, str](), 0
        for row, count in enumerate(self._counts):
            ids = numbers[start : start + count]
            reason = next((wrong[at] for at in range(start, start + count) if at in wrong), None)
            if reason is not None:
                faults[row] = reason
            texts.append(json.dumps(list(ids)))
            start += count
        return Column(LABELS, texts, _load_labels), faults


_CELLS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}


class OneHot:
    """Collects labels from columns with 0 or 1, one for each class.

    Parameters
    ----------
    columns : sequence of str
        The columns. Their names are those of the classes.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.classes: list[str] | None = [name.strip() for name in columns]
        self._texts = StringArray()

    def fault(self, value: Sequence[Any]) -> str | None:
        """Return which cell of a row is neither 0 nor 1, or None."""
        for name, cell in zip(self.columns, value, strict=True):
            if str(cell).strip().lower() not in _CELLS:
                return f"its {name} is {cell!r}; expected 0 or 1"
        return None

    def append(self, value: Sequence[Any], place: str) -> None:
        """Add the cells of the next row."""
        ids = [number for number, cell in enumerate(value) if _CELLS[str(cell).strip().lower()]]
        self._texts.append(json.dumps(ids))

    def finish(self) -> tuple[Column, dict[int, str]]:
        """Return the column of class ids, and no faults."""
        return Column(LABELS, self._texts, _load_labels), {}
