"""The rows of a list of images: `ListRows` collects and checks them, `ListSource` reads their files."""

from __future__ import annotations

import json
import os
import posixpath
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import xxhash

from storeds.errors import ConfigError
from storeds.ops.packing.sources.annotations import FileColumn, LabelLists, OneHot
from storeds.ops.packing.sources.base import (
    BadItem,
    Hidden,
    Problem,
    Root,
    StringArray,
    class_notes,
    file_state,
    is_text,
    path_fault,
    show,
)
from storeds.ops.packing.sources.columns import CaptionColumn, Column, Labels
from storeds.ops.packing.sources.list_columns import AnyLabels, Collector
from storeds.ops.packing.sources.mask_checks import MaskCheck, lossy_notes
from storeds.ops.packing.sources.old_folders import FileList
from storeds.protocols import JSON, Field, Record

__all__ = ["ListRows", "ListSource"]


class ListRows:
    """Collects the rows of a list one by one, and checks them.

    With a `CaptionColumn`, rows of one image that differ only in captions become one item.

    Parameters
    ----------
    place : tuple of str
        What messages put before and after the number of a row: ``("train.csv line ", "")``.
    root : Root
        The folder that paths are relative to.
    labels : Labels, LabelLists, OneHot or None
        Collects the labels, if rows have them.
    label_column : str or None
        The name of the label in messages.
    columns : mapping of str to Collector
        Collect the further columns, by the names of their fields.
    include_hidden : bool
        Include rows whose paths are hidden.
    if_doubled : str
        What messages about a path that is listed twice advise.
    """

    def __init__(
        self,
        place: tuple[str, str],
        root: Root,
        labels: AnyLabels | None,
        label_column: str | None,
        columns: Mapping[str, Collector],
        include_hidden: bool,
        if_doubled: str = "",
    ) -> None:
        self.place, self.root, self.labels, self.label_column = place, root, labels, label_column
        self.columns, self.hidden = columns, Hidden(include=include_hidden)
        self.keys, self.numbers = StringArray(), array("q")
        self.problems: list[Problem] = []
        self.joined = 0  # rows whose captions went to an earlier row
        self._seen: dict[str, int] = {}  # identity → item
        self._if_doubled = if_doubled
        self._captions = {name: each for name, each in columns.items() if isinstance(each, CaptionColumn)}
        self._compared = [name for name, each in columns.items() if name not in self._captions and not _is_image(each)]
        self._others = StringArray()  # the values of these columns and the label of each item

    def add(self, number: int, path: Any, label: Any, rest: Sequence[Any]) -> None:
        """Add row `number`, or report what is wrong with it."""
        fault = self._path_fault(path) or (None if self.labels is None else self._label_fault(label))
        if not fault and not all(map(_is_utf8, rest)):
            fault = "contains text with a lone surrogate, which UTF-8 cannot encode"
        fault = fault or self._rest_fault(rest)
        first = None if fault else self._seen.get(self._identity(path, rest))
        others = self._without_captions(label, rest) if self._captions and not fault else ""
        if first is not None:
            fault = self._doubled(first, others)
        if fault:
            self.report(number, fault, path)
            return
        if self.hidden.skips_path(path):
            return
        if first is not None:
            self._join(first, rest)
            return
        self._seen[self._identity(path, rest)] = len(self.keys)
        self._others.append(others)
        self.keys.append(path.replace(os.sep, "/"))
        self.numbers.append(number)
        if self.labels is not None:
            own = str(label) if isinstance(self.labels, Labels) else label
            self.labels.append(own, f"{self.place[0]}{number}{self.place[1]}")
        for column, value in zip(self.columns.values(), rest, strict=True):
            column.append(value)

    def report(self, number: int, reason: str, path: Any = None) -> None:
        """Report that row `number` is bad."""
        shown = f" ({show(path)})" if isinstance(path, str) and path and len(path) < 4096 else ""
        self.problems.append(Problem(f"{self.place[0]}{number}{self.place[1]}{shown}", reason))

    def _path_fault(self, path: Any) -> str | None:
        if path is None:
            return "no path is given"
        if not isinstance(path, str):
            return f"its path is a {type(path).__name__}, not text"
        return path_fault(path) or self.root.path_fault(path)

    def _rest_fault(self, rest: Sequence[Any]) -> str | None:
        faults = (column.fault(value) for column, value in zip(self.columns.values(), rest, strict=True))
        return next((fault for fault in faults if fault is not None), None)

    def _identity(self, path: str, rest: Sequence[Any]) -> str:
        """Return what two rows must not have in common: the paths of their images."""
        columns = zip(self.columns.values(), rest, strict=True)
        more = (value for column, value in columns if _is_image(column))
        return "\0".join(map(posixpath.normpath, (path, *more)))

    def _without_captions(self, label: Any, rest: Sequence[Any]) -> str:
        """Return the label and the further columns except captions and the paths of images, one a line, as JSON."""
        columns = zip(self.columns, rest, strict=True)
        others = [value for name, value in columns if name in self._compared]
        return "\n".join(json.dumps(value, sort_keys=True) for value in (label, *others))

    def _doubled(self, first: int, others: str) -> str | None:
        """Return why a row cannot be joined to item `first`, which has the same path, or None."""
        fault = f"the path is already listed at {self.place[0]}{self.numbers[first]}{self.place[1]}"
        if not self._captions:
            return fault + self._if_doubled
        names = (self.label_column or "label", *self._compared)
        lines = zip(names, self._others[first].split("\n"), others.split("\n"), strict=True)
        differing = [repr(name) for name, before, now in lines if before != now]
        if not differing:
            return None
        return f"{fault}, with another {' and '.join(differing)}; only rows that differ in captions are joined"

    def _join(self, first: int, rest: Sequence[Any]) -> None:
        """Add the captions of a row to those of item `first`."""
        self.joined += 1
        for name, value in zip(self.columns, rest, strict=True):
            if name in self._captions:
                self._captions[name].join(first, value)

    def _label_fault(self, label: Any) -> str | None:
        if isinstance(self.labels, (LabelLists, OneHot)):
            return self.labels.fault(label)
        if label is None or (isinstance(label, str) and not label.strip()):
            return f"no label is given in {self.label_column!r}"
        if isinstance(label, bool) or not isinstance(label, (str, int, float)):
            return f"its label is a {type(label).__name__}; expected an integer or a class name"
        return None if is_text(str(label)) else "its label is not valid UTF-8"


