"""The source for tables: what 🤗 datasets saves, loads or publishes, and other Parquet or Arrow files with images."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, FormatError, MissingDependencyError, StoreNotFoundError
from storeds.formats.format import Format
from storeds.formats.taking import take
from storeds.layouts.files.folders import class_notes
from storeds.layouts.files.rows import Bad, BadItem, File, Row, Rows
from storeds.layouts.files.walk import Root, Walk, is_hidden, names_of, show
from storeds.protocols import JSON, Field, Kind, Record
from storeds.records.fields import parse_fields
from storeds.values.classes import distinct_classes
from storeds.values.codecs import image_of_text
from storeds.values.coerce import missing, text_of
from storeds.values.columns import check_label_column, find_label, name_columns
from storeds.values.infer import field_of

__all__ = ["TABLE", "hugging_face", "table"]

_BATCH = 32  # rows
_TRIED = 16  # values that show whether bytes are images
_SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}(-[0-9a-f]+)?\.parquet")
_SPLITS = ("train", "validation", "valid", "val", "dev", "test")


def table(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | str | None = None,
    label_column: str | None = None,
    label: bool = True,
    allow_outside: bool = False,
) -> Rows:
    """Rows of a folder written by ``save_to_disk`` of 🤗 datasets, or of Parquet or Arrow files.

    Parameters
    ----------
    path : path
        A folder of one dataset or of a ``DatasetDict``, whose splits become the field ``split``; a folder of Parquet
        files, whose names give their splits; or one file.
    columns : sequence of str or str, optional
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
    ``ClassLabel`` go to ``attrs["classes"]``. Lists of numbers become arrays, other nested values JSON, dates text. A
    missing number or text makes its column JSON, a missing float is NaN, a missing image or label is a bad item. Files
    need pyarrow, but not 🤗 datasets.

    Raises
    ------
    StoreNotFoundError, FormatError, ConfigError, MissingDependencyError
        Nothing exists there, it is damaged or not a table, a column has values that no field can store, or pyarrow is
        not installed.
    """
    file = os.fspath(path)
    found = _find_tables(file)
    parts = {name: [_file(each) for each in files] for name, files in found.items()}
    folder = os.path.abspath(file if os.path.isdir(file) else os.path.dirname(os.path.abspath(file)))
    rows = _Table(show(file), parts, columns, label_column, label, folder if allow_outside else None).rows()
    if all(name.endswith(".parquet") for files in found.values() for name in files) and os.path.isdir(file):
        walk = Walk(Root(file, allow_outside=True), (".parquet",))
        list(walk.files(""))
        rows.notes.extend(walk.notes())
    return rows


def hugging_face(
    dataset: Any,
    *,
    columns: Sequence[str] | str | None = None,
    label_column: str | None = None,
    label: bool = True,
) -> Rows:
    """Rows of a ``datasets.Dataset``, or of all splits of a ``DatasetDict``; the options are those of `table`."""
    splits = {str(name): part for name, part in dataset.items()} if isinstance(dataset, Mapping) else {"": dataset}
    parts = {name: [_loaded(part)] for name, part in splits.items()}
    rows = _Table("the dataset", parts, columns, label_column, label, folder="").rows()
    if any(part.format.get("type") == "custom" for part in splits.values()):
        rows.notes.append("its transform is not applied: pack stores its original columns")
    return rows


@dataclass(frozen=True)
class _Part:
    """Some rows of a table.

    Parameters
    ----------
    name : str
        For messages.
    schema : pyarrow.Schema
    count : int
    state : JSON
        Changes when the rows change.
    batches : callable
        Yields Arrow batches of some columns.
    """

    name: str
    schema: Any
    count: int
    state: JSON
    batches: Callable[[list[str]], Iterator[Any]]

    @property
    def features(self) -> Mapping[str, Any]:
        """What 🤗 datasets noted about the columns."""
        try:
            features = json.loads(self.schema.metadata[b"huggingface"])["info"]["features"]
            return {name: noted for name, noted in features.items() if isinstance(noted, dict)}
        except (KeyError, ValueError, TypeError, AttributeError):
            return {}


def _loaded(dataset: Any) -> _Part:
    arrow = dataset.with_format("arrow")  # it decodes no image and applies no transform

    def batches(columns: list[str]) -> Iterator[Any]:
        return arrow.select_columns(columns).iter(_BATCH)  # type: ignore[no-any-return]  # datasets is optional

    return _Part("the dataset", dataset.features.arrow_schema, len(dataset), str(dataset._fingerprint), batches)


def _file(path: str) -> _Part:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet and Arrow files need pyarrow, which cannot be imported ({error}): pip install 'storeds[hf]'"
        ) from error

    def opened() -> Any:
        """Return a Parquet file, or an Arrow table of the mapped file."""
        try:
            with open(path, "rb") as file:
                head = file.read(6)
            if head.startswith(b"PAR1"):
                return pyarrow.parquet.ParquetFile(path)
            mapped = pyarrow.memory_map(path)
            return (pyarrow.ipc.open_file if head == b"ARROW1" else pyarrow.ipc.open_stream)(mapped).read_all()
        except (OSError, pyarrow.ArrowException) as error:
            raise FormatError(f"{show(path)} cannot be read as a table: {error}") from None

    def batches(columns: list[str]) -> Iterator[Any]:
        file = opened()
        try:
            if isinstance(file, pyarrow.Table):
                yield from file.select(columns).to_batches(_BATCH)
            else:
                yield from file.iter_batches(_BATCH, columns=columns)
        except (OSError, pyarrow.ArrowException) as error:
            raise FormatError(f"{show(path)} is damaged: {error}") from None

    file = opened()
    is_table = isinstance(file, pyarrow.Table)
    schema, count = (file.schema, file.num_rows) if is_table else (file.schema_arrow, file.metadata.num_rows)
    return _Part(show(path), schema, count, [os.path.basename(path), *File(path).state], batches)


class _Table:
    """The fields and rows of a table in parts.

    Parameters
    ----------
    where : str
        For messages.
    parts : mapping of str to list of _Part
        The parts of each split.
    columns, label_column, label
        As for `table`.
    folder : str or None
        Where paths of images start; None if images may not be read from files.
    """

    def __init__(
        self,
        where: str,
        parts: Mapping[str, list[_Part]],
        columns: Sequence[str] | str | None,
        label_column: str | None,
        label: bool,
        folder: str | None,
    ) -> None:
        self.where, self.folder = where, folder
        self.parts = {name: each for name, each in parts.items() if any(part.count for part in each)}
        self.every = [part for each in self.parts.values() for part in each]
        if not self.every:
            raise ConfigError(f"{where} has no rows")
        first = self.every[0]
        for part in self.every:
            if not part.schema.equals(first.schema) or part.features != first.features:
                raise ConfigError(f"{where}: {part.name} has other columns than {first.name}; pack them separately")
        every = first.schema.names
        chosen = every if columns is None else names_of(columns)
        for name in (*chosen, *([] if label_column is None else [label_column])):
            if name not in every:
                raise ConfigError(f"{where} has no column {name!r}, only {', '.join(map(repr, every))}")
        check_label_column(where, label_column, label)
        # The class names of ClassLabels, by column.
        self.named = {name: feature["names"] for name, feature in first.features.items() if feature.get("names")}
        found = {name: self._field(name, first) for name in chosen}
        self.columns = {name: field for name, field in found.items() if field is not None}
        self.images = [name for name, field in self.columns.items() if field.kind == "image"]
        self.label = (label_column or self._find_label()) if label else None
        roles = {self.images[0]: "image"} if len(self.images) == 1 else {}
        roles |= {self.label: "label"} if self.label is not None else {}
        rest, self.renamed = name_columns([name for name in self.columns if name not in roles], roles.values())
        order = sorted(self.columns, key=lambda name: ("image", "label").index(roles[name]) if name in roles else 2)
        self.names = {name: roles.get(name) or rest[name] for name in order}
        self.left_out = [name for name in every if name not in self.columns]
        self._add_nulls()
        self.classes = self._find_classes()
        self.numbers = {name: number for number, name in enumerate(self.classes)}

    def _field(self, name: str, part: _Part) -> Field | None:
        import pyarrow

        values = (value for batch in part.batches([name]) for value in batch.column(name).to_pylist())
        try:
            return _field(
                part.schema.field(name).type, part.features.get(name, {}), filter(None, values), pyarrow.types
            )
        except ValueError as error:
            raise ConfigError(
                f"{self.where}: column {name!r} contains {error}, which no field can store; choose columns with columns= "
                "(--option columns=a,b)"
            ) from None

    def _find_label(self) -> str | None:
        others = {name: field for name, field in self.columns.items() if name not in self.images}
        columns = [name for name, field in others.items() if field.kind in ("int", "str", "bool")]
        declared = [name for name in others if name in self.named]
        return find_label(self.where, columns, beside="images", needed=list(others), declared=declared)

    def _add_nulls(self) -> None:
        """Make columns of numbers and texts JSON if values are missing. A float has NaN for them."""
        simple = [name for name, field in self.columns.items() if field.kind in ("int", "bool", "str")]
        simple = [name for name in simple if name != self.label and name not in self.named]
        for part in self.every if simple else ():
            for batch in part.batches(simple):
                self.columns |= {name: Field("json") for name in simple if batch.column(name).null_count}

    def _find_classes(self) -> list[str]:
        """Return the class names: those of a ClassLabel, or the distinct strings, sorted."""
        if self.label is None:
            return []
        kind = self.columns[self.label].kind
        if kind not in ("int", "bool", "str"):
            raise ConfigError(f"{self.where}: column {self.label!r} has {kind} values; a label is an integer or a name")
        if kind != "str":
            return list(self.named.get(self.label, ()))
        return distinct_classes(
            value for _, values in self._read([self.label]) if (value := values[self.label]) is not None
        )

    def _read(self, columns: list[str], start: int = 0) -> Iterator[tuple[str, Record]]:
        """Yield the name of each row from row `start` on, and its values; with several splits, its split too."""
        at = 0
        for split, parts in self.parts.items():
            first, before = at, f"{split} " if len(self.parts) > 1 else ""
            named = {"split": split} if len(self.parts) > 1 else {}
            for batch in chain.from_iterable(part.batches(columns) for part in parts):
                at += batch.num_rows
                if at > start:
                    for row, values in enumerate(batch.to_pylist(), at - batch.num_rows):
                        if row >= start:
                            yield f"{before}row {row - first}", values | named

    def _items(self, start: int) -> Iterator[Row | Bad]:
        for name, values in self._read(list(self.names), start):
            try:
                yield Row(name, values | {image: self._image(values[image]) for image in self.images})
            except BadItem as error:
                yield Bad(name, str(error))

    def _image(self, found: Any) -> bytes | File | None:
        """Return the bytes or the file of an image."""
        if isinstance(found, str):
            found = image_of_text(found)
            if found is None:
                raise BadItem("its image is text that is not an image in base64")
        if not isinstance(found, Mapping):
            return found  # type: ignore[no-any-return]  # pack refuses what is no image
        # As 🤗 datasets stores images.
        if found["bytes"] is not None or found["path"] is None:
            return found["bytes"]  # type: ignore[no-any-return]  # of Arrow's type for bytes
        if self.folder is None:
            raise BadItem(
                f"its image is not in the table but at {found['path']!r}; pass allow_outside=True (--option "
                "allow_outside=true) to read it there"
            )
        return File(os.path.join(self.folder, found["path"]), what="image")

    def _label(self, value: Any) -> int | None:
        """Return the label for a value of the table, or None if it is not valid."""
        if isinstance(value, str):
            return self.numbers.get(value)
        is_valid = value is not None and (not self.classes or 0 <= value < len(self.classes))
        return int(value) if is_valid else None

    def _finish(self, values: Record) -> Record:
        record: Record = {}
        for name, field in self.names.items():
            value = values[name]
            try:
                record[field] = self._label(value) if name == self.label else _value(self.columns[name], value)
            except BadItem as error:
                raise BadItem(f"its {name} {error}") from None
            except (TypeError, ValueError, OverflowError) as error:
                raise BadItem(f"its {name} is not a valid {self.columns[name].kind}: {error}") from None
            if record[field] is None and name == self.label:
                known = counted(len(self.classes), "class", "classes")
                valid = f"one of the {known}" if self.classes else "a valid label"
                raise BadItem(f"its {name} {value!r} is not {valid}; --no-label packs without labels")
        return record | {"split": values["split"]} if len(self.parts) > 1 else record

    def _strata(self) -> Iterator[Row]:
        columns = {field: name for name, field in self.names.items() if field in ("key", "label")}
        for name, values in self._read(list(columns.values())):
            found = {field: values[column] for field, column in columns.items()}
            yield Row(name, found if self.label is None else found | {"label": self._label(found["label"])})

    def rows(self) -> Rows:
        """Return the rows."""
        fields = {
            field: Field("int") if name == self.label else self.columns[name] for name, field in self.names.items()
        }
        if len(self.parts) > 1:
            if "split" in fields or "split" in self.names:
                raise ConfigError(
                    f"{self.where} has splits and a column 'split'; leave the column out with columns= (--option "
                    "columns=a,b)"
                )
            fields["split"] = Field("str")
        return Rows(
            fields=fields,
            attrs={**({"classes": [*self.classes]} if self.classes else {}), "source": {"kind": "table"}},
            items=self._items,
            finish=self._finish,
            state=([part.state for part in self.every], list(self.parts), self.names),
            count=sum(part.count for part in self.every),
            strata=self._strata,
            columns={**self.names, **dict.fromkeys(self.left_out)},
            notes=[*class_notes(self.classes), *self.renamed],
        )


def _value(field: Field, found: Any) -> Any:
    """Return the value of a field for a value of the table; raises `BadItem`."""
    if found is None:
        if field.kind in ("float", "json"):
            return missing(field)
        raise BadItem("is missing (null)")
    if field.kind == "str" and not isinstance(found, str):
        found = text_of(found)
    return take(field, np.asarray(found, dtype=field.dtype) if field.kind == "array" else found)


def _field(kind: Any, noted: Mapping[str, Any], values: Iterator[Any], types: Any) -> Field | None:
    """Return the field for an Arrow type, or None for one without values; raises ValueError if none can store it.

    Parameters
    ----------
    kind : pyarrow.DataType
    noted : mapping
        What 🤗 datasets noted about the column.
    values : iterator
        Of the column; the first ones show whether bytes or texts are images, and how long lists in lists are.
    types : module
        ``pyarrow.types``.
    """
    sort = str(noted.get("_type"))
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if sort in ("Audio", "Video"):
        raise ValueError(f"{sort} values")
    if re.fullmatch("Array[2-5]D", sort):
        return _array(noted["dtype"], noted["shape"])
    if types.is_null(kind):
        return None
    if _is_bytes(kind):
        return field_of([*islice(values, _TRIED)] or [b""])
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    if types.is_struct(kind) and {each.name for each in kind} == {"bytes", "path"} and any(map(_is_bytes, inner)):
        return Field("image")  # as 🤗 datasets stores it
    if inner and not types.is_struct(kind) and (types.is_primitive(inner[0]) and not types.is_temporal(inner[0])):
        return _array(inner[0].to_pandas_dtype(), [kind.list_size if types.is_fixed_size_list(kind) else None])
    if any(map(_has_bytes, inner)):
        raise ValueError("bytes or images in a list or a group")
    if inner:
        return _nested_field(kind, [*islice(values, _TRIED)], types)
    simple: dict[Kind, Any] = {"int": types.is_integer, "float": types.is_floating, "bool": types.is_boolean}
    number = next((name for name, is_kind in simple.items() if is_kind(kind)), None)
    return Field(number) if number else field_of([*map(_as_text, islice(values, _TRIED))] or [""])


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _nested_field(kind: Any, values: Sequence[Any], types: Any) -> Field:
    """Return an array for lists of equally long lists of numbers, by some of them; JSON for anything else."""
    found = field_of(values) if values and not types.is_struct(kind) else Field("json")
    if found.kind != "array":
        return Field("json")
    leaf = kind
    while leaf.num_fields:
        leaf = leaf.field(0).type
    return _array(leaf.to_pandas_dtype(), [None, *(found.shape or ())[1:]])


def _is_bytes(kind: Any) -> bool:
    return "binary" in str(kind).split("<")[0]


def _has_bytes(kind: Any) -> bool:
    return _is_bytes(kind) or any(_has_bytes(kind.field(number).type) for number in range(kind.num_fields))


def _array(dtype: Any, shape: Sequence[int | None]) -> Field:
    return parse_fields({"x": {"kind": "array", "dtype": np.dtype(dtype).str, "shape": list(shape)}})["x"]


def _find_tables(path: str) -> dict[str, list[str]]:
    """Return the files of each split at `path`. A split without a name is ``""``.

    Raises
    ------
    StoreNotFoundError, ConfigError, FormatError
        Nothing exists there, it is not a table, or the folder contains several datasets.
    """
    if os.path.isfile(path):
        return {"": [path]}
    try:
        names = os.listdir(path)
    except OSError as error:
        raise StoreNotFoundError(f"no table at {show(path)}: {error.strerror}") from None
    if "dataset_dict.json" in names:
        splits = [os.path.basename(str(name)) for name in _load(path, "dataset_dict.json").get("splits") or []]
        return {name: _saved(os.path.join(path, name)) for name in splits}
    return {"": _saved(path)} if {"state.json", "dataset_info.json"} <= set(names) else _parquet(path)


def _load(folder: str, name: str) -> dict[str, Any]:
    try:
        return dict(json.loads(Path(folder, name).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(
            f"{show(os.path.join(folder, name))} cannot be read: {error}; save the dataset again"
        ) from None


def _saved(folder: str) -> list[str]:
    state = _load(folder, "state.json")
    if not isinstance(state.get("_data_files"), list) or state.get("_indices_data_files"):
        raise ConfigError(
            f"{show(folder)} was saved by an old version of 🤗 datasets; load it with datasets.load_from_disk and save it again"
        )
    return [os.path.join(folder, os.path.basename(str(item["filename"]))) for item in state["_data_files"]]


def _parquet(folder: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for top, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if not is_hidden(name))
        for name in sorted(names):
            if name.endswith(".parquet") and not is_hidden(name):
                found.setdefault(_split_of(top, name), []).append(os.path.join(top, name))
    if not found:
        raise ConfigError(f"{show(folder)} contains no Parquet files, and save_to_disk of 🤗 datasets did not write it")
    if "" in found and len(found) > 1:
        raise ConfigError(
            f"{show(folder)}: {show(os.path.basename(found[''][0]))} names no split, and others name "
            f"{', '.join(filter(None, found))}; pack them separately"
        )
    for name, files in found.items():
        folders = sorted({os.path.dirname(file) for file in files})
        if len(folders) > 1:
            raise ConfigError(
                f"{show(folder)} contains several datasets, each with a split {name!r}: "
                f"{some(os.path.relpath(path, folder) for path in folders)}; pass one of these folders"
            )
    ranks = {name: rank for rank, name in enumerate(_SPLITS)}
    return {name: found[name] for name in sorted(found, key=lambda name: (ranks.get(name, len(ranks)), name))}


def _split_of(folder: str, name: str) -> str:
    shard = _SHARD.fullmatch(name)
    if shard is not None:
        return shard[1]
    return next((each for each in (name.removesuffix(".parquet"), os.path.basename(folder)) if each in _SPLITS), "")


TABLE = Format(about="what 🤗 datasets saves or publishes, and other Parquet or Arrow files with images", read=table)
