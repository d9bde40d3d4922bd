"""Tells whether datasets that share names are the fields of one sample, or samples of their own.

``lr/0`` and ``hr/0`` are a pair, ``cat/0`` and ``dog/0`` are two pictures; the same holds for ``lr_0`` and ``hr_0`` in one
group, and for ``scene_0/left`` beside ``scene_1/left``. Certain are names that only fields have, datasets of different
kinds, and sizes that agree, or differ by one factor, from name to name. Else both readings fit.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import h5py
from PIL import Image

from storeds.errors import FormatError, StoredsError
from storeds.layouts.hdf5.elements import element_bytes, sort_of
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.names import stem

__all__ = ["Sample", "SeveralWaysError", "are_field_names", "are_fields", "size_of"]

Sample = Literal["dataset", "group", "name"]
"""What one sample is: a dataset, a group of datasets, or the datasets of one name or number."""

_FIELDS = re.compile(
    r"(image|img|picture|photo|label|target|mask|annotation|caption|text|bbox|box|depth|key|rgb|flow|gr[ae]y|nir|ir|thermal|"
    r"seg|segmentation|normal|disparity|edge|sketch|input|output|source|src|dst|gt|ground_?truth|noisy|clean|blur(red|ry)?|sharp|"
    r"haze|hazy|clear|rain(y)?|low|high|lr|hr|lq|hq|sr|(lr_?)?x\d|(low|high)[ _-]?res(olution)?|left|right|front|rear|back|"
    r"top|bottom|side|cam(era)?[ _-]?\d*|view[ _-]?\d*|before|after|query|positive|negative|anchor|x|y|jpe?g|png|cls|json|txt|"
    r"data|audio|video|features?|points?|class(_id)?|index|id|name|meta|score|pose|action|reward|state)(s|es)?"
    r"([ _-]?(lr|hr|x\d))?(\.\w+)?",
    re.IGNORECASE,
)
_IMAGE_FILE = re.compile(r"\.(jpe?g|png|gif|bmp|tiff?|webp)$", re.IGNORECASE)


class SeveralWaysError(FormatError):
    """Datasets may be samples in several ways; `ways` says of each, by the value of ``sample=``, what speaks for it."""

    ways: Mapping[Sample, str]

    @classmethod
    def of(cls, ways: Mapping[Sample, str]) -> SeveralWaysError:
        """Return the error for these ways."""
        error = cls("; ".join(f"sample={sample!r}: {why}" for sample, why in ways.items()))
        error.ways = ways
        return error


def are_field_names(names: Sequence[str]) -> bool:
    """Whether these are names that fields have, and nothing else has: ``image`` and ``mask``, ``lr`` and ``hr``."""
    return all(map(_FIELDS.fullmatch, names))


def are_fields(files: Hdf5Files, parts: Mapping[str, Sequence[str]]) -> Literal["yes", "no", "either"]:
    """Return whether datasets are the fields of the same samples.

    Parameters
    ----------
    files : Hdf5Files
    parts : mapping of str to sequence of str
        What would be a field → some of its datasets, the same samples in each.
    """
    if are_field_names([name.strip("_-./ ") for name in parts]):
        return "yes"
    if len({stem(name) for name in parts}) == 1 and None not in map(stem, parts):
        return "no"  # things in a row, as sample_0, sample_1
    datasets = {name: [files.dataset(path) for path in paths] for name, paths in parts.items()}
    sorts = [_common_sort(found) for found in datasets.values()]
    if None in sorts:
        return "no"
    if len(set(sorts)) > 1:
        return "yes"
    ends = {_suffix(name) for name in parts}
    if len(ends) > 1:
        return "yes"  # 0.jpg and 0.png
    if ends != {""}:
        return "no"  # cat.0.jpg and dog.0.jpg: names of files
    return _by_size(files, [*datasets.values()])


def _common_sort(datasets: Sequence[h5py.Dataset]) -> tuple[str, int] | None:
    """Return the sort of all datasets but a few odd ones, which are bad samples; None where they are of several."""
    sort, count = Counter(map(sort_of, datasets)).most_common(1)[0]
    return sort if 8 * count >= 7 * len(datasets) else None


def _suffix(name: str) -> str:
    found = _IMAGE_FILE.search(name)
    return found[0].lower() if found else ""


def _by_size(files: Hdf5Files, parts: Sequence[Sequence[h5py.Dataset]]) -> Literal["yes", "no", "either"]:
    """Return whether sizes say so: from sample to sample, those of the parts are equal, or differ by one factor."""
    sizes = [[size_of(files, dataset) for dataset in part] for part in parts]
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
    """Return by what `other` is larger in each direction, None if there is no one factor; colours are not scaled."""
    if size is None or other is None or len(size) != len(other):
        return None
    factors = {b / a for a, b in zip(size[:2], other[:2], strict=True) if a}
    return factors.pop() if len(factors) == 1 and size[2:] == other[2:] else None


def size_of(files: Hdf5Files, dataset: h5py.Dataset) -> tuple[int, ...] | None:
    """Return the size of a picture, encoded or not, or the shape of an array; None where it is unknown."""
    if dataset.ndim > 1:
        return tuple(dataset.shape)
    try:
        with Image.open(io.BytesIO(element_bytes(files, dataset))) as image:
            return image.size
    except (StoredsError, OSError, RuntimeError, ValueError, Image.DecompressionBombError):
        return None  # a damaged one tells nothing, and its record will say so
