"""Tells from what a foreign HDF5 file holds whether datasets are columns, pictures of their own, or frames of a video."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import h5py
import numpy as np

from storeds.errors import FormatError
from storeds.layouts.hdf5.elements import attributes, element_field, sort_of
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.names import natural_order, split, stem
from storeds.layouts.hdf5.pairs import Sample, SeveralWaysError, are_field_names, are_fields, size_of
from storeds.layouts.hdf5.values import SCALAR_KINDS, is_encoded
from storeds.protocols import Array

__all__ = [
    "FRAME_NAMES",
    "LOOKED_AT",
    "Arrangement",
    "Part",
    "Series",
    "are_encoded_images",
    "are_numbered_samples",
    "arrange",
    "enter",
    "frames_or_samples",
    "is_one_image",
    "is_picture",
    "is_sample",
    "is_series",
    "numbered_parts",
    "series_of",
    "spread",
]


Part = tuple[str, str]
"""What stands before and after a sample's key in the name of its dataset."""

_MOST = 64  # fields; more than that are samples
LOOKED_AT = 16
_NUMBERED = re.compile(r"(\D*)(\d(?:.*\d)?)(\D*)")
_CLASS = re.compile(r"(class|label|category|cls)[ _-]?\d+", re.IGNORECASE)
T = TypeVar("T")


def spread(items: Sequence[T], most: int = LOOKED_AT) -> list[T]:
    """Return at most so many of `items`, evenly spread, with the first and the last."""
    last = len(items) - 1
    return [items[at] for at in sorted({round(step * last / (most - 1)) for step in range(most)})] if items else []


@dataclass(frozen=True)
class Series:
    """The samples of one group.

    Attributes
    ----------
    sort : str
        ``datasets``: one a sample. ``numbered``: ``image_0``, ``label_0``, ``image_1`` …. ``groups``: one a sample, with a
        dataset for each field. ``fields``: one group a field, with a dataset for each sample.
    keys : sequence of str
        The samples' names, in order.
    parts : mapping of str to Part
        The file's name of a field, ``""`` where it has none, and where the field's datasets are.
    """

    sort: Literal["datasets", "numbered", "groups", "fields"]
    keys: Sequence[str]
    parts: Mapping[str, Part]


@dataclass(frozen=True)
class Arrangement:
    """The samples of a store: of one group, or of one group for each class."""

    group: str
    series: Series
    labels: Array
    classes: Sequence[str] | None = None


def enter(files: Hdf5Files, group: str) -> str:
    """Return `group`, or where it holds nothing but another group, that one."""
    names, groups = split(files.group(group))
    return group if names or len(groups) != 1 else enter(files, f"{group.rstrip('/')}/{groups[0]}")


def arrange(files: Hdf5Files, group: str, sample: Sample | None = None) -> Arrangement | None:
    """Return how samples lie below `group`, or None if none do.

    Raises
    ------
    SeveralWaysError
        In several ways, and `sample` says not in which.
    FormatError
        Some lack a field's dataset.
    """
    group = enter(files, group)
    series = series_of(files, group, sample)
    if series is not None:
        return Arrangement(group, series, np.empty(0, np.int64))
    names, groups = split(files.group(group))
    if names or not groups:
        return None
    classes = sorted(groups, key=str.encode)
    keys: list[str] = []
    labels: list[int] = []
    first: Series | None = None
    for label, name in enumerate(classes):
        path = f"{group.rstrip('/')}/{name}"
        inner = series_of(files, path, sample)
        if inner is None:
            if any(split(files.group(path))):
                return None
            continue  # a class without samples is a class
        first = first or inner
        if inner.parts != first.parts:
            return None
        keys += [f"{name}/{key}" for key in inner.keys]
        labels += [label] * len(inner.keys)
    if first is None:
        return None
    return Arrangement(group, Series(first.sort, keys, first.parts), np.array(labels, np.int64), classes)


def series_of(files: Hdf5Files, group: str, sample: Sample | None = None) -> Series | None:
    """Return how the samples of one group lie, or None if it holds none, or is made of classes."""
    names, groups = split(files.group(group))
    if names and groups:
        return None
    if names:
        series = _numbered(files, group, names, sample) if sample in (None, "name") else None
        return series or Series("datasets", natural_order(names), {"": ("", "")})
    series = _by_field(files, group, groups, sample) if sample in (None, "name") else None
    if series is None and sample in (None, "group"):
        series = _by_group(files, group, groups, sample)
    return series


