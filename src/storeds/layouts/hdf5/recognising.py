"""What a foreign HDF5 file certainly is, and the ways to read one that is not certain.

Names that one tool alone writes are certain, and so is a structure that has one meaning. No shape is interpreted: (240, 240) is
240 rows as well as one picture. Only equalities count.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from operator import itemgetter

import h5py
import numpy as np

from storeds.errors import ConfigError, FormatError
from storeds.layouts.hdf5.files import (
    MOST_WALKED,
    Address,
    Hdf5Files,
    Member,
    NoSuchNameError,
    Unreadable,
    attributes,
    describe,
    members,
    names_in,
)
from storeds.layouts.hdf5.frames import is_of_frame, parts_of
from storeds.layouts.hdf5.ranges import whole_numbers
from storeds.layouts.hdf5.references import are_references
from storeds.layouts.hdf5.scan import FRAMES, is_column
from storeds.layouts.hdf5.values import is_single, row_count, values_of
from storeds.layouts.pattern import KEY, Pattern, escaped, natural_order, parse_pattern, shared_names
from storeds.layouts.presets import PRESETS
from storeds.protocols import Array
from storeds.values.names import field_name, field_names

__all__ = ["candidates", "entries", "preset_pattern", "recognise"]

Columns = dict[str, str]

_DEMO = re.compile(r"demo_\d+")
_INSPECTED = 16  # groups
_GLANCED = 128  # members of a group that show what a preset means
_DEEPEST = 16  # groups, each the only member of another
_DIGITS = re.compile(r"\d+")


def preset_pattern(files: Hdf5Files, layout: str) -> Pattern:
    """Return the pattern of a preset for a file; raises ConfigError if it does not fit."""
    columns = PRESETS[layout].columns
    if layout == "pcam":
        labels = _pcam(files)
        if labels is None:
            raise ConfigError(f"{files.url}: layout 'pcam' reads a file …_x.h5 with a dataset x beside …_y.h5 with y")
        columns = labels
    elif layout != "per_episode":
        group = _entered(files)
        if layout == "per_video" and _holds_numbered_frames(files, group):
            columns = {"*": "{video}/{frame}", "@": "{video}"}
        columns = _inside(group, columns)
    return parse_pattern(columns)


def recognise(files: Hdf5Files) -> tuple[str | None, str]:
    """Return the preset that a file certainly fits, and why; None and no reason if there is none."""
    if _are_demonstrations(files):
        return "per_episode", "data/demo_0/actions and so on"
    group = _entered(files)
    datasets, groups = names_in(files, _absolute(files, group))
    pcam = _pcam(files)
    if pcam is not None:
        return "pcam", f"x here, and y in {pcam['label'].partition('::')[0]}"
    if groups and not datasets:
        name = next((name for name in FRAMES if _all_hold(files, group, groups, name)), None)
        if name is not None:
            return "per_video", f"each group holds {name!r}"
    found = [*members(files, _absolute(files, group))]
    if len(found) < MOST_WALKED and _are_columns(found):
        arrays = [*filter(is_column, found)]
        if any(is_of_frame(member.dataset) for member in arrays):
            return "parallel", f"a frame of pandas: {', '.join(member.path for member in arrays[:4])}"
        shown = ", ".join(f"{member.path} {describe(member.dataset)}" for member in arrays[:4])
        return "parallel", f"datasets of one length: {shown}"
    return None, ""


def _absolute(files: Hdf5Files, group: str) -> Address:
    return Address(f"{files.settings.group.rstrip('/')}/{group}")


def _entered(files: Hdf5Files) -> str:
    """Return the path of the group that holds more than one other group, from the group of the store."""
    path = ""
    for _ in range(_DEEPEST):  # a group may hold itself
        datasets, groups = names_in(files, _absolute(files, path), most=_GLANCED)
        if datasets or len(groups) != 1:
            break
        path = f"{path}/{groups[0]}".lstrip("/")
    return path


def _inside(group: str, columns: Mapping[str, str]) -> Columns:
    """Return columns whose paths begin at `group`."""
    start = escaped(group)
    return {name: f"{start}/{place}".rstrip("/") if start else place for name, place in columns.items()}


def _are_columns(found: list[Member]) -> bool:
    """Whether datasets are columns: they have one length, and this equality has no other explanation.

    It has none if a dataset has one value for each row of another, or if they differ in all but the length. If all names are
    numbered, the datasets may be samples of equal height.
    """
    arrays = [member.dataset for member in found if is_column(member)]
    lengths = {row_count(dataset) for dataset in arrays}
    if len(lengths) != 1 or 0 in lengths:
        return False
    if any(_is_list(dataset) or is_of_frame(dataset) for dataset in arrays):
        return True
    names = [dataset.name for dataset in arrays]
    if all(map(_DIGITS.search, names)) and len({_DIGITS.sub("#", name) for name in names}) < len(names):
        return False
    vectors = [dataset for dataset in arrays if dataset.size == row_count(dataset)]
    return len(vectors) < len(arrays) if vectors else len({dataset.shape[1] for dataset in arrays}) > 1


def _is_list(dataset: h5py.Dataset) -> bool:
    """Whether a dataset of one dimension has texts, files, arrays of any length, or rows of a table: no sample has these."""
    is_one = len(dataset.shape) == 1 or are_references(dataset)
    return is_one and (dataset.dtype.kind not in "biufc" or dataset.dtype.hasobject)


def _are_demonstrations(files: Hdf5Files) -> bool:
    data = _absolute(files, "data")
    if "data" not in names_in(files, _absolute(files, ""))[1]:
        return False
    datasets, groups = names_in(files, data)
    if datasets or not groups or not all(map(_DEMO.fullmatch, groups)):
        return False
    return "actions" in names_in(files, data.below(groups[0]))[0]


def _pcam(files: Hdf5Files) -> Columns | None:
    start, mark, end = files.path.rpartition("_x.")
    other = f"{start}_y.{end}"
    if not mark or not os.path.isfile(other) or names_in(files, _absolute(files, "")) != (["x"], []):
        return None
    name = os.path.basename(other)
    labels = files.file(files.resolve(name, files.path, "the labels"))
    return {"image": "x[]", "label": f"{name}::y[]"} if list(labels) == ["y"] else None


def _all_hold(files: Hdf5Files, group: str, groups: list[str], name: str) -> bool:
    """Whether each of some groups holds a dataset of this name that has rows."""
    for each in natural_order(groups)[:_INSPECTED]:
        try:
            found, _ = files.find(_absolute(files, group).below(f"{each}/{name}"))
        except NoSuchNameError:
            return False
        if not isinstance(found, h5py.Dataset) or is_single(found):
            return False
    return True


def _holds_numbered_frames(files: Hdf5Files, group: str) -> bool:
    first = natural_order(names_in(files, _absolute(files, group))[1])[:1]
    datasets, groups = names_in(files, _absolute(files, group).below(first[0])) if first else ([], [])
    return bool(datasets) and not groups and all(map(_DIGITS.search, datasets))


def entries(files: Hdf5Files) -> Iterator[str]:
    """Yield what a file holds: each dataset below its group with type and shape, then those that cannot be read."""
    unreadable: list[Unreadable] = []
    for member in members(files, Address(files.settings.group), skipped=unreadable):
        yield f"{member.path} ({describe(member.dataset)})"
    yield from map(str, unreadable)


def candidates(files: Hdf5Files) -> Iterator[dict[str, object]]:
    """Yield the arguments of each way to read a file that may fit its structure; those that open are shown."""
    group = _entered(files)
    datasets, groups = names_in(files, _absolute(files, group))
    ways: list[Columns] = []
    stored: set[str] = set()
    lengths: list[dict[str, object]] = [{"columns": columns} for columns in _by_length(files, group)]
    # Datasets with numbers in their names may be samples; groups may be classes or samples, unless they are named as splits.
    are_columns = not all(map(_DIGITS.search, datasets)) if datasets else {*groups} <= _SPLIT_GROUPS
    yield from lengths if are_columns else []
    if datasets:
        yield {"layout": "parallel"}
        yield {"layout": "per_file"}
        if not groups and len(datasets) > 1:
            ways += [shared_names(datasets), {"*": "{}", "@": "{}"}]
    elif groups:
        inner = {
            name: names_in(files, _absolute(files, group).below(name)) for name in natural_order(groups)[:_INSPECTED]
        }
        first, *_ = inner.values()
        stored = _stored_names(files, _absolute(files, group).below(next(iter(inner))))
        if any(nested for _, nested in inner.values()):
            ways += [{"*": "{label}/{}/**"}, {"*": "{}/**"}]
        else:
            if not all(map(_DIGITS.search, first[0])):  # as files are, and fields are not
                ways += [{"*": "{label}/**[]"}, {"*": "{video}/**[]"}]
            ways += [{"*": "{label}/{}"}, {"*": "{video}/{frame}", "@": "{video}"}]
            ways.append(shared_names([f"{name}/{each}" for name, (names, _) in inner.items() for each in names]))
            ways.append({"*": "{}/**", "@": "{}/**"})
    for columns in filter(None, ways):
        yield {"columns": _inside(group, _with_free_names(columns, stored))}
    yield from lengths if datasets and not are_columns else []


_SPLIT_GROUPS = {"train", "training", "test", "testing", "val", "valid", "validation"}
_MOST_LENGTHS = 3
_MOST_COLUMNS = 16
_MOST_BOUNDS = 1 << 22  # rows of a dataset that is looked at as bounds of ranges


def _by_length(files: Hdf5Files, group: str) -> Iterator[Columns]:
    """Yield the columns of each number of rows, those of the largest dataset first; nothing if all have one number."""
    sizes: dict[str, tuple[int, int]] = {}  # path → rows, bytes of the dataset
    bounds: dict[str, Array] = {}  # path → integers, which may bound ranges
    for member in members(files, _absolute(files, group), skipped=[]):
        if not is_column(member) or not row_count(member.dataset) or "**" in member.path:  # it has no escape
            continue
        for column in parts_of(member.dataset):
            with contextlib.suppress(FormatError, ValueError):
                values = values_of(files, member.dataset, column)[column]
                path = f"{member.path}/{column}" if column else member.path
                sizes[path] = row_count(member.dataset), member.dataset.nbytes
                if values.count <= _MOST_BOUNDS:
                    bounds |= {f"{path}/{part}" if part else path: each for part, each in whole_numbers(values).items()}
    names = dict(zip(sizes, field_names([*sizes]), strict=True))
    lengths = dict.fromkeys(rows for rows, _ in sorted(sizes.values(), key=itemgetter(1), reverse=True))
    rows_at = {path: rows for path, (rows, _) in sizes.items()}
    places = {path: escaped(f"{group}/{path}".lstrip("/")) for path in {**sizes, **bounds}}
    ways = [*_by_range(names, places, rows_at, bounds)]
    ways += [
        {names[path]: f"{places[path]}[]" for path, rows in rows_at.items() if rows == length}
        for length in ([*lengths][:_MOST_LENGTHS] if len(lengths) > 1 else [])
    ]
    yield from (columns for columns in ways if len(columns) <= _MOST_COLUMNS)


def _by_range(
    names: Mapping[str, str], places: Mapping[str, str], rows_at: Mapping[str, int], bounds: Mapping[str, Array]
) -> Iterator[Columns]:
    """Yield the columns of each number of ranges, with the datasets whose rows these ranges cover exactly."""
    forms = {(path, form): covered for path, each in bounds.items() for form, covered in _covered(each).items()}
    for count in dict.fromkeys(count for count, _ in forms.values()):
        columns = {names[path]: f"{places[path]}[]" for path, rows in rows_at.items() if rows == count}
        ranges: Columns = {}
        for path, rows in rows_at.items():
            fitting = [(at, form) for (at, form), covered in forms.items() if covered == (count, rows) and at != path]
            if rows != count and fitting:
                at, form = max(fitting, key=lambda found: found[0].startswith(path))
                ranges[names[path]] = f"{places[path]}[{form}: {places[at]}]"
                columns.pop(names.get(at, ""), None)
        if ranges:
            yield {**columns, **ranges}


def _covered(numbers: Array) -> dict[str, tuple[int, int]]:
    """Return the ways in which numbers may bound ranges: how many there are, and how many rows they cover."""
    found: dict[str, tuple[int, int]] = {}
    if not len(numbers) or int(numbers.min()) < 0:
        return found
    total = int(numbers.sum())
    if (np.diff(numbers) >= 0).all():
        found["ends"] = len(numbers), int(numbers[-1])
        if numbers[0] == 0:
            found["offsets"] = len(numbers) - 1, int(numbers[-1])
    return {**found, "lengths": (len(numbers), total)}


def _stored_names(files: Hdf5Files, group: Address) -> set[str]:
    """Return the names that datasets and attributes below a group have as fields of it, or of a group in it."""
    found = [member.path for member in members(files, group, skipped=[])]
    nested = [path.partition("/")[2] for path in found]
    return {*map(field_name, [*found, *filter(None, nested), *attributes(files.group(group))])}


_FREE_NAMES = {"{label}": "{group}", "{video}": "{group}", "{frame}": "{item}", "{}": "{sample}"}
"""A name in braces → the one that is offered if a stored field has the name."""


def _with_free_names(columns: Columns, stored: set[str]) -> Columns:
    """Return columns whose names in braces hide none of the `stored` names."""
    for name, other in _FREE_NAMES.items():
        if (name.strip("{}") or KEY) in {*stored, *columns}:
            columns = {field: place.replace(name, other) for field, place in columns.items()}
    return columns
