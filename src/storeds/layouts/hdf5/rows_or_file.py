"""Tells whether the datasets of a foreign HDF5 file are columns, with a row for each record, or the fields of one record.

Names alone decide nothing, and neither do shapes alone: (240, 240) is 240 rows as well as one picture. Certain evidence
is a coincidence that has no other cause, or a name and a shape that agree. Where evidence speaks for both, both fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import h5py

from storeds.layouts.hdf5.detection import is_picture
from storeds.layouts.hdf5.values import SCALAR_KINDS

__all__ = ["Verdict", "rows_or_file"]

Verdict = Literal["rows", "file", "either", "neither"]

_PICTURE = re.compile(
    r"(image|img|im|picture|pic|photo|mask|seg|segmentation|annotation|density(_?map)?|heat_?map|depth(_?map)?|disparity|"
    r"(mel_?)?spec(trogram)?|mel|mfcc|flow|normal|rgb|gr[ae]y|slice|gt|ground_?truth|(low|high)_?res|lr|hr)([_-]?\d+)?(\.\w+)?",
    re.IGNORECASE,
)
_VOLUME = re.compile(r"(volume|vol|scan|ct|mri?|pet|t1(ce|c|gd)?|t2|flair|raw)([_-]?\d+)?", re.IGNORECASE)
_LABEL = re.compile(r"(label|target|class|class_id|category|cls|y|gt|grade)", re.IGNORECASE)
_MANY = re.compile(r"(image|img|picture|pic|photo|mask|frame|slice|sample|segmentation|depth|label)e?s", re.IGNORECASE)
_COLOURS = (1, 3, 4)
_SMALLEST = 4  # pixels of a side of what is called a picture
_SMALL = 8  # of what has colours in bytes
_USUAL = 32  # of what has nothing but its shape to tell
_LONGEST = 8  # times the other side


def rows_or_file(singles: Mapping[str, h5py.Dataset], arrays: Mapping[str, h5py.Dataset]) -> Verdict:
    """Return what a group's datasets are, where they are neither numbered samples nor videos.

    Parameters
    ----------
    singles : mapping of str to Dataset
        Of one value each.
    arrays : mapping of str to Dataset
        The others.

    Returns
    -------
    str
        ``rows``: each dataset has a row for each record. ``file``: each dataset is a field of the only record. ``either``:
        both fit. ``neither``: the datasets have different lengths, and nothing says that they are one sample.
    """
    labelled = any(_LABEL.fullmatch(name) and one.dtype.kind in SCALAR_KINDS for name, one in singles.items())
    encoded = [name for name, one in {**singles, **arrays}.items() if _is_encoded(one)]
    if encoded:
        return "file" if labelled or any(map(_PICTURE.fullmatch, map(_last, encoded))) else "neither"
    if not arrays:
        return "neither"
    named = any(_is_named_picture(name, array) for name, array in arrays.items())
    if len({array.shape[0] for array in arrays.values()}) > 1:
        return "file" if _is_sample(arrays, named=named, labelled=labelled) else "neither"
    if _have_rows(arrays):
        return "either" if labelled and (named or not _have_values(arrays)) else "rows"
    if any(array.ndim > 3 for array in arrays.values()):
        return _of_rank_four(arrays, labelled)
    return _of_equal_sides(arrays, named=named, labelled=labelled)


def _is_sample(arrays: Mapping[str, h5py.Dataset], *, named: bool, labelled: bool) -> bool:
    """Whether datasets of different lengths are one sample, rather than columns one of which is damaged."""
    if any(array.ndim == 1 and _LABEL.fullmatch(_last(name).removesuffix("s")) for name, array in arrays.items()):
        return False
    shaped = labelled and any(_is_picture_shaped(array, _SMALL) for array in arrays.values())
    return named or shaped or all(map(_is_in_colour, arrays.values()))


def _have_values(arrays: Mapping[str, h5py.Dataset]) -> bool:
    """Whether a dataset has one value for each row."""
    return any(array.size == array.shape[0] for array in arrays.values())


def _have_rows(arrays: Mapping[str, h5py.Dataset]) -> bool:
    """Whether datasets share the first dimension and nothing else: that many values by accident are hardly possible."""
    count = next(iter(arrays.values())).shape[0]
    if count == 1:
        return True
    flat = [array for array in arrays.values() if array.size == count]
    if flat and (len(flat) < len(arrays) or len(flat) > 1):
        return True
    if any(array.dtype.kind not in "biufc" for array in arrays.values()):
        return True  # texts and values of variable length have no other dimensions
    return len({array.shape[1:2] for array in arrays.values()}) > 1


def _of_rank_four(arrays: Mapping[str, h5py.Dataset], labelled: bool) -> Verdict:
    """Return what pictures in a row are: a stack in colour is one of samples; without, it may be a volume."""
    stacks = [array for array in arrays.values() if array.ndim > 3]
    in_colour = any(
        (array.dtype == "u1" and array.shape[-1] in _COLOURS) or array.shape[-1] == 3 or array.shape[1] in (1, 3)
        for array in stacks
    )
    volume = any(_VOLUME.fullmatch(_last(name)) for name in arrays)
    named = any(_PICTURE.fullmatch(_last(name)) for name in arrays)
    return "either" if labelled or volume or (named and not in_colour) else "rows"


def _of_equal_sides(arrays: Mapping[str, h5py.Dataset], *, named: bool, labelled: bool) -> Verdict:
    """Return what datasets are that share the first two dimensions, and have three at most."""
    if any(_MANY.fullmatch(_last(name)) for name in arrays):
        return "either" if labelled or named else "rows"
    if all(_is_picture_shaped(array, _SMALLEST) for array in arrays.values()):
        if named or any(_is_in_colour(array) for array in arrays.values()):
            return "file"
        if labelled and all(_is_picture_shaped(array, _SMALL) for array in arrays.values()):
            return "file"
        if all(_is_picture_shaped(array, _USUAL, longest=2) for array in arrays.values()):
            alone = len(arrays) == 1
            return "rows" if alone and next(iter(arrays.values())).dtype != "u1" else "either"
    if labelled or any(_says_volume(name, array) for name, array in arrays.items()):
        return "either"
    return "rows"


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _is_encoded(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is the bytes of an image file, or an opaque value, which holds nothing but bytes."""
    if not dataset.shape:
        return bool(dataset.dtype.kind == "V" and dataset.dtype.names is None)
    return dataset.ndim == 1 and is_picture(dataset)


