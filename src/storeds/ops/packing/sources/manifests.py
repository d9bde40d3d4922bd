"""Sources for lists of images with labels and further columns: CSV, JSONL, and a JSON index."""

from __future__ import annotations

import json
import os
import posixpath
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import xxhash

from storeds.errors import ConfigError, StoreNotFoundError
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
    LESS_CERTAIN,
    Column,
    JsonColumn,
    Labels,
    LabelStyle,
    TextColumn,
    check_classes,
    field_names,
    likely_label,
    no_label,
)
from storeds.ops.packing.sources.folders import FileList
from storeds.ops.packing.sources.text import BadRow, Dialect, csv_rows, jsonl_rows, open_text
from storeds.protocols import JSON, Field, Record

__all__ = ["JsonIndexSource", "ManifestSource"]


class _Rows:
    """Collects the rows of a list one by one, and checks them.

    Parameters
    ----------
    place : tuple of str
        What messages put before and after the number of a row: ``("train.csv line ", "")``.
    root : Root
        The folder that paths are relative to.
    labels : Labels or None
        Collects the labels, if rows have them.
    label_column : str or None
        The name of the label in messages.
    columns : mapping of str to TextColumn or JsonColumn
        Collect the further columns, by the names of their fields.
    include_hidden : bool
        Include rows whose paths are hidden.
    """

    def __init__(
        self,
        place: tuple[str, str],
        root: Root,
        labels: Labels | None,
        label_column: str | None,
        columns: Mapping[str, TextColumn | JsonColumn],
        include_hidden: bool,
    ) -> None:
        self.place, self.root, self.labels, self.label_column = place, root, labels, label_column
        self.columns, self.hidden = columns, Hidden(include=include_hidden)
        self.keys, self.numbers = StringArray(), array("q")
        self.problems: list[Problem] = []
        self._seen: dict[str, int] = {}

    def add(self, number: int, path: Any, label: Any, rest: Iterable[Any]) -> None:
        """Add row `number`, or report what is wrong with it."""
        rest = list(rest)
        fault = self._path_fault(path) or (None if self.labels is None else self._label_fault(label))
        if not fault and not all(map(_is_utf8, rest)):
            fault = "contains text with a lone surrogate, which UTF-8 cannot encode"
        if fault:
            self.report(number, fault, path)
            return
        if self.hidden.skips_path(path):
            return
        self._seen[posixpath.normpath(path)] = number
        self.keys.append(path.replace(os.sep, "/"))
        self.numbers.append(number)
        if self.labels is not None:
            self.labels.append(str(label), f"{self.place[0]}{number}{self.place[1]}")
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
        fault = path_fault(path) or self.root.path_fault(path)
        first = None if fault else self._seen.get(posixpath.normpath(path))
        return fault if first is None else f"the path is already listed at {self.place[0]}{first}{self.place[1]}"

    def _label_fault(self, label: Any) -> str | None:
        if label is None or (isinstance(label, str) and not label.strip()):
            return f"no label is given in {self.label_column!r}"
        if isinstance(label, bool) or not isinstance(label, (str, int, float)):
            return f"its label is a {type(label).__name__}; expected an integer or a class name"
        return None if is_text(str(label)) else "its label is not valid UTF-8"


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
    """

    def __init__(self, rows: _Rows, kind: str, file: str, attrs: Mapping[str, JSON]) -> None:
        super().__init__(rows.root.path, has_labels=rows.labels is not None)
        labels, faults = (None, dict[int, str]()) if rows.labels is None else rows.labels.finish()
        for row, reason in faults.items():
            rows.report(rows.numbers[row], reason, rows.keys[row])
        good = [row for row in range(len(rows.keys)) if row not in faults]
        if not good and not rows.problems:
            raise ConfigError(f"{file} lists no image{''.join(f'; {note}' for note in rows.hidden.notes())}")
        for row in good:
            key = rows.keys[row]
            state = file_state(os.path.join(self._root, key))
            self._add([(key, *state)], -1 if labels is None else labels[row])
        finished = {name: column.finish() for name, column in rows.columns.items()}
        self._columns: dict[str, Column] = {
            name: column.select(good) if faults else column for name, column in finished.items()
        }
        self._place, self._numbers = rows.place, array("q", (rows.numbers[row] for row in good))
        self.fields = {**self.fields, **{name: Field(column.kind) for name, column in self._columns.items()}}
        with open(file, "rb") as opened:
            self._fingerprint.add(xxhash.xxh3_128_hexdigest(opened.read()))
        self._finish(kind)
        classes = None if rows.labels is None else rows.labels.classes
        named: list[JSON] = list(classes or ())
        self.attrs = {**({"classes": named} if classes is not None else {}), **attrs}
        self.problems = tuple(rows.problems)
        self.notes = (*class_notes(classes or ()), *rows.hidden.notes())

    def name(self, index: int, /) -> str:
        # docstring inherited
        before, after = self._place
        return f"{before}{self._numbers[index]}{after} ({show(self._keys[index])})"

    def read(self, index: int, /) -> Record:
        # docstring inherited
        record = super().read(index)
        for name, column in self._columns.items():
            try:
                record[name] = column[index]
            except ValueError as error:
                raise BadItem(f"its {name} cannot be stored: {error}") from None
        return record


PATH_COLUMNS = (
    "path",
    "image",
    "file",
    "filename",
    "filepath",
    "file_name",
    "img",
    "file_path",
    "image_path",
    "img_path",
    "image_file",
    "image_name",
    "img_name",
)


class ManifestSource(_Listing):
    """A CSV or JSONL file with one line per image.

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
        root_folder = Root(_root_of(file, root), allow_outside=allow_outside)
        with open_text(file, encoding) as opened:
            if kind == "csv":
                wanted = PATH_COLUMNS if path_column is None else (path_column.strip().lower(),)
                names, found = csv_rows(opened, dialect, columns, wanted, where)
            else:
                names, found = jsonl_rows(opened)
            paths = _path_column(where, names, path_column)
            label_name = _label_column(where, names, paths, label_column if label else "")
            labels = None if label_name is None else Labels(where, given, label_type)
            rest = field_names([name for name in names if name not in (paths, label_name)], _taken(labels), where)
            cell = TextColumn if kind == "csv" else JsonColumn
            collected = {field: cell() for field in rest.values()}
            rows = _Rows((f"{where} line ", ""), root_folder, labels, label_name, collected, include_hidden)
            for line, row in found:
                if isinstance(row, BadRow):
                    rows.report(line, row.reason)
                else:
                    own = None if label_name is None else row.get(label_name)
                    rows.add(line, row.get(paths), own, [row.get(name) for name in rest])
        fixed = {paths: "image", label_name: "label"}
        self.columns: Mapping[str, str | None] = {name: fixed.get(name) or rest[name] for name in names}
        provenance: dict[str, JSON] = {"kind": kind, "file": where}
        super().__init__(rows, kind, file, {"source": provenance})


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


