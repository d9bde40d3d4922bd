"""HDF5 files with one dataset for each sample, or one for each sample and field: in one group, or in one for each class."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from storeds._readings import AmbiguousError, Reading, ambiguous
from storeds.errors import FormatError
from storeds.layouts._hdf5_base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts._hdf5_elements import Attributes, Datasets, Elements, element_field
from storeds.layouts._hdf5_evidence import are_encoded_images, frames_or_samples, is_sample
from storeds.layouts._hdf5_files import ForeignOptions, Hdf5Files
from storeds.layouts._hdf5_frames import holds_frames
from storeds.layouts._hdf5_names import PackedIndex, are_splits, split, stem
from storeds.layouts._hdf5_pairs import Sample, SeveralWaysError, are_field_names
from storeds.layouts._hdf5_samples import KEY, SamplePlan, SampleScan, path_of
from storeds.layouts._hdf5_series import Arrangement, arrange, enter, spread
from storeds.layouts._hdf5_tree import Left, Member, members
from storeds.layouts._hdf5_values import Values
from storeds.protocols import Array, Field

__all__ = ["PerSampleHdf5", "PerSampleOptions"]

_FEW = 64  # datasets; fewer without numbers in their names are rather columns
_INDEX = 3  # version of the kept index


class PerSampleOptions(ForeignOptions):
    """Options of layout ``per_sample``, besides those that every foreign HDF5 layout has; `group` is where the samples lie.

    Attributes
    ----------
    sample : str, optional
        What one sample is: a ``dataset``, a ``group`` of datasets, or the datasets of one ``name`` or number, across
        groups (``lr/0`` and ``hr/0``) or in one (``lr_0`` and ``hr_0``). By default what the file says with certainty.
    """

    sample: Sample | None = None


@dataclass(frozen=True)
class PerSampleOpener(ForeignOpener):
    """Finds the samples' names, once."""

    layout: ClassVar[str] = "per_sample"
    settings: PerSampleOptions

    def find(self, files: Hdf5Files) -> Found:
        # docstring inherited
        index = self._load(files)
        if not index.count:
            raise FormatError(f"{files.url}: {self.settings.group} holds no dataset, so no sample")
        plan = SamplePlan.from_json(index.facts)

        def paths(part: tuple[str, str], number: int) -> str:
            return path_of(plan.group, part, index.name(number), plan.classes is not None)

        columns: dict[str, Values] = {
            name: Datasets(index.count, functools.partial(paths, part), Elements(files, plan.fields[name]))
            for name, part in plan.parts.items()
        }
        if plan.classes is not None:
            # Where a dataset is the label, or groups are no classes, their names say something else.
            named = plan.label != "label"
            columns[plan.label] = ClassNames(index.numbers, plan.classes) if named else Labels(index.numbers)
        columns[KEY] = Keys(index)
        for name, (part, attribute) in plan.attributes.items():
            where = functools.partial(paths, part)
            columns[name] = Attributes(files, index.count, where, attribute, plan.attribute_kinds[name])
        named = plan.classes is not None and plan.label == "label"
        return Found(
            columns, index.count, {"classes": list(plan.classes or [])} if named else {}, [plan.group, list(plan.parts)]
        )

    def _load(self, files: Hdf5Files) -> PackedIndex:
        settings = self.settings
        return PackedIndex.load([self.layout, _INDEX, settings.group, settings.sample, *files.identity()], self._index)

    def _index(self) -> Array:
        with self.look() as files:  # what it opens must not tell the store that was scanned from the same one later
            try:
                return SampleScan(files, self.settings.group, self.settings.sample).scan()
            except SeveralWaysError as error:
                raise self._ambiguous(error) from None

    def _ambiguous(self, error: SeveralWaysError) -> AmbiguousError:
        options = self.settings.model_dump()
        readings = [
            Reading(f"sample={way!r}", why, functools.partial(PerSampleHdf5, self.path, **{**options, "sample": way}))
            for way, why in error.ways.items()
        ]
        return ambiguous(self.url, readings)

    def left(self, files: Hdf5Files) -> Left:
        # docstring inherited
        left = Left()
        index = self._load(files)
        plan = SamplePlan.from_json(index.facts)
        taken = {after.removeprefix("/") for before, after in plan.parts.values() if not before and after[:1] == "/"}
        if len(taken) != len(plan.parts):
            return left  # a sample is no group, but made of all there is
        groups = [index.name(at) for at in spread(range(index.count))]
        there: dict[str, list[Member]] = {}
        for key in groups:
            for member in members(files, f"{plan.group}/{key}"):
                there.setdefault(member.path, []).append(member)
        for name, some in there.items():
            left.add(some[0], None if name in taken else f"in {len(some)} of {len(groups)} groups looked at")
        return left

    def recognise(self, files: Hdf5Files) -> str | None:
        # docstring inherited
        group = enter(files, self.settings.group)
        names, groups = split(files.group(group))
        if bool(names) == bool(groups) or (groups and are_splits(groups)):
            return None
        if groups and holds_frames(files, group, groups):
            return None
        try:
            found = arrange(files, group, self.settings.sample)
        except SeveralWaysError as error:
            if groups and frames_or_samples(files, group, groups) == "frames":
                return None
            raise self._ambiguous(error) from None
        if found is None or not (self.settings.sample or self._are_samples(files, found, groups)):
            return None
        return _told(found)

    def _are_samples(self, files: Hdf5Files, found: Arrangement, groups: Sequence[str]) -> bool:
        sort, group = found.series.sort, found.group
        if sort == "fields":
            return are_field_names(groups) or frames_or_samples(files, group, groups) != "frames"
        if found.classes is not None and _are_called_frames(found):
            return False
        inner = [group] if found.classes is None else [f"{group}/{name}" for name in found.classes]
        if sort == "groups":
            names = list(found.series.parts)
            return is_sample(files, path_of(group, ("", ""), found.series.keys[0], False), names)
        if sort == "datasets" and found.classes is not None and frames_or_samples(files, group, groups) == "frames":
            return False
        return all(_are_alike(files, path, split(files.group(path))[0], sort) for path in inner)


