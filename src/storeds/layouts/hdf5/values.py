"""Reads foreign HDF5 datasets as values of fields: finds their bytes in the file, and converts them.

Bytes are read by file offset if possible, else through libhdf5, and as they lie in the file: libhdf5 would cut a string at
its first NUL, and a picture stored as a string holds NULs.
"""

from __future__ import annotations

import functools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from storeds.backends.hdf5.headers import check_attribute
from storeds.backends.hdf5.rows import FlatRows, Rows, gather
from storeds.errors import FormatError
from storeds.layouts.hdf5.boxes import BoxedArray, Boxes, boxes_of
from storeds.layouts.hdf5.chunks import ChunkedRows, check_claim
from storeds.layouts.hdf5.files import Hdf5Files, file_of
from storeds.layouts.hdf5.frames import columns_of, pickled_rows, unpickled
from storeds.layouts.hdf5.references import References, are_references
from storeds.layouts.hdf5.variable import VariableRows
from storeds.protocols import Array, Field, Kind
from storeds.records.columns import SCALARS, column_of
from storeds.values.codecs import image_of_text, is_image
from storeds.values.infer import evenly, field_of, fit
from storeds.values.unpickle import CodecError

__all__ = [
    "DAMAGED",
    "SCALAR_KINDS",
    "TableRows",
    "Values",
    "is_numeric",
    "is_single",
    "kind_of",
    "packing",
    "raw_rows",
    "row_count",
    "to_value",
    "unsupported",
    "values_of",
    "whole_bytes",
]


SCALAR_KINDS: Mapping[str, Kind] = {"b": "bool", "i": "int", "u": "int", "f": "float"}
"""Kind of a dtype → kind of the field of single numbers."""


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether values of a dtype make numbers or arrays."""
    return dtype.kind in "biufc" and dtype.itemsize <= 16 and dtype.char not in "gG"


def _numeric_field(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    """Return the field of numeric rows: a number if a row holds one, whatever its dimensions, else an array."""
    if math.prod(shape) == 1 and dtype.kind in SCALAR_KINDS:
        return Field(SCALAR_KINDS[dtype.kind])
    return Field("array", dtype.newbyteorder("<").str, shape)


def _numbers(data: bytes, dtype: np.dtype[Any]) -> Array:
    # NumPy computes wrong results with a bool whose byte is neither 0 nor 1.
    return np.frombuffer(data, "u1") != 0 if dtype.kind == "b" else np.frombuffer(data, dtype)


def to_value(
    field: Field,
    data: Any,
    dtype: np.dtype[Any] | None = None,
    shape: tuple[int, ...] = (),
    *,
    text: bool = False,
    padded: bool = False,
) -> Any:
    """Return the value of a field from the bytes in the file, or a ValueError if they are not one.

    `padded` means that values of different lengths take the same space in the file, filled with NULs.
    """
    if isinstance(data, ValueError):
        return data
    if field.kind == "array":
        assert dtype is not None
        return np.array(_numbers(data, dtype).reshape(shape), dtype=field.dtype)
    if field.is_scalar:
        assert dtype is not None
        number = _numbers(data, dtype)[0].item()
        return (
            ValueError(f"{number} is beyond the int64 range") if field.kind == "int" and number >= 1 << 63 else number
        )
    if field.kind == "str":
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            return ValueError(f"its text is not UTF-8: {error}")
    return _image(data, text=text, padded=padded) if field.kind == "image" else data


def _image(data: bytes, *, text: bool, padded: bool) -> bytes | ValueError:
    # Every JPEG and PNG has NULs near its beginning, so the writer cut one that has none.
    if text and b"\0" not in data and is_image(data):
        return ValueError(
            f"the image was written as a string, so only the {len(data)} bytes before the first NUL were written; the rest is "
            "lost; write it again as bytes (opaque, or uint8 of variable length)"
        )
    if text and (found := image_of_text(str(data, "utf-8", "replace"))) is not None:
        return found
    return data.rstrip(b"\0") if padded and (data[:2] == b"\xff\xd8" or data[:4] == b"\x89PNG") else data


def kind_of(samples: Sequence[bytes], text: bool) -> Kind:
    """Return ``image``, ``str`` or ``bytes``: what most of the samples are, since some may be damaged."""
    known: list[Any] = [data for data in samples if data]
    if known and field_of(known).kind == "image":
        return "image"
    texts = [to_value(Field("str"), data) for data in known]
    if not text or not all(isinstance(each, str) for each in texts):
        return "bytes"
    return field_of(texts or [""]).kind


_MATLAB_CLASS = "MATLAB_class"


def is_single(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is one value, not one for each record. MATLAB stores a number as (1, 1) and a text in rows."""
    if not dataset.shape:
        return True
    if _MATLAB_CLASS not in dataset.attrs:
        return False
    check_attribute(dataset, _MATLAB_CLASS)
    return dataset.size <= 1 or dataset.attrs[_MATLAB_CLASS] in (b"char", "char")


