"""What sources made from a list of paths have in common: checks of each row, labels, further columns, reading."""

from __future__ import annotations

import json
import os
import posixpath
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import xxhash

from storeds.errors import ConfigError
from storeds.ops.sources._hidden import Hidden
from storeds.ops.sources._labels import Labels, class_notes
from storeds.ops.sources._packed import Fingerprint, Texts
from storeds.ops.sources._paths import Root, file_state, is_text, show, text_fault
from storeds.ops.sources._table import Column, JsonColumn, TextColumn
from storeds.ops.sources.base import BadItem, Problem, read_file
from storeds.protocols import JSON, Field, Record

__all__ = ["Listing", "ListingBuilder"]


class ListingBuilder:
    """Takes rows one by one and checks them.

    Parameters
    ----------
    place : tuple of str
        What messages put before and after the number of a row: ``("train.csv line ", "")``.
    root : Root
        Where the paths begin.
    labels : Labels or None
        Collects the labels, if rows have them.
    label_column : str or None
        What messages call the label.
    columns : mapping of str to TextColumn or JsonColumn
        Collect the further columns, by the names of their fields.
    hidden : Hidden
        Leaves out rows whose paths are hidden.
    """

    def __init__(
        self,
        place: tuple[str, str],
        root: Root,
        labels: Labels | None,
        label_column: str | None,
        columns: Mapping[str, TextColumn | JsonColumn],
        hidden: Hidden,
    ) -> None:
        self.place, self.root, self.labels, self.label_column = place, root, labels, label_column
        self.columns, self.hidden = columns, hidden
        self.keys, self.numbers, self.sizes = Texts(), array("q"), array("q")
        self.fingerprint = Fingerprint()
        self.problems: list[Problem] = []
        self._rows: dict[str, int] = {}

    def add(self, number: int, path: Any, label: Any, rest: Iterable[Any]) -> None:
        """Take row `number`, or tell what is wrong with it."""
        text = None if self.labels is None else _label_text(label)
        rest = list(rest)
        fault = self._path_fault(path) or (None if self.labels is None else self._label_fault(label))
        fault = fault or (
            None if all(map(_is_kept, rest)) else "holds text with a lone surrogate, which has no UTF-8 form"
        )
        if fault:
            self.tell(number, fault, path)
            return
        if self.hidden.listed(path):
            return
        key = path.replace(os.sep, "/")
        size, mtime = file_state(os.path.join(self.root.path, path))
        self._rows[posixpath.normpath(path)] = number
        self.keys.append(key)
        self.numbers.append(number)
        self.sizes.append(size)
        self.fingerprint.add(key, size, mtime)
        if self.labels is not None and text is not None:
            self.labels.append(text, self._place(number))
        for column, value in zip(self.columns.values(), rest, strict=True):
            column.append(value)

    def tell(self, number: int, reason: str, path: Any = None) -> None:
        """Note that row `number` is bad."""
        shown = f" ({show(path)})" if isinstance(path, str) and path and len(path) < 4096 else ""
        self.problems.append(Problem(self._place(number) + shown, reason))

    def _place(self, number: int) -> str:
        return f"{self.place[0]}{number}{self.place[1]}"

    def _path_fault(self, path: Any) -> str | None:
        if path is None:
            return "no path is given"
        if not isinstance(path, str):
            return f"its path is a {type(path).__name__}, no text"
        fault = text_fault(path) or self.root.path_fault(path)
        first = None if fault else self._rows.get(posixpath.normpath(path))
        return fault if first is None else f"the path is listed already at {self._place(first)}"

    def _label_fault(self, label: Any) -> str | None:
        if label is None or (isinstance(label, str) and not label.strip()):
            return f"no label is given in {self.label_column!r}"
        text = _label_text(label)
        if text is None:
            return f"its label is a {type(label).__name__}; expected an integer or a class name"
        return None if is_text(text) else "its label is no valid UTF-8"


def _label_text(label: Any) -> str | None:
    if isinstance(label, str):
        return label
    return str(label) if isinstance(label, (int, float)) and not isinstance(label, bool) else None


def _is_kept(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        value = json.dumps(value, ensure_ascii=False)
    return not isinstance(value, str) or is_text(value)


class Listing:
    """A `PackSource` of what a `ListingBuilder` took."""

    def _adopt(self, built: ListingBuilder, kind: str, file: str, attrs: Mapping[str, JSON]) -> None:
        self._root, self._place = built.root.path, built.place
        self._keys, self._numbers, self._sizes = built.keys, built.numbers, built.sizes
        self._columns: dict[str, Column] = {name: column.finish() for name, column in built.columns.items()}
        self._labels: array[int] | None = None
        faults: dict[int, str] = {}
        if built.labels is not None:
            self._labels, faults = built.labels.finish()
        for row, reason in faults.items():
            built.tell(self._numbers[row], reason, self._keys[row])
        # Rows that turned out bad stay where they are in the columns; this says where the others lie.
        self._rows = array("q", (row for row in range(len(self._keys)) if row not in faults))
        self.problems: Sequence[Problem] = tuple(built.problems)
        if not len(self) and not self.problems:
            raise ConfigError(f"{file} lists no image{''.join(f'; {note}' for note in built.hidden.notes())}")
        for label in self._labels or ():
            built.fingerprint.add("", label)
        with open(file, "rb") as opened:
            built.fingerprint.add(xxhash.xxh3_128_hexdigest(opened.read()))
        self.fingerprint: JSON = built.fingerprint.finish(kind, len(self))
        classes = built.labels.classes if built.labels is not None else None
        self.notes: Sequence[str] = (*class_notes(classes or ()), *built.hidden.notes())
        named: list[JSON] = list(classes or ())
        self.attrs: Mapping[str, JSON] = {**({"classes": named} if classes is not None else {}), **attrs}

    @property
    def fields(self) -> Mapping[str, Field]:
        # docstring inherited
        label = {"label": Field("int")} if self._labels is not None else {}
        rest = {name: Field(column.kind) for name, column in self._columns.items()}
        return {"image": Field("image"), **label, "key": Field("str"), **rest}

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int, /) -> str:
        # docstring inherited
        row = self._rows[index]
        before, after = self._place
        return f"{before}{self._numbers[row]}{after} ({show(self._keys[row])})"

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[self._rows[index]]

    def strata(self) -> Iterator[tuple[str, int | None]]:
        """Yield the key and the label of each item."""
        for row in self._rows:
            yield self._keys[row], None if self._labels is None else self._labels[row]

    def read(self, index: int, /) -> Record:
        # docstring inherited
        row = self._rows[index]
        key = self._keys[row]
        record: Record = {"image": read_file(os.path.join(self._root, key))}
        if self._labels is not None:
            record["label"] = self._labels[row]
        record["key"] = key
        for name, column in self._columns.items():
            try:
                record[name] = column[row]
            except ValueError as error:
                raise BadItem(f"its {name} cannot be kept: {error}") from None
        return record
