"""Sources for lists of images with labels and further columns: CSV and JSONL."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, starmap
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from storeds.errors import ConfigError, StoreNotFoundError
from storeds.formats.format import Format
from storeds.formats.lines import Line, csv_lines, jsonl_lines, open_text
from storeds.formats.purposes import Purpose, choose_purposes
from storeds.layouts.files.class_names import unique_classes
from storeds.layouts.files.folders import class_notes
from storeds.layouts.files.masks import MaskFile
from storeds.layouts.files.rows import Bad, BadItem, Row, Rows, from_start
from storeds.layouts.files.walk import Root, names_of, show
from storeds.protocols import JSON, Field
from storeds.values.classes import number_labels
from storeds.values.columns import name_columns
from storeds.values.infer import fit
from storeds.values.text import values_of_cells

__all__ = ["CSV", "JSONL", "csv", "jsonl", "rows_of_list"]

_PEEKED = 64  # lines that show what columns hold


def rows_of_list(
    kind: Literal["csv", "jsonl"],
    path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    path_column: str | None = None,
    image_columns: Sequence[str] | str | None = None,
    mask_columns: Sequence[str] | str | None = None,
    ignore_index: int | None = None,
    caption_columns: Sequence[str] | str | None = None,
    label_column: str | None = None,
    label: bool = True,
    label_separator: str | None = None,
    classes: Sequence[str] | os.PathLike[str] | None = None,
    columns: Sequence[str] | str | None = None,
    delimiter: str | None = None,
    skipinitialspace: bool = False,
    encoding: str = "utf-8-sig",
    allow_outside: bool = False,
) -> Rows:
    r"""Rows of a CSV or JSONL file with one line per image.

    Parameters
    ----------
    kind : str
        ``csv`` or ``jsonl``.
    path : path
        The file.
    root : path, optional
        The folder that paths are relative to; by default the folder of the file.
    path_column : str, optional
        The default is the first of ``path``, ``image``, ``file``, ``filename`` and similar that exists. The path becomes the
        record's ``key``.
    image_columns : sequence of str, optional
        Instead of `path_column`, several columns of images, each of which becomes a field of its own name. The path in the
        first is the key.
    mask_columns : sequence of str, optional
        Columns of masks; a single one becomes the field ``mask``. The default is a column named ``mask``, ``mask_path``,
        ``mask_file`` or similar whose cells are paths of images. Without labels, `classes` names the class ids of masks.
    ignore_index : int, optional
        The class id in masks that needs no name, 255 by default. It goes to ``attrs["ignore_index"]``.
    caption_columns : sequence of str, optional
        Columns of text that get the role ``text``: a caption, or in JSONL a list of captions. The default is those named
        ``caption``, ``text`` or ``description``, if no column looks like labels.
    label_column : str, optional
        The default is the first of ``label``, ``class`` and ``target`` that exists, or the only one of ``category``,
        ``class_id`` and similar.
    label : bool
        False to pack without labels. This is required if there are columns beside the paths and none looks like a label:
        packing without labels by accident would make the store useless for training.
    label_separator : str, optional
        What separates several labels in one cell. They become the field ``labels``, int64 of shape (n,), as do the lists
        of a JSONL file.
    classes : sequence of str or path, optional
        The class names in the order of their labels, or the path of a file of them. A label that is not among them is a
        bad item. By default, integers stay as they are, class names are sorted and numbered, and a mixture is an error.
    columns : sequence of str, optional
        The column names of a CSV file without a header.
    delimiter : str, optional
        Of the CSV file; by default a tab in a file named ``.tsv``, else a comma. ``\t`` is a tab.
    skipinitialspace : bool
        Leave out spaces after a delimiter.
    encoding : str
        The default is UTF-8, with or without a byte order mark.
    allow_outside : bool
        Allow paths that leave `root`: through ``..``, as absolute paths, or through a link.

    Notes
    -----
    Further columns become fields. A CSV column is int if every cell is the text of an int64, else float if every cell is
    a number, else str. A JSONL key has the kind of its values; with different kinds, or if an object lacks the key (it
    counts as null), it is json.

    Raises
    ------
    StoreNotFoundError
        The file does not exist.
    ConfigError
        It is not in this encoding, it has no column of paths, or its columns or labels are ambiguous.
    """
    file = os.fspath(path)
    where = show(os.path.basename(file))
    if root is not None and not os.path.isdir(root):
        raise StoreNotFoundError(f"root={os.fspath(root)!r} is not a folder")
    if image_columns is not None and path_column is not None:
        raise ConfigError(f"{where}: leave out path_column; the path is in the first of image_columns")
    given = unique_classes(classes)
    opened = open_text(file, encoding)
    if kind == "csv":
        mark = delimiter or ("\t" if file.lower().endswith(".tsv") else ",")
        dialect = {"delimiter": mark.replace(r"\t", "\t"), "skipinitialspace": skipinitialspace}
        names, lines = csv_lines(opened, where, names_of(columns), **dialect)
    elif (columns, delimiter, skipinitialspace) == (None, None, False):
        names, lines = jsonl_lines(opened)
    else:
        raise ConfigError(f"{where}: columns, delimiter and skipinitialspace are for CSV")
    if not names:
        raise ConfigError(f"{where} has no columns; expected a line of their names, or a JSON object for each image")
    purposes, notes = choose_purposes(
        where,
        names,
        [cells for _, cells in lines if not isinstance(cells, str)][:_PEEKED],
        image_columns=image_columns if path_column is None else [path_column],
        mask_columns=mask_columns,
        caption_columns=caption_columns,
        label_column=label_column,
        label=label,
    )
    labels = _labels_of(where, names, purposes, lines, label_separator)
    parts, renamed = _columns_of(names, purposes, several=labels is not None and labels.several)
    names_masks = labels is None and "mask" in purposes.values()
    listed = _List(
        where,
        parts,
        Root(os.path.dirname(os.path.abspath(file)) if root is None else root, allow_outside=allow_outside),
        labels,
        (len(given) if names_masks and given else None, ignore_index),
    )
    items = list(starmap(listed.item, lines))
    if not items:
        raise ConfigError(f"{where} lists no image")
    found = listed.convert(items, values_of_cells if kind == "csv" else list, given)
    named = given if names_masks else found.classes
    attrs: dict[str, JSON] = {} if named is None else {"classes": list(named)}
    attrs |= {} if ignore_index is None else {"ignore_index": ignore_index}

    def rows() -> Iterator[Row | Bad]:
        for item in found.items:
            yield item if isinstance(item, Bad) else listed.row(*item)

    return Rows(
        fields=found.fields,
        attrs={**attrs, "source": {"kind": kind, "file": where}},
        items=from_start(rows),
        columns={
            name: field for name, _, purpose, field in sorted(parts, key=lambda each: each.at) if purpose != "key"
        },
        notes=[*class_notes(found.classes or ()), *notes, *renamed, *found.notes],
    )


csv = partial(rows_of_list, "csv")
jsonl = partial(rows_of_list, "jsonl")


class _Column(NamedTuple):
    """A column of a list, its place in a line, its purpose, and the field that it becomes."""

    name: str
    at: int
    purpose: Purpose | Literal["key"] | None
    field: str


def _columns_of(
    names: Sequence[str], purposes: Mapping[str, Purpose], several: bool
) -> tuple[list[_Column], list[str]]:
    """Return the columns in the order of fields: pictures, labels, the key, others; and notes about names.

    The first has the paths that are the keys. It becomes two fields.
    """
    fields: dict[str, str] = {}
    for purpose in ("image", "mask", "label"):
        if len(found := [name for name, each in purposes.items() if each == purpose]) == 1:
            fields[found[0]] = "labels" if purpose == "label" and several else purpose
    notes: list[str] = []
    pictures = [name for name, purpose in purposes.items() if purpose in ("image", "mask")]
    for group in (pictures, names):  # pictures get the names that they want
        added, renamed = name_columns([name for name in group if name not in fields], ("key", *fields.values()))
        fields |= added
        notes += renamed
    key = next(iter(purposes))
    columns = [_Column(name, at, purposes.get(name), fields[name]) for at, name in enumerate(names)]
    columns.append(_Column(key, names.index(key), "key", "key"))
    ranks = {"image": 1, "mask": 1, "label": 2, "key": 3}
    return sorted(columns, key=lambda each: 0 if each.field == fields[key] else ranks.get(str(each.purpose), 4)), notes


@dataclass(frozen=True)
class _Labels:
    """Reads the labels in the cells of one column.

    Parameters
    ----------
    name : str
        The column.
    several : bool
        Whether each cell has several labels.
    separator : str or None
        What separates them in a text.
    """

    name: str
    several: bool
    separator: str | None

    def texts(self, cell: Any) -> list[str]:
        """Return the labels in a cell; raises `BadItem`."""
        if self.separator is not None and (cell is None or isinstance(cell, str)):
            cell = [text.strip() for text in (cell or "").split(self.separator) if text.strip()]
        elif not self.several:
            if cell is None or (isinstance(cell, str) and not cell.strip()):
                raise BadItem(f"no label is given in {self.name!r}")
            cell = [str(cell) if isinstance(cell, float) else cell]
        if not isinstance(cell, list) or not all(type(label) in (str, int) for label in cell):
            raise BadItem(
                f"{self.name!r} has {cell!r:.80}; a label is a class name or a whole number, and several are a list"
            )
        return [sys.intern(str(label)) for label in cell]

    def numbers(
        self, where: str, lines: Sequence[int], labels: Sequence[list[str]], classes: list[str] | None
    ) -> tuple[list[Any], list[str] | None]:
        """Return the class number or numbers for the labels of each line, or a ValueError; and the class names."""
        places = [line for line, texts in zip(lines, labels, strict=True) for _ in texts]
        numbers, classes = number_labels(where, [text for texts in labels for text in texts], places, classes)
        rest = iter(numbers)
        return [self._value(list(islice(rest, len(texts)))) for texts in labels], classes

    def _value(self, numbers: list[int | ValueError]) -> Any:
        fault = next((number for number in numbers if isinstance(number, ValueError)), None)
        if fault is not None:
            return fault
        return np.array(numbers, np.int64) if self.several else numbers[0]


def _labels_of(
    where: str, names: Sequence[str], purposes: Mapping[str, Purpose], lines: Sequence[Line], separator: str | None
) -> _Labels | None:
    """Return what reads the column of labels, if there is one."""
    name = next((name for name, purpose in purposes.items() if purpose == "label"), None)
    if separator is not None and not (separator and name):
        raise ConfigError(f"{where}: label_separator={separator!r} needs a column of labels, and text between two")
    if name is None:
        return None
    at = names.index(name)
    given = (cells[at] for _, cells in lines if isinstance(cells, list) and cells[at] is not None)
    return _Labels(name, separator is not None or isinstance(next(given, None), list), separator)


_Item: TypeAlias = Bad | tuple[int, list[Any]]
"""What is wrong with a line, or its number and its cells."""


class _Converted(NamedTuple):
    """The lines of a list with their values, and what was learned from all of them."""

    items: list[_Item]
    fields: dict[str, Field]
    classes: list[str] | None
    notes: list[str]


class _List:
    """Checks the lines of a list, converts its columns, and makes rows.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    columns : list of _Column
        That of the keys first.
    root : Root
    labels : _Labels or None
    masks : (int or None, int or None)
        The number of classes that masks name, and the id that needs no name.
    """

    def __init__(
        self,
        where: str,
        columns: list[_Column],
        root: Root,
        labels: _Labels | None,
        masks: tuple[int | None, int | None],
    ) -> None:
        self._where, self._root, self._labels, self._masks = where, root, labels, masks
        self._columns, self._key = columns, columns[0]
        of = {purpose: [each for each in columns if each.purpose == purpose] for purpose in ("image", "mask", "label")}
        self._images, self._paths, self._label = of["image"], [*of["image"], *of["mask"]], of["label"]
        self._seen: dict[str, int] = {}  # paths → the line that has them

    def item(self, line: int, cells: list[Any] | str) -> _Item:
        """Return a line whose labels are lists of texts, or what is wrong with it."""
        if isinstance(cells, str):
            return Bad(f"{self._where} line {line}", cells)
        try:
            for column in self._paths:
                fault = _EXPORTED if _is_exported(cells[column.at]) else self._root.path_fault(cells[column.at])
                if fault is not None:
                    raise BadItem(fault if column is self._key else f"column {column.name!r}: {fault}")
            for column in self._label:
                assert self._labels is not None
                cells[column.at] = self._labels.texts(cells[column.at])
            identity = "\0".join(_normal(cells[column.at]) for column in self._images)
            if identity in self._seen:
                raise BadItem(f"the path is already listed at {self._where} line {self._seen[identity]}")
        except BadItem as error:
            return Bad(self._name(line, cells), str(error))
        self._seen[identity] = line
        return line, cells

    def _name(self, line: int, cells: Sequence[Any]) -> str:
        path = cells[self._key.at]
        return f"{self._where} line {line}" + (f" ({show(path)})" if isinstance(path, str) and path else "")

    def convert(
        self, items: Sequence[_Item], values_of: Callable[[list[Any]], list[Any]], classes: list[str] | None
    ) -> _Converted:
        """Convert all columns of the good lines, in place.

        Parameters
        ----------
        items : sequence
            What `item` returned for each line.
        values_of : callable
            Returns the values of the cells of a column without a purpose.
        classes : list of str or None
            The class names that are given.
        """
        good = [item for item in items if not isinstance(item, Bad)]
        lines = [line for line, _ in good]
        declared, notes = dict[str, Field](), list[str]()
        faults: dict[int, str] = {}
        for column in self._columns:
            values = [cells[column.at] for _, cells in good]
            what = f"its {column.name} "
            if column.purpose == "key":
                declared[column.field] = Field("str")
                continue
            if column.purpose is None:
                declared[column.field], values, note = _typed(column.name, values_of(values))
                notes += note
            else:
                declared[column.field] = self._declared(column.purpose, values)
            if column.purpose == "label" and self._labels is not None:
                values, classes = self._labels.numbers(self._where, lines, values, classes)
                what = ""
            for (line, cells), value in zip(good, values, strict=True):
                cells[column.at] = value
                if isinstance(value, ValueError):
                    faults.setdefault(line, f"{what}{value}")
        settled = [
            item if isinstance(item, Bad) or item[0] not in faults else Bad(self._name(*item), faults[item[0]])
            for item in items
        ]
        return _Converted(settled, declared, classes if self._labels else None, notes)

    def _declared(self, purpose: Purpose, values: Sequence[Any]) -> Field:
        several = self._labels is not None and self._labels.several
        # A store of images and labels alone has no roles, and so the id that it always had.
        is_plain = not several and all(each.purpose in ("key", "label", None) for each in self._columns[1:])
        if purpose == "text":
            are_text = all(isinstance(value, str) for value in values)
            return Field("str" if are_text else "json", role="text")
        if purpose == "label":
            return (
                Field("array", "<i8", (None,), "labels")
                if several
                else Field("int", role=None if is_plain else "label")
            )
        return Field("image", role=None if is_plain else purpose)

    def row(self, line: int, cells: Sequence[Any]) -> Row:
        """Return the row of a good line."""
        values: dict[str, Any] = {}
        for name, at, purpose, field in self._columns:
            cell = cells[at]
            if purpose == "image":
                cell = self._root.file(cell, "" if at == self._key.at else f"its {name} {show(cell)}")
            elif purpose == "mask":
                cell = MaskFile(self._root.file(cell), cell, *self._masks)
            values[field] = cell
        return Row(self._name(line, cells), values)


def _typed(name: str, values: list[Any]) -> tuple[Field, list[Any], list[str]]:
    """Return the field and the values of a column without a purpose, and a note if empty cells decide its kind."""
    declared, fitted = fit(values)
    given = [value for value in values if value is not None]
    kind = fit(given)[0].kind if 0 < len(given) < len(values) else None
    if kind is None or (declared.kind != "float" and kind == declared.kind):
        return declared, fitted, []
    empty = f"{len(values) - len(given):,} of its {len(values):,} cells are empty"
    usual = "with NaN" if declared.kind == "float" else f"not {kind}"
    return declared, fitted, [f"column {name!r} is stored as {declared.kind}, {usual}, because {empty}"]


_EXPORTED = "its path is a binary value of a MongoDB export, and no path: load the file with mongoimport, and pack the collection"


def _is_exported(cell: Any) -> bool:
    """Whether a value is a binary one in MongoDB's Extended JSON."""
    return isinstance(cell, dict) and "$binary" in cell


def _normal(path: str) -> str:
    """Return a path without ``.`` and ``..``: the same string if it has none, which saves memory in lists of millions."""
    normal = posixpath.normpath(path)
    return path if normal == path else normal


CSV = Format(about="a CSV file with one image a line, its labels and other columns", read=csv)
JSONL = Format(about="a JSONL file with one image a line, its labels and other keys", read=jsonl)