def row_count(dataset: h5py.Dataset) -> int:
    """Return for how many records a dataset has values."""
    rows = pickled_rows(dataset)
    return int(dataset.shape[1 if _is_matlab_column(dataset) else 0]) if rows is None else rows


def _is_matlab_column(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is a MATLAB column vector, which is a single row here because MATLAB reverses the axes."""
    is_row = len(dataset.shape) == 2 and dataset.shape[0] == 1 < dataset.shape[1]
    return is_row and (_MATLAB_CLASS in dataset.attrs or are_references(dataset))


_PACKING = ("scale_factor", "add_offset")
_ABSENT = ("_FillValue", "missing_value", "_Unsigned")


def packing(dataset: h5py.Dataset) -> list[str]:
    """Return the attributes of netCDF by which stored numbers stand for others, or integers for none."""
    if not is_numeric(dataset.dtype):
        return []
    return [name for name in (*_PACKING, *(_ABSENT if dataset.dtype.kind in "iu" else ())) if name in dataset.attrs]


DAMAGED = "its bytes are cut short or damaged"
_SAMPLED = 9  # rows inspected to find out what bytes are
_SHORTEST = 64  # bytes of an image file


class Values(ABC):
    """One field of every record."""

    field: Field
    count: int
    is_flat = False
    """Whether reading needs no object of HDF5, because the values are contiguous in a file."""

    @abstractmethod
    def read(self, positions: Sequence[int]) -> list[Any]:
        """Return the values at ascending `positions`, with a ValueError in place of each bad one."""

    def arrays(self, positions: Sequence[int]) -> list[Any]:
        """Return the same as `read`, with a `storeds.records.parts.StoredArray` in place of each array that is read by parts."""
        return self.read(positions)

    def column(self) -> Array:
        """Return all values as one array; raises ValueError if one is bad."""
        values = self.read(range(self.count))
        for value in values:
            if isinstance(value, ValueError):
                raise value
        return column_of(self.field, values)

    def stacked(self, positions: Array) -> Array | None:
        """Return the values at `positions`, in any order; None if one is bad. The field has a fixed size."""
        unique, inverse = np.unique(positions, return_inverse=True)
        values = self.read(unique.tolist())
        if any(isinstance(value, ValueError) for value in values):
            return None
        found: Array = _native(column_of(self.field, values)[inverse])
        return found


class Fixed(Values):
    """Numbers and arrays, converted to native byte order; `boxes` gives those of the dataset, if its rows are arrays."""

    def __init__(
        self,
        rows: Rows,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        boxes: Callable[[], Boxes] | None = None,
    ) -> None:
        self._rows, self._dtype, self._shape, self._boxes = rows, dtype, shape, boxes
        self.field, self.count = _numeric_field(dtype, shape), rows.count
        self.is_flat = isinstance(rows, FlatRows)

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        raw = self._rows.read([(at, at + 1) for at in positions])
        size = self._rows.size
        return [
            to_value(self.field, data, self._dtype, self._shape) if len(data) == size else ValueError(DAMAGED)
            for data in raw
        ]

    def arrays(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        if self._boxes is None or self.field.kind != "array":
            return self.read(positions)
        boxes = self._boxes()
        return [BoxedArray(boxes, self.field.dtype or "", at) for at in positions]

    def column(self) -> Array:
        # docstring inherited
        (data,) = self._rows.read([(0, self.count)]) if self.count else (b"",)
        if len(data) != self.count * self._rows.size:
            raise ValueError(DAMAGED)
        return self._typed(np.frombuffer(bytearray(data), "u1"), self.count)

    def stacked(self, positions: Array) -> Array | None:
        # docstring inherited
        try:
            raw = gather(self._rows, positions)
            return _native(self._typed(raw.reshape(-1), len(positions)))
        except ValueError:
            return None

    def _typed(self, data: Array, count: int) -> Array:
        """Return the values in these bytes, in the same memory if possible."""
        flat = data != 0 if self._dtype.kind == "b" else data.view(self._dtype)
        if self.field.kind == "array":
            values: Array = flat.reshape(count, *self._shape).astype(self.field.dtype, copy=False)
            return values
        if self._dtype.kind == "u" and flat.size and int(flat.max()) >= 1 << 63:
            raise ValueError("it has integers beyond the int64 range")
        return flat.astype(SCALARS[self.field.kind], copy=False)


class Items(Values):
    """Encoded images, bytes, texts or arrays, each of its own length. The values show which of the first three they are.

    Parameters
    ----------
    count : int
    load : callable
        Returns the bytes at ascending positions, with a ValueError in place of damaged ones.
    field : Field or None
        If it is known.
    dtype : np.dtype, optional
        Of the numbers of an array.
    text : bool
        They are stored as strings.
    padded : bool
        They all take the same number of bytes in the file.
    """

    def __init__(
        self,
        count: int,
        load: Callable[[Sequence[int]], list[bytes | ValueError]],
        field: Field | None,
        *,
        dtype: np.dtype[Any] | None = None,
        text: bool = False,
        padded: bool = False,
    ) -> None:
        self.count, self._load, self._dtype, self._text, self._padded = count, load, dtype, text, padded
        self.field = field or Field(
            kind_of([value for value in load(evenly(count, _SAMPLED)) if type(value) is bytes], text)
        )

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        how = {"text": self._text, "padded": self._padded}
        return [to_value(self.field, data, self._dtype, (-1,), **how) for data in self._load(positions)]


class Listed(Values):
    """Values in memory."""

    def __init__(self, values: list[Any]) -> None:
        self.field, self._values = fit(values)
        self.count = len(values)

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._values[at] for at in positions]


class Referenced(Values):
    """What the references in a dataset lead to."""

    def __init__(self, references: References) -> None:
        self.field, self.count, self._references = references.field, references.count, references

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return self._references.read(positions)


def _fixed_items(files: Hdf5Files, dataset: h5py.Dataset, rows: Rows, field: Field | None, *, text: bool) -> Items:
    """Return opaque values, strings or rows of bytes, each in the same number of bytes."""

    def load(positions: Sequence[int]) -> list[bytes | ValueError]:
        check_claim(files, dataset, len(positions) * rows.size)
        raw = rows.read([(at, at + 1) for at in positions])
        # NULs behind a string are padding.
        return [
            (data.rstrip(b"\0") if text else data) if len(data) == rows.size else ValueError(DAMAGED) for data in raw
        ]

    return Items(rows.count, load, field, text=text, padded=True)


def _variable_items(files: Hdf5Files, dataset: h5py.Dataset, field: Field | None, base: np.dtype[Any] | None) -> Items:
    """Return bytes, texts or arrays of numbers of type `base`, of variable length."""
    if base is not None and base.itemsize > 1:
        field = Field("array", base.newbyteorder("<").str, (None,))
    rows = VariableRows(files, dataset)
    return Items(rows.count, rows.read, field, dtype=base, text=base is None)


def values_of(
    files: Hdf5Files, dataset: h5py.Dataset, member: str = "", field: Field | None = None
) -> dict[str, Values]:
    """Return the fields of a dataset: one named ``""``, or one for each column of a table, or only its `member`.

    With `field`, no value is read to find out what bytes are.
    """
    dtype = dataset.dtype
    if not dataset.shape:
        raise FormatError(f"{files.url}: dataset {dataset.name} is a single value, not one for each record")
    if dtype.hasobject and pickled_rows(dataset) is not None:
        return _pickled_values(files, dataset, member)
    columns = columns_of(dataset) if member or dtype.names else {}
    if not columns:
        if member:
            raise FormatError(f"{files.url}: dataset {dataset.name} is not a table, so it has no {member!r}")
        return {"": _plain_values(files, dataset, dtype, field)}
    is_table = not dtype.hasobject and (dtype.names is None or len(dataset.shape) == 1)
    rows = raw_rows(files, dataset, dtype) if is_table else None
    if rows is None:
        raise unsupported(files, dataset)
    _check_member(files, dataset, member, columns)
    return {
        name: _member_values(files, dataset, rows, *columns[name], name) for name in ([member] if member else columns)
    }


def _check_member(files: Hdf5Files, dataset: h5py.Dataset, member: str, columns: Iterable[str]) -> None:
    if member and member not in columns:
        raise FormatError(f"{files.url}: table {dataset.name} has no {member!r}; its columns are {', '.join(columns)}")


def _pickled_values(files: Hdf5Files, dataset: h5py.Dataset, member: str) -> dict[str, Values]:
    try:
        columns = unpickled(files, dataset)
    except CodecError as error:
        raise FormatError(f"{files.url}: dataset {dataset.name} is a pickle of pandas: {error}") from None
    _check_member(files, dataset, member, columns)
    return {name: Listed(values) for name, values in columns.items() if name == member or not member}


def _plain_values(files: Hdf5Files, dataset: h5py.Dataset, dtype: np.dtype[Any], field: Field | None) -> Values:
    if _is_matlab_column(dataset) and is_numeric(dtype):
        return Fixed(raw_rows(files, dataset, dtype, axis=1), dtype, ())
    inner = tuple(dataset.shape[1:])
    flat = math.prod(inner) == 1
    string = h5py.check_string_dtype(dtype)
    base = h5py.check_vlen_dtype(dtype)
    if is_numeric(dtype):
        rows = raw_rows(files, dataset, dtype)
        return (
            _fixed_items(files, dataset, rows, Field("image"), text=False)
            if _holds_images(dataset, rows, field)
            else Fixed(
                rows,
                dtype,
                inner,
                functools.cache(functools.partial(boxes_of, files, dataset.name, file_of(dataset))),
            )
        )
    if dtype.kind in "SV" and not dtype.hasobject and flat:
        return _fixed_items(files, dataset, raw_rows(files, dataset, dtype), field, text=dtype.kind == "S")
    if string is not None and string.length is None and not inner:
        return _variable_items(files, dataset, field, None)
    # h5py 3.16 swaps no bytes of big-endian items of variable length, and labels them as native.
    if base is not None and not inner and is_numeric(np.dtype(base)) and np.dtype(base).isnative:
        return _variable_items(files, dataset, field, np.dtype(base))
    if are_references(dataset) and dataset.size == row_count(dataset):
        return Referenced(References(files, dataset, field, functools.partial(whole_bytes, files)))
    raise unsupported(files, dataset)


def _holds_images(dataset: h5py.Dataset, rows: Rows, field: Field | None) -> bool:
    """Whether the rows of a dataset are image files padded to one length, not arrays."""
    if dataset.dtype != "u1" or dataset.ndim != 2 or dataset.shape[1] < _SHORTEST:
        return False
    if field is not None:
        return field.kind == "image"
    return kind_of(rows.read([(at, at + 1) for at in evenly(len(dataset), _SAMPLED)]), False) == "image"


def _member_values(
    files: Hdf5Files, dataset: h5py.Dataset, rows: Rows, whole: np.dtype[Any], offset: int, name: str
) -> Values:
    base, shape = whole.base, whole.shape
    part = TableRows(rows, offset, whole.itemsize)
    if is_numeric(base):
        return Fixed(part, base, shape)
    if base.kind == "S" and math.prod(shape) == 1:
        return _fixed_items(files, dataset, part, None, text=True)
    raise unsupported(files, dataset, f"column {name!r} of ")


def unsupported(files: Hdf5Files, dataset: h5py.Dataset, what: str = "") -> FormatError:
    """Return the error for a dataset whose type no field can hold."""
    return FormatError(
        f"{files.url}: {what}dataset {dataset.name} is of a type that no field holds: {dataset.dtype}, shape "
        f"{dataset.shape}; columns= names the datasets to read"
    )


def _native(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class TableRows:
    """One column of a table."""

    def __init__(self, table: Rows, offset: int, size: int) -> None:
        self._table, self._offset, self.size = table, offset, size
        self.count = table.count

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        whole, begin, end = self._table.size, self._offset, self._offset + self.size
        return [
            np.frombuffer(data, "u1").reshape(-1, whole)[:, begin:end].tobytes() if len(data) % whole == 0 else b""
            for data in self._table.read(spans)
        ]


def whole_bytes(files: Hdf5Files, dataset: h5py.Dataset, most: int | None = None) -> bytes:
    """Return the bytes of a dataset of values of fixed size, or of its first `most` rows; raises ValueError if they are damaged."""
    rows = raw_rows(files, dataset, dataset.dtype)
    count = rows.count if most is None else min(rows.count, most)
    (data,) = rows.read([(0, count)])
    if len(data) != rows.size * count:
        raise ValueError(DAMAGED)
    return data


def raw_rows(files: Hdf5Files, dataset: h5py.Dataset, dtype: np.dtype[Any], *, axis: int = 0) -> Rows:
    """Return the rows of a dataset of values of fixed size, along `axis`; the axes before it have length 1.

    A single value is one row.
    """
    count, *inner = dataset.shape[axis:] or (1,)
    size = math.prod(inner) * dtype.itemsize
    stored = dataset.id.get_type()
    memory = stored if dtype.kind in "SV" else h5py.h5t.py_create(dtype, logical=True)
    if stored.get_size() != dtype.itemsize and dtype.kind in "SV":
        raise FormatError(f"{files.url}: dataset {dataset.name} has the type {dtype}, laid out in an unusual way")
    equal = bool(stored.equal(memory))
    offset = None if dataset.chunks or not equal else dataset.id.get_offset()
    if offset is not None:
        return _flat_rows(files, dataset, file_of(dataset), offset, size, count)
    return ChunkedRows(files, dataset, memory, size, count, axis)


def _flat_rows(files: Hdf5Files, dataset: h5py.Dataset, path: str, offset: int, size: int, count: int) -> FlatRows:
    descriptor = files.descriptor(path)
    available = os.fstat(descriptor).st_size
    if offset + size * count > available:
        raise FormatError(
            f"{files.url} is cut short: dataset {dataset.name} ends at byte {offset + size * count} of {path}, which has "
            f"{available}; copy it again"
        )
    return FlatRows(descriptor, offset, size, count)
