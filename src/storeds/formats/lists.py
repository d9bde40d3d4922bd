"""Sources for lists of images with labels and further columns: CSV and JSONL."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Literal

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
        The default is the first of ``PATH_COLUMNS`` that exists. The path becomes the record's ``key``.
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
        The default is the first of ``LABEL_COLUMNS`` that exists, or the only one of ``LESS_CERTAIN``.
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
    names_masks = "mask" in purposes.values() and "label" not in purposes.values()
    listed = _List(
        where,
        names,
        purposes,
        Root(os.path.dirname(os.path.abspath(file)) if root is None else root, allow_outside=allow_outside),
        (len(given) if names_masks and given else None, ignore_index),
        label_separator,
    )
    fields = listed.read(lines, values_of_cells if kind == "csv" else list, given)
    named = given if names_masks else listed.classes
    attrs: dict[str, JSON] = {} if named is None else {"classes": list(named)}
    attrs |= {} if ignore_index is None else {"ignore_index": ignore_index}
    return Rows(
        fields=fields,
        attrs={**attrs, "source": {"kind": kind, "file": where}},
        items=from_start(listed.items),
        columns=listed.columns,
        notes=[*class_notes(listed.classes or ()), *notes, *listed.notes],
    )


csv = partial(rows_of_list, "csv")
jsonl = partial(rows_of_list, "jsonl")


class _List:
    """Collects the lines of a list, checks them, and converts their cells column by column.

    Parameters
    ----------
    where : str
        The name of the list in messages.
    names : list of str
        The columns.
    purposes : dict
        As `choose_purposes` returns them.
    root : Root
    masks : (int or None, int or None)
        The number of classes that masks name, and the id that needs no name.
    separator : str or None
        What separates several labels.

    Attributes
    ----------
    classes : list of str or None
        The class names of labels, after `read`.
    columns : dict
        Column → field, after `read`.
    notes : list of str
        Sentences about columns, after `read`.
    """

    def __init__(
        self,
        where: str,
        names: list[str],
        purposes: dict[str, Purpose],
        root: Root,
        masks: tuple[int | None, int | None],
        separator: str | None,
    ) -> None:
        self._where, self._purposes, self._root = where, purposes, root
        self._masks, self._separator = masks, separator
        self._at = {name: at for at, name in enumerate(names)}
        self._label = next(iter(self._of("label")), None)
        if separator is not None and not (separator and self._label):
            raise ConfigError(f"{where}: label_separator={separator!r} needs a column of labels, and text between two")
        self._key = self._at[next(iter(purposes))]
        self.columns: dict[str, str] = {}
        self.classes: list[str] | None = None
        self.notes: list[str] = []
        self._order: list[str | None] = []  # of the fields; None is the key
        self._items: list[Bad | tuple[int, list[Any]]] = []
        self._seen: dict[str, int] = {}  # paths → the line that has them

    def _of(self, purpose: str) -> list[str]:
        return [name for name, held in self._purposes.items() if held == purpose]

    def read(
        self, lines: Sequence[Line], values_of: Callable[[list[Any]], list[Any]], classes: list[str] | None
    ) -> dict[str, Field]:
        """Check all lines, convert all columns, and return the fields.

        Parameters
        ----------
        lines : sequence of Line
        values_of : callable
            Returns the values of the cells of a column without a purpose.
        classes : list of str or None
            The class names that are given.
        """
        cells = (cells[self._at[self._label]] for _, cells in lines if self._label and isinstance(cells, list))
        is_list = isinstance(next((cell for cell in cells if cell is not None), None), list)
        self._several = self._label is not None and (self._separator is not None or is_list)
        self._name_fields()
        for number, line in lines:
            self._add(number, line)
        if not self._items:
            raise ConfigError(f"{self._where} lists no image")
        self._seen.clear()
        return self._convert(values_of, classes)

    def _name_fields(self) -> None:
        names, key = list(self._at), list(self._at)[self._key]
        fixed: dict[str, str] = {}
        for purpose in ("image", "mask", "label"):
            if len(found := self._of(purpose)) == 1:
                fixed[found[0]] = "labels" if purpose == "label" and self._several else purpose
        for each in (self._of("image") + self._of("mask"), names):
            rest = [name for name in each if name not in fixed]
            named, notes = name_columns(rest, ("key", *fixed.values()))
            fixed |= named
            self.notes += notes
        self.columns = {name: fixed[name] for name in names}
        # The order of fields: pictures, labels, the key, other columns.
        pictures = [name for name in names if self._purposes.get(name) in ("image", "mask") and name != key]
        first = [key, *pictures, *self._of("label")]
        self._order = [*first, None, *(name for name in names if name not in first)]

    def _add(self, line: int, cells: list[Any] | str) -> None:
        """Add a line, or report what is wrong with it."""
        if isinstance(cells, str):
            self._items.append(Bad(f"{self._where} line {line}", cells))
            return
        try:
            self._check(cells)
            identity = "\0".join(_normal(cells[self._at[name]]) for name in self._of("image"))
            if identity in self._seen:
                raise BadItem(f"the path is already listed at {self._where} line {self._seen[identity]}")
        except BadItem as error:
            self._items.append(Bad(self._name(line, cells), str(error)))
            return
        self._seen[identity] = line
        self._items.append((line, cells))

    def _name(self, line: int, cells: Sequence[Any]) -> str:
        path = cells[self._key]
        return f"{self._where} line {line}" + (f" ({show(path)})" if isinstance(path, str) and path else "")

    def _check(self, cells: list[Any]) -> None:
        """Raise BadItem for paths and labels that cannot be used; replace labels by text."""
        for name, purpose in self._purposes.items():
            at = self._at[name]
            if purpose in ("image", "mask"):
                fault = _EXPORTED if _is_exported(cells[at]) else self._root.path_fault(cells[at])
                if fault is not None:
                    raise BadItem(fault if at == self._key else f"column {name!r}: {fault}")
            elif purpose == "label":
                labels = self._labels_of(name, cells[at])
                cells[at] = labels if self._several else labels[0]

    def _labels_of(self, name: str, cell: Any) -> list[str]:
        """Return the labels of a cell as text."""
        if self._separator is not None and (cell is None or isinstance(cell, str)):
            cell = [text.strip() for text in (cell or "").split(self._separator) if text.strip()]
        elif not self._several:
            if cell is None or (isinstance(cell, str) and not cell.strip()):
                raise BadItem(f"no label is given in {name!r}")
            cell = [str(cell) if isinstance(cell, float) else cell]
        if not isinstance(cell, list) or not all(type(label) in (str, int) for label in cell):
            raise BadItem(
                f"{name!r} has {cell!r:.80}; a label is a class name or a whole number, and several are a list"
            )
        return [sys.intern(str(label)) for label in cell]

    def _convert(self, values_of: Callable[[list[Any]], list[Any]], classes: list[str] | None) -> dict[str, Field]:
        """Convert all columns of the good items, and return the fields."""
        good = [item for item in self._items if not isinstance(item, Bad)]
        # A store of images and labels alone has no roles, and so the id that it always had.
        held = [purpose for name, purpose in self._purposes.items() if self._at[name] != self._key]
        is_plain = not self._several and set(held) <= {"label"}
        declared: dict[str, Field] = {}
        faults: dict[int, str] = {}
        for name, at in self._at.items():
            values = [cells[at] for _, cells in good]
            match self._purposes.get(name):
                case "image" | "mask" as purpose:
                    declared[name] = Field("image", role=None if is_plain else purpose)
                case "text":
                    are_text = all(isinstance(each, str) for each in values)
                    declared[name] = Field("str" if are_text else "json", role="text")
                case "label":
                    label = Field("int", role=None if is_plain else "label")
                    declared[name] = Field("array", "<i8", (None,), "labels") if self._several else label
                    values = self._numbered([line for line, _ in good], values, classes)
                case _:
                    declared[name], values = self._typed(name, values_of(values))
            for (line, cells), value in zip(good, values, strict=True):
                cells[at] = value
                if isinstance(value, ValueError):
                    faults.setdefault(line, str(value) if name == self._label else f"its {name} {value}")
        self._items = [
            item if isinstance(item, Bad) or item[0] not in faults else Bad(self._name(*item), faults[item[0]])
            for item in self._items
        ]
        return {self.columns[name] if name else "key": declared[name] if name else Field("str") for name in self._order}

    def _typed(self, name: str, values: list[Any]) -> tuple[Field, list[Any]]:
        """Return the field and the values of a column without a purpose; note empty cells that decide its kind."""
        declared, fitted = fit(values)
        given = [value for value in values if value is not None]
        if given and len(given) < len(values) and (declared.kind == "float" or fit(given)[0].kind != declared.kind):
            empty = f"{len(values) - len(given):,} of its {len(values):,} cells are empty"
            usual = "with NaN" if declared.kind == "float" else f"not {fit(given)[0].kind}"
            self.notes.append(f"column {name!r} is stored as {declared.kind}, {usual}, because {empty}")
        return declared, fitted

    def _numbered(self, lines: Sequence[int], labels: Sequence[Any], classes: list[str] | None) -> list[Any]:
        """Return the class number or numbers of each item, or a ValueError."""
        if not self._several:
            numbers, self.classes = number_labels(self._where, labels, lines, classes)
            return list(numbers)
        texts = [text for each in labels for text in each]
        places = [line for line, each in zip(lines, labels, strict=True) for _ in each]
        numbers, self.classes = number_labels(self._where, texts, places, classes)
        values, rest = list[Any](), iter(numbers)
        for each in labels:
            found = list(islice(rest, len(each)))
            fault = next((number for number in found if isinstance(number, ValueError)), None)
            values.append(np.array(found, np.int64) if fault is None else fault)
        return values

    def items(self) -> Iterator[Row | Bad]:
        """Yield every item, after `read`."""
        for item in self._items:
            if isinstance(item, Bad):
                yield item
            else:
                yield Row(self._name(*item), dict(self._value(name, item[1]) for name in self._order))

    def _value(self, name: str | None, cells: Sequence[Any]) -> tuple[str, Any]:
        """Return the field of a column, or of the key for None, and its value."""
        if name is None:
            return "key", cells[self._key]
        field, cell = self.columns[name], cells[self._at[name]]
        match self._purposes.get(name):
            case "image":
                is_key = self._at[name] == self._key
                return field, self._root.file(cell, "" if is_key else f"its {name} {show(cell)}")
            case "mask":
                return field, MaskFile(self._root.file(cell), cell, *self._masks)
        return field, cell


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
