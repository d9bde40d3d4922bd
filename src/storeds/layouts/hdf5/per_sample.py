"""HDF5 files with one dataset for each sample, or one for each sample and field: in one group, or in one for each class."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from storeds.backends.readings import AmbiguousError, Reading, ambiguous
from storeds.errors import FormatError
from storeds.layouts.hdf5.base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts.hdf5.detection import (
    Arrangement,
    Part,
    are_encoded_images,
    arrange,
    enter,
    frames_or_samples,
    is_sample,
    spread,
)
from storeds.layouts.hdf5.elements import Attributes, Datasets, Elements, attribute_fields, attributes, element_field
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files, NoSuchNameError
from storeds.layouts.hdf5.names import PackedIndex, are_splits, field_names, natural_order, split, stem
from storeds.layouts.hdf5.pairs import Sample, SeveralWaysError, are_field_names
from storeds.layouts.hdf5.per_video import holds_frames
from storeds.layouts.hdf5.tree import Left, Member, members
from storeds.layouts.hdf5.values import Values
from storeds.protocols import JSON, Array, Field
from storeds.records.fields import fields_from_json, fields_to_json

__all__ = ["KEY", "PerSampleHdf5", "PerSampleOptions", "SamplePlan", "SampleScan", "path_of"]


KEY, LABEL, CLASS, GROUP = "key", "label", "class", "group"
_IN_A_ROW = re.compile(
    r"(video|vid|v|clip|sequence|seq|episode|demo|traj(ectory)?|scene|shot|subject|subj|sub|s|patient|person|participant|user|case|"
    r"session|trial|run|recording|sensor|camera|cam|fold|part|shard|chunk|batch|slide|study|scan|volume|frame|sample)s?"
    r"[ _-]?\d+",
    re.IGNORECASE,
)
_LOOKED_AT = 64  # more than to recognise a store: what is one number in all of them is taken to be one in all others


def path_of(group: str, part: Part, key: str, classes: bool) -> str:
    """Return where the dataset of a sample is: its class's group stands before what the field adds to the key."""
    before, after = part
    head, slash, tail = key.partition("/") if classes else ("", "", key)
    return f"{group.rstrip('/')}/{head}{slash}{before}{tail}{after}"


@dataclass(frozen=True)
class SamplePlan:
    """How each sample is laid out; equal for all of them.

    Attributes
    ----------
    group : str
        That holds the samples, or the classes.
    classes : sequence of str or None
        The groups that are classes; None where there are none.
    label : str
        The field of the class: ``label``, or ``class`` where a dataset is the label; ``group`` where groups need not be
        classes.
    parts : mapping of str to Part
        Field → its datasets.
    fields : mapping of str to Field
    attributes : mapping of str to (Part, str)
        Field → what has the attribute, and its name there.
    attribute_kinds : mapping of str to Field
    """

    group: str
    classes: list[str] | None
    label: str
    parts: Mapping[str, Part]
    fields: Mapping[str, Field]
    attributes: Mapping[str, tuple[Part, str]]
    attribute_kinds: Mapping[str, Field]

    def to_json(self) -> dict[str, JSON]:
        """Return the plan as JSON."""
        return {
            "group": self.group,
            "classes": None if self.classes is None else list(self.classes),
            "label": self.label,
            "parts": {name: list(part) for name, part in self.parts.items()},
            "fields": fields_to_json(self.fields),
            "attributes": {name: [list(part), attribute] for name, (part, attribute) in self.attributes.items()},
            "attribute_kinds": fields_to_json(self.attribute_kinds),
        }

    @classmethod
    def from_json(cls, told: Any) -> SamplePlan:
        """Return the plan that `to_json` wrote."""
        return cls(
            told["group"],
            told["classes"],
            told["label"],
            {name: (before, after) for name, (before, after) in told["parts"].items()},
            fields_from_json(told["fields"]),
            {name: ((before, after), attribute) for name, ((before, after), attribute) in told["attributes"].items()},
            fields_from_json(told["attribute_kinds"]) if told["attribute_kinds"] else {},
        )