def _path_column(where: str, columns: Sequence[str], given: str | None) -> str:
    """Return the column of paths; raises ConfigError if there is none."""
    by_name = {column.strip().lower(): column for column in reversed(columns)}
    found = next((by_name[name] for name in PATH_COLUMNS if name in by_name), None) if given is None else given
    listed = ", ".join(map(repr, columns[:20]))
    if found is None:
        raise ConfigError(
            f"{where}: none of its columns {listed} is one of {', '.join(PATH_COLUMNS)}; name it with path_column= "
            "(--path-column), or, for CSV without a header, pass columns=['path', …] (--columns path,label)"
        )
    if found not in columns:
        raise ConfigError(f"{where}: path_column={found!r} is not one of its columns {listed}")
    return found


def _label_column(where: str, columns: Sequence[str], paths: str, given: str | None) -> str | None:
    """Return the column of labels, None to pack without labels; raises ConfigError if that is not clear."""
    if given == paths:
        raise ConfigError(f"{where}: column {paths!r} cannot contain both paths and labels")
    if given:
        if given not in columns:
            listed = ", ".join(map(repr, columns[:20]))
            raise ConfigError(f"{where}: label_column={given!r} is not one of its columns {listed}")
        return given
    others = [name for name in columns if name != paths]
    if given is not None or not others:  # label=False, or a plain list of paths
        return None
    named = {name.strip().lower(): name for name in reversed(others)}
    found = likely_label(where, named, [name for name in others if name.strip().lower() in LESS_CERTAIN])
    if found is None:
        named_one = others[0] if len(others) == 1 else "NAME"
        say = f"name the column of labels with label_column= (--label-column {named_one})"
        raise no_label(where, "column", "paths", others, say)
    return found


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
