"""Lists of images with labels and whatever else is known of them: CSV, JSONL, and a JSON index."""

from __future__ import annotations

import json
import os
import posixpath
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import xxhash

from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import (
    BadItem,
    Fingerprint,
    Problem,
    Root,
    Texts,
    file_state,
    is_text,
    read_file,
    show,
    text_fault,
)
from storeds.ops.packing.sources.columns import (
    Column,
    JsonColumn,
    Labels,
    LabelStyle,
    TextColumn,
    check_classes,
    class_notes,
    field_names,
)
from storeds.ops.packing.sources.hidden import Hidden
from storeds.ops.packing.sources.text import BadRow, Dialect, csv_rows, jsonl_rows, open_text
from storeds.protocols import JSON, Field, Record

__all__ = [
    "LABEL_COLUMNS",
    "LESS_CERTAIN",
    "PATH_COLUMNS",
    "JsonIndexSource",
    "Listing",
    "ListingBuilder",
    "ManifestSource",
]


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
LABEL_COLUMNS = ("label", "class", "target")
# Taken where none of the others exists, and only one of these does.
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


class ManifestSource(Listing):
    """A CSV or JSONL file with one line an image.

    Parameters
    ----------
    path : path
        The file.
    format : str, optional
        ``csv`` or ``jsonl``; by default what the suffix says: ``.jsonl`` and ``.ndjson`` are JSONL, all others CSV.
    root : path, optional
        Where the paths begin; by default the manifest's folder.
    path_column : str, optional
        By default the first that exists of ``PATH_COLUMNS``. What it holds becomes the record's ``key``.
    label_column : str, optional
        By default the first that exists of ``LABEL_COLUMNS``, or else the only one of further usual names.
    label : bool
        False to pack without labels. Where there are columns beside the paths, and none looks like a label, that has to
        be said: packing them without labels would train nothing.
    classes : sequence of str, optional
        The class names in the order of their labels; a label that is not among them is told as a problem.
    label_type : str
        ``int``, ``names``, or ``auto``: integers stay as they are, class names are sorted and numbered, both together
        are an error.
    columns : sequence of str, optional
        The names of the columns of a CSV file that has no header.
    delimiter, quotechar, escapechar : str, optional
        Of the CSV file; the first two are found out by default. A quotechar of ``""`` says that nothing is quoted.
    encoding : str, optional
        By default UTF-8, with or without a byte order mark.
    allow_outside : bool
        Whether paths may leave `root`: by ``..``, by being absolute, by a link.
    include_hidden : bool
        Whether to take hidden files, and files in hidden folders, that the list names.

    Notes
    -----
    Further columns become fields. In CSV one is int if every cell is the text of an int64, else float if every cell is
    a number, else str. In JSONL one has the type that its values have; where types differ, or an object lacks the key
    (it then counts as null), it is json.

    Raises
    ------
    StoreNotFoundError
        There is no such file.
    ConfigError
        It is not in the encoding, has no column of paths, or its columns or labels leave open what is meant.
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
        classes: Sequence[str] | None = None,
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
            raise ConfigError(f"{where}: columns, delimiter, quotechar and escapechar are for CSV, not for JSONL")
        if not label and label_column:
            raise ConfigError(f"{where}: label_column={label_column!r} and label=False contradict each other")
        wanted_label = label_column if label else ""
        chosen = _Choice(where, path_column, wanted_label, check_classes(classes, label_type), label_type)
        place = Root(_root_of(file, root), allow_outside=allow_outside)
        if kind == "csv":
            built = _read_csv(file, encoding, dialect, columns, chosen, place, Hidden(include=include_hidden))
        else:
            built = _read_jsonl(file, encoding, chosen, place, Hidden(include=include_hidden))
        self.columns: Mapping[str, str | None] = chosen.roles
        provenance: dict[str, JSON] = {"kind": kind, "file": where}
        self._adopt(built, kind, file, {"source": provenance})


class JsonIndexSource(Listing):
    """A JSON file ``{"path_list": […], "label_list": […]}``.

    Parameters
    ----------
    path : path
        The file. Of a key ``x_list`` with as many items, ``x`` becomes a field; ``classes``, a list of class names, is
        used as if it had been passed; other keys are named in ``attrs["source"]["ignored"]``.
    root, label, classes, label_type, encoding, allow_outside, include_hidden
        As for `ManifestSource`.

    Raises
    ------
    StoreNotFoundError
        There is no such file.
    ConfigError
        It is no such object, or its lists differ in length.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        label: bool = True,
        classes: Sequence[str] | None = None,
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
                raise ConfigError(f"{where}: path_list has {count} items, and {name}_list has {len(values)}")
        given = check_classes(classes if classes is not None else index.get("classes"), label_type)
        others = [name for name in lists if name not in ("path", "label")]
        if label and "label" not in lists and others:
            raise ConfigError(
                _no_label(where, "list", [f"{name}_list" for name in others], "rename the one that is to label_list")
            )
        if not label and "label" in lists:
            others.append("label")
        collected = Labels(where, given, label_type) if label and "label" in lists else None
        names = field_names(others, _taken(collected), where)
        root_folder = Root(_root_of(file, root), allow_outside=allow_outside)
        columns = {field: JsonColumn() for field in names.values()}
        hidden = Hidden(include=include_hidden)
        built = ListingBuilder((f"{where} path_list[", "]"), root_folder, collected, "label_list", columns, hidden)
        label_list = None if collected is None else lists["label"]
        for number, row in enumerate(lists["path"]):
            own = None if label_list is None else label_list[number]
            built.add(number, row, own, [lists[name][number] for name in names])
        ignored = sorted(key for key, value in index.items() if not _is_list(key, value) and key != "classes")
        self.columns: Mapping[str, str | None] = {
            "path_list": "image",
            **({} if collected is None else {"label_list": "label"}),
            **{f"{name}_list": field for name, field in names.items()},
            **dict.fromkeys(ignored),
        }
        skipped: dict[str, JSON] = {"ignored": list(ignored)} if ignored else {}
        provenance: dict[str, JSON] = {"kind": "index", "file": where, **skipped}
        self._adopt(built, "index", file, {"source": provenance})


