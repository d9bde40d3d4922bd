"""Names the columns of tables: members of a compound type, and the parts of a frame that pandas wrote.

`DataFrame.to_hdf` stores the columns of one dtype as a *block*. A table has it in one member, whose attribute `…_kind` names the
columns; the fixed format in a dataset `block0_values` beside `block0_items`. A block of texts in the fixed format is one pickle.
"""

from __future__ import annotations

import re
from typing import Any

import h5py
import numpy as np

from storeds.backends.hdf5.headers import check_attribute
from storeds.layouts.hdf5.files import Hdf5Files, file_of
from storeds.layouts.hdf5.variable import VariableRows
from storeds.values.unpickle import CodecError, unpickle

__all__ = [
    "columns_of",
    "is_of_frame",
    "label_of",
    "names_categories",
    "names_columns",
    "parts_of",
    "pickled_rows",
    "unpickled",
]

Columns = dict[str, tuple[np.dtype[Any], int]]
"""Column → its type, and where it begins in a row."""

_MOST_NAMES = 1 << 20  # bytes of the names of columns
_WIDE = 64  # columns of a block; the sensors of a network are one array
_INDEX = "frame_index"  # `index` is the number of a sample
_BLOCK = re.compile(r"(block\d+)_values")
_NAMES = re.compile(r"axis0|block\d+_items")


def columns_of(dataset: h5py.Dataset) -> Columns:
    """Return what each row of a table, or of a block of a frame, holds: its members, and the columns in them."""
    dtype = dataset.dtype
    if dtype.fields is None:
        return {name: (_typed(dataset, dtype), at * dtype.itemsize) for at, name in enumerate(_items(dataset))}
    if not _is_frame_table(dataset):
        return {member: (whole, offset) for member, (whole, offset, *_) in dtype.fields.items()}
    columns: Columns = {}
    for member, (whole, offset, *_) in dtype.fields.items():
        columns[_INDEX if member == "index" else member] = whole, offset
        names = _columns_in(dataset, member)
        is_bool = bool(names) and whole.base.itemsize == 1 and _text(dataset, f"{member}_dtype") == "bool"
        base = np.dtype(bool) if is_bool else whole.base
        columns |= {name: (base, offset + at * base.itemsize) for at, name in enumerate(names)}
    return columns


def parts_of(dataset: h5py.Dataset) -> tuple[str, ...]:
    """Return the columns that are fields of their own; ``("",)`` if a row is one value, such as that of a wide block."""
    members = dataset.dtype.names
    if members is None:
        columns = tuple(columns_of(dataset))
        return columns if 0 < len(columns) <= _WIDE else ("",)
    if not _is_frame_table(dataset):
        return tuple(members)
    parts: list[str] = []
    for member in members:
        names = _columns_in(dataset, member)
        parts += names if 0 < len(names) <= _WIDE else [_INDEX if member == "index" else member]
    return tuple(parts)


def label_of(dataset: h5py.Dataset, path: str, column: str) -> str:
    """Return the name of a column in the file: of a frame without the path of its table or block."""
    if column and (_items(dataset) or _is_frame_table(dataset)):
        return column
    if path.rpartition("/")[2] in ("axis1", "index") and _of_frame(dataset):
        return _INDEX
    return f"{path}/{column}" if column else path


def names_columns(dataset: h5py.Dataset) -> bool:
    """Whether a dataset holds the names of columns of a frame, and no values."""
    return _NAMES.fullmatch(dataset.name.rpartition("/")[2]) is not None and _of_frame(dataset)


def names_categories(dataset: h5py.Dataset) -> bool:
    """Whether a table holds the categories of a column, which has their numbers."""
    return dataset.name.endswith("/meta/table") and _text(dataset.parent, "pandas_type") == "series_table"


def is_of_frame(dataset: h5py.Dataset) -> bool:
    """Whether pandas wrote a dataset, as a frame or a part of one: then datasets of one length are columns."""
    return _of_frame(dataset) or _is_frame_table(dataset)


