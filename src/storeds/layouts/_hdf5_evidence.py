"""Tells from what a foreign HDF5 file holds whether datasets are columns, pictures of their own, or frames of a video."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import h5py
import numpy as np

from storeds.layouts._hdf5_elements import attributes, element_field
from storeds.layouts._hdf5_files import Hdf5Files
from storeds.layouts._hdf5_names import split, stem
from storeds.layouts._hdf5_pairs import size_of
from storeds.layouts._hdf5_series import numbered_parts, spread
from storeds.layouts._hdf5_values import SCALAR_KINDS, is_encoded

__all__ = [
    "FRAME_NAMES",
    "are_encoded_images",
    "are_numbered_samples",
    "frames_or_samples",
    "is_one_image",
    "is_picture",
    "is_sample",
    "is_series",
]

FRAME_NAMES = (
    "frames",
    "frame",
    "images",
    "image",
    "imgs",
    "img",
    "video",
    "videos",
    "rgb",
    "jpegs",
    "jpeg",
    "jpg",
    "data",
)
_IMAGE_NAMES = ("image", "img", "picture")
_OF_VIDEOS = ("frames", "frame", "video", "videos", "rgb")
_SERIES = re.compile(r"(frame|img|image|f|i|im)?[_-]?\d+(\.\w+)?", re.IGNORECASE)
_VIDEO = re.compile(r"(video|vid|clip|sequence|seq|episode|scene|shot)s?[ _-]?\d+", re.IGNORECASE)
_CLASS = re.compile(r"(class|label|category|cls)[ _-]?\d+", re.IGNORECASE)
_COLOURS = (1, 3, 4)


def is_series(names: Sequence[str]) -> bool:
    """Whether datasets are called as the frames of a video are: by a number, perhaps behind ``frame`` or ``img``."""
    return bool(names) and len({stem(name) for name in names}) == 1 and all(map(_SERIES.fullmatch, names))


def is_one_image(dataset: h5py.Dataset) -> bool:
    """Whether the rows of a dataset are no frames but those of one picture, or the bytes of one."""
    shape, name = dataset.shape, dataset.name.rpartition("/")[2].lower()
    if not shape:
        return True
    if dataset.dtype.kind not in "biuf":
        return False
    if len(shape) == 1:
        return bool(dataset.dtype == "u1")
    in_colour = len(shape) == 3 and shape[-1] in _COLOURS and (dataset.dtype == "u1" or name not in _OF_VIDEOS)
    return in_colour or (name in _IMAGE_NAMES and len(shape) <= 3)


def is_sample(files: Hdf5Files, group: str, names: Sequence[str]) -> bool:
    """Whether the datasets of a group are the fields of one sample: one is a picture or a single value, none has rows for it."""
    there = files.group(group)
    datasets = [files.dataset(f"{group}/{name}") for name in names if name in there]
    if any(dataset.size == 1 and not _is_opaque(dataset) for dataset in datasets):
        return True  # one number or text
    rows = [dataset for dataset in datasets if not (dataset.ndim == 1 and is_picture(dataset))]
    lengths = [dataset.shape[0] for dataset in rows if dataset.ndim]
    if any(dataset.ndim == 1 and lengths.count(dataset.shape[0]) > 1 for dataset in rows):
        return False  # a label for each row: a data set of its own
    return any(is_picture(dataset) or is_one_image(dataset) for dataset in datasets) or (
        len(datasets) == 1 and bool(attributes(there))
    )


def is_picture(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is one picture, by its values or its shape."""
    shape, dtype = dataset.shape, dataset.dtype
    if _is_opaque(dataset):
        return True  # what else would be kept as bytes, one by one
    if dtype == "u1" and len(shape) == 1:
        try:
            return is_encoded(dataset[:32].tobytes())
        except OSError:
            return False  # a damaged one tells nothing, and its record will say so
    in_colour = len(shape) == 3 and shape[2] in _COLOURS
    return bool(dtype == "u1" and (in_colour or len(shape) == 2))


def _is_opaque(dataset: h5py.Dataset) -> bool:
    return bool(not dataset.shape and dataset.dtype.kind == "V" and dataset.dtype.names is None)


def are_encoded_images(files: Hdf5Files, datasets: Sequence[h5py.Dataset]) -> bool:
    """Whether each dataset is an image file, in bytes: a sample, whatever it is called."""
    if not datasets or any(dataset.ndim > 1 or (dataset.ndim == 1 and dataset.dtype != "u1") for dataset in datasets):
        return False
    if any(not dataset.ndim and dataset.dtype.kind in SCALAR_KINDS for dataset in datasets):
        return False
    return element_field(files, [dataset.name for dataset in datasets]).kind == "image"


def are_numbered_samples(names: Sequence[str], datasets: Mapping[str, h5py.Dataset]) -> bool:
    """Whether numbered datasets are samples rather than columns: pictures, or of lengths that no columns have."""
    parts = numbered_parts(names)
    if parts is None:
        return _are_pictures(names, datasets)
    found = list(datasets.values())
    if any(math.prod(dataset.shape) <= 1 for dataset in found) or len({dataset.shape[:1] for dataset in found}) > 1:
        return True
    return _are_pictures(names, datasets)


def _are_pictures(names: Sequence[str], datasets: Mapping[str, h5py.Dataset]) -> bool:
    colour = [
        stem(name)
        for name, dataset in datasets.items()
        if dataset.ndim not in (0, 2) and stem(name) is not None and is_picture(dataset)
    ]
    if len(set(colour)) < len(colour):  # with labels of their own, perhaps
        return True
    if len({stem(name) for name in names}) != 1 or stem(names[0]) is None:
        return False
    return all(is_picture(dataset) for dataset in datasets.values())


def frames_or_samples(files: Hdf5Files, group: str, groups: Sequence[str]) -> Literal["frames", "samples", "either"]:
    """Return what the numbered datasets of groups are.

    Frames, where they or their groups are called so, or a group has attributes of its own, as a video has and a class has
    not. Samples, where groups are called classes, where their pictures differ in size, which those of one video do not, or where
    no group counts in equal steps, as frames are. Else they may be either.
    """
    looked = spread(groups)
    members = {name: split(files.group(f"{group}/{name}"))[0] for name in looked}
    series = {name: names for name, names in members.items() if names}
    if not all(map(is_series, series.values())):
        return "samples"
    if all(map(_VIDEO.fullmatch, groups)) or any(
        bool(attributes(files.group(f"{group}/{name}"))) or all(frame.lower().startswith("fr") for frame in names)
        for name, names in series.items()
    ):
        return "frames"
    if all(map(_CLASS.fullmatch, groups)) or not any(map(_counts_evenly, series.values())):
        return "samples"
    differ = any(len(_sizes(files, f"{group}/{name}", names)) > 1 for name, names in series.items())
    return "samples" if differ else "either"


def _counts_evenly(names: Sequence[str]) -> bool:
    numbers = sorted(int("".join(filter(str.isdecimal, name.partition(".")[0])) or 0) for name in names)
    return len(set(np.diff(numbers).tolist())) < 2


def _sizes(files: Hdf5Files, group: str, names: Sequence[str]) -> set[tuple[int, ...]]:
    """Return the sizes of the pictures looked at."""
    found = (size_of(files, files.dataset(f"{group}/{name}")) for name in spread(names))
    return {size for size in found if size is not None}
