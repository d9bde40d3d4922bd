"""Infers how samples lie in many datasets or groups, and whether numbered datasets are samples or frames of videos.

``lr/0`` and ``hr/0`` are a pair, ``cat/0`` and ``dog/0`` are two pictures; so are ``lr_0`` and ``hr_0`` in one group, and
``scene_0/left`` beside ``scene_1/left``. Evidence are names that only fields have, datasets of different kinds, and sizes
that agree, or differ by one factor, from name to name. Without evidence, both readings fit.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import h5py
import numpy as np
from PIL import Image

from storeds.errors import FormatError, StoredsError
from storeds.layouts.codecs import evenly
from storeds.layouts.hdf5.elements import element_bytes, element_field, sort_of
from storeds.layouts.hdf5.files import Hdf5Files, attributes, enter, natural_order, split, stem
from storeds.layouts.hdf5.parallel import MOST_FIELDS, Part, numbered_parts, same_samples
from storeds.layouts.hdf5.values import COLOURS, SCALAR_KINDS, is_opaque, is_picture
from storeds.protocols import Array

__all__ = [
    "FRAME_NAMES",
    "LOOKED_AT",
    "NUMBERED_VIDEO",
    "VIDEO_NAMES",
    "Arrangement",
    "Sample",
    "SeveralWaysError",
    "are_encoded_images",
    "are_field_names",
    "arrange",
    "frames_or_samples",
    "is_one_image",
    "is_sample",
    "is_series",
    "sample_evenly",
    "series_of",
]

Sample = Literal["dataset", "group", "name"]
"""What one sample is: a dataset, a group of datasets, or the datasets of one name or number."""

LOOKED_AT = 16  # samples that are inspected
_FIELD_NAME = re.compile(
    r"(image|img|picture|photo|label|target|mask|annotation|caption|text|bbox|box|depth|key|rgb|flow|gr[ae]y|nir|ir|thermal|"
    r"seg|segmentation|normal|disparity|edge|sketch|input|output|source|src|dst|gt|ground_?truth|noisy|clean|blur(red|ry)?|sharp|"
    r"haze|hazy|clear|rain(y)?|low|high|lr|hr|lq|hq|sr|(lr_?)?x\d|(low|high)[ _-]?res(olution)?|left|right|front|rear|back|"
    r"top|bottom|side|cam(era)?[ _-]?\d*|view[ _-]?\d*|before|after|query|positive|negative|anchor|x|y|jpe?g|png|cls|json|txt|"
    r"data|audio|video|features?|points?|class(_id)?|index|id|name|meta|score|pose|action|reward|state)(s|es)?"
    r"([ _-]?(lr|hr|x\d))?(\.\w+)?",
    re.IGNORECASE,
)
_IMAGE_SUFFIX = re.compile(r"\.(jpe?g|png|gif|bmp|tiff?|webp)$", re.IGNORECASE)
_CLASS = re.compile(r"(class|label|category|cls)[ _-]?\d+", re.IGNORECASE)
T = TypeVar("T")


class SeveralWaysError(FormatError):
    """Datasets may be samples in several ways; `ways` maps the value of ``sample=`` to the evidence for it."""

    ways: Mapping[Sample, str]

    @classmethod
    def of(cls, ways: Mapping[Sample, str]) -> SeveralWaysError:
        """Return the error for these ways."""
        error = cls("; ".join(f"sample={sample!r}: {why}" for sample, why in ways.items()))
        error.ways = ways
        return error


def sample_evenly(items: Sequence[T], most: int = LOOKED_AT) -> list[T]:
    """Return at most so many of `items`, at even distances, with the first and the last."""
    return [items[at] for at in evenly(len(items), most)]


@dataclass(frozen=True)
class Series:
    """The samples of one group.

    Attributes
    ----------
    sort : str
        ``datasets``: each is a sample. ``numbered``: ``image_0``, ``label_0``, ``image_1`` …. ``groups``: each is a sample,
        with a dataset for each field. ``fields``: each group is a field, with a dataset for each sample.
    keys : sequence of str
        The samples' names, in order.
    parts : mapping of str to Part
        Name of a field in the file, ``""`` if it has none → the names of its datasets.
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


