"""Infers what the datasets of one group are: columns with a row for each record, the fields of one record, or samples.

A name alone decides nothing, nor does a shape alone: (240, 240) is 240 rows as well as one picture. Evidence is a
coincidence that has no other cause, or a name and a shape that agree. If evidence supports two readings, both fit.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import h5py

from storeds.errors import FormatError
from storeds.layouts.hdf5.files import Hdf5Files, Member, enter, field_names, members, split, stem
from storeds.layouts.hdf5.values import SCALAR_KINDS, is_encoded, is_single, makes_fields, row_count

__all__ = [
    "COLOURS",
    "MOST_FIELDS",
    "Columns",
    "Part",
    "are_numbered",
    "are_numbered_samples",
    "check_lengths",
    "columns_argument",
    "enter_group",
    "is_opaque",
    "is_picture",
    "numbered_parts",
    "rows_or_file",
    "same_samples",
    "select_columns",
]

MOST_FIELDS = 64  # datasets of a group; more than that are samples
_MOST_NESTED = 1024
_CLASS_NAMES = ("classes", "class_names", "list_classes", "label_names", "labels_names")
_FRAME_LENGTHS = re.compile(r"compress_len(gths?)?", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Datasets with a row for each record.

    Attributes
    ----------
    group : str
        Where the paths begin.
    columns : mapping of str to Dataset
        Path → dataset.
    singles : mapping of str to Dataset
        The group's datasets of one value.
    classes : Dataset or None
        Class names.
    """

    group: str
    columns: Mapping[str, h5py.Dataset]
    singles: Mapping[str, h5py.Dataset] = field(default_factory=dict)
    classes: h5py.Dataset | None = None

    @property
    def own(self) -> dict[str, h5py.Dataset]:
        """The columns in the group itself."""
        return {name: dataset for name, dataset in self.columns.items() if "/" not in name}

    def why_unread(self, member: Member) -> str | None:
        """Return why a dataset is not a column, or None if it is read."""
        if member.path in self.columns or (self.classes is not None and member.dataset == self.classes):
            return None
        if is_single(member.dataset):
            return "a single value; columns= can name it, too"
        if _FRAME_LENGTHS.fullmatch(member.path):
            return "lengths of compressed frames, which the frames already give"
        count = next((row_count(dataset) for dataset in self.columns.values()), 0)
        if row_count(member.dataset) == count:
            return "of a type that no field holds, or in one of several similar groups"
        return f"{row_count(member.dataset)} rows, not {count}"


def enter_group(files: Hdf5Files, name: str) -> tuple[str, list[str], list[str]]:
    """Return a group, its datasets and its groups; a group that holds only one other group is replaced by that one."""
    name, names, groups = enter(files, name)
    if len(names) <= MOST_FIELDS:
        # Following a link that must not be followed raises here, so it is not left out silently.
        names = [child for child in names if isinstance(files.find(f"{name}/{child}")[0], h5py.Dataset)]
    return name, names, groups


def select_columns(files: Hdf5Files, group: str, *, check: bool = True) -> Columns:
    """Return the columns below `group`: its own datasets, and nested ones with as many rows.

    Raises
    ------
    FormatError
        Its own datasets have different lengths; not if `check` is False.
    """
    group, names, _ = enter_group(files, group)
    own = {name: files.dataset(f"{group}/{name}") for name in names}
    singles = {name: dataset for name, dataset in own.items() if is_single(dataset)}
    arrays = {name: dataset for name, dataset in own.items() if name not in singles}
    classes = next((name for name in arrays if name.lower() in _CLASS_NAMES and _is_text(arrays[name])), None)
    lengths = {row_count(dataset) for name, dataset in arrays.items() if not _FRAME_LENGTHS.fullmatch(name)}
    columns = {
        name: dataset
        for name, dataset in arrays.items()
        if name != classes and not (_FRAME_LENGTHS.fullmatch(name) and row_count(dataset) not in lengths)
    }
    if len(names) <= MOST_FIELDS:
        if check:
            check_lengths(files, [(row_count(dataset), dataset.name) for dataset in columns.values()])
        columns |= _nested_columns(files, group, columns)
    return Columns(group, columns, singles, arrays[classes] if classes else None)


