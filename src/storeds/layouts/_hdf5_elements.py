"""Datasets that are one value each: a picture, an array, a text; as they lie in stores with one dataset a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import h5py
import numpy as np

from storeds._columns import column_of
from storeds.errors import FormatError, StoredsError, UnavailableError
from storeds.layouts._hdf5_files import Hdf5Files
from storeds.layouts._hdf5_raw import raw_rows
from storeds.layouts._hdf5_values import Values, is_encoded, kind_of, to_value, unsupported
from storeds.protocols import JSON, Array, Field

__all__ = ["Attributes", "Datasets", "Elements", "attribute_fields", "attributes"]


class Elements:
    """The datasets of one series, each a value of the same field.

    Parameters
    ----------
    files : Hdf5Files
    samples : sequence of str
        Datasets by which the field is told.
    """

    def __init__(self, files: Hdf5Files, samples: Sequence[str]) -> None:
        self._files = files
        self.field = self._field([files.dataset(name) for name in samples])

    def _field(self, samples: Sequence[h5py.Dataset]) -> Field:
        files, first = self._files, samples[0]
        for dataset in samples:
            if _sort(dataset) != _sort(first):
                raise FormatError(
                    f"{files.url}: {first.name} and {dataset.name} are no samples of the same kind: {first.dtype} with "
                    f"{first.ndim} dimensions, {dataset.dtype} with {dataset.ndim}; group= names the group that holds samples"
                )
        if _is_text(first):
            return Field(kind_of([_bytes(files, dataset) for dataset in samples], True))
        if not _is_numeric(first):
            if _is_bytes(first):
                return Field(kind_of([_bytes(files, dataset) for dataset in samples], False))
            raise unsupported(files, first)
        if first.dtype.itemsize == 1 and first.dtype.kind in "iu" and first.ndim == 1:
            encoded = [is_encoded(_bytes(files, dataset)) for dataset in samples]
            if 2 * sum(encoded) > len(encoded):
                return Field("image")
        if not first.shape:
            kinds = {"b": "bool", "i": "int", "u": "int", "f": "float"}
            if first.dtype.kind in kinds:
                return Field(kinds[first.dtype.kind])  # type: ignore[arg-type]  # a kind
        # Which sizes all have in common is known only when all were looked at, and nobody waits for that.
        return Field("array", first.dtype.newbyteorder("<").str, (None,) * first.ndim)

    def read(self, name: str) -> Any:
        """Return the value of dataset `name`; a ValueError if there is none."""
        try:
            dataset = self._files.dataset(name)
            if not self._fits(dataset):
                return ValueError(f"dataset {name} is {dataset.dtype} {dataset.shape}, not what others are")
            text = _is_text(dataset)
            return to_value(self.field, _bytes(self._files, dataset), dataset.dtype, dataset.shape, text=text)
        except UnavailableError:
            raise
        except StoredsError as error:
            return ValueError(str(error).removeprefix(f"{self._files.url}: "))
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            return ValueError(f"dataset {name} cannot be read: {error}")

    def _fits(self, dataset: h5py.Dataset) -> bool:
        field = self.field
        if field.kind == "array":
            same = _is_numeric(dataset) and dataset.dtype.newbyteorder("<").str == field.dtype
            return same and dataset.ndim == len(field.shape or ())
        if field.is_scalar:
            return _is_numeric(dataset) and not dataset.shape
        one_byte = _is_numeric(dataset) and dataset.dtype.itemsize == 1 and dataset.ndim == 1
        return one_byte or _is_bytes(dataset) or _is_text(dataset)


def _sort(dataset: h5py.Dataset) -> tuple[str, int]:
    dtype = dataset.dtype
    if _is_numeric(dataset):
        return dtype.newbyteorder("<").str, dataset.ndim
    return dtype.kind, dataset.ndim  # how long an opaque value or a string is may differ


def _is_numeric(dataset: h5py.Dataset) -> bool:
    dtype = dataset.dtype
    return dtype.kind in "biufc" and dtype.itemsize <= 16 and dtype.char not in "gG"


def _is_text(dataset: h5py.Dataset) -> bool:
    return h5py.check_string_dtype(dataset.dtype) is not None and dataset.size == 1


def _is_bytes(dataset: h5py.Dataset) -> bool:
    base = h5py.check_vlen_dtype(dataset.dtype)
    opaque = dataset.dtype.kind == "V" and dataset.dtype.names is None
    return dataset.size == 1 and (opaque or (base is not None and np.dtype(base).itemsize == 1))


def _bytes(files: Hdf5Files, dataset: h5py.Dataset) -> bytes:
    dtype = dataset.dtype
    if dtype.hasobject:
        value = dataset[()]
        while isinstance(value, np.ndarray) and value.dtype.hasobject:
            value = value.reshape(-1)[0]
        return value.encode() if isinstance(value, str) else bytes(memoryview(value))
    rows = raw_rows(files, dataset, dtype, whole=True)
    (data,) = rows.read([(0, 1)])
    if len(data) != rows.size:
        raise ValueError("its bytes are cut short or damaged")
    return data.rstrip(b"\0") if dtype.kind == "S" else data


def attributes(owner: h5py.Group | h5py.Dataset) -> dict[str, JSON]:
    """Return the attributes that are one number or one text each."""
    out: dict[str, JSON] = {}
    for name in owner.attrs:
        try:
            value = owner.attrs[name]
        except (OSError, TypeError, RuntimeError):  # of a type that NumPy lacks
            continue
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(-1)[0]
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, (bool, int, float, str)):
            out[name] = value
    return out


def attribute_fields(found: dict[str, JSON]) -> dict[str, Field]:
    """Return the fields that attributes make."""
    kinds: dict[type, Any] = {bool: "bool", int: "int", float: "float", str: "str"}
    return {name: Field(kinds[type(value)]) for name, value in found.items()}


class Datasets(Values):
    """Values that are a dataset each."""

    def __init__(self, count: int, path: Callable[[int], str], elements: Elements) -> None:
        self.field, self.count = elements.field, count
        self._path, self._elements = path, elements

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._elements.read(self._path(at)) for at in positions]

    def column(self) -> Array:
        # docstring inherited
        return column_of(self.field, _good(self.read(range(self.count))))


class Attributes(Values):
    """An attribute of each sample's dataset."""

    def __init__(self, files: Hdf5Files, count: int, path: Callable[[int], str], name: str, field: Field) -> None:
        self.field, self.count = field, count
        self._files, self._path, self._name = files, path, name

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._read(self._path(at)) for at in positions]

    def _read(self, path: str) -> Any:
        try:
            found = attributes(self._files.dataset(path))
        except (FormatError, OSError, RuntimeError, KeyError) as error:
            return ValueError(f"dataset {path} cannot be read: {error}")
        if self._name not in found:
            return ValueError(f"dataset {path} has no attribute {self._name!r}; it has {', '.join(found) or 'none'}")
        value = found[self._name]
        if attribute_fields({"": value})[""] != self.field:
            return ValueError(
                f"attribute {self._name!r} of dataset {path} is {value!r}, not {self.field.kind} as in others"
            )
        return value

    def column(self) -> Array:
        # docstring inherited
        return column_of(self.field, _good(self.read(range(self.count))))


def _good(values: list[Any]) -> list[Any]:
    for value in values:
        if isinstance(value, ValueError):
            raise value
    return values
