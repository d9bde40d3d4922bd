"""Reads the rows of tables, and decides which column holds the labels and how the fields are called."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from storeds._utils.text import counted
from storeds.errors import ConfigError
from storeds.formats.tables.kinds import field_of_column
from storeds.formats.tables.parts import Part, find_tables, part_of_dataset, part_of_file
from storeds.formats.taking import take
from storeds.layouts.files.folders import class_notes
from storeds.layouts.files.rows import Bad, BadItem, File, Row, Rows
from storeds.layouts.files.walk import Root, Walk, names_of, show
from storeds.protocols import JSON, Field, Record
from storeds.values.classes import distinct_classes
from storeds.values.codecs import image_of_text
from storeds.values.coerce import missing, text_of
from storeds.values.columns import check_label_column, find_label, name_columns

__all__ = ["hugging_face", "table"]


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
    found = find_tables(file)
    parts = {name: [part_of_file(each) for each in files] for name, files in found.items()}
    folder = os.path.abspath(file if os.path.isdir(file) else os.path.dirname(os.path.abspath(file)))
    rows = _rows_of(show(file), parts, columns, label_column, label, folder if allow_outside else None)
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
    parts = {name: [part_of_dataset(part)] for name, part in splits.items()}
    rows = _rows_of("the dataset", parts, columns, label_column, label, folder="")
    if any(part.format.get("type") == "custom" for part in splits.values()):
        rows.notes.append("its transform is not applied: pack stores its original columns")
    return rows


def _rows_of(
    where: str,
    parts: Mapping[str, list[Part]],
    columns: Sequence[str] | str | None,
    label_column: str | None,
    label: bool,
    folder: str | None,
) -> Rows:
    """Return the rows of a table in parts.

    Parameters
    ----------
    where : str
        For messages.
    parts : mapping of str to list of Part
        The parts of each split.
    columns, label_column, label
        As for `table`.
    folder : str or None
        Where paths of images start; None if images may not be read from files.
    """
    parts = {name: each for name, each in parts.items() if any(part.count for part in each)}
    every = [part for each in parts.values() for part in each]
    if not every:
        raise ConfigError(f"{where} has no rows")
    first = every[0]
    for part in every:
        if not part.schema.equals(first.schema) or part.features != first.features:
            raise ConfigError(f"{where}: {part.name} has other columns than {first.name}; pack them separately")
    known = first.schema.names
    chosen = known if columns is None else names_of(columns)
    for name in (*chosen, *([] if label_column is None else [label_column])):
        if name not in known:
            raise ConfigError(f"{where} has no column {name!r}, only {', '.join(map(repr, known))}")
    check_label_column(where, label_column, label)
    found = {name: _field_of(where, first, name) for name in chosen}
    fields = {name: field for name, field in found.items() if field is not None}
    if label:
        label_column = label_column or _find_label(where, fields, first)
    if label_column is not None and label_column not in fields:
        raise ConfigError(f"{where}: the column of labels {label_column!r} has no values, or columns= leaves it out")
    names, renamed = _field_names(fields, label_column)
    has_splits = len(parts) > 1
    if has_splits and ("split" in names or "split" in names.values()):
        raise ConfigError(
            f"{where} has splits and a column 'split'; leave the column out with columns= (--option columns=a,b)"
        )
    fields |= _with_gaps({name: field for name, field in fields.items() if name != label_column}, every)
    classes = () if label_column is None else _classes(where, parts, label_column, fields[label_column])
    numbers = {name: number for number, name in enumerate(classes)}
    read = _Table(parts, fields, names, label_column, numbers, folder)
    split = {"split": Field("str")} if has_splits else {}
    return Rows(
        fields={field: Field("int") if name == label_column else fields[name] for name, field in names.items()} | split,
        attrs={**({"classes": list[JSON](classes)} if classes else {}), "source": {"kind": "table"}},
        items=read.items,
        finish=read.finish,
        state=([part.state for part in every], list(parts), names),
        count=sum(part.count for part in every),
        strata=read.strata,
        columns={**names, **dict.fromkeys(name for name in known if name not in fields)},
        notes=[*class_notes(classes), *renamed],
    )


def _field_of(where: str, part: Part, name: str) -> Field | None:
    import pyarrow

    values = (value for batch in part.batches([name]) for value in batch.column(name).to_pylist())
    kind, noted = part.schema.field(name).type, part.features.get(name, {})
    try:
        return field_of_column(kind, noted, filter(None, values), pyarrow.types)
    except ValueError as error:
        raise ConfigError(
            f"{where}: column {name!r} contains {error}, which no field can store; choose columns with columns= "
            "(--option columns=a,b)"
        ) from None


def _find_label(where: str, fields: Mapping[str, Field], part: Part) -> str | None:
    others = [name for name, field in fields.items() if field.kind != "image"]
    columns = [name for name in others if fields[name].kind in ("int", "str", "bool")]
    declared = [name for name in others if name in part.class_names]
    return find_label(where, columns, beside="images", needed=others, declared=declared)


def _field_names(fields: Mapping[str, Field], label: str | None) -> tuple[dict[str, str], list[str]]:
    """Return the name of the field of each column: image, label, others; and notes about names."""
    images = [name for name, field in fields.items() if field.kind == "image"]
    fixed = {images[0]: "image"} if len(images) == 1 else {}
    fixed |= {label: "label"} if label is not None else {}
    rest, renamed = name_columns([name for name in fields if name not in fixed], fixed.values())
    return {name: (fixed | rest)[name] for name in (*fixed, *rest) if name in fields}, renamed


def _with_gaps(fields: Mapping[str, Field], parts: Sequence[Part]) -> dict[str, Field]:
    """Return the columns of numbers and texts in which values are missing, as JSON. A float has NaN for them."""
    named = parts[0].class_names
    simple = [name for name, field in fields.items() if field.kind in ("int", "bool", "str") and name not in named]
    found: dict[str, Field] = {}
    for part in parts if simple else ():
        for batch in part.batches(simple):
            found |= {name: Field("json") for name in simple if batch.column(name).null_count}
    return found


def _classes(where: str, parts: Mapping[str, list[Part]], label: str, field: Field) -> Sequence[str]:
    """Return the class names: those of a ClassLabel, or the distinct strings, sorted."""
    if field.kind not in ("int", "bool", "str"):
        raise ConfigError(f"{where}: column {label!r} has {field.kind} values; a label is an integer or a name")
    if field.kind != "str":
        return next(iter(parts.values()))[0].class_names.get(label, ())
    return distinct_classes(value for _, row in _values(parts, [label]) if (value := row[label]) is not None)


def _values(parts_of: Mapping[str, list[Part]], columns: list[str], start: int = 0) -> Iterator[tuple[str, Record]]:
    """Yield the name of each row from row `start` on, and its values; with several splits, its split too."""
    at = 0
    for split, parts in parts_of.items():
        first, before = at, f"{split} " if len(parts_of) > 1 else ""
        named = {"split": split} if len(parts_of) > 1 else {}
        for batch in chain.from_iterable(part.batches(columns) for part in parts):
            at += batch.num_rows
            if at > start:
                for row, values in enumerate(batch.to_pylist(), at - batch.num_rows):
                    if row >= start:
                        yield f"{before}row {row - first}", values | named


@dataclass(frozen=True)
class _Table:
    """Reads the rows of a table.

    Parameters
    ----------
    parts : mapping of str to list of Part
        The parts of each split.
    fields : mapping of str to Field
        Column → its field.
    names : mapping of str to str
        Column → the name of its field, in the order of fields.
    label : str or None
        The column of labels.
    numbers : mapping of str to int
        Class name → its number, if there are class names.
    folder : str or None
        Where paths of images start; None if images may not be read from files.
    """

    parts: Mapping[str, list[Part]]
    fields: Mapping[str, Field]
    names: Mapping[str, str]
    label: str | None
    numbers: Mapping[str, int]
    folder: str | None

    def items(self, start: int) -> Iterator[Row | Bad]:
        """Yield the rows from row `start` on, with images that are read later."""
        images = [name for name in self.names if self.fields[name].kind == "image"]
        for name, values in _values(self.parts, list(self.names), start):
            try:
                yield Row(name, values | {image: self._image(values[image]) for image in images})
            except BadItem as error:
                yield Bad(name, str(error))

    def strata(self) -> Iterator[Row]:
        """Yield the rows with their key and label alone."""
        columns = {field: name for name, field in self.names.items() if field in ("key", "label")}
        for name, values in _values(self.parts, list(columns.values())):
            found = {field: values[column] for field, column in columns.items()}
            yield Row(name, found if self.label is None else found | {"label": self._label(found["label"])})

    def finish(self, values: Record) -> Record:
        """Return the record of a row; raises `BadItem`."""
        record: Record = {}
        for name, field in self.names.items():
            value, declared = values[name], self.fields[name]
            try:
                record[field] = self._label(value) if name == self.label else _value(declared, value)
            except BadItem as error:
                raise BadItem(f"its {name} {error}") from None
            except (TypeError, ValueError, OverflowError) as error:
                raise BadItem(f"its {name} is not a valid {declared.kind}: {error}") from None
            if record[field] is None and name == self.label:
                known = counted(len(self.numbers), "class", "classes")
                valid = f"one of the {known}" if self.numbers else "a valid label"
                raise BadItem(f"its {name} {value!r} is not {valid}; --no-label packs without labels")
        return record | {"split": values["split"]} if len(self.parts) > 1 else record

    def _image(self, found: Any) -> bytes | File | None:
        """Return the bytes or the file of an image."""
        if isinstance(found, str):
            found = image_of_text(found)
            if found is None:
                raise BadItem("its image is text that is not an image in base64")
        if not isinstance(found, Mapping):
            return found  # type: ignore[no-any-return]  # `pack` reports other values as bad items
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
        is_valid = value is not None and (not self.numbers or 0 <= value < len(self.numbers))
        return int(value) if is_valid else None


def _value(field: Field, found: Any) -> Any:
    """Return the value of a field for a value of the table; raises `BadItem`."""
    if found is None:
        if field.kind in ("float", "json"):
            return missing(field)
        raise BadItem("is missing (null)")
    if field.kind == "str" and not isinstance(found, str):
        found = text_of(found)
    return take(field, np.asarray(found, dtype=field.dtype) if field.kind == "array" else found)