def _is_image(column: Collector) -> bool:
    return isinstance(column, FileColumn) and column.role == "image"


def _is_utf8(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        value = json.dumps(value, ensure_ascii=False)
    return not isinstance(value, str) or is_text(value)


class ListSource(FileList):
    """The images of a list, with the numbers of their rows and further columns.

    Parameters
    ----------
    rows : ListRows
        All rows of the list.
    kind, file : str
        The kind of the source, and the file of the list.
    attrs : mapping
        Further attributes.
    image : str
        The field of the images.
    texts : collection of str
        The fields with the role ``text``.
    check : MaskCheck
        Checks masks.
    """

    def __init__(
        self,
        rows: ListRows,
        kind: str,
        file: str,
        attrs: Mapping[str, JSON],
        *,
        image: str = "image",
        texts: Collection[str] = (),
        check: MaskCheck | None = None,
    ) -> None:
        super().__init__(rows.root.path, has_labels=isinstance(rows.labels, Labels))
        finished = {name: column.finish() for name, column in rows.columns.items()}
        labels, faults = None, dict[int, str]()
        if isinstance(rows.labels, Labels):
            labels, faults = rows.labels.finish()
        elif rows.labels is not None:
            finished["labels"], faults = rows.labels.finish()
        for row, reason in faults.items():
            rows.report(rows.numbers[row], reason, rows.keys[row])
        good = [row for row in range(len(rows.keys)) if row not in faults]
        if not good and not rows.problems:
            raise ConfigError(f"{file} lists no image{''.join(f'; {note}' for note in rows.hidden.notes())}")
        self._columns: dict[str, Column] = {
            name: column.select(good) if faults else column for name, column in finished.items()
        }
        pictures = [name for name, column in rows.columns.items() if isinstance(column, FileColumn)]
        for at, row in enumerate(good):
            key = rows.keys[row]
            state = file_state(os.path.join(self._root, key))
            self._add([(key, *state)], -1 if labels is None else labels[row])
            for name in pictures:
                path = self._columns[name].raw(at)
                size, mtime = file_state(os.path.join(self._root, path))
                self._fingerprint.add(path, size, mtime)
                self._sizes[-1] += size
        self._place, self._numbers = rows.place, array("q", (rows.numbers[row] for row in good))
        self._image, self._check = image, check or MaskCheck()
        self._masks = [name for name in pictures if self._columns[name].field.role == "mask"]
        self.fields = self._declare(pictures, texts)
        with open(file, "rb") as opened:
            self._fingerprint.add(xxhash.xxh3_128_hexdigest(opened.read()))
        self._finish(kind)
        classes = None if rows.labels is None else rows.labels.classes
        named: list[JSON] = list(classes or ())
        self.attrs = {**({"classes": named} if classes is not None else {}), **attrs}
        self.problems = tuple(rows.problems)
        self.notes = (*class_notes(classes or ()), *rows.hidden.notes(), *self._lossy())

    def _declare(self, pictures: Sequence[str], texts: Collection[str]) -> dict[str, Field]:
        """Return the fields in order: pictures, labels, key, other columns."""
        columns = {name: column.field for name, column in self._columns.items()}
        columns |= {name: replace(columns[name], role="text") for name in texts}
        # A list without any other role keeps its declaration, and its store the id of earlier versions.
        has_roles = any(field.role for field in columns.values())
        own = {name: field for name, field in self.fields.items() if name in ("label", "key")}
        if has_roles and "label" in own:
            own["label"] = Field("int", role="label")
        first = {self._image: Field("image", role="image") if has_roles else Field("image")}
        several = {name: columns[name] for name in ("labels",) if columns.get(name, Field("str")).role == "labels"}
        return {**first, **{name: columns[name] for name in pictures}, **several, **own, **columns}

    def _lossy(self) -> Iterator[str]:
        for name in self._masks:
            paths = (self._columns[name].raw(at) for at in range(len(self)))
            yield from lossy_notes(list(paths))

    def name(self, index: int, /) -> str:
        # docstring inherited
        before, after = self._place
        return f"{before}{self._numbers[index]}{after} ({show(self._keys[index])})"

    def read(self, index: int, /) -> Record:
        # docstring inherited
        record = super().read(index)
        record[self._image] = record.pop("image")
        for name, column in self._columns.items():
            try:
                record[name] = column[index]
            except ValueError as error:
                raise BadItem(f"its {name} cannot be stored: {error}") from None
        for name in self._masks:
            path = self._columns[name].raw(index)
            fault = self._check.fault(record[name], path)
            if fault is not None:
                raise BadItem(f"its mask {show(path)} {fault}")
        return {name: record[name] for name in self.fields}
