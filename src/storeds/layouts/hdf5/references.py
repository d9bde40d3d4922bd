"""Reads what object references lead to: MATLAB keeps each cell of an array as a dataset elsewhere in the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import h5py
import numpy as np

from storeds.backends.hdf5.headers import check_attribute
from storeds.errors import FormatError
from storeds.layouts.hdf5.chunks import check_claim
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.protocols import Field
from storeds.values.infer import evenly, field_of

__all__ = ["References", "are_references"]

_SAMPLED = 64  # values that show the field
_CLASS, _EMPTY = "MATLAB_class", "MATLAB_empty"  # attributes
_INTEGERS = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_DTYPES = {name.encode(): name for name in _INTEGERS} | {
    b"double": "f8",
    b"single": "f4",
    b"char": "u2",
    b"logical": "u1",
}


def are_references(dataset: h5py.Dataset) -> bool:
    """Whether the values of a dataset are references to objects."""
    return h5py.check_ref_dtype(dataset.dtype) is h5py.Reference


class References:
    """The values to which the references in a dataset lead: an array as stored, a number, or a text of MATLAB.

    Parameters
    ----------
    files : Hdf5Files
    dataset : h5py.Dataset
        Of object references.
    field : Field or None
        If it is known.
    read_bytes : callable
        Returns the bytes of a dataset.

    Raises
    ------
    FormatError
        They lead to values of several kinds, or to groups.
    """

    def __init__(
        self,
        files: Hdf5Files,
        dataset: h5py.Dataset,
        field: Field | None,
        read_bytes: Callable[[h5py.Dataset], bytes],
    ) -> None:
        check_claim(files, dataset, dataset.nbytes)
        self._files, self._dataset, self._file = files, dataset, dataset.keeps_open
        self._references, self._read_bytes = dataset[()].reshape(-1), read_bytes
        self.count = len(self._references)
        self.field = field or self._inferred(dataset.name)

    def _inferred(self, name: str) -> Field:
        values = [self._value(at) for at in evenly(self.count, _SAMPLED)]
        good = [value for value in values if not isinstance(value, ValueError)]
        if not good:
            raise FormatError(
                f"{self._files.url}: the references in dataset {name} lead {values[0] if values else 'nowhere'}"
            )
        ((kind, count), *others) = Counter(map(_kind_of, good)).most_common()
        if 8 * count < 7 * len(good):  # as for datasets that are found by their names
            shown = ", ".join(each for each, _ in ((kind, count), *others))
            raise FormatError(
                f"{self._files.url}: the references in dataset {name} lead to values of several kinds: {shown}"
            )
        good = [value for value in good if _kind_of(value) == kind]
        if isinstance(good[0], str):
            return Field("str")
        are_numbers = good[0].dtype.kind in "biuf" and all(value.size == 1 for value in good)
        return field_of([value.item() for value in good]) if are_numbers else _array(good[0])

    def read(self, positions: Sequence[int]) -> list[Any]:
        """Return the values at `positions`, with a ValueError in place of each that is bad, or of another field."""
        values, nbytes = list[Any](), 0
        for position in positions:
            value = self._value(position)
            nbytes += getattr(value, "nbytes", 0)
            check_claim(self._files, self._dataset, nbytes)  # references may lead to one value
            values.append(self._fitted(value))
        return values

    def _value(self, position: int) -> Any:
        """Return what a reference leads to: an array of any shape, a text, or a ValueError."""
        reference = self._references[position]
        try:
            found = h5py.h5r.dereference(reference, self._file.id) if reference else None
            if not isinstance(found, h5py.h5d.DatasetID):
                return ValueError("to a group, of which no field is made" if found else "nowhere")
            dataset = h5py.Dataset(found, readonly=True)
            dataset.keeps_open = self._file
            if dataset.shape is None or dataset.dtype.kind not in "biufc":
                return ValueError(f"to a dataset of {dataset.dtype}, of which no field is made")
            self._files.check(dataset)  # which may lie in another file
            check_claim(self._files, dataset, int(dataset.nbytes))
            return _plain(dataset, self._read_bytes(dataset))
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            return ValueError(f"to what cannot be read: {str(error).removeprefix(f'{self._files.url}: ')}")

    def _fitted(self, value: Any) -> Any:
        field = self.field
        if isinstance(value, ValueError):
            return ValueError(f"its reference leads {value}")
        if isinstance(value, str) or field.kind == "str":
            fits = isinstance(value, str) and field.kind == "str"
        elif field.is_scalar:
            fits = value.size == 1 and field_of([value.item()]).kind == field.kind
            value = value.item() if fits else value
        else:
            fits = _array(value) == field
        return value if fits else ValueError(f"its reference leads to another kind of value: {value!r:.60}")


def _kind_of(value: Any) -> str:
    return "a text" if isinstance(value, str) else f"{value.dtype} of {value.ndim} dimensions"


def _array(value: Any) -> Field:
    return Field("array", value.dtype.newbyteorder("<").str, (None,) * value.ndim)


def _plain(dataset: h5py.Dataset, data: bytes) -> Any:
    """Return the value of a dataset from its bytes: as stored, or the text of a row of MATLAB's characters."""
    for name in (_CLASS, _EMPTY):
        if name in dataset.attrs:
            check_attribute(dataset, name)
    value = np.frombuffer(bytearray(data), dataset.dtype).reshape(dataset.shape)
    kind = dataset.attrs.get(_CLASS)
    if dataset.attrs.get(_EMPTY):  # the dataset holds the sizes
        sizes = value.reshape(-1)[::-1].tolist()
        if 0 not in sizes:
            raise ValueError(f"it says that it is empty, and has the sizes {sizes[:4]}")
        value = np.empty(sizes, _DTYPES.get(kind, value.dtype))
    if kind in (b"char", "char") and (value.ndim < 2 or value.shape[1] <= 1 or not value.size):
        return value.astype("<u2").tobytes().decode("utf-16-le")
    return value.astype(value.dtype.newbyteorder("="), copy=False)
