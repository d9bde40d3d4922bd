"""Sources for lists of images with labels and further columns: CSV, JSONL, and a JSON index."""

from __future__ import annotations

import json
import os
import posixpath
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

import xxhash

from storeds._utils.text import counted
from storeds.errors import ConfigError, StoreNotFoundError
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
from storeds.ops.packing.sources.columns import (
    CaptionColumn,
    Column,
    JsonColumn,
    Labels,
    LabelStyle,
    check_classes,
    field_names,
    no_label,
)
from storeds.ops.packing.sources.folders import FileList
from storeds.ops.packing.sources.list_columns import AnyLabels, Collector, ListOptions, ListPlan
from storeds.ops.packing.sources.mask_checks import JPEG_SUFFIXES, MaskCheck, lossy_notes
from storeds.ops.packing.sources.text import BadRow, Dialect, csv_rows, jsonl_rows, open_text
from storeds.protocols import JSON, Field, Record

__all__ = ["JsonIndexSource", "ManifestSource"]


class _Rows:
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

    def add(self, number: int, path: Any, label: Any, rest: Iterable[Any]) -> None:
        """Add row `number`, or report what is wrong with it."""
        rest = list(rest)
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


class _Listing(FileList):
    """The images of a list, with the numbers of their rows and further columns.

    Parameters
    ----------
    rows : _Rows
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
        rows: _Rows,
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
            yield from lossy_notes([path for path in paths if path.lower().endswith(JPEG_SUFFIXES)])

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
            fault = replace(self._check, field=name).fault(
                record[self._image], record[name], self._columns[name].raw(index)
            )
            if fault is not None:
                raise BadItem(fault)
        return {name: record[name] for name in self.fields}


_PEEKED = 64  # rows that show what columns hold


class ManifestSource(_Listing):
    """A CSV or JSONL file with one line per image, or per caption of an image.

    Parameters
    ----------
    path : path
        The file.
    format : str, optional
        ``csv`` or ``jsonl``. The default depends on the suffix: ``.jsonl`` and ``.ndjson`` are JSONL, others CSV.
    root : path, optional
        The folder that paths are relative to; by default the folder of the file.
    path_column : str, optional
        The default is the first of ``PATH_COLUMNS`` that exists. The path becomes the record's ``key``.
    label_column : str, optional
        The default is the first of ``LABEL_COLUMNS`` that exists, or the only one of ``LESS_CERTAIN``.
    label : bool
        False to pack without labels. This is required if there are columns beside the paths and none looks like a label:
        packing without labels by accident would make the store useless for training.
    classes : sequence of str or path, optional
        The class names in the order of their labels, or the path of a file of them. A label that is not among them is a bad item.
    label_type : str
        ``int``, ``names`` or ``auto``. With ``auto``, integers stay as they are, class names are sorted and numbered,
        and a mixture is an error.
    columns : sequence of str, optional
        The column names of a CSV file without a header.
    delimiter, quotechar, escapechar : str, optional
        Of the CSV file. The first two are detected by default. A quotechar of ``""`` means that nothing is quoted.
    encoding : str, optional
        The default is UTF-8, with or without a byte order mark.
    image_columns : sequence of str, optional
        Several columns of images, each of which becomes a field of its own name. The path in the first is the key. If no
        column is one of ``PATH_COLUMNS``, and the cells of several are paths of images, the default is these.
    mask_columns : sequence of str, optional
        Columns of masks; a single one becomes the field ``mask``. The default is a column named ``mask``, ``mask_path``,
        ``mask_file`` or similar whose cells are paths of images. Without labels, `classes` names the class ids of masks.
    ignore_index : int, optional
        The class id in masks that needs no name, 255 by default. It goes to ``attrs["ignore_index"]``.
    caption_columns : sequence of str, optional
        Columns of text that get the role ``text``: a caption, or in JSONL a list of captions. The default is those named
        ``caption``, ``text`` or ``description``, if no column looks like labels. If they are given and a path
        repeats, rows of one image that agree in all other columns become one record, and every record has a list.
    box_column : str, optional
        The column of boxes; by default the one named ``boxes`` or ``bbox``, if `box_format` is given. A cell is a list of
        boxes of four numbers, or one box; in CSV as JSON.
    box_format : str, optional
        ``xyxy``, ``xywh`` or ``cxcywh``. Boxes become the field ``boxes``, float64 of shape (n, 4).
    box_relative : bool
        Coordinates are fractions of the width and the height of the image.
    label_separator : str, optional
        What separates several labels in one cell. They become the field ``labels``, int64 of shape (n,), as do the lists
        of a JSONL file.
    label_columns : sequence of str, optional
        Columns with 0 or 1, one for each class, instead of a column of labels.
    allow_outside : bool
        Allow paths that leave `root`: through ``..``, as absolute paths, or through a link.
    include_hidden : bool
        Include hidden files, and files in hidden folders.

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

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: Literal["csv", "jsonl"] | None = None,
        root: str | os.PathLike[str] | None = None,
        path_column: str | None = None,
        label_column: str | None = None,
        label: bool = True,
        classes: Sequence[str] | os.PathLike[str] | None = None,
        label_type: LabelStyle = "auto",
        columns: Sequence[str] | None = None,
        delimiter: str | None = None,
        quotechar: str | None = None,
        escapechar: str | None = None,
        encoding: str | None = None,
        image_columns: Sequence[str] | None = None,
        mask_columns: Sequence[str] | None = None,
        ignore_index: int | None = None,
        caption_columns: Sequence[str] | None = None,
        box_column: str | None = None,
        box_format: str | None = None,
        box_relative: bool = False,
        label_separator: str | None = None,
        label_columns: Sequence[str] | None = None,
        allow_outside: bool = False,
        include_hidden: bool = False,
    ) -> None:
        file = os.fspath(path)
        kind = format or ("jsonl" if file.lower().endswith((".jsonl", ".ndjson")) else "csv")
        if kind not in ("csv", "jsonl"):
            raise ConfigError(f"format={format!r}; the formats are csv and jsonl")
        where = show(os.path.basename(file))
        dialect = Dialect(delimiter, quotechar, escapechar)
        if kind == "jsonl" and (columns is not None or dialect != Dialect()):
            raise ConfigError(f"{where}: columns, delimiter, quotechar and escapechar apply to CSV, not to JSONL")
        if not label and label_column:
            raise ConfigError(f"{where}: label_column={label_column!r} and label=False contradict each other")
        given = check_classes(classes, label_type)
        options = ListOptions(
            path_column=path_column,
            label_column=label_column,
            label=label,
            image_columns=image_columns,
            mask_columns=mask_columns,
            caption_columns=caption_columns,
            box_column=box_column,
            box_format=box_format,
            box_relative=box_relative,
            label_separator=label_separator,
            label_columns=label_columns,
        )
        root_folder = Root(_root_of(file, root), allow_outside=allow_outside)
        with open_text(file, encoding) as opened:
            if kind == "csv":
                names, found = csv_rows(opened, dialect, columns, options.wanted(), where)
            else:
                names, found = jsonl_rows(opened)
            peeked = list(islice(found, _PEEKED))
            values = [row for _, row in peeked if not isinstance(row, BadRow)]
            plan = ListPlan(where, names, values, options, given, label_type)
            shown = ", ".join(plan.label_names) or None
            collected = plan.collectors(kind, root_folder)
            place = (f"{where} line ", "")
            rows = _Rows(place, root_folder, plan.labels, shown, collected, include_hidden, plan.if_doubled)
            for line, row in chain(peeked, found):
                if isinstance(row, BadRow):
                    rows.report(line, row.reason)
                else:
                    rows.add(line, row.get(plan.paths), plan.label_of(row), [row.get(name) for name in plan.rest])
        self.columns: Mapping[str, str | None] = plan.columns
        of_masks = given if plan.labels is None and plan.has_masks else None
        attrs: dict[str, JSON] = {} if of_masks is None else {"classes": list(of_masks)}
        attrs |= {} if ignore_index is None else {"ignore_index": ignore_index}
        attrs["source"] = {"kind": kind, "file": where}
        check = MaskCheck(None if of_masks is None else len(of_masks), ignore_index)
        super().__init__(rows, kind, file, attrs, image=plan.image, texts=plan.texts, check=check)
        joined = f"joined the captions of {counted(rows.joined, 'row')} to those of earlier rows with the same path"
        self.notes: tuple[str, ...] = (*self.notes, *plan.notes, *([joined] if rows.joined else ()))