def pickled_rows(dataset: h5py.Dataset) -> int | None:
    """Return how many rows a dataset holds as one pickle; None if it is no pickle of pandas."""
    if not dataset.dtype.hasobject or _text(dataset, "PSEUDOATOM") != "object" or dataset.shape != (1,):
        return None
    index = _sibling(dataset, "axis1" if "axis1" in dataset.parent else "index")
    return len(index) if index is not None and index.shape and _of_frame(dataset) else None


def unpickled(files: Hdf5Files, dataset: h5py.Dataset) -> dict[str, list[Any]]:
    """Return the columns of a dataset that is one pickle, ``""`` for that of a series; raises CodecError."""
    place = file_of(dataset), dataset.name
    found = files.unpickled.get(place)
    if found is None:
        found = _columns_of_pickle(files, dataset)
        if files.remembers:
            files.unpickled[place] = found
    return found


def _columns_of_pickle(files: Hdf5Files, dataset: h5py.Dataset) -> dict[str, list[Any]]:
    (data,) = VariableRows(files, dataset).read([0])
    if isinstance(data, ValueError):
        raise CodecError(str(data))
    rows, names = unpickle(data), _items(dataset)
    if not isinstance(rows, list) or len(rows) != pickled_rows(dataset):
        raise CodecError("its pickle does not hold a value for each row")
    if len(names) < 2 and not any(isinstance(row, list) for row in rows):
        return {"".join(names): [*map(_or_none, rows)]}
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        raise CodecError("its pickle does not hold a value for each column")
    return {name: [_or_none(row[at]) for row in rows] for at, name in enumerate(names)}


def _or_none(value: Any) -> Any:
    """Return a value; None for NaN, which stands for a missing text."""
    return None if isinstance(value, float) and value != value else value


def _of_frame(dataset: h5py.Dataset) -> bool:
    return _text(dataset.parent, "pandas_type") in ("frame", "series")


def _is_frame_table(dataset: h5py.Dataset) -> bool:
    return "index" in (dataset.dtype.names or ()) and "index_kind" in dataset.attrs


def _items(dataset: h5py.Dataset) -> list[str]:
    """Return the columns that a block of the fixed format holds."""
    match = _BLOCK.fullmatch(dataset.name.rpartition("/")[2])
    if match is None or not _of_frame(dataset):
        return []
    items = _sibling(dataset, f"{match[1]}_items")
    if items is None or items.dtype.kind != "S" or len(items.shape or ()) != 1 or items.nbytes > _MOST_NAMES:
        return []
    is_wide = len(dataset.shape) == 2 and dataset.shape[1] == len(items) and not dataset.dtype.hasobject
    return [str(name, "utf-8", "replace") for name in items[()]] if is_wide or dataset.dtype.hasobject else []


def _sibling(dataset: h5py.Dataset, name: str) -> h5py.Dataset | None:
    """Return a dataset of the same group whose bytes are in the same file; h5py would follow a link into any other."""
    group = dataset.parent
    found = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    return found if isinstance(found, h5py.Dataset) and not found.is_virtual and not found.external else None


def _typed(dataset: h5py.Dataset, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of the values of a block: PyTables stores truth values as fields of 8 bits."""
    return np.dtype(bool) if dataset.id.get_type().get_class() == h5py.h5t.BITFIELD and dtype.itemsize == 1 else dtype


def _text(owner: h5py.Dataset | h5py.Group, name: str) -> str:
    """Return an attribute that is text; ``""`` if there is none."""
    try:
        if name not in owner.attrs:
            return ""
        check_attribute(owner, name)
        value = owner.attrs[name]
    except (OSError, TypeError, ValueError, RuntimeError):  # damaged, or not one value
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _columns_in(dataset: h5py.Dataset, member: str) -> list[str]:
    """Return the columns in a member of a table of pandas, whose names PyTables has pickled; none if it is no block."""
    try:
        found = unpickle(_text(dataset, f"{member}_kind").encode())
    except CodecError:
        return []
    names = [name.decode() if isinstance(name, bytes) else name for name in found] if isinstance(found, list) else []
    fits = dataset.dtype[member].shape in ((), (len(names),)) and all(isinstance(name, str) for name in names)
    return names if fits else []
