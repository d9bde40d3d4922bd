"""The source for tables: what 🤗 datasets saves, loads or publishes, and other Parquet or Arrow files with images."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from storeds._utils.text import counted
from storeds.errors import ConfigError
from storeds.layouts.codecs import is_image
from storeds.ops.packing.sources.base import BadItem, Fingerprint, Problem, class_notes, locate, read_file, show
from storeds.ops.packing.sources.columns import LESS_CERTAIN, field_names, likely_label, no_label
from storeds.ops.packing.sources.objects import take, undecoded
from storeds.ops.packing.sources.table_rows import (
    SAVED_FILES,
    TABLE_SUFFIXES,
    TableFiles,
    find_tables,
    import_pyarrow,
)
from storeds.protocols import JSON, Field, Record
from storeds.records.fields import parse_fields

__all__ = ["SAVED_FILES", "TABLE_SUFFIXES", "TableSource", "dataset_tables"]

_NUMBER = re.compile(r"u?int\d+|float\d+|half|double|bool")
_SHAPED = re.compile(r"Array[2-5]D")
_LISTS = ("List", "LargeList", "Sequence")
_GUESS = 1 << 16
_TRIED = 64


class _Rows(Protocol):
    """Rows with named columns."""

    def __len__(self) -> int: ...

    def row(self, index: int, columns: Sequence[str]) -> Mapping[str, Any]:
        """Return some columns of one row."""
        ...

    def column(self, name: str) -> Iterator[Any]:
        """Yield one column."""
        ...

    def fingerprint(self) -> JSON:
        """Return a value that changes when the rows change."""
        ...


class _HuggingFaceRows:
    """The rows of a ``datasets.Dataset``, with images as encoded files.

    Parameters
    ----------
    dataset : datasets.Dataset
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = undecoded(dataset.with_format(None))
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
    """A folder written by ``save_to_disk`` of 🤗 datasets, or Parquet or Arrow files.

    Parameters
    ----------
    path : path, or mapping of str to rows
        A folder of one dataset or of a ``DatasetDict``, whose splits become the field ``split``; a folder of Parquet
        files, whose names give their splits; or one file.
    columns : sequence of str, optional
        The columns to pack; all by default.
    label_column : str, optional
        The column of labels; by default the only ``ClassLabel``, or the one named ``label``, ``class`` or ``target``.
    label : bool
        False to pack without labels. Required if there are columns beside the image and none looks like a label.
    allow_outside : bool
        Read images that a file contains only as paths. Relative paths start at the folder of the file.

    Notes
    -----
    Images keep the bytes that the column contains; the only column of images becomes ``image``. The names of a
    ``ClassLabel`` go to ``attrs["classes"]``. Sequences of numbers become arrays, other nested values JSON, dates text. A
    missing number or text makes its column JSON, a missing float is NaN, a missing image or label is a bad item. Files
    need pyarrow, but not 🤗 datasets.

    Raises
    ------
    StoreNotFoundError, FormatError, ConfigError, MissingDependencyError
        Nothing exists there, it is damaged or not a table, a column has values that no field can store, or pyarrow is
        not installed.
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
            raise ConfigError(f"{self._where} has no rows")
        self._parts: list[_Rows] = list(parts.values())
        self._splits = list(parts) if len(parts) > 1 else []
        self._ends = list(accumulate(map(len, self._parts)))
        features = [_features(rows) for rows in self._parts]
        if any(other != features[0] for other in features[1:]):
            raise ConfigError(
                f"{self._where}: its splits {', '.join(parts)} have different columns; pack them separately"
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
            raise ConfigError(
                f"{self._where} has splits and a column 'split'; leave the column out with columns= (--columns)"
            )
        self.columns: Mapping[str, str | None] = {**self._plan.names, **dict.fromkeys(left_out)}
        classes: list[JSON] = list(self._plan.classes or ())
        self.attrs: Mapping[str, JSON] = {**({"classes": classes} if classes else {}), "source": {"kind": "table"}}
        transformed = any(getattr(rows, "is_transformed", False) for rows in self._parts)
        self.notes: Sequence[str] = (
            *class_notes(self._plan.classes or ()),
            *(["its transform is not applied: pack stores its original columns"] if transformed else []),
        )
        self.fingerprint: JSON = self._hash()

    def _choose(self, features: Mapping[str, Any], columns: Sequence[str] | None) -> list[str]:
        for name in columns or ():
            if name not in features:
                raise ConfigError(f"{self._where} has no column {name!r}, only {', '.join(map(repr, features))}")
        return list(features) if columns is None else list(columns)

    def _column(self, name: str, feature: Any) -> _Column | None:
        simple = isinstance(feature, Mapping) and feature.get("_type") == "Value"
        binary = simple and "binary" in str(feature.get("dtype"))
        has_nulls = simple and not binary and any(value is None for rows in self._parts for value in rows.column(name))
        first = None
        if binary:
            rows = self._parts[0]
            tried = (rows.row(index, [name])[name] for index in range(min(len(rows), _TRIED)))
            first = next((value for value in tried if value is not None), None)
        try:
            return _column_of(name, feature, first, has_nulls=has_nulls)
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

    def __len__(self) -> int:
        return self._ends[-1]

    def name(self, index: int, /) -> str:
        # docstring inherited
        part, at = locate(self._ends, index)
        return f"{self._splits[part]} row {at}" if self._splits else f"row {at}"

    def size(self, index: int, /) -> int:
        # docstring inherited
        return _GUESS

    def _external(self, path: Any) -> bytes | None:
        if path is None:
            return None
        if not self._outside:
            raise BadItem(
                f"its image is not in the table but at {path!r}; pass allow_outside=True (--allow-outside) to read it there"
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
        part, at = locate(self._ends, index)
        row = dict(self._parts[part].row(at, list(self._plan.names)))
        for name, value in row.items():
            if isinstance(value, Mapping) and value.keys() == {"bytes", "path"} and value["bytes"] is None:
                row[name] = self._external(value["path"])
        record = self._plan.record(row)
        return record | {"split": self._splits[part]} if self._splits else record


class _Plan:
    """The field for each column."""

    def __init__(self, where: str, columns: Sequence[_Column], label_column: str | None, label: bool) -> None:
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
        likely = [name for name, column in others.items() if column.classes is not None]
        found = likely_label(self._where, named, likely or list(filter(None, map(named.get, LESS_CERTAIN))))
        if found is None:
            say = "name the column of labels with label_column= (--label-column)"
            raise no_label(self._where, "column", "images", list(others), say, "a ClassLabel, or ")
        return found

    def learn_classes(self, source: TableSource) -> None:
        """Set the classes: those of a ClassLabel, or the distinct strings, sorted."""
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
                f"{self._where}: column {self._label!r} has {column.field.kind} values; a label is an integer or a name"
            )

    @property
    def fields(self) -> dict[str, Field]:
        return {
            field: Field("int") if name == self._label else self._columns[name].field
            for name, field in self.names.items()
        }

    def label_of(self, value: Any) -> Any:
        """Return the label for a value of the table, None if it is not valid; without labels, return the value."""
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
                count = 0 if self.classes is None else len(self.classes)
                valid = f"one of the {counted(count, 'class', 'classes')}" if count else "a valid label"
                raise BadItem(f"its {name} {row[name]!r} is not {valid}; --no-label packs without labels")
            record[field] = label
        return record


def dataset_tables(dataset: Any) -> dict[str, _HuggingFaceRows]:
    """Return the rows of a ``datasets.Dataset``, or of each split of a ``DatasetDict``."""
    if isinstance(dataset, Mapping):
        return {str(name): _HuggingFaceRows(part) for name, part in dataset.items()}
    return {"": _HuggingFaceRows(dataset)}


def _features(rows: Any) -> dict[str, Any]:
    if isinstance(rows, _HuggingFaceRows):
        return rows.features
    schema = rows.schema
    try:
        written = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        written = {}
    types = import_pyarrow().types
    known = written if isinstance(written, Mapping) else {}
    return {field.name: known.get(field.name) or _feature_of(field.type, types) for field in schema}


@dataclass(frozen=True)
class _Column:
    """One column of a table and its field.

    Parameters
    ----------
    name : str
        The name of the column.
    field : Field
    classes : tuple of str or None
        The class names of a column of labels.
    missing : object
        The replacement for a missing value; None if that is an error.
    """

    name: str
    field: Field
    classes: tuple[str, ...] | None = None
    missing: Any = None

    def value(self, found: Any) -> Any:
        """Return the value of the field for a value of the table; raises `BadItem`."""
        if found is None and self.field.kind != "json":
            if self.missing is None:
                raise BadItem(f"its {self.name} is missing (null)")
            return self.missing
        try:
            return take(self.field, self._converted(found))
        except BadItem as error:
            raise BadItem(f"its {self.name} {error}") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise BadItem(f"its {self.name} is not a valid {self.field.kind}: {error}") from None

    def _converted(self, found: Any) -> Any:
        kind = self.field.kind
        if kind == "array":
            return np.asarray(found, dtype=self.field.dtype)
        if kind == "float" and isinstance(found, int):
            return float(found)
        if kind == "str" and not isinstance(found, str):
            return found.isoformat() if hasattr(found, "isoformat") else str(found)
        return found


def _feature_of(kind: Any, types: Any) -> dict[str, Any]:
    """Return an Arrow type as a feature in the form of 🤗 datasets. `types` is ``pyarrow.types``."""
    if types.is_struct(kind):
        names = {kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)}
        if names.keys() == {"bytes", "path"} and types.is_binary(names["bytes"]):
            return {"_type": "Image"}
        return {name: _feature_of(inner, types) for name, inner in names.items()}
    if types.is_dictionary(kind):
        return _feature_of(kind.value_type, types)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        length = kind.list_size if types.is_fixed_size_list(kind) else -1
        return {"_type": "List", "feature": _feature_of(kind.value_type, types), "length": length}
    return {"_type": "Value", "dtype": str(kind)}


def _column_of(name: str, feature: Any, first: Any, *, has_nulls: bool) -> _Column | None:
    """Return the column for a feature, or None for one without values; raises ConfigError if no field can store it.

    Parameters
    ----------
    name : str
    feature : mapping or list
        In the form of 🤗 datasets.
    first : object
        A value, which shows whether bytes are an image.
    has_nulls : bool
        Values are missing. Numbers and strings are then stored as JSON, floats as NaN.
    """
    sort = feature.get("_type") if isinstance(feature, Mapping) else None
    if sort == "Image":
        return _Column(name, Field("image"))
    if sort == "ClassLabel":
        return _Column(name, Field("int"), tuple(feature.get("names") or ()))
    if sort == "Value":
        return _value_column(name, str(feature.get("dtype")), first, has_nulls=has_nulls)
    if sort is not None and _SHAPED.fullmatch(sort):
        return _Column(name, _array(name, feature["dtype"], list(feature["shape"])))
    if sort in _LISTS and _is_number(inner := feature.get("feature")):
        length = feature.get("length", -1)
        return _Column(name, _array(name, inner["dtype"], [None if length is None or length < 0 else length]))
    unsupported = _unsupported(feature)
    if unsupported is not None:
        raise ConfigError(
            f"column {name!r} contains {unsupported}, which no field can store; choose columns with columns= (--columns)"
        )
    return _Column(name, Field("json"))


def _value_column(name: str, dtype: str, first: Any, *, has_nulls: bool) -> _Column | None:
    if dtype == "null":
        return None
    if "binary" in dtype:
        return _Column(name, Field("image" if isinstance(first, bytes) and is_image(first) else "bytes"))
    if dtype.startswith(("float", "half", "double")):
        return _Column(name, Field("float"), missing=float("nan"))
    if has_nulls:
        return _Column(name, Field("json"))
    if dtype == "bool":
        return _Column(name, Field("bool"))
    return _Column(name, Field("int" if _NUMBER.fullmatch(dtype) else "str"))


def _is_number(feature: Any) -> bool:
    return (
        isinstance(feature, Mapping)
        and feature.get("_type") == "Value"
        and _NUMBER.fullmatch(str(feature.get("dtype"))) is not None
    )


def _array(name: str, dtype: str, shape: list[int | None]) -> Field:
    numpy_name = {"half": "float16", "double": "float64", "float": "float32"}.get(dtype, dtype)
    return parse_fields({name: {"kind": "array", "dtype": np.dtype(numpy_name).str, "shape": shape}})[name]


def _unsupported(feature: Any) -> str | None:
    """Return the part of a nested feature that is neither text nor number."""
    if isinstance(feature, list):
        return _unsupported(feature[0]) if feature else None
    if not isinstance(feature, Mapping):
        return None
    sort = feature.get("_type")
    if isinstance(sort, str) and sort not in (*_LISTS, "Value", "ClassLabel", "Translation"):
        if sort.startswith(("Array", "Translation")):
            return None
        return f"{sort} values" if sort in ("Audio", "Video") else f"{sort}s in a list or a group"
    if sort == "Value":
        return "bytes in a list or a group" if "binary" in str(feature.get("dtype")) else None
    inner = (
        [feature["feature"]] if "feature" in feature else [value for key, value in feature.items() if key != "_type"]
    )
    return next((found for value in inner if (found := _unsupported(value)) is not None), None)
