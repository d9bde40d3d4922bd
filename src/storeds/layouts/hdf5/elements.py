"""Datasets that are one value each: a picture, an array, a text; as they lie in stores with one dataset a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from storeds.errors import FormatError, StoredsError, UnavailableError
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.names import split
from storeds.layouts.hdf5.storage import raw_rows
from storeds.layouts.hdf5.values import SCALAR_KINDS, Values, is_encoded, kind_of, to_value, unsupported
from storeds.protocols import JSON, Field, Kind

__all__ = [
    "Attributes",
    "Datasets",
    "Elements",
    "attribute_fields",
    "attributes",
    "element_bytes",
    "element_field",
    "single_values",
    "sort_of",
]

# What PyTables, MATLAB, netCDF and the HDF5 image and dimension-scale conventions write on their own account.
_LIBRARIES = {"CLASS", "VERSION", "TITLE", "FLAVOR", "EXTDIM", "PSEUDOATOM", "NAME", "H5PATH", "INTERLACE_MODE"}
_LIBRARY_PREFIXES = ("IMAGE_", "MATLAB_", "PYTABLES_", "_Netcdf4", "_NC")
_MOST_ENCODED = 256 << 20  # bytes; a larger dataset is no single encoded value, and is not read to tell


def element_field(files: Hdf5Files, samples: Sequence[str]) -> Field:
    """Return the field whose values the datasets of one series are, told by some of them.

    Raises
    ------
    FormatError
        More than a few are of different kinds, or all are of a kind that no field holds.
    """
    datasets = _alike(files, [files.dataset(name) for name in samples])
    first = datasets[0]
    if not _is_numeric(first):
        if not (_is_text(first) or _is_bytes(first)):
            raise unsupported(files, first)
        return Field(kind_of(_readable(files, datasets), _is_text(first)))
    return Field("image") if _are_encoded(files, datasets) else _numeric_element(datasets)


def _alike(files: Hdf5Files, datasets: Sequence[h5py.Dataset]) -> list[h5py.Dataset]:
    """Return the datasets without the odd ones, which are bad samples; raises FormatError where those are more than a few."""
    sorts = [sort_of(dataset) for dataset in datasets]
    (most, count), *_ = Counter(sorts).most_common(1)
    if 8 * count < 7 * len(sorts):
        first, other = (
            datasets[at] for at in (sorts.index(most), next(at for at, sort in enumerate(sorts) if sort != most))
        )
        raise FormatError(
            f"{files.url}: {first.name} and {other.name} are no samples of the same kind: {first.dtype} with "
            f"{first.ndim} dimensions, {other.dtype} with {other.ndim}; group= names the group that holds samples"
        )
    return [dataset for dataset, sort in zip(datasets, sorts, strict=True) if sort == most]


def _are_encoded(files: Hdf5Files, datasets: Sequence[h5py.Dataset]) -> bool:
    first = datasets[0]
    if first.dtype.itemsize != 1 or first.dtype.kind not in "iu" or first.ndim != 1:
        return False
    if any(dataset.size > _MOST_ENCODED for dataset in datasets):
        return False
    read = _readable(files, datasets)
    return 2 * sum(map(is_encoded, read)) > len(read)  # most of them, because a store may have a damaged one


def _readable(files: Hdf5Files, datasets: Sequence[h5py.Dataset]) -> list[bytes]:
    out = []
    for dataset in datasets:
        try:
            out.append(element_bytes(files, dataset))
        except StoredsError:
            raise
        except (OSError, RuntimeError, ValueError):
            continue  # a damaged one spoils its own record, not the store
    return out


def _numeric_element(datasets: Sequence[h5py.Dataset]) -> Field:
    dtype, ndim = datasets[0].dtype, datasets[0].ndim
    # One number is a number whatever its dimensions, as in rows: MATLAB knows no other.
    if dtype.kind in SCALAR_KINDS and all(dataset.size == 1 for dataset in datasets):
        return Field(SCALAR_KINDS[dtype.kind])
    # Which sizes all have in common is known only when all were looked at, and nobody waits for that.
    return Field("array", dtype.newbyteorder("<").str, (None,) * ndim)


class Elements:
    """The datasets of one series, each a value of the same field.

    Parameters
    ----------
    files : Hdf5Files
    field : Field
        As `element_field` told it.
    """

    def __init__(self, files: Hdf5Files, field: Field) -> None:
        self._files, self.field = files, field

    def read(self, name: str) -> Any:
        """Return the value of dataset `name`; a ValueError if there is none."""
        try:
            dataset = self._files.dataset(name)
            if not self._fits(dataset):
                return ValueError(f"dataset {name} is {dataset.dtype} {dataset.shape}, not what others are")
            text = _is_text(dataset)
            return to_value(self.field, element_bytes(self._files, dataset), dataset.dtype, dataset.shape, text=text)
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
            return _is_numeric(dataset) and dataset.size == 1 and SCALAR_KINDS.get(dataset.dtype.kind) == field.kind
        one_byte = _is_numeric(dataset) and dataset.dtype.itemsize == 1 and dataset.ndim == 1
        return one_byte or _is_bytes(dataset) or _is_text(dataset)


def sort_of(dataset: h5py.Dataset) -> tuple[str, int]:
    """Return what two datasets must have in common to be values of one field."""
    dtype = dataset.dtype
    if not dataset.shape and dtype.kind in SCALAR_KINDS:
        return SCALAR_KINDS[dtype.kind], 0
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


def element_bytes(files: Hdf5Files, dataset: h5py.Dataset) -> bytes:
    """Return the bytes of a dataset that is one value; raises ValueError where they are damaged."""
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
    """Return the attributes that are one number or one text each, but for what libraries note for themselves."""
    out: dict[str, JSON] = {}
    for name in owner.attrs:
        if name in _LIBRARIES or name.startswith(_LIBRARY_PREFIXES):
            continue
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


def single_values(files: Hdf5Files, group: str) -> dict[str, JSON]:
    """Return the datasets of a group that are one number or one text each."""
    out: dict[str, JSON] = {}
    for name in split(files.group(group))[0]:
        path = f"{group}/{name}"
        dataset = files.dataset(path)
        if dataset.shape or not (dataset.dtype.kind in SCALAR_KINDS or _is_text(dataset)):
            continue
        value = Elements(files, element_field(files, [path])).read(path)
        if isinstance(value, (bool, int, float, str)):
            out[name] = value
    return out


def attribute_fields(found: Mapping[str, JSON]) -> dict[str, Field]:
    """Return the fields that attributes make."""
    kinds: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    return {name: Field(kinds[type(value)]) for name, value in found.items()}


class Datasets(Values):
    """Values that are a dataset each."""

    def __init__(self, count: int, path: Callable[[int], str], elements: Elements) -> None:
        self.field, self.count = elements.field, count
        self._path, self._elements = path, elements

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._elements.read(self._path(at)) for at in positions]


class Attributes(Values):
    """An attribute of each sample's dataset or group."""

    def __init__(self, files: Hdf5Files, count: int, path: Callable[[int], str], name: str, field: Field) -> None:
        self.field, self.count = field, count
        self._files, self._path, self._name = files, path, name

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._read(self._path(at)) for at in positions]

    def _read(self, path: str) -> Any:
        try:
            found = attributes(self._files.find(path)[0])
        except (FormatError, OSError, RuntimeError, KeyError) as error:
            return ValueError(f"{path} cannot be read: {error}")
        if self._name not in found:
            return ValueError(f"{path} has no attribute {self._name!r}; it has {', '.join(found) or 'none'}")
        value = found[self._name]
        if attribute_fields({"": value})[""] != self.field:
            return ValueError(f"attribute {self._name!r} of {path} is {value!r}, not {self.field.kind} as in others")
        return value