def arrange(files: Hdf5Files, group: str, sample: Sample | None = None) -> Arrangement | None:
    """Return how samples lie below `group`, or None if there are none.

    Raises
    ------
    SeveralWaysError
        Several ways fit, and `sample` selects none.
    FormatError
        Some samples lack the dataset of a field.
    """
    group, names, groups = enter(files, group)
    series = series_of(files, group, sample)
    if series is not None:
        return Arrangement(group, series, np.empty(0, np.int64))
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
            continue  # a class may be empty
        first = first or inner
        if inner.parts != first.parts:
            return None
        keys += [f"{name}/{key}" for key in inner.keys]
        labels += [label] * len(inner.keys)
    if first is None:
        return None
    return Arrangement(group, Series(first.sort, keys, first.parts), np.array(labels, np.int64), classes)


def series_of(files: Hdf5Files, group: str, sample: Sample | None = None) -> Series | None:
    """Return how the samples of one group lie, or None if it holds no samples, or classes."""
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


def _numbered(files: Hdf5Files, group: str, names: Sequence[str], sample: Sample | None) -> Series | None:
    parts = numbered_parts(names)
    if parts is None:
        return None
    fields = {f"{before}{after}".strip("_-./ "): (before, after) for before, after in parts}
    if len(fields) != len(parts):
        return None
    if sample is None:
        keys = sample_evenly(natural_order(set.intersection(*map(set, parts.values()))))
        paths = {f"{before}{after}": [f"{group}/{before}{key}{after}" for key in keys] for before, after in parts}
        verdict = _are_fields(files, paths)
        if verdict == "either":
            raise SeveralWaysError.of(
                {
                    "name": f"the datasets of one number are a sample of {len(parts)} fields, {', '.join(fields)}",
                    "dataset": "each dataset is a sample",
                }
            )
        if verdict == "no":
            return None
    _check_complete(files, group, parts)
    return Series("numbered", natural_order(next(iter(parts.values()))), fields)


def _by_field(files: Hdf5Files, group: str, groups: Sequence[str], sample: Sample | None) -> Series | None:
    """Return the samples if each group is a field, by the groups' names or by what they hold under equal names."""
    if not 1 < len(groups) <= MOST_FIELDS:
        return None
    parts: dict[Part, list[str]] = {}
    for name in groups:
        names, nested = split(files.group(f"{group}/{name}"))
        parts[f"{name}/", ""] = names
        if nested or not names or not same_samples(list(parts.values())):
            return None
    common = set.intersection(*map(set, parts.values()))
    keys = sample_evenly(natural_order(common))
    if sample is None:
        verdict = (
            _are_fields(files, {name: [f"{group}/{name}/{key}" for key in keys] for name in groups}) if keys else "no"
        )
        complete = all(len(names) == len(common) for names in parts.values())
        if all(map(_CLASS.fullmatch, groups)) or verdict == "no" or (verdict == "either" and not complete):
            return None
        if verdict == "either":
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
    """Return the samples if most groups hold datasets of the same names, which are not a series themselves."""
    groups = natural_order(groups)
    inner = {name: split(files.group(f"{group}/{name}")) for name in sample_evenly(groups)}
    if not inner or any(nested or not names for names, nested in inner.values()):
        return None
    if sample is None and any(
        numbered_parts(names) or {stem(name) for name in names} == {stem(names[0]) or ""} for names, _ in inner.values()
    ):
        return None
    seen = Counter(name for names, _ in inner.values() for name in names)
    fields = [name for name, count in seen.items() if 2 * count > len(inner)]
    if not 0 < len(fields) <= MOST_FIELDS:
        return None
    if sample is None and len(fields) > 1 and not are_field_names(fields):
        whole = [name for name, (names, _) in inner.items() if set(fields) <= set(names)]
        sorts = {sort_of(files.dataset(f"{group}/{name}/{field}")) for name in whole for field in fields}
        if len(sorts) == 1 and _are_files(files, [f"{group}/{whole[0]}/{field}" for field in fields]):
            raise SeveralWaysError.of(
                {
                    "group": f"each group is a sample of {len(fields)} pictures, {', '.join(fields[:4])}",
                    "dataset": "each dataset is a sample, and its group is its class",
                }
            )
    return Series("groups", groups, {name: ("", f"/{name}") for name in fields})