def _nested_columns(files: Hdf5Files, group: str, own: Mapping[str, h5py.Dataset]) -> dict[str, h5py.Dataset]:
    """Return the datasets of nested groups that are columns, beside the group's own if it has any."""
    if not split(files.group(group))[1]:
        return {}
    found = [member for member in members(files, group, most=_MOST_NESTED) if "/" in member.path]
    if len(found) == _MOST_NESTED:
        return {}  # so many are samples
    arrays = [member for member in found if not is_single(member.dataset)]
    counts = {row_count(member.dataset) for member in arrays}
    if own:
        counts = {row_count(next(iter(own.values())))}
    elif len(counts) != 1 or not _are_parts_of_records(arrays):
        return {}
    chosen = [member for member in arrays if row_count(member.dataset) in counts]
    return {member.path: member.dataset for member in chosen if makes_fields(files, member.dataset)}


def _are_parts_of_records(arrays: Sequence[Member]) -> bool:
    """Whether datasets of several groups, all of one length, are fields of the same records.

    Groups with equal names, numbered names or a single shape are samples, classes or stores of their own.
    """
    inner = Counter(member.path.partition("/")[2] for member in arrays)
    stems = Counter(stem(member.path) for member in arrays)
    stems.pop(None, None)
    shapes = {member.dataset.shape[1:] for member in arrays}
    heads = {member.path.partition("/")[0] for member in arrays}
    return len(heads) > 1 and max(inner.values()) == 1 and max(stems.values(), default=1) == 1 and len(shapes) > 1


def _is_text(dataset: h5py.Dataset) -> bool:
    return dataset.ndim == 1 and h5py.check_string_dtype(dataset.dtype) is not None


def check_lengths(files: Hdf5Files, lengths: Sequence[tuple[int, str]]) -> int:
    """Return the common length of columns, 0 if there are none; raises FormatError if lengths differ."""
    if not lengths:
        return 0
    first, where = lengths[0]
    for count, other in lengths:
        if count != first:
            most, times = Counter(count for count, _ in lengths).most_common(1)[0]
            equal = [name for count, name in lengths if count == most] if times > 1 else [where]
            raise FormatError(
                f"{files.url}: {where} has {first} rows and {other} has {count}, so they are not columns of the same records; "
                f"columns= names those that belong together, as {columns_argument(equal, files.settings.group)}; "
                "layout='per_file' reads the file as one record"
            )
    return first


def columns_argument(names: Sequence[str], group: str) -> str:
    """Return the argument that reads datasets, given by absolute name, as columns of a store at `group`."""
    below = [name.lstrip("/").removeprefix(f"{group.strip('/')}/") for name in names]
    return f"columns={ {field: path for path, field in field_names(below).items()} }"


COLOURS = (1, 3, 4)  # channels of a picture
_PICTURE = re.compile(
    r"(image|img|im|picture|pic|photo|mask|seg|segmentation|annotation|density(_?map)?|heat_?map|depth(_?map)?|disparity|"
    r"(mel_?)?spec(trogram)?|mel|mfcc|flow|normal|rgb|gr[ae]y|slice|gt|ground_?truth|(low|high)_?res|lr|hr)([_-]?\d+)?(\.\w+)?",
    re.IGNORECASE,
)
_VOLUME = re.compile(r"(volume|vol|scan|ct|mri?|pet|t1(ce|c|gd)?|t2|flair|raw)([_-]?\d+)?", re.IGNORECASE)
_LABEL = re.compile(r"(label|target|class|class_id|category|cls|y|gt|grade)", re.IGNORECASE)
_PLURAL = re.compile(
    r"(image|img|picture|pic|photo|mask|frame|slice|sample|segmentation|depth|label)e?s", re.IGNORECASE
)
_SMALLEST_NAMED = 4  # pixels of a side, of a dataset named as a picture
_SMALLEST_COLOUR = 8  # of one that has colours in bytes
_SMALLEST_UNNAMED = 32  # of one with only its shape as evidence
_LONGEST = 8  # times the other side