class _Choice:
    """Which columns hold paths and labels; `roles` says what became of each."""

    def __init__(
        self, where: str, path: str | None, label: str | None, classes: list[str] | None, style: LabelStyle
    ) -> None:
        self.where, self.path, self.label = where, path, label
        self._classes, self._style = classes, style
        self.roles: dict[str, str | None] = {}

    @property
    def wanted(self) -> tuple[str, ...]:
        return PATH_COLUMNS if self.path is None else (self.path.strip().lower(),)

    def settle(self, columns: Sequence[str]) -> None:
        """Choose among the columns there are; raises ConfigError if a choice is not among them."""
        found = _first(PATH_COLUMNS, columns) if self.path is None else self.path
        listed = ", ".join(map(repr, columns[:20]))
        if found is None:
            raise ConfigError(
                f"{self.where}: none of its columns {listed} is one of {', '.join(PATH_COLUMNS)}; say which with path_column= "
                "(--path-column), or, for CSV without a header, columns=['path', …] (--columns path,label)"
            )
        for option, name in (("path_column", found), ("label_column", self.label)):
            if name and name not in columns:
                raise ConfigError(f"{self.where}: {option}={name!r} is none of its columns {listed}")
        self.path = found
        others = [name for name in columns if name != found]
        self.label = self._find_label(others) if self.label is None else self.label or None
        if self.label == self.path:
            raise ConfigError(f"{self.where}: column {found!r} cannot hold both paths and labels")

    def _find_label(self, others: Sequence[str]) -> str | None:
        found = _first(LABEL_COLUMNS, others)
        if found is not None or not others:  # nothing but paths: there is no label to miss
            return found
        likely = [name for name in others if name.strip().lower() in LESS_CERTAIN]
        if len(likely) == 1:
            return likely[0]
        if likely:
            listed = ", ".join(map(repr, likely))
            raise ConfigError(
                f"{self.where}: columns {listed} all look like labels; choose with label_column= (--label-column)"
            )
        named = others[0] if len(others) == 1 else "NAME"
        say = f"name the one that is with label_column= (--label-column {named})"
        raise ConfigError(_no_label(self.where, "column", others, say))

    def builder(
        self, columns: Sequence[str], place: Root, column: type[TextColumn | JsonColumn], hidden: Hidden
    ) -> ListingBuilder:
        labels = Labels(self.where, self._classes, self._style) if self.label is not None else None
        self.rest = [name for name in columns if name not in (self.path, self.label)]
        names = field_names(self.rest, _taken(labels), self.where)
        collected = {field: column() for field in names.values()}
        self.roles = {
            name: "image" if name == self.path else "label" if name == self.label else names[name] for name in columns
        }
        return ListingBuilder((f"{self.where} line ", ""), place, labels, self.label, collected, hidden)