def _are_files(files: Hdf5Files, paths: Sequence[str]) -> bool:
    """Whether each dataset is the bytes of one file: an encoded picture or an opaque value."""
    found = [files.dataset(path) for path in paths]
    return all((not one.shape and one.dtype.kind == "V") or (one.ndim == 1 and one.dtype == "u1") for one in found)


def _check_complete(files: Hdf5Files, group: str, parts: Mapping[Part, Sequence[str]]) -> None:
    """Raise FormatError unless each sample has a dataset for each field."""
    whole = set().union(*parts.values())
    for (before, after), names in parts.items():
        missing = natural_order(whole.difference(names))
        if missing:
            raise FormatError(
                f"{files.url}: of the {len(whole)} samples in {group}, {len(missing)} lack {before}…{after}: the first is "
                f"{before}{missing[0]}{after}, which is missing; add what is missing, or remove it from the others"
            )


def are_field_names(names: Sequence[str]) -> bool:
    """Whether only fields have such names: ``image`` and ``mask``, ``lr`` and ``hr``."""
    return all(map(_FIELD_NAME.fullmatch, names))


def _are_fields(files: Hdf5Files, parts: Mapping[str, Sequence[str]]) -> Literal["yes", "no", "either"]:
    """Return whether datasets are the fields of the same samples.

    Parameters
    ----------
    files : Hdf5Files
    parts : mapping of str to sequence of str
        Possible field → some of its datasets, of the same samples for each.
    """
    if are_field_names([name.strip("_-./ ") for name in parts]):
        return "yes"
    if len({stem(name) for name in parts}) == 1 and None not in map(stem, parts):
        return "no"  # numbered things, as sample_0, sample_1
    datasets = {name: [files.dataset(path) for path in paths] for name, paths in parts.items()}
    sorts = [_common_sort(found) for found in datasets.values()]
    if None in sorts:
        return "no"
    if len(set(sorts)) > 1:
        return "yes"
    suffixes = {match[0].lower() if (match := _IMAGE_SUFFIX.search(name)) else "" for name in parts}
    if len(suffixes) > 1:
        return "yes"  # 0.jpg and 0.png
    if suffixes != {""}:
        return "no"  # cat.0.jpg and dog.0.jpg: names of files
    return _by_size(files, [*datasets.values()])


def _common_sort(datasets: Sequence[h5py.Dataset]) -> tuple[str, int] | None:
    """Return the sort of at least 7 of 8 datasets (the others are bad samples), or None if they differ more."""
    sort, count = Counter(map(sort_of, datasets)).most_common(1)[0]
    return sort if 8 * count >= 7 * len(datasets) else None


def _by_size(files: Hdf5Files, parts: Sequence[Sequence[h5py.Dataset]]) -> Literal["yes", "no", "either"]:
    """Return whether the sizes of the parts are equal, or differ by one factor, from sample to sample."""
    sizes = [[_size_of(files, dataset) for dataset in part] for part in parts]
    rows = [row for row in zip(*sizes, strict=True) if all(row)]
    if len(rows) < 2:
        return "either"
    factors = {tuple(_factor(row[0], size) for size in row[1:]) for row in rows}
    if len(factors) > 1 or None in next(iter(factors)):
        return "no"
    scaled = any(factor != 1 for factor in next(iter(factors)))
    vary = len({row[0] for row in rows}) > 1
    return "yes" if scaled or vary else "either"


def _factor(size: tuple[int, ...] | None, other: tuple[int, ...] | None) -> float | None:
    """Return by which factor `other` is larger in height and width, or None if there is no single one."""
    if size is None or other is None or len(size) != len(other):
        return None
    factors = {b / a for a, b in zip(size[:2], other[:2], strict=True) if a}
    return factors.pop() if len(factors) == 1 and size[2:] == other[2:] else None


def _size_of(files: Hdf5Files, dataset: h5py.Dataset) -> tuple[int, ...] | None:
    """Return the size of a picture, encoded or not, or the shape of an array; None if it is unknown."""
    if dataset.ndim > 1:
        return tuple(dataset.shape)
    try:
        with Image.open(io.BytesIO(element_bytes(files, dataset))) as image:
            return image.size
    except (StoredsError, OSError, RuntimeError, ValueError, Image.DecompressionBombError):
        return None  # damaged; its record will report it