def rows_or_file(
    singles: Mapping[str, h5py.Dataset], arrays: Mapping[str, h5py.Dataset]
) -> Literal["rows", "file", "either", "neither"]:
    """Return what the datasets of a group are, if they are neither numbered samples nor videos.

    Parameters
    ----------
    singles : mapping of str to Dataset
        Those of one value.
    arrays : mapping of str to Dataset
        The others.

    Returns
    -------
    str
        ``rows``: each dataset has a row for each record. ``file``: each dataset is a field of the only record. ``either``:
        both fit. ``neither``: the datasets have different lengths, and nothing suggests one sample.
    """
    labelled = any(_LABEL.fullmatch(name) and one.dtype.kind in SCALAR_KINDS for name, one in singles.items())
    encoded = [
        name for name, one in {**singles, **arrays}.items() if is_opaque(one) or (one.ndim == 1 and is_picture(one))
    ]
    if encoded:
        return "file" if labelled or any(_PICTURE.fullmatch(_last(name)) for name in encoded) else "neither"
    if not arrays:
        return "neither"
    named = any(
        _PICTURE.fullmatch(_last(name)) and _is_picture_shaped(array, _SMALLEST_NAMED) for name, array in arrays.items()
    )
    if len({array.shape[0] for array in arrays.values()}) > 1:
        return "file" if _are_one_sample(arrays, named=named, labelled=labelled) else "neither"
    if _have_rows(arrays):
        has_values = any(array.size == array.shape[0] for array in arrays.values())
        return "either" if labelled and (named or not has_values) else "rows"
    if any(array.ndim > 3 for array in arrays.values()):
        return _of_rank_four(arrays, labelled)
    return _of_equal_sides(arrays, named=named, labelled=labelled)


def _are_one_sample(arrays: Mapping[str, h5py.Dataset], *, named: bool, labelled: bool) -> bool:
    """Whether datasets of different lengths are one sample, not columns of which one is damaged."""
    if any(array.ndim == 1 and _LABEL.fullmatch(_last(name).removesuffix("s")) for name, array in arrays.items()):
        return False
    shaped = labelled and any(_is_picture_shaped(array, _SMALLEST_COLOUR) for array in arrays.values())
    return named or shaped or all(map(_is_in_colour, arrays.values()))


def _have_rows(arrays: Mapping[str, h5py.Dataset]) -> bool:
    """Whether datasets share their first dimension and no other, which is hardly an accident."""
    count = next(iter(arrays.values())).shape[0]
    if count == 1:
        return True
    flat = [array for array in arrays.values() if array.size == count]
    if flat and (len(flat) < len(arrays) or len(flat) > 1):
        return True
    if any(array.dtype.kind not in "biufc" for array in arrays.values()):
        return True  # texts and values of variable length have no other dimensions
    return len({array.shape[1:2] for array in arrays.values()}) > 1


def _of_rank_four(arrays: Mapping[str, h5py.Dataset], labelled: bool) -> Literal["rows", "either"]:
    """Return what stacks of pictures are: samples if in colour; otherwise perhaps a volume."""
    in_colour = any(
        (array.dtype == "u1" and array.shape[-1] in COLOURS) or array.shape[-1] == 3 or array.shape[1] in (1, 3)
        for array in arrays.values()
        if array.ndim > 3
    )
    volume = any(_VOLUME.fullmatch(_last(name)) for name in arrays)
    named = any(_PICTURE.fullmatch(_last(name)) for name in arrays)
    return "either" if labelled or volume or (named and not in_colour) else "rows"


def _of_equal_sides(
    arrays: Mapping[str, h5py.Dataset], *, named: bool, labelled: bool
) -> Literal["rows", "file", "either"]:
    """Return what datasets are that share the first two dimensions, and have three at most."""
    if any(_PLURAL.fullmatch(_last(name)) for name in arrays):
        return "either" if labelled or named else "rows"
    if all(_is_picture_shaped(array, _SMALLEST_NAMED) for array in arrays.values()):
        if named or any(_is_in_colour(array) for array in arrays.values()):
            return "file"
        if labelled and all(_is_picture_shaped(array, _SMALLEST_COLOUR) for array in arrays.values()):
            return "file"
        if all(_is_picture_shaped(array, _SMALLEST_UNNAMED, longest=2) for array in arrays.values()):
            alone = len(arrays) == 1
            return "rows" if alone and next(iter(arrays.values())).dtype != "u1" else "either"
    if labelled or any(_is_named_volume(name, array) for name, array in arrays.items()):
        return "either"
    return "rows"


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _is_picture_shaped(array: h5py.Dataset, smallest: int, longest: int = _LONGEST) -> bool:
    """Whether a dataset has the shape of one picture: (H, W), (H, W, C) or (C, H, W), with sides of similar length."""
    shape = array.shape
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3):
        return False
    if array.ndim == 3:
        if shape[2] not in COLOURS and shape[0] not in COLOURS:
            return False
        shape = shape[:2] if shape[2] in COLOURS else shape[1:]
    return bool(smallest <= min(shape) and max(shape) <= longest * min(shape))