class SampleScan:
    """Finds the samples of a file.

    Parameters
    ----------
    files : Hdf5Files
    group : str
        Below which they are.
    sample : str or None
        What one sample is, if the user said so.
    """

    def __init__(self, files: Hdf5Files, group: str, sample: Sample | None) -> None:
        self._files, self._group, self._sample = files, group, sample

    def scan(self) -> Array:
        """Return the array of a `PackedIndex`: the samples' names, the numbers of their classes, and the plan."""
        found = arrange(self._files, self._group, self._sample)
        if found is None:
            raise self._error()
        return PackedIndex.make(found.series.keys, found.labels, self._plan(found).to_json())

    def _error(self) -> FormatError:
        url, group = self._files.url, self._group
        names, groups = split(self._files.group(group))
        if names and groups:
            return FormatError(
                f"{url}: {group} holds datasets and groups ({names[0]!r}, {groups[0]!r}); group= names the one that holds samples"
            )
        if not groups:
            return FormatError(f"{url}: {group} holds no dataset, so no sample")
        there = ", ".join(natural_order(groups)[:4])
        return FormatError(
            f"{url}: the groups of {group} ({there}) are neither samples, which hold the same datasets each, nor classes, whose "
            "samples are alike; group= names the one that holds samples"
        )

    def _plan(self, found: Arrangement) -> SamplePlan:
        files, group, classes = self._files, found.group, found.classes
        keys = spread(found.series.keys, _LOOKED_AT)
        kinds: dict[str, Field] = {}
        owners = {("", ""): path_of(group, ("", ""), keys[0], False)} if found.series.sort == "groups" else {}
        for name, part in found.series.parts.items():
            paths = _existing(files, [path_of(group, part, key, classes is not None) for key in keys])
            kinds[name] = element_field(files, paths)
            owners[part] = paths[0]
        names = field_names([name or _called(kinds[name]) for name in kinds], [KEY])
        fields = {field: kinds[name] for name, field in zip(kinds, names.values(), strict=True)}
        parts = dict(zip(fields, found.series.parts.values(), strict=True))
        label = (
            GROUP if classes and not are_classes(classes, [*fields.values()]) else CLASS if LABEL in fields else LABEL
        )
        noted: dict[str, tuple[Part, str]] = {}
        noted_kinds: dict[str, Field] = {}
        for part, path in owners.items():
            has = attributes(files.find(path)[0])
            told = attribute_fields(has)
            for attribute, field in field_names(
                list(has), [*fields, *noted, KEY, *([label] if classes else [])]
            ).items():
                noted[field], noted_kinds[field] = (part, attribute), told[attribute]
        return SamplePlan(group, None if classes is None else list(classes), label, parts, fields, noted, noted_kinds)


def are_classes(groups: Sequence[str], fields: Sequence[Field]) -> bool:
    """Whether groups are classes: they hold pictures or other arrays of two dimensions, and are not called things in a row.

    A group of feature vectors is a video or a person as well as a class: a label made of it would be invented.
    """
    if all(map(_IN_A_ROW.fullmatch, groups)):
        return False
    return any(field.kind == "image" or (field.kind == "array" and len(field.shape or ()) > 1) for field in fields)


def _existing(files: Hdf5Files, paths: list[str]) -> list[str]:
    """Return the datasets that are there: one that is missing spoils its own sample, not the store."""
    found = []
    for path in paths:
        with contextlib.suppress(NoSuchNameError):
            files.dataset(path)
            found.append(path)
    return found or paths[:1]


def _called(field: Field) -> str:
    return field.kind if field.kind in ("image", "bytes", "array") else "value"


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

    def guess_can_open(self, files: Hdf5Files) -> str | None:
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
