"""What a foreign HDF5 file certainly is, and the ways to read one that is not certain.

Names that one tool alone writes are certain, and so is a structure that has one meaning. No shape is interpreted: (240, 240) is
240 rows as well as one picture. Only equalities count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import h5py

from storeds.errors import ConfigError
from storeds.layouts.explain import Preset
from storeds.layouts.hdf5.files import MOST_WALKED, Hdf5Files, Member, NoSuchNameError, describe, members, names_in
from storeds.layouts.hdf5.scan import FRAMES, is_column
from storeds.layouts.hdf5.values import is_single, row_count
from storeds.layouts.pattern import Pattern, natural_order, parse_pattern

__all__ = ["PRESETS", "Recognised", "candidates", "entries", "preset_pattern", "recognise"]

Columns = dict[str, str]

PRESETS: Mapping[str, Preset] = {
    "parallel": Preset("a row of each dataset", {"*": "**[]"}),
    "per_file": Preset("a file", {"*": "**", "@": "/"}),
    "per_sample": Preset("a dataset, or a group of datasets", {"*": "{}/**", "@": "{}/**"}),
    "per_video": Preset("a frame of a video; each group is a video", {"*": "{video}/**[]", "@": "{video}"}),
    "per_episode": Preset(
        "a step of a demonstration, as robomimic, robosuite and LIBERO write them", {"*": "data/{episode}/**[]"}
    ),
    "pcam": Preset("a row of PatchCamelyon's …_x.h5 and …_y.h5", {"image": "x[]", "label": "…_y.h5::y[]"}),
}

_DEMO = re.compile(r"demo_\d+")
_INSPECTED = 16  # groups
_DEEPEST = 16  # groups, each the only member of another
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Recognised:
    """What a file certainly is: the name of the preset, its pattern, and why."""

    layout: str
    pattern: Pattern
    why: str


def preset_pattern(files: Hdf5Files, layout: str) -> Pattern:
    """Return the pattern of a preset for a file; raises ConfigError if it does not fit."""
    columns: Mapping[str, str] | None = PRESETS[layout].columns
    if layout == "pcam":
        columns = _pcam(files)
        if columns is None:
            raise ConfigError(f"{files.url}: layout 'pcam' reads a file …_x.h5 with a dataset x beside …_y.h5 with y")
    elif layout != "per_episode":
        group = _entered(files)
        datasets, _ = names_in(files, _absolute(files, group))
        if layout == "per_sample" and datasets:
            columns = {"*": "{}", "@": "{}"}
        elif layout == "per_video" and _holds_numbered_frames(files, group):
            columns = {"*": "{video}/{frame}", "@": "{video}"}
        columns = _inside(group, columns or {})
    return parse_pattern(columns)


def recognise(files: Hdf5Files) -> Recognised | None:
    """Return what a file certainly is, or None."""
    if _are_demonstrations(files):
        return Recognised("per_episode", parse_pattern(PRESETS["per_episode"].columns), "data/demo_0/actions and so on")
    group = _entered(files)
    datasets, groups = names_in(files, _absolute(files, group))
    pcam = _pcam(files)
    if pcam is not None:
        return Recognised("pcam", parse_pattern(pcam), f"x here, and y in {pcam['label'].partition('::')[0]}")
    if groups and not datasets:
        name = next((name for name in FRAMES if _all_hold(files, group, groups, name)), None)
        if name is not None:
            pattern = parse_pattern(_inside(group, PRESETS["per_video"].columns))
            return Recognised("per_video", pattern, f"each group holds {name!r}")
    found = [*members(files, _absolute(files, group))]
    if len(found) < MOST_WALKED and _are_columns(found):
        pattern = parse_pattern(_inside(group, PRESETS["parallel"].columns))
        arrays = [member for member in found if not is_single(member.dataset)]
        shown = ", ".join(f"{member.path} {describe(member.dataset)}" for member in arrays[:4])
        return Recognised("parallel", pattern, f"datasets of one length: {shown}")
    return None


def _absolute(files: Hdf5Files, group: str) -> str:
    return f"{files.settings.group.rstrip('/')}/{group}"


def _entered(files: Hdf5Files) -> str:
    """Return the path of the group that holds more than one other group, from the group of the store."""
    path = ""
    for _ in range(_DEEPEST):  # a group may hold itself
        datasets, groups = names_in(files, _absolute(files, path))
        if datasets or len(groups) != 1:
            break
        path = f"{path}/{groups[0]}".lstrip("/")
    return path


def _inside(group: str, columns: Mapping[str, str]) -> Columns:
    """Return columns whose paths begin at `group`."""
    escaped = _escaped(group)
    return {name: f"{escaped}/{place}".rstrip("/") if escaped else place for name, place in columns.items()}


def _escaped(name: str) -> str:
    return name.replace("{", "{{").replace("}", "}}")


def _are_columns(found: list[Member]) -> bool:
    """Whether datasets are columns: they have one length, and this equality has no other explanation.

    It has none if a dataset has one value for each row of another, or if they differ in all but the length. If all names are
    numbered, the datasets may be samples of equal height.
    """
    arrays = [member.dataset for member in found if is_column(member)]
    lengths = {row_count(dataset) for dataset in arrays}
    if len(lengths) != 1 or 0 in lengths:
        return False
    if any(_is_list(dataset) for dataset in arrays):
        return True
    names = [dataset.name for dataset in arrays]
    if all(map(_DIGITS.search, names)) and len({_DIGITS.sub("#", name) for name in names}) < len(names):
        return False
    vectors = [dataset for dataset in arrays if dataset.size == row_count(dataset)]
    return len(vectors) < len(arrays) if vectors else len({dataset.shape[1] for dataset in arrays}) > 1


def _is_list(dataset: h5py.Dataset) -> bool:
    """Whether a dataset of one dimension has texts, files, arrays of any length, or rows of a table: no sample has these."""
    return len(dataset.shape) == 1 and (dataset.dtype.kind not in "biufc" or dataset.dtype.hasobject)


def _are_demonstrations(files: Hdf5Files) -> bool:
    data = _absolute(files, "data")
    if "data" not in names_in(files, _absolute(files, ""))[1]:
        return False
    datasets, groups = names_in(files, data)
    if datasets or not groups or not all(map(_DEMO.fullmatch, groups)):
        return False
    return "actions" in names_in(files, f"{data}/{groups[0]}")[0]


def _pcam(files: Hdf5Files) -> Columns | None:
    start, mark, end = files.path.rpartition("_x.")
    other = f"{start}_y.{end}"
    if not mark or not os.path.isfile(other) or names_in(files, _absolute(files, "")) != (["x"], []):
        return None
    name = os.path.basename(other)
    labels = files.file(files.resolve(name, os.path.dirname(files.path), "the labels"))
    return {"image": "x[]", "label": f"{name}::y[]"} if list(labels) == ["y"] else None


def _all_hold(files: Hdf5Files, group: str, groups: list[str], name: str) -> bool:
    """Whether each of some groups holds a dataset of this name that has rows."""
    for each in natural_order(groups)[:_INSPECTED]:
        try:
            found, _ = files.find(f"{_absolute(files, group)}/{each}/{name}")
        except NoSuchNameError:
            return False
        if not isinstance(found, h5py.Dataset) or is_single(found):
            return False
    return True


def _holds_numbered_frames(files: Hdf5Files, group: str) -> bool:
    _, groups = names_in(files, _absolute(files, group))
    if not groups:
        return False
    datasets, inner = names_in(files, f"{_absolute(files, group)}/{natural_order(groups)[0]}")
    return bool(datasets) and not inner and all(map(_DIGITS.search, datasets))


def entries(files: Hdf5Files) -> Iterator[str]:
    """Yield what a file holds: each dataset below its group with type and shape, then those that cannot be read."""
    unreadable: list[str] = []
    for member in members(files, files.settings.group, skipped=unreadable):
        yield f"{member.path} ({describe(member.dataset)})"
    yield from unreadable


def candidates(files: Hdf5Files) -> Iterator[dict[str, object]]:
    """Yield the arguments of each way to read a file that fits its structure."""
    group = _entered(files)
    datasets, groups = names_in(files, _absolute(files, group))
    if datasets:
        found = [*members(files, _absolute(files, group))]
        yield from _candidate_columns(group, found)
        yield {"layout": "per_file"}
        if not groups and len(datasets) > 1:
            yield from _numbered_fields(group, datasets)
            yield {"layout": "per_sample"}
    elif groups:
        yield from _candidate_groups(files, group, natural_order(groups))


def _candidate_columns(group: str, found: list[Member]) -> Iterator[dict[str, object]]:
    """Yield the datasets of each length that are columns together, the longest list of datasets first."""
    by_length: dict[int, Columns] = {}
    for member in found:
        if is_column(member):
            columns = by_length.setdefault(row_count(member.dataset), {})
            columns[_plain(member.path) or f"f{len(columns)}"] = f"{_escaped(member.path)}[]"
    if len(by_length) == 1:
        yield {"layout": "parallel"}
        return
    for columns in sorted(by_length.values(), key=len, reverse=True)[:3]:
        yield {"columns": _inside(group, columns)}


def _numbered_fields(group: str, names: list[str]) -> Iterator[dict[str, object]]:
    """Yield the pattern of ``image_0``, ``label_0``, ``image_1`` …, if several fields have the same numbers."""
    keys: dict[tuple[str, str], set[str]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        if match is None:
            return
        keys.setdefault((match[1], match[3]), set()).add(match[2])
    if 1 < len(keys) < len(names) and len(set(map(frozenset, keys.values()))) == 1:
        fields = {
            re.sub(r"[^a-z0-9]+", "", f"{start}{end}".lower()): f"{_escaped(start)}{{}}{_escaped(end)}"
            for start, end in keys
        }
        if len(fields) == len(keys) and all(name[:1].isalpha() for name in fields):
            yield {"columns": _inside(group, fields)}


def _candidate_groups(files: Hdf5Files, group: str, groups: list[str]) -> Iterator[dict[str, object]]:
    """Yield ways to read a file of groups: samples, classes, videos, or fields."""
    inner = [names_in(files, f"{_absolute(files, group)}/{name}") for name in groups[:_INSPECTED]]
    names = [natural_order(datasets) for datasets, _ in inner]
    common = set(names[0]).intersection(*names[1:])
    if any(nested for _, nested in inner):
        yield {"columns": _inside(group, {"*": "{label}/{}/**"})}
        yield {"columns": _inside(group, {"*": "{}/**"})}
        return
    are_numbered = all(map(_DIGITS.search, names[0]))  # as files are, and fields are not
    rows = [name for name in natural_order(common) if not is_single(_first(files, group, groups[0], name))]
    for name in [] if are_numbered else rows[:2]:
        for kind in ("label", "video"):
            yield {"columns": _inside(group, {_plain(name) or "image": f"{{{kind}}}/{_escaped(name)}[]"})}
    if are_numbered or not rows:
        for kind in ("label", "video"):
            place = "{label}/{}" if kind == "label" else "{video}/{frame}"
            yield {"columns": _inside(group, {"*": place})}
    fields = {_plain(name): f"{_escaped(name)}/{{}}" for name in groups}
    if 1 < len(fields) == len(groups) <= _INSPECTED and "" not in fields and len({*map(tuple, names)}) == 1:
        yield {"columns": _inside(group, fields)}
    if common:
        yield {"columns": _inside(group, {"*": "{}/**", "@": "{}/**"})}


def _plain(name: str) -> str:
    """Return a name as one of a field; empty if it has no letter to begin with."""
    plain = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return plain if plain[:1].isalpha() else ""


def _first(files: Hdf5Files, group: str, name: str, dataset: str) -> h5py.Dataset:
    return files.dataset(f"{_absolute(files, group)}/{name}/{dataset}")
