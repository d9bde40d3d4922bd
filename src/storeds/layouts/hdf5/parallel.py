"""HDF5 files with one dataset for each field: ``data`` and ``label``, ``train_img`` and ``train_labels``, and tables.

Also infers what the datasets of a group are: columns with a row for each record, the fields of one record, or samples. A
name alone decides nothing, nor does a shape alone: (240, 240) is 240 rows as well as one picture. Evidence is a coincidence
that has no other cause, or a name and a shape that agree. If evidence supports two readings, both fit.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import h5py
from pydantic import field_validator

from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.hdf5.base import Contents, ForeignHdf5
from storeds.layouts.hdf5.files import (
    ForeignOptions,
    Hdf5Files,
    Member,
    NoSuchNameError,
    Unread,
    are_splits,
    attributes,
    enter,
    field_names,
    members,
    split,
    stem,
    unread_below,
)
from storeds.layouts.hdf5.values import (
    COLOURS,
    SCALAR_KINDS,
    Computed,
    Values,
    is_opaque,
    is_picture,
    is_single,
    makes_fields,
    row_count,
    unsupported,
    values_of,
)
from storeds.protocols import JSON, Field
from storeds.records.fields import parse_fields

__all__ = [
    "MOST_FIELDS",
    "Columns",
    "ParallelHdf5",
    "ParallelOptions",
    "Part",
    "are_numbered_samples",
    "enter_group",
    "numbered_parts",
    "rows_or_file",
    "same_samples",
    "select_columns",
]


class ParallelOptions(ForeignOptions):
    """Options of layout ``parallel``, besides those of every foreign HDF5 layout.

    Attributes
    ----------
    columns : mapping of str to str, optional
        Field → dataset, relative to `group`: ``{"image": "train_img", "label": "train_labels"}``, ``"table/x"`` for a
        column of a table, and ``"labels.h5::y"`` for a dataset in another file of the same folder. In a URL:
        ``columns=image:train_img,label:train_labels``. A dataset of a single value is the same in every record. By default
        every dataset of the group is a field, and every one in groups below it that has as many rows.
    """

    columns: tuple[tuple[str, str], ...] | None = None

    @field_validator("columns", mode="before")
    @classmethod
    def _pairs(cls, columns: Any) -> Any:
        if isinstance(columns, str):
            parts = [part.partition(":") for part in columns.split(",")]
            if any(not colon for _, colon, _ in parts):
                raise ValueError("expected field:dataset,field:dataset")
            columns = {name.strip(): where.strip() for name, _, where in parts}
        if isinstance(columns, Mapping):
            if not columns:
                raise ValueError("expected at least one field")
            parse_fields(dict.fromkeys(columns, "int"))
            return tuple(columns.items())
        return columns


class ParallelHdf5(ForeignHdf5):
    """Reads datasets of equal length as the fields of records.

    Parameters
    ----------
    url : str
        Of one file; fields may lie in others of its folder.
    **options
        See `ParallelOptions`.
    """

    Options: ClassVar[type[ParallelOptions]] = ParallelOptions
    layout: ClassVar[str] = "parallel"

    @classmethod
    def _find(cls, files: Hdf5Files) -> Contents:
        attrs: dict[str, JSON] = {}
        if files.settings.columns is None:
            columns = select_columns(files, files.settings.group)
            found = dict(_default_columns(files, columns, attrs))
            noted = attributes(files.group(columns.group))
            if noted:
                attrs["attributes"] = noted
        else:
            found = _named_columns(files)
        lengths = [(values.count, where) for where, values in found.values()]
        if not lengths:
            raise FormatError(f"{files.url}: its datasets are single values, not one for each record")
        count = _check_lengths(files, lengths)
        values = {name: values for name, (_, values) in found.items()}
        return Contents(values, count, attrs, {name: where for name, (where, _) in found.items()})

    @classmethod
    def _unread_in(cls, files: Hdf5Files) -> Unread:
        if files.settings.columns is not None:
            return Unread()  # the user selected them
        columns = select_columns(files, files.settings.group)
        return unread_below(files, columns.group, columns.why_unread)

    @classmethod
    def _advice(cls, files: Hdf5Files, unread: Unread) -> str:
        columns = _columns_argument([unread.largest.dataset.name] if unread.largest else [], files.settings.group)
        return (
            f"columns= names the datasets to read together, as {columns}, group= a group to read by itself, and partial=True "
            "leaves out what is listed"
        )

    @classmethod
    def _guess(cls, files: Hdf5Files) -> str | None:
        if files.settings.columns is not None:
            cls._find(files)
            return f"columns= names {len(files.settings.columns)} of its datasets"
        _, names, groups = enter_group(files, files.settings.group)
        if not names and groups and are_splits(groups):
            return (
                f"its groups are splits of a data set, each a store of its own ({', '.join(groups)}): group= names one"
            )
        if len(names) > MOST_FIELDS:
            return None
        found = select_columns(files, files.settings.group, check=False)
        if found.own and are_numbered_samples({**found.singles, **found.own}):
            return None
        if not found.columns or (found.own and rows_or_file(found.singles, found.own) == "file"):
            return None
        _check_lengths(files, [(row_count(dataset), dataset.name) for dataset in (found.own or found.columns).values()])
        shown = ", ".join(f"{dataset.name} {dataset.shape}" for dataset in list(found.columns.values())[:4])
        return f"its datasets are columns: {shown}"

    @classmethod
    def _rules_out_others(cls, files: Hdf5Files) -> bool:
        if files.settings.columns is not None:
            return True
        group, names, groups = enter_group(files, files.settings.group)
        if not 0 < len(names) < MOST_FIELDS or "data" in groups or _are_numbered(names):
            return False
        found = select_columns(files, group, check=False)
        read_otherwise = len(names) - len(found.own) - len(found.singles)  # class names, lengths of frames
        return not read_otherwise and rows_or_file(found.singles, found.own) == "rows"


def _named_columns(files: Hdf5Files) -> dict[str, tuple[str, Values]]:
    found: dict[str, Values] = {}
    singles: dict[str, h5py.Dataset] = {}
    columns = dict(files.settings.columns or ())
    for name, where in columns.items():
        dataset, member = _named(files, name, where)
        if not dataset.shape and dataset.dtype.names is None:
            singles[name] = dataset
            continue
        values = values_of(files, dataset, member)
        if member not in values:
            raise ConfigError(
                f"{files.url}: columns[{name!r}] is {where!r}, a table; name a column: {where}/{next(iter(values))}"
            )
        found[name] = values[member]
    count = next((values.count for values in found.values()), 1)
    found |= {name: _repeated(files, dataset, count) for name, dataset in singles.items()}
    return {name: (where, found[name]) for name, where in columns.items()}


def _named(files: Hdf5Files, field: str, where: str) -> tuple[h5py.Dataset, str]:
    file, separator, name = where.rpartition("::")
    path = None
    if separator:
        path = files.resolve(file, os.path.dirname(files.path), f"columns[{field!r}]", ConfigError)
    else:
        files.group(files.settings.group)
        name = f"{files.settings.group}/{name}"
    try:
        found, member = files.find(name, path)
    except NoSuchNameError as error:
        raise ConfigError(f"columns[{field!r}]: {error}") from None
    if not isinstance(found, h5py.Dataset):
        raise ConfigError(
            f"{files.url}: columns[{field!r}] is {where!r}, a group; {suggest(name, found.keys(), 'names in it')}"
        )
    return found, member


def _default_columns(
    files: Hdf5Files, found: Columns, attrs: dict[str, JSON]
) -> Iterator[tuple[str, tuple[str, Values]]]:
    """Yield field → (dataset, values); raises ConfigError if two datasets have the same field name."""
    if not found.columns and not found.singles:
        there = ", ".join(list(files.group(found.group))[:8]) or "nothing"
        raise FormatError(
            f"{files.url}: {found.group} holds no dataset, but {there}; group= names a group to read by itself, columns= "
            "datasets to read together"
        )
    if found.classes is not None:
        attrs["classes"] = values_of(files, found.classes)[""].column().tolist()
    seen: dict[str, str] = {}
    for path, dataset in found.columns.items():
        for member, values in values_of(files, dataset).items():
            alone = len(found.columns) == 1 and not found.singles
            label = member if alone and member else f"{path}/{member}" if member else path
            (field,) = field_names([label]).values()
            if field in seen:
                raise ConfigError(
                    f"{files.url}: {seen[field]} and {label} would both be the field {field!r}; columns= names them, as "
                    f"columns={{{field!r}: {seen[field]!r}, {field + '_2'!r}: {label!r}}}"
                )
            seen[field] = label
            yield field, (f"{dataset.name}/{member}" if member else dataset.name, values)


def _repeated(files: Hdf5Files, dataset: h5py.Dataset, count: int) -> Computed:
    """Return a single value as a field that is the same in every record."""
    text = h5py.check_string_dtype(dataset.dtype) is not None
    if not text and dataset.dtype.kind not in SCALAR_KINDS:
        raise unsupported(files, dataset)
    kind = "str" if text else SCALAR_KINDS[dataset.dtype.kind]
    value = dataset.asstr()[()] if text else dataset[()].item()
    return Computed(Field(kind), count, lambda _: value)


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
            _check_lengths(files, [(row_count(dataset), dataset.name) for dataset in columns.values()])
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


def _check_lengths(files: Hdf5Files, lengths: Sequence[tuple[int, str]]) -> int:
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
                f"columns= names those that belong together, as {_columns_argument(equal, files.settings.group)}; "
                "layout='per_file' reads the file as one record"
            )
    return first


def _columns_argument(names: Sequence[str], group: str) -> str:
    """Return the argument that reads datasets, given by absolute name, as columns of a store at `group`."""
    below = [name.lstrip("/").removeprefix(f"{group.strip('/')}/") for name in names]
    return f"columns={ {field: path for path, field in field_names(below).items()} }"


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


def _are_numbered(names: Sequence[str]) -> bool:
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