def _no_label(where: str, what: str, others: Sequence[str], say: str) -> str:
    listed = ", ".join(map(repr, others[:20]))
    return (
        f"{where}: no {what} looks like labels ({', '.join(LABEL_COLUMNS)}): beside the paths there {'is' if len(others) == 1 else 'are'} "
        f"{listed}; {say}, or pass label=False (--no-label) to pack without labels"
    )


def _first(names: Sequence[str], columns: Sequence[str]) -> str | None:
    by_name = {column.strip().lower(): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def _taken(labels: Labels | None) -> tuple[str, ...]:
    return ("image", "key") if labels is None else ("image", "label", "key")


def _root_of(file: str, root: str | os.PathLike[str] | None) -> str:
    if root is None:
        return os.path.dirname(os.path.abspath(file))
    if not os.path.isdir(root):
        raise StoreNotFoundError(f"root={os.fspath(root)!r} is no folder")
    return os.fspath(root)


def _read_csv(
    file: str,
    encoding: str | None,
    dialect: Dialect,
    columns: Sequence[str] | None,
    chosen: _Choice,
    place: Root,
    hidden: Hidden,
) -> ListingBuilder:
    with open_text(file, encoding) as opened:
        names, rows = csv_rows(opened, dialect, columns, chosen.wanted, chosen.where)
        chosen.settle(names)
        built = chosen.builder(names, place, TextColumn, hidden)
        at = {name: position for position, name in enumerate(names)}
        rest = [at[name] for name in chosen.rest]
        path, label = at[chosen.path or ""], at.get(chosen.label or "\0")
        for line, row in rows:
            if isinstance(row, BadRow):
                built.tell(line, row.reason)
            else:
                built.add(line, row[path], None if label is None else row[label], [row[column] for column in rest])
    return built


def _read_jsonl(file: str, encoding: str | None, chosen: _Choice, place: Root, hidden: Hidden) -> ListingBuilder:
    # Twice: only the whole file tells which keys there are, and so which objects lack one.
    names: dict[str, None] = {}
    with open_text(file, encoding) as opened:
        for _, row in jsonl_rows(opened):
            if isinstance(row, dict):
                names.update(dict.fromkeys(row))
    with open_text(file, encoding) as opened:
        columns = list(names)
        chosen.settle(columns)
        built = chosen.builder(columns, place, JsonColumn, hidden)
        for line, row in jsonl_rows(opened):
            if isinstance(row, BadRow):
                built.tell(line, row.reason)
            else:
                label = row.get(chosen.label) if chosen.label else None
                built.add(line, row.get(chosen.path or ""), label, [row.get(name) for name in chosen.rest])
    return built


def _is_list(key: str, value: Any) -> bool:
    return key.endswith("_list") and isinstance(value, list)


def _load_index(file: str, where: str, encoding: str | None) -> Mapping[str, Any]:
    with open_text(file, encoding) as opened:
        try:
            index = json.load(opened)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{where} is no JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
        except (RecursionError, ValueError) as error:  # nested too deeply; an integer of thousands of digits
            if isinstance(error, UnicodeError):
                raise
            raise ConfigError(f"{where} is JSON that cannot be kept: {error}") from None
    if not isinstance(index, dict) or not isinstance(index.get("path_list"), list):
        held = f"keys {', '.join(map(repr, list(index)[:8]))}" if isinstance(index, dict) else type(index).__name__
        raise ConfigError(f'{where}: expected {{"path_list": […], "label_list": […]}}, found {held}')
    return index
