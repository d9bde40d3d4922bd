"""Sources for lists of images with labels and further columns: CSV, JSONL, and a JSON index."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, Literal

from storeds._utils.text import counted
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import Root, show
from storeds.ops.packing.sources.columns import JsonColumn, Labels, LabelStyle, check_classes, field_names, no_label
from storeds.ops.packing.sources.list_columns import ListOptions, ListPlan
from storeds.ops.packing.sources.list_rows import ListRows, ListSource
from storeds.ops.packing.sources.mask_checks import MaskCheck
from storeds.ops.packing.sources.text import (
    TOKEN_COLUMNS,
    BadRow,
    Dialect,
    csv_rows,
    is_token_file,
    jsonl_rows,
    open_text,
    token_rows,
)
from storeds.protocols import JSON

__all__ = ["JsonIndexSource", "ManifestSource"]

_PEEKED = 64  # rows that show what columns hold


class ManifestSource(ListSource):
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

    A file of captions like those of Flickr8k, ``1.jpg#0``, a tab and the text, has columns ``image`` and ``caption``.

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
        is_tokens = kind == "csv" and columns is None and dialect == Dialect() and _has_tokens(file, encoding)
        if is_tokens and caption_columns is None:
            caption_columns = TOKEN_COLUMNS[1:]
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
            if is_tokens:
                names, found = list(TOKEN_COLUMNS), token_rows(opened)
            elif kind == "csv":
                names, found = csv_rows(opened, dialect, columns, options.wanted(), where)
            else:
                names, found = jsonl_rows(opened)
            peeked = list(islice(found, _PEEKED))
            values = [row for _, row in peeked if not isinstance(row, BadRow)]
            plan = ListPlan(where, names, values, options, given, label_type)
            shown = ", ".join(plan.label_names) or None
            collected = plan.collectors(kind, root_folder)
            place = (f"{where} line ", "")
            rows = ListRows(place, root_folder, plan.labels, shown, collected, include_hidden, plan.if_doubled)
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


class JsonIndexSource(ListSource):
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
        rows = ListRows((f"{where} path_list[", "]"), root_folder, labels, "label_list", columns, include_hidden)
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


def _has_tokens(file: str, encoding: str | None) -> bool:
    with open_text(file, encoding) as opened:
        return is_token_file(opened.readline())


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
