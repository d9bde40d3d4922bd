"""Selects the datasets of a foreign HDF5 file that are columns of the same records, also in groups within groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import h5py

from storeds.errors import FormatError
from storeds.layouts.hdf5.files import Hdf5Files
from storeds.layouts.hdf5.names import field_names, split, stem
from storeds.layouts.hdf5.tree import Member, members
from storeds.layouts.hdf5.values import is_single, makes_fields, row_count

__all__ = ["MOST_COLUMNS", "Columns", "check_lengths", "enter_group", "select_columns"]

MOST_COLUMNS = 64  # datasets of a group; more than that are samples
_MOST_NESTED = 1024
_CLASSES = ("classes", "class_names", "list_classes", "label_names", "labels_names")
_FRAME_LENGTHS = re.compile(r"compress_len(gths?)?", re.IGNORECASE)


@dataclass(frozen=True)
class Columns:
    """Datasets with a row for each record.

    Attributes
    ----------
    group : str
        That `columns` are seen from.
    columns : mapping of str to Dataset
        Path → dataset.
    singles : mapping of str to Dataset
        Of the group, those of one value.
    classes : Dataset or None
        Class names.
    """

    group: str
    columns: Mapping[str, h5py.Dataset]
    singles: Mapping[str, h5py.Dataset] = field(default_factory=dict)
    classes: h5py.Dataset | None = None

    def why_left(self, member: Member) -> str | None:
        """Return why a dataset is no column, or None for one that is read."""
        if member.path in self.columns or (self.classes is not None and member.dataset == self.classes):
            return None
        if is_single(member.dataset):
            return "a single value; columns= can name it, too"
        if _FRAME_LENGTHS.fullmatch(member.path):
            return "lengths of compressed frames, which the frames say themselves"
        count = next((row_count(dataset) for dataset in self.columns.values()), 0)
        if row_count(member.dataset) == count:
            return "of a type that no field holds, or in one of several groups alike"
        return f"{row_count(member.dataset)} rows, not {count}"


def enter_group(files: Hdf5Files, name: str) -> tuple[str, list[str]]:
    """Return a group and its datasets' names; where it holds nothing but another group, that one's."""
    group = files.group(name)
    names, groups = split(group)
    if not names and len(groups) == 1:
        return enter_group(files, f"{name.rstrip('/')}/{groups[0]}")
    if len(names) <= MOST_COLUMNS:
        # What links lead to is looked at only where they may lead; one that they may not is an error, not left out.
        names = [child for child in names if isinstance(files.find(f"{name}/{child}")[0], h5py.Dataset)]
    return name, names


def select_columns(files: Hdf5Files, group: str, *, check: bool = True) -> Columns:
    """Return the columns below `group`: its own datasets, and nested ones that have as many rows.

    Raises
    ------
    FormatError
        Its own datasets have different lengths; not if `check` is False.
    """
    group, names = enter_group(files, group)
    own = {name: files.dataset(f"{group}/{name}") for name in names}
    singles = {name: dataset for name, dataset in own.items() if is_single(dataset)}
    arrays = {name: dataset for name, dataset in own.items() if name not in singles}
    classes = next((name for name in arrays if name.lower() in _CLASSES and _is_text(arrays[name])), None)
    lengths = {row_count(dataset) for name, dataset in arrays.items() if not _FRAME_LENGTHS.fullmatch(name)}
    columns = {
        name: dataset
        for name, dataset in arrays.items()
        if name != classes and not (_FRAME_LENGTHS.fullmatch(name) and row_count(dataset) not in lengths)
    }
    if check and len(names) <= MOST_COLUMNS:
        check_lengths(files, [(row_count(dataset), dataset.name) for dataset in columns.values()])
    if len(names) <= MOST_COLUMNS:
        columns |= _nested(files, group, columns)
    return Columns(group, columns, singles, arrays[classes] if classes else None)


def _nested(files: Hdf5Files, group: str, own: Mapping[str, h5py.Dataset]) -> dict[str, h5py.Dataset]:
    """Return the datasets of nested groups that are columns beside those of the group, if it has any."""
    groups = split(files.group(group))[1]
    if not groups:
        return {}
    found = [member for member in members(files, group, most=_MOST_NESTED) if "/" in member.path]
    if len(found) == _MOST_NESTED:
        return {}  # samples, rather than fields
    arrays = [member for member in found if not is_single(member.dataset)]
    counts = {row_count(member.dataset) for member in arrays}
    if own:
        counts = {row_count(next(iter(own.values())))}
    elif len(counts) != 1 or not _are_parts_of_one(arrays):
        return {}
    chosen = [member for member in arrays if row_count(member.dataset) in counts]
    return {member.path: member.dataset for member in chosen if makes_fields(files, member.dataset)}


def _are_parts_of_one(arrays: Sequence[Member]) -> bool:
    """Whether datasets of several groups, with as many rows each, are parts of the same records.

    They are samples, classes or stores of their own where groups hold the same names, numbered names, or one shape.
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
    """Return the length that columns have in common, 0 where there are none; raises FormatError where they differ."""
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
    """Return the argument that reads datasets, named from the root, as columns of a store at `group`."""
    below = [name.lstrip("/").removeprefix(f"{group.strip('/')}/") for name in names]
    return f"columns={ {field: path for path, field in field_names(below).items()} }"