class JsonIndexSource(_Listing):
    """A JSON file ``{"path_list": […], "label_list": […]}``.

    Parameters
    ----------
    path : path
        The file. A key ``x_list`` with a list of the same length becomes the field ``x``. ``classes``, a list of class
        names, is used like the argument. Other keys are ignored, and named in ``attrs["source"]["ignored"]``.
    root, label, classes, label_type, encoding, allow_outside, include_hidden
        As for `ManifestSource`.

    Raises
    ------
    StoreNotFoundError
        The file does not exist.
    ConfigError
        It is not such an object, or its lists differ in length.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        label: bool = True,
        classes: Sequence[str] | os.PathLike[str] | None = None,
        label_type: LabelStyle = "auto",
        encoding: str | None = None,
        allow_outside: bool = False,
        include_hidden: bool = False,
    ) -> None:
        file = os.fspath(path)
        where = show(os.path.basename(file))
        index = _load_index(file, where, encoding)
        lists = {key.removesuffix("_list"): value for key, value in index.items() if _is_list(key, value)}
        count = len(lists["path"])
        for name, values in lists.items():
            if len(values) != count:
                raise ConfigError(f"{where}: path_list has {count} items, but {name}_list has {len(values)}")
        listed = index.get("classes")
        if isinstance(listed, str):  # the path of a file comes from the caller only
            raise ConfigError(f"{where}: classes={listed!r} must be a list of class names")
        given = check_classes(listed if classes is None else classes, label_type)
        others = [name for name in lists if name not in ("path", "label")]
        if label and "label" not in lists and others:
            lists_of = [f"{name}_list" for name in others]
            raise no_label(where, "list", "paths", lists_of, "rename the list of labels to label_list")
        if not label and "label" in lists:
            others.append("label")
        labels = Labels(where, given, label_type) if label and "label" in lists else None
        names = field_names(others, _taken(labels), where)
        root_folder = Root(_root_of(file, root), allow_outside=allow_outside)
        columns = {field: JsonColumn() for field in names.values()}
        rows = _Rows((f"{where} path_list[", "]"), root_folder, labels, "label_list", columns, include_hidden)
        for number, row in enumerate(lists["path"]):
            own = None if labels is None else lists["label"][number]
            rows.add(number, row, own, [lists[name][number] for name in names])
        ignored = sorted(key for key, value in index.items() if not _is_list(key, value) and key != "classes")
        self.columns: Mapping[str, str | None] = {
            "path_list": "image",
            **({} if labels is None else {"label_list": "label"}),
            **{f"{name}_list": field for name, field in names.items()},
            **dict.fromkeys(ignored),
        }
        skipped: dict[str, JSON] = {"ignored": list(ignored)} if ignored else {}
        provenance: dict[str, JSON] = {"kind": "index", "file": where, **skipped}
        super().__init__(rows, "index", file, {"source": provenance})


def _taken(labels: Labels | None) -> tuple[str, ...]:
    return ("image", "key") if labels is None else ("image", "label", "key")


def _root_of(file: str, root: str | os.PathLike[str] | None) -> str:
    if root is None:
        return os.path.dirname(os.path.abspath(file))
    if not os.path.isdir(root):
        raise StoreNotFoundError(f"root={os.fspath(root)!r} is not a folder")
    return os.fspath(root)


def _is_list(key: str, value: Any) -> bool:
    return key.endswith("_list") and isinstance(value, list)


def _load_index(file: str, where: str, encoding: str | None) -> Mapping[str, Any]:
    with open_text(file, encoding) as opened:
        try:
            index = json.load(opened)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{where} is not JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
        except (RecursionError, ValueError) as error:  # nested too deeply; an integer of thousands of digits
            if isinstance(error, UnicodeError):
                raise
            raise ConfigError(f"{where} is JSON that cannot be stored: {error}") from None
    if not isinstance(index, dict) or not isinstance(index.get("path_list"), list):
        found = f"keys {', '.join(map(repr, list(index)[:8]))}" if isinstance(index, dict) else type(index).__name__
        raise ConfigError(f'{where}: expected {{"path_list": […], "label_list": […]}}, found {found}')
    return index