def _are_alike(files: Hdf5Files, group: str, names: Sequence[str], sort: str) -> bool:
    """Whether the datasets of a group may be samples by their names; raises FormatError where they are of different kinds."""
    if sort == "numbered":
        return True
    paths = [f"{group}/{name}" for name in spread(names)]
    one_series = len({stem(name) for name in names}) == 1 and stem(names[0]) is not None
    if not one_series and len(names) < _FEW:
        return not are_field_names(names) and are_encoded_images(files, [files.dataset(path) for path in paths])
    element_field(files, paths)
    return True


def _are_called_frames(found: Arrangement) -> bool:
    """Whether what is in the groups is called frames, so that the groups are no classes but videos, of a sort nobody reads."""
    names = (*found.series.parts, found.series.keys[0].rpartition("/")[2])
    return found.series.sort != "datasets" and any(name.lower().startswith("frame") for name in names)


def _told(found: Arrangement) -> str:
    series, group = found.series, found.group
    what = {
        "datasets": "datasets of one kind",
        "numbered": f"numbered datasets of {len(series.parts)} fields ({', '.join(series.parts)})",
        "groups": f"groups that hold the same datasets ({', '.join(series.parts)})",
        "fields": f"groups of datasets for {len(series.parts)} fields ({', '.join(series.parts)})",
    }[series.sort]
    count = f"{len(series.keys)} samples, {series.keys[0]!r} to {series.keys[-1]!r}"
    if found.classes is None:
        return f"{group} holds {what}: one a sample; {count}"
    return f"each of {len(found.classes)} groups of {group} holds {what}, as a class does its samples: {count}"


class PerSampleHdf5(ForeignHdf5):
    """Reads each dataset, or the datasets of each sample, as a record, with its name as ``key`` and its class as ``label``.

    Parameters
    ----------
    url : str
    **options
        See `PerSampleOptions`.
    """

    Options: ClassVar[type[PerSampleOptions]] = PerSampleOptions
    Opener: ClassVar[type[PerSampleOpener]] = PerSampleOpener


class Labels(Values):
    """The number of each sample's class."""

    def __init__(self, numbers: Array) -> None:
        self.field, self.count, self._numbers = Field("int"), len(numbers), numbers

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [int(self._numbers[at]) for at in positions]

    def column(self) -> Array:
        # docstring inherited
        return np.array(self._numbers)


class ClassNames(Values):
    """The name of each sample's class, or of its group."""

    def __init__(self, numbers: Array, names: Sequence[str]) -> None:
        self.field, self.count, self._numbers, self._names = Field("str"), len(numbers), numbers, names

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._names[int(self._numbers[at])] for at in positions]


class Keys(Values):
    """The name of each sample."""

    def __init__(self, index: PackedIndex) -> None:
        self.field, self.count, self._index = Field("str"), index.count, index

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._index.name(at) for at in positions]