def numbered_parts(names: Sequence[str]) -> dict[Part, list[str]] | None:
    """Return where a field's datasets are → the samples' numbers, if names are of several numbered fields alike."""
    parts: dict[Part, list[str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            return None
        parts.setdefault((match[1], match[3]), []).append(match[2])
        if len(parts) > _MOST:
            return None
    return parts if len(parts) > 1 and _overlap(list(parts.values())) else None


def _overlap(names: Sequence[Sequence[str]]) -> bool:
    """Whether these are the names of the same samples, more than one, though some may lack in some."""
    whole = set().union(*names)
    return len(whole) > 1 and all(2 * len(part) > len(whole) for part in names)


def _numbered(files: Hdf5Files, group: str, names: Sequence[str], sample: Sample | None) -> Series | None:
    parts = numbered_parts(names)
    if parts is None:
        return None
    called = {f"{before}{after}".strip("_-./ "): (before, after) for before, after in parts}
    if len(called) != len(parts):
        return None
    if sample is None:
        keys = spread(natural_order(set.intersection(*map(set, parts.values()))))
        paths = {f"{before}{after}": [f"{group}/{before}{key}{after}" for key in keys] for before, after in parts}
        said = are_fields(files, paths)
        if said == "either":
            raise SeveralWaysError.of(
                {
                    "name": f"the datasets of one number are a sample of {len(parts)} fields, {', '.join(called)}",
                    "dataset": "each dataset is a sample",
                }
            )
        if said == "no":
            return None
    _check_complete(files, group, parts)
    return Series("numbered", natural_order(next(iter(parts.values()))), called)


def _by_field(files: Hdf5Files, group: str, groups: Sequence[str], sample: Sample | None) -> Series | None:
    """Return the samples where groups are fields: they are called so, or what they hold under equal names belongs together."""
    if not 1 < len(groups) <= _MOST:
        return None
    parts: dict[Part, list[str]] = {}
    for name in groups:
        names, nested = split(files.group(f"{group}/{name}"))
        parts[f"{name}/", ""] = names
        if nested or not names or not _overlap(list(parts.values())):
            return None
    equal = set.intersection(*map(set, parts.values()))
    keys = spread(natural_order(equal))
    same = all(len(names) == len(equal) for names in parts.values())
    if sample is None:
        said = are_fields(files, {name: [f"{group}/{name}/{key}" for key in keys] for name in groups}) if keys else "no"
        if all(map(_CLASS.fullmatch, groups)) or said == "no" or (said == "either" and not same):
            return None
        if said == "either":
            raise SeveralWaysError.of(
                {
                    "name": f"the datasets of one name are a sample of {len(groups)} fields, {', '.join(groups[:4])}",
                    "dataset": "each dataset is a sample, and its group is its class",
                }
            )
    _check_complete(files, group, parts)
    keys = natural_order(next(iter(parts.values())))
    return Series("fields", keys, {before.rstrip("/"): (before, after) for before, after in parts})


def _by_group(files: Hdf5Files, group: str, groups: Sequence[str], sample: Sample | None) -> Series | None:
    """Return the samples where most groups hold datasets of the same names, which are no series themselves."""
    groups = natural_order(groups)
    members = {name: split(files.group(f"{group}/{name}")) for name in spread(groups)}
    if not members or any(nested or not names for names, nested in members.values()):
        return None
    if sample is None and any(
        numbered_parts(names) or {stem(name) for name in names} == {stem(names[0]) or ""}
        for names, _ in members.values()
    ):
        return None
    seen = Counter(name for names, _ in members.values() for name in names)
    fields = [name for name, count in seen.items() if 2 * count > len(members)]
    if not 0 < len(fields) <= _MOST:
        return None
    if sample is None and len(fields) > 1 and not are_field_names(fields):
        whole = [name for name, (names, _) in members.items() if set(fields) <= set(names)]
        sorts = {sort_of(files.dataset(f"{group}/{name}/{field}")) for name in whole for field in fields}
        if len(sorts) == 1 and _are_encoded(files, [f"{group}/{whole[0]}/{field}" for field in fields]):
            raise SeveralWaysError.of(
                {
                    "group": f"each group is a sample of {len(fields)} pictures, {', '.join(fields[:4])}",
                    "dataset": "each dataset is a sample, and its group is its class",
                }
            )
    return Series("groups", groups, {name: ("", f"/{name}") for name in fields})


def _are_encoded(files: Hdf5Files, paths: Sequence[str]) -> bool:
    """Whether datasets are the bytes of one file each, encoded pictures or opaque."""
    found = [files.dataset(path) for path in paths]
    return all((not one.shape and one.dtype.kind == "V") or (one.ndim == 1 and one.dtype == "u1") for one in found)


def _check_complete(files: Hdf5Files, group: str, parts: Mapping[Part, Sequence[str]]) -> None:
    """Raise FormatError unless each sample has a dataset for each field."""
    whole = set().union(*parts.values())
    for (before, after), names in parts.items():
        missing = natural_order(whole.difference(names))
        if missing:
            raise FormatError(
                f"{files.url}: {group} has {len(whole)} samples, and {len(missing)} of them no {before}…{after}: the first is "
                f"{before}{missing[0]}{after}, which is missing; add what is missing, or take out what the others have of it"
            )


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