def _is_in_colour(array: h5py.Dataset) -> bool:
    """Whether a dataset is one picture of bytes (H, W, C), a shape that rows of features do not have."""
    last = array.ndim == 3 and array.shape[2] in COLOURS
    return bool(last and array.dtype == "u1" and _is_picture_shaped(array, _SMALLEST_COLOUR))


def _is_named_volume(name: str, array: h5py.Dataset) -> bool:
    """Whether a dataset may be one volume (D, H, W), by its name."""
    named = _VOLUME.fullmatch(_last(name)) or _PICTURE.fullmatch(_last(name))
    return array.ndim == 3 and bool(named) and max(array.shape) <= _LONGEST * min(array.shape)


def is_opaque(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is one opaque value: bytes of unknown content."""
    return bool(not dataset.shape and dataset.dtype.kind == "V" and dataset.dtype.names is None)


def is_picture(dataset: h5py.Dataset) -> bool:
    """Whether a dataset is one picture, by its values or its shape."""
    shape, dtype = dataset.shape, dataset.dtype
    if is_opaque(dataset):
        return True
    if dtype == "u1" and len(shape) == 1:
        try:
            return is_encoded(dataset[:32].tobytes())
        except OSError:
            return False  # damaged; its record will report it
    in_colour = len(shape) == 3 and shape[2] in COLOURS
    return bool(dtype == "u1" and (in_colour or len(shape) == 2))


Part = tuple[str, str]
"""What stands before and after a sample's key in the name of its dataset."""

_NUMBERED = re.compile(r"(\D*)(\d(?:.*\d)?)(\D*)")


def numbered_parts(names: Sequence[str]) -> dict[Part, list[str]] | None:
    """Return part → numbers, if names are those of several numbered fields: ``image_0``, ``label_0``, ``image_1`` …."""
    parts: dict[Part, list[str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            return None
        parts.setdefault((match[1], match[3]), []).append(match[2])
        if len(parts) > MOST_FIELDS:
            return None
    return parts if len(parts) > 1 and same_samples(list(parts.values())) else None


def are_numbered(names: Sequence[str]) -> bool:
    """Whether names form one numbered series, or several."""
    stems = {stem(name) for name in names}
    return (len(stems) == 1 and None not in stems) or numbered_parts(names) is not None


def same_samples(names: Sequence[Sequence[str]]) -> bool:
    """Whether lists name the same samples, more than one, though some may lack some of them."""
    whole = set().union(*names)
    return len(whole) > 1 and all(2 * len(part) > len(whole) for part in names)


def are_numbered_samples(datasets: Mapping[str, h5py.Dataset]) -> bool:
    """Whether datasets are numbered samples, not columns: they are pictures, or have lengths that columns cannot have."""
    if numbered_parts([*datasets]) is not None:
        found = list(datasets.values())
        if any(math.prod(dataset.shape) <= 1 for dataset in found) or len({dataset.shape[:1] for dataset in found}) > 1:
            return True
    stems = {name: stem(name) for name in datasets}
    pictures = [
        stems[name]
        for name, dataset in datasets.items()
        if dataset.ndim not in (0, 2) and stems[name] is not None and is_picture(dataset)
    ]
    if len(set(pictures)) < len(pictures):  # perhaps with labels of their own
        return True
    if len(set(stems.values())) != 1 or None in stems.values():
        return False
    return all(is_picture(dataset) for dataset in datasets.values())
