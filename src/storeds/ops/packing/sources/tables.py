"""Tables: what 🤗 datasets saves, loads or publishes, and any other Parquet or Arrow file with a column of images."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

from storeds._utils.text import counted
from storeds.errors import ConfigError
from storeds.ops.packing.sources.base import BadItem, Fingerprint, Problem, read_file, show
from storeds.ops.packing.sources.columns import class_notes, field_names
from storeds.ops.packing.sources.features import TableColumn, column_of, feature_of
from storeds.ops.packing.sources.manifests import LABEL_COLUMNS, LESS_CERTAIN
from storeds.ops.packing.sources.table_rows import TableFiles, find_tables, import_pyarrow
from storeds.protocols import JSON, Field, Record

__all__ = ["HuggingFaceRows", "Rows", "TableSource", "dataset_tables"]

_GUESS = 1 << 16
_TRIED = 64


class Rows(Protocol):
    """Rows with named columns."""

    def __len__(self) -> int: ...

    def row(self, index: int, columns: Sequence[str]) -> Mapping[str, Any]:
        """Return some columns of one row."""
        ...

    def column(self, name: str) -> Iterator[Any]:
        """Yield one column."""
        ...

    def fingerprint(self) -> JSON:
        """Return what differs when the rows do."""
        ...


class HuggingFaceRows:
    """The rows of a ``datasets.Dataset``, with images as the files that it holds.

    Parameters
    ----------
    dataset : datasets.Dataset
    """

    def __init__(self, dataset: Any) -> None:
        plain = dataset.with_format(None)
        for name, feature in dataset.features.items():
            if type(feature).__name__ == "Image" and feature.decode:
                plain = plain.cast_column(name, type(feature)(decode=False))
        self._dataset = plain
        self.features: dict[str, Any] = dataset.features.to_dict()
        self.is_transformed = dataset.format.get("type") == "custom"

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int, columns: Sequence[str]) -> Mapping[str, Any]:
        # docstring inherited
        found: Mapping[str, Any] = self._dataset[index]
        return found

    def column(self, name: str) -> Iterator[Any]:
        # docstring inherited
        return (row[name] for row in self._dataset.select_columns([name]))

    def fingerprint(self) -> JSON:
        # docstring inherited
        return str(self._dataset._fingerprint)


class TableSource:
    """A folder that ``save_to_disk`` of 🤗 datasets wrote, or Parquet or Arrow files.

    Parameters
    ----------
    path : path, or mapping of str to Rows
        A folder of one dataset or of a ``DatasetDict``, whose splits become the field ``split``; a folder of Parquet
        files, whose names tell their splits; or one file.
    columns : sequence of str, optional
        Which columns to take; all by default.
    label_column : str, optional
        The column of labels: by default the only ``ClassLabel``, or one called ``label``, ``class`` or ``target``.
    label : bool
        False to pack without labels. Required where there are columns beside the image and none
        looks like a label.
    allow_outside : bool
        Whether to read images that a file names by path instead of holding them; relative paths begin at its folder.

    Notes
    -----
    An image is the file that the column holds, its bytes untouched; the only column of images becomes ``image``. Names of
    a ``ClassLabel`` go to ``attrs["classes"]``. Sequences of numbers become arrays, other nested values JSON, dates text.
    A missing number or text makes its column JSON, a missing float is NaN, a missing image or label a bad item. Needs
    pyarrow for files, not 🤗 datasets.

    Raises
    ------
    StoreNotFoundError, FormatError, ConfigError, MissingDependencyError
        There is nothing, it is damaged or no table, a column holds what no field does, or pyarrow is not installed.
    """

    problems: Sequence[Problem] = ()

    def __init__(
        self,
        path: str | os.PathLike[str] | Mapping[str, Any],
        *,
        columns: Sequence[str] | None = None,
        label_column: str | None = None,
        label: bool = True,
        allow_outside: bool = False,
    ) -> None:
        self._outside = allow_outside or isinstance(path, Mapping)
        self._folder = ""
        if isinstance(path, Mapping):
            self._where, parts = "the dataset", dict(path)
        else:
            file = os.fspath(path)
            self._folder = os.path.abspath(file if os.path.isdir(file) else os.path.dirname(os.path.abspath(file)))
            self._where, parts = show(file), {name: TableFiles(files) for name, files in find_tables(file).items()}
        parts = {name: rows for name, rows in parts.items() if len(rows)}
        if not parts:
            raise ConfigError(f"{self._where} holds no rows")
        self._parts: list[Rows] = list(parts.values())
        self._splits = list(parts) if len(parts) > 1 else []
        self._ends = list(accumulate(map(len, self._parts)))
        features = [_features(rows) for rows in self._parts]
        if any(other != features[0] for other in features[1:]):
            raise ConfigError(
                f"{self._where}: its splits {', '.join(parts)} have different columns; pack them one by one"
            )
        taken = self._choose(features[0], columns)
        left_out = [name for name in features[0] if name not in taken]
        found = {name: self._column(name, features[0][name]) for name in taken}
        self._plan = _Plan(
            self._where, [column for column in found.values() if column is not None], label_column, label
        )
        self._plan.learn_classes(self)
        left_out += [name for name, column in found.items() if column is None]
        self.fields: Mapping[str, Field] = self._plan.fields | ({"split": Field("str")} if self._splits else {})
        if self._splits and "split" in self._plan.fields:
            raise ConfigError(f"{self._where} has splits and a column 'split'; leave one out with columns= (--columns)")
        self.columns: Mapping[str, str | None] = {**self._plan.names, **dict.fromkeys(left_out)}
        classes: list[JSON] = list(self._plan.classes or ())
        self.attrs: Mapping[str, JSON] = {**({"classes": classes} if classes else {}), "source": {"kind": "table"}}
        transformed = any(getattr(rows, "is_transformed", False) for rows in self._parts)
        self.notes: Sequence[str] = (
            *class_notes(self._plan.classes or ()),
            *(["its transform is not applied: what is stored are its columns as they are"] if transformed else []),
        )
        self.fingerprint: JSON = self._hash()

    def _choose(self, features: Mapping[str, Any], columns: Sequence[str] | None) -> list[str]:
        for name in columns or ():
            if name not in features:
                raise ConfigError(f"{self._where} has no column {name!r}, only {', '.join(map(repr, features))}")
        return list(features) if columns is None else list(columns)

    def _column(self, name: str, feature: Any) -> TableColumn | None:
        simple = isinstance(feature, Mapping) and feature.get("_type") == "Value"
        binary = simple and "binary" in str(feature.get("dtype"))
        has_nulls = simple and not binary and any(value is None for rows in self._parts for value in rows.column(name))
        first = None
        if binary:
            rows = self._parts[0]
            tried = (rows.row(index, [name])[name] for index in range(min(len(rows), _TRIED)))
            first = next((value for value in tried if value is not None), None)
        try:
            return column_of(name, feature, first, has_nulls=has_nulls)
        except ConfigError as error:
            raise ConfigError(f"{self._where}: {error}") from None

    def _hash(self) -> JSON:
        fingerprint = Fingerprint()
        fingerprint.add(json.dumps([rows.fingerprint() for rows in self._parts]))
        fingerprint.add(f"{self._splits} {self._plan.names} {self._plan.classes}")
        return fingerprint.finish("table", len(self))

    def values(self, name: str) -> Iterator[Any]:
        """Yield one column of all parts."""
        for rows in self._parts:
            yield from rows.column(name)

    def _find(self, index: int) -> tuple[int, int]:
        index = range(len(self))[index]
        part = next(number for number, end in enumerate(self._ends) if index < end)
        return part, index - (self._ends[part - 1] if part else 0)

    def __len__(self) -> int:
        return self._ends[-1]

    def name(self, index: int, /) -> str:
        # docstring inherited
        part, at = self._find(index)
        return f"{self._splits[part]} row {at}" if self._splits else f"row {at}"

    def size(self, index: int, /) -> int:
        # docstring inherited
        return _GUESS

    def _external(self, path: Any) -> bytes | None:
        if path is None:
            return None
        if not self._outside:
            raise BadItem(
                f"its image is not in the table, which names {path!r}; pass allow_outside=True (--allow-outside) to read it there"
            )
        return read_file(os.path.join(self._folder, str(path)))

    def strata(self) -> Iterator[tuple[str, Any]]:
        """Yield the key and the label of each item."""
        names = {field: column for column, field in self._plan.names.items()}
        labels = self.values(names["label"])
        keys = map(str, self.values(names["key"])) if "key" in names else map(str, range(len(self)))
        return zip(keys, map(self._plan.label_of, labels), strict=True)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        part, at = self._find(index)
        row = dict(self._parts[part].row(at, list(self._plan.names)))
        for name, value in row.items():
            if isinstance(value, Mapping) and value.keys() == {"bytes", "path"} and value["bytes"] is None:
                row[name] = self._external(value["path"])
        record = self._plan.record(row)
        return record | {"split": self._splits[part]} if self._splits else record


class _Plan:
    """Which field each column becomes."""

    def __init__(self, where: str, columns: Sequence[TableColumn], label_column: str | None, label: bool) -> None:
        self._where, self._columns = where, {column.name: column for column in columns}
        if label_column is not None and not label:
            raise ConfigError(f"label_column={label_column!r} and label=False contradict each other; leave one out")
        if label_column is not None and label_column not in self._columns:
            raise ConfigError(f"{where} has no column {label_column!r}, only {', '.join(map(repr, self._columns))}")
        images = [column.name for column in columns if column.field.kind == "image"]
        self._label = self._find_label(label_column, images) if label else None
        roles = {images[0]: "image"} if len(images) == 1 else {}
        roles |= {self._label: "label"} if self._label is not None else {}
        rest = field_names([name for name in self._columns if name not in roles], roles.values(), where)
        order = sorted(self._columns, key=lambda name: ("image", "label").index(roles[name]) if name in roles else 2)
        self.names: dict[str, str] = {name: roles.get(name) or rest[name] for name in order}
        self.classes: list[str] | None = None
        self._numbers: dict[str, int] = {}

    def _find_label(self, given: str | None, images: Sequence[str]) -> str | None:
        others = {name: column for name, column in self._columns.items() if name not in images}
        if given is not None or not others:
            return given
        named = {name.lower(): name for name in reversed(others) if others[name].field.kind in ("int", "str", "bool")}
        certain = next((named[name] for name in LABEL_COLUMNS if name in named), None)
        if certain is not None:
            return certain
        likely = [name for name, column in others.items() if column.classes is not None]
        likely = likely or [named[name] for name in LESS_CERTAIN if name in named]
        listed = ", ".join(map(repr, likely or others))
        if len(likely) == 1:
            return likely[0]
        if likely:
            raise ConfigError(
                f"{self._where}: columns {listed} all look like labels; choose with label_column= (--label-column)"
            )
        raise ConfigError(
            f"{self._where}: no column looks like labels (a ClassLabel, or {', '.join(LABEL_COLUMNS)}): beside the images there "
            f"{'is' if len(others) == 1 else 'are'} {listed}; name the one that is with label_column= (--label-column), or pass "
            "label=False (--no-label) to pack without labels"
        )

    def learn_classes(self, source: TableSource) -> None:
        """Find the classes: those that a ClassLabel names, or the texts there are, sorted."""
        if self._label is None:
            return
        column = self._columns[self._label]
        if column.field.kind == "str":
            texts = {value for value in source.values(self._label) if isinstance(value, str)}
            self.classes = sorted(texts)
            self._numbers = {name: number for number, name in enumerate(self.classes)}
        elif column.field.kind in ("int", "bool"):
            self.classes = list(column.classes) if column.classes else None
        else:
            raise ConfigError(
                f"{self._where}: column {self._label!r} holds {column.field.kind} values; a label is an integer or a name"
            )

    @property
    def fields(self) -> dict[str, Field]:
        return {
            field: Field("int") if name == self._label else self._columns[name].field
            for name, field in self.names.items()
        }

    def label_of(self, value: Any) -> Any:
        """Return the label for what the table holds, None if it is not a label; any value where no column is the label."""
        if self._label is None:
            return value
        if isinstance(value, str):
            return self._numbers.get(value)
        known = isinstance(value, int) and (self.classes is None or 0 <= value < len(self.classes))
        return int(value) if known else None

    def record(self, row: Mapping[str, Any]) -> Record:
        """Return the record of a row; raises `BadItem`."""
        record: Record = {}
        for name, field in self.names.items():
            if name != self._label:
                record[field] = self._columns[name].value(row[name])
                continue
            label = self.label_of(row[name])
            if label is None:
                known = "" if self.classes is None else f" of the {counted(len(self.classes), 'class', 'classes')}"
                raise BadItem(f"its {name} {row[name]!r} is none{known}; --no-label packs what has no labels")
            record[field] = label
        return record


def dataset_tables(dataset: Any) -> dict[str, HuggingFaceRows]:
    """Return the rows of a ``datasets.Dataset``, or of each split of a ``DatasetDict``."""
    if isinstance(dataset, Mapping):
        return {str(name): HuggingFaceRows(part) for name, part in dataset.items()}
    return {"": HuggingFaceRows(dataset)}


def _features(rows: Any) -> dict[str, Any]:
    if isinstance(rows, HuggingFaceRows):
        return rows.features
    schema = rows.schema
    try:
        written = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        written = {}
    types = import_pyarrow().types
    known = written if isinstance(written, Mapping) else {}
    return {field.name: known.get(field.name) or feature_of(field.type, types) for field in schema}
