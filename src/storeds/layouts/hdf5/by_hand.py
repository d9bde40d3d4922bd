"""Writes the shortest program that converts a foreign HDF5 file by hand: a record for each dataset of the commonest sort."""

from __future__ import annotations

import os
from collections import Counter

import h5py

from storeds.errors import FormatError
from storeds.layouts.hdf5.elements import element_field, sort_of
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.tree import members
from storeds.protocols import Field

__all__ = ["conversion_loop"]

_LOOKED_AT = 256

_LOOP = """\
import h5py, storeds
with h5py.File({path!r}) as file:
    paths = []
    file.visititems(lambda path, item: paths.append(path) if {test} else None)
    with storeds.open_writer({target!r}, {fields!r}) as writer:
        writer.append({{"key": path, "value": {value}}} for path in paths)  # a record for each dataset: change what one is"""


def conversion_loop(files: Hdf5Files, group: str) -> str:
    """Return the program; raises FormatError where no dataset makes a field."""
    found = [(member.dataset, sort_of(member.dataset)) for member in members(files, group, most=_LOOKED_AT)]
    for sort, _ in Counter(sort for _, sort in found).most_common():
        first = next(dataset for dataset, other in found if other == sort)
        try:
            field = element_field(files, [first.name])
        except FormatError:
            continue
        return _LOOP.format(
            path=files.path,
            target=f"{os.path.splitext(files.path)[0]}.lmdb",
            fields={"key": "str", "value": _kind(field)},
            test=f"isinstance(item, h5py.Dataset) and {_test(first, field)} and item.ndim == {first.ndim}",
            value=_value(first, field),
        )
    raise FormatError(f"{files.url}: no dataset makes a field")


def _test(dataset: h5py.Dataset, field: Field) -> str:
    whole = field.kind == "array" or field.is_scalar
    return f"item.dtype == {dataset.dtype.str!r}" if whole else f"item.dtype.kind == {dataset.dtype.kind!r}"


def _kind(field: Field) -> object:
    return (
        {"kind": "array", "dtype": field.dtype, "shape": list(field.shape or ())}
        if field.kind == "array"
        else field.kind
    )


def _value(dataset: h5py.Dataset, field: Field) -> str:
    if field.kind == "str":
        return "file[path].asstr()[()]"
    if field.kind in ("image", "bytes"):
        return "file[path][()].tobytes()"
    if field.kind == "array":
        return f"file[path][()].astype({field.dtype!r})"
    return "file[path][()].item()"
