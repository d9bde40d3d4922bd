"""Reads datasets that are one value each: a picture, an array, a text; also attributes of each sample."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from storeds.errors import FormatError, StoredsError, UnavailableError
from storeds.layouts.hdf5.boxes import BoxedArray, Boxes
from storeds.layouts.hdf5.files import Address, Hdf5Files, NoSuchNameError, attribute_fields, attributes
from storeds.layouts.hdf5.values import SCALAR_KINDS, is_numeric, kind_of, to_value, unsupported, whole_bytes
from storeds.layouts.hdf5.variable import VariableRows
from storeds.protocols import Field

__all__ = ["default_name", "element_field", "fits", "read_attribute", "read_element"]

_HEAD = 64  # bytes that show whether a dataset is an encoded image


def element_field(files: Hdf5Files, samples: Sequence[Address]) -> Field:
    """Return the field of a series of datasets, from some of them.

    Missing ones do not count, because a missing dataset is a bad record; one of them must exist.

    Raises
    ------
    FormatError
        More than 1 of 8 is of another kind, or no field can hold them.
    """
    found: list[h5py.Dataset] = []
    for number, address in enumerate(samples):
        with contextlib.suppress(*([NoSuchNameError] if found or number + 1 < len(samples) else [])):
            found.append(files.dataset(address))
    found = [dataset for dataset in found if dataset.shape is not None]
    if not found:
        raise FormatError(f"{files.url}: {samples[0]} has no value, only a type (a null dataspace)")
    datasets = _of_common_sort(files, found)
    first = datasets[0]
    if not is_numeric(first.dtype):
        if not (_is_text(first) or _is_bytes(first)):
            raise unsupported(files, first)
        return Field(kind_of(_readable(files, datasets), _is_text(first)))
    may_be_encoded = first.dtype.itemsize == 1 and first.dtype.kind in "iu" and first.ndim == 1
    if may_be_encoded and kind_of(_readable(files, datasets), False) == "image":
        return Field("image")
    return _numeric_element(datasets)


def default_name(field: Field) -> str:
    """Return the name of a field that has none in the file."""
    return field.kind if field.kind in ("image", "bytes", "array") else "value"


def _of_common_sort(files: Hdf5Files, datasets: Sequence[h5py.Dataset]) -> list[h5py.Dataset]:
    """Return the datasets of the most common sort; the others are bad samples, and an error if there are many."""
    sorts = [sort_of(dataset) for dataset in datasets]
    most, count = Counter(sorts).most_common(1)[0]
    if 8 * count < 7 * len(sorts):
        first = datasets[sorts.index(most)]
        other = next(dataset for dataset, sort in zip(datasets, sorts, strict=True) if sort != most)
        raise FormatError(
            f"{files.url}: {first.name} and {other.name} are not samples of the same kind: {first.dtype} with "
            f"{first.ndim} dimensions, {other.dtype} with {other.ndim}; group= names the group that holds samples"
        )
    return [dataset for dataset, sort in zip(datasets, sorts, strict=True) if sort == most]


def _readable(files: Hdf5Files, datasets: Sequence[h5py.Dataset]) -> list[bytes]:
    """Return the beginnings of rows of bytes, or whole texts."""
    out = []
    for dataset in datasets:
        try:
            out.append(element_bytes(files, dataset, _HEAD))
        except StoredsError:
            raise
        except (OSError, RuntimeError, ValueError):
            continue  # a damaged dataset is a bad record, not a bad store
    return out


def _numeric_element(datasets: Sequence[h5py.Dataset]) -> Field:
    dtype, ndim = datasets[0].dtype, datasets[0].ndim
    # One number is a number whatever its dimensions, because MATLAB stores it as (1, 1).
    if dtype.kind in SCALAR_KINDS and all(dataset.size == 1 for dataset in datasets):
        return Field(SCALAR_KINDS[dtype.kind])
    # No dimension is fixed: only inspecting all datasets could show that one is.
    return Field("array", dtype.newbyteorder("<").str, (None,) * ndim)


def read_element(files: Hdf5Files, field: Field, address: Address, *, is_stored: bool = False) -> Any:
    """Return the value of a dataset, or a ValueError if it has none of this field, which is from `element_field`.

    With `is_stored`, an array stays in its file, as a `BoxedArray`.
    """
    try:
        dataset = files.dataset(address)
        if dataset.shape is None:
            return ValueError(f"dataset {address} has no value, only a type (a null dataspace)")
        if not fits(field, dataset):
            return ValueError(f"dataset {address} is {dataset.dtype} {dataset.shape}, unlike the others")
        if is_stored and field.kind == "array" and dataset.ndim:
            return BoxedArray(Boxes(files, dataset), field.dtype or "")
        text = _is_text(dataset)
        return to_value(field, element_bytes(files, dataset), dataset.dtype, dataset.shape, text=text)
    except UnavailableError:
        raise
    except StoredsError as error:
        return ValueError(str(error).removeprefix(f"{files.url}: "))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        return ValueError(f"dataset {address} cannot be read: {error}")


def fits(field: Field, dataset: h5py.Dataset) -> bool:
    """Return whether a dataset has a value of a field, which is from `element_field`."""
    dtype = dataset.dtype
    if field.kind == "array":
        same = is_numeric(dtype) and dtype.newbyteorder("<").str == field.dtype
        return same and dataset.ndim == len(field.shape or ())
    if field.is_scalar:
        return is_numeric(dtype) and dataset.size == 1 and SCALAR_KINDS.get(dtype.kind) == field.kind
    one_byte = is_numeric(dtype) and dtype.itemsize == 1 and dataset.ndim == 1
    return one_byte or _is_bytes(dataset) or _is_text(dataset)


def sort_of(dataset: h5py.Dataset) -> tuple[str, int]:
    """Return what two datasets must have in common to be values of one field: dtype and dimensions."""
    dtype = dataset.dtype
    if not dataset.shape and dtype.kind in SCALAR_KINDS:
        return SCALAR_KINDS[dtype.kind], 0
    if is_numeric(dtype):
        return dtype.newbyteorder("<").str, dataset.ndim
    return dtype.kind, dataset.ndim  # opaque values and strings may differ in length


def _is_text(dataset: h5py.Dataset) -> bool:
    return h5py.check_string_dtype(dataset.dtype) is not None and dataset.size == 1


def _is_bytes(dataset: h5py.Dataset) -> bool:
    base = h5py.check_vlen_dtype(dataset.dtype)
    opaque = dataset.dtype.kind == "V" and dataset.dtype.names is None
    return dataset.size == 1 and (opaque or (base is not None and np.dtype(base).itemsize == 1))


def element_bytes(files: Hdf5Files, dataset: h5py.Dataset, most: int | None = None) -> bytes:
    """Return the bytes of a dataset that is one value, or of its first `most` rows; raises ValueError if they are damaged."""
    dtype = dataset.dtype
    if dtype.hasobject:
        (item,) = VariableRows(files, dataset).read([0])
        if isinstance(item, ValueError):
            raise item
        return item
    data = whole_bytes(files, dataset, most)
    return data.rstrip(b"\0") if dtype.kind == "S" else data


def read_attribute(files: Hdf5Files, address: Address, name: str, field: Field) -> Any:
    """Return an attribute of a dataset or group, or a ValueError if it has none of this field."""
    try:
        found = attributes(files.find(address)[0])
    except (FormatError, OSError, RuntimeError, KeyError) as error:
        return ValueError(f"{address} cannot be read: {error}")
    if name not in found:
        return ValueError(f"{address} has no attribute {name!r}; it has {', '.join(found) or 'none'}")
    if attribute_fields(found)[name] != field:
        return ValueError(f"attribute {name!r} of {address} is {found[name]!r}, not {field.kind} as in others")
    return found[name]