FRAME_NAMES = (
    *("frames", "frame", "images", "image", "imgs", "img", "video", "videos"),
    *("rgb", "jpegs", "jpeg", "jpg", "data"),
)
_IMAGE_NAMES = ("image", "img", "picture")
VIDEO_NAMES = ("frames", "frame", "video", "videos", "rgb")
_SERIES = re.compile(r"(frame|img|image|f|i|im)?[_-]?\d+(\.\w+)?", re.IGNORECASE)
NUMBERED_VIDEO = re.compile(r"(video|vid|clip|sequence|seq|episode|scene|shot)s?[ _-]?\d+", re.IGNORECASE)


def is_series(names: Sequence[str]) -> bool:
    """Whether datasets are named as frames of a video: by a number, perhaps behind ``frame`` or ``img``."""
    return bool(names) and len({stem(name) for name in names}) == 1 and all(map(_SERIES.fullmatch, names))


def is_one_image(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is one picture, or its bytes; its rows are then not frames."""
    shape, name = dataset.shape, dataset.name.rpartition("/")[2].lower()
    if not shape:
        return True
    if dataset.dtype.kind not in "biuf":
        return False
    if len(shape) == 1:
        return bool(dataset.dtype == "u1")
    in_colour = len(shape) == 3 and shape[-1] in COLOURS and (dataset.dtype == "u1" or name not in VIDEO_NAMES)
    return in_colour or (name in _IMAGE_NAMES and len(shape) <= 3)


def is_sample(files: Hdf5Files, group: str, names: Sequence[str]) -> bool:
    """Whether the datasets of a group are the fields of one sample.

    One of them must be a picture or a single value, and none may have a value for each row of another, except beside a
    picture: the labels of boxes.
    """
    there = files.group(group)
    datasets = [files.dataset(f"{group}/{name}") for name in names if name in there]
    if any(dataset.size == 1 and not is_opaque(dataset) for dataset in datasets):
        return True  # one number or text
    rows = [dataset for dataset in datasets if not (dataset.ndim == 1 and is_picture(dataset))]
    lengths = [dataset.shape[0] for dataset in rows if dataset.ndim]
    labelled = {each.shape[0] for each in rows if each.ndim == 1 and lengths.count(each.shape[0]) > 1}
    pictures = [each for each in datasets if each.ndim in (1, 3) and is_picture(each)]
    if labelled and not any(each.ndim == 1 or each.shape[0] not in labelled for each in pictures):
        return False  # a label for each row: a store of its own
    return any(is_picture(dataset) or is_one_image(dataset) for dataset in datasets) or (
        len(datasets) == 1 and bool(attributes(there))
    )


def are_encoded_images(files: Hdf5Files, datasets: Sequence[h5py.Dataset]) -> bool:
    """Whether each dataset holds the bytes of an image file, which makes it a sample whatever its name."""
    if not datasets or any(dataset.ndim > 1 or (dataset.ndim == 1 and dataset.dtype != "u1") for dataset in datasets):
        return False
    if any(not dataset.ndim and dataset.dtype.kind in SCALAR_KINDS for dataset in datasets):
        return False
    return element_field(files, [dataset.name for dataset in datasets]).kind == "image"


def frames_or_samples(files: Hdf5Files, group: str, groups: Sequence[str]) -> Literal["frames", "samples", "either"]:
    """Return what the numbered datasets of groups are.

    Frames, if they or their groups are named so, or if a group has attributes, as a video has and a class has not.
    Samples, if groups are named as classes, if the pictures of one group differ in size, or if no group counts in equal
    steps. Otherwise either.
    """
    inner = {name: split(files.group(f"{group}/{name}"))[0] for name in sample_evenly(groups)}
    series = {name: names for name, names in inner.items() if names}
    if not all(map(is_series, series.values())):
        return "samples"
    if all(map(NUMBERED_VIDEO.fullmatch, groups)) or any(
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
    """Return the sizes of some of the pictures."""
    found = (_size_of(files, files.dataset(f"{group}/{name}")) for name in sample_evenly(names))
    return {size for size in found if size is not None}
