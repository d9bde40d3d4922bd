"""How many records a foreign HDF5 dataset has values for, also in files of MATLAB 7.3, which has no single values."""

from __future__ import annotations

import h5py

__all__ = ["is_matlab_column", "is_single", "row_count"]

_CLASS = "MATLAB_class"


def is_single(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is one value rather than one for each record; MATLAB keeps a number as (1, 1), and a text in rows."""
    if not dataset.shape:
        return True
    attrs = dataset.attrs
    return _CLASS in attrs and (dataset.size <= 1 or attrs[_CLASS] in (b"char", "char"))


def row_count(dataset: h5py.Dataset) -> int:
    """Return how many records a dataset has values for."""
    return int(dataset.shape[1 if is_matlab_column(dataset) else 0])


def is_matlab_column(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is a column vector of MATLAB."""
    # MATLAB's axes lie in reverse, so the column vector that its labels are is a single row here.
    return len(dataset.shape) == 2 and dataset.shape[0] == 1 < dataset.shape[1] and _CLASS in dataset.attrs