def _is_picture_shaped(array: h5py.Dataset, smallest: int, longest: int = _LONGEST) -> bool:
    """Whether a dataset has the shape of one picture: (H, W), (H, W, C) or (C, H, W), the sides not too different."""
    shape = array.shape
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3):
        return False
    if array.ndim == 3:
        if shape[2] not in _COLOURS and shape[0] not in _COLOURS:
            return False
        shape = shape[:2] if shape[2] in _COLOURS else shape[1:]
    return bool(smallest <= min(shape) and max(shape) <= longest * min(shape))


def _is_in_colour(array: h5py.Dataset) -> bool:
    """Whether a dataset is one picture by its bytes: (H, W, C) of uint8, which no rows of features are."""
    last = array.ndim == 3 and array.shape[2] in _COLOURS
    return bool(last and array.dtype == "u1" and _is_picture_shaped(array, _SMALL))


def _is_named_picture(name: str, array: h5py.Dataset) -> bool:
    return bool(_PICTURE.fullmatch(_last(name))) and _is_picture_shaped(array, _SMALLEST)


def _says_volume(name: str, array: h5py.Dataset) -> bool:
    """Whether a dataset may be one volume (D, H, W) by its name."""
    called = _VOLUME.fullmatch(_last(name)) or _PICTURE.fullmatch(_last(name))
    return array.ndim == 3 and bool(called) and max(array.shape) <= _LONGEST * min(array.shape)
