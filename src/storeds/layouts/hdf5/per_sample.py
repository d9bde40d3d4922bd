"""HDF5 files with one dataset for each sample, or for each sample and field: in one group, or in one for each class."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from storeds.backends.readings import AmbiguousError, Reading, ambiguous
from storeds.errors import FormatError
from storeds.layouts.hdf5.base import Contents
from storeds.layouts.hdf5.elements import default_name, element_field, existing, read_attribute, read_element
from storeds.layouts.hdf5.files import (
    ForeignOptions,
    Hdf5Files,
    Member,
    Unread,
    are_splits,
    attribute_fields,
    attributes,
    enter,
    field_names,
    members,
    natural_order,
    split,
    stem,
)
from storeds.layouts.hdf5.index import IndexedHdf5, PackedIndex
from storeds.layouts.hdf5.parallel import MOST_FIELDS, Part
from storeds.layouts.hdf5.per_video import holds_frames
from storeds.layouts.hdf5.series import (
    Arrangement,
    Sample,
    SeveralWaysError,
    are_encoded_images,
    are_field_names,
    arrange,
    frames_or_samples,
    is_sample,
    sample_evenly,
)
from storeds.layouts.hdf5.values import Computed, Values
from storeds.protocols import JSON, Array, Field

__all__ = ["PerSampleHdf5", "PerSampleOptions"]


KEY, LABEL, CLASS, GROUP = "key", "label", "class", "group"
_NUMBERED_THING = re.compile(
    r"(video|vid|v|clip|sequence|seq|episode|demo|traj(ectory)?|scene|shot|subject|subj|sub|s|patient|person|participant|user|case|"
    r"session|trial|run|recording|sensor|camera|cam|fold|part|shard|chunk|batch|slide|study|scan|volume|frame|sample)s?"
    r"[ _-]?\d+",
    re.IGNORECASE,
)
_LOOKED_AT = 64  # more than detection inspects: if all of these are one number, so are the others


def _path_of(group: str, part: Part, key: str, classes: bool) -> str:
    """Return the path of a sample's dataset. The group of a class precedes what the field adds to the key."""
    before, after = part
    head, slash, tail = key.partition("/") if classes else ("", "", key)
    return f"{group.rstrip('/')}/{head}{slash}{before}{tail}{after}"


@dataclass(frozen=True)
class _SamplePlan:
    """How each sample is laid out.

    Attributes
    ----------
    group : str
        Holds the samples, or the classes.
    classes : list of str or None
        The groups that are classes.
    label : str
        The field of the class: ``label``, or ``class`` if a dataset is the label; ``group`` if groups need not be classes.
    parts : dict of str to Part
        Field → its datasets.
    fields : dict of str to Field
    attributes : dict of str to (Part, str)
        Field → what has the attribute, and the attribute's name.
    attribute_kinds : dict of str to Field
    """

    group: str
    classes: list[str] | None
    label: str
    parts: dict[str, tuple[str, str]]
    fields: dict[str, Field]
    attributes: dict[str, tuple[tuple[str, str], str]]
    attribute_kinds: dict[str, Field]


def _plan(files: Hdf5Files, found: Arrangement) -> _SamplePlan:
    group, classes = found.group, found.classes
    keys = sample_evenly(found.series.keys, _LOOKED_AT)
    kinds: dict[str, Field] = {}
    owners = {("", ""): _path_of(group, ("", ""), keys[0], False)} if found.series.sort == "groups" else {}
    for name, part in found.series.parts.items():
        paths = existing(files, [_path_of(group, part, key, classes is not None) for key in keys])
        kinds[name] = element_field(files, paths)
        owners[part] = paths[0]
    names = field_names([name or default_name(kinds[name]) for name in kinds], [KEY])
    fields = {field: kinds[name] for name, field in zip(kinds, names.values(), strict=True)}
    parts = dict(zip(fields, found.series.parts.values(), strict=True))
    label = CLASS if LABEL in fields else LABEL
    if classes and not _are_classes(classes, [*fields.values()]):
        label = GROUP
    noted: dict[str, tuple[Part, str]] = {}
    noted_kinds: dict[str, Field] = {}
    for part, path in owners.items():
        has = attributes(files.find(path)[0])
        taken = [*fields, *noted, KEY, *([label] if classes else [])]
        for attribute, field in field_names(list(has), taken).items():
            noted[field], noted_kinds[field] = (part, attribute), attribute_fields(has)[attribute]
    return _SamplePlan(group, None if classes is None else list(classes), label, parts, fields, noted, noted_kinds)


def _are_classes(groups: Sequence[str], fields: Sequence[Field]) -> bool:
    """Whether groups are classes: they hold pictures or other arrays of two dimensions, and are not numbered things.

    A group of feature vectors may also be a video or a person, so a label made of it would be invented.
    """
    if all(map(_NUMBERED_THING.fullmatch, groups)):
        return False
    return any(field.kind == "image" or (field.kind == "array" and len(field.shape or ()) > 1) for field in fields)


class PerSampleOptions(ForeignOptions):
    """Options of layout ``per_sample``, besides those of every foreign HDF5 layout. `group` holds the samples.

    Attributes
    ----------
    sample : str, optional
        What one sample is: a ``dataset``, a ``group`` of datasets, or the datasets of one ``name`` or number, across
        groups (``lr/0`` and ``hr/0``) or in one (``lr_0`` and ``hr_0``). By default, what the evidence in the file shows.
    """

    sample: Sample | None = None


class PerSampleHdf5(IndexedHdf5):
    """Reads each dataset, or the datasets of each sample, as a record, with its name as ``key`` and its class as ``label``.

    Parameters
    ----------
    url : str
    **options
        See `PerSampleOptions`.
    """

    Options: ClassVar[type[PerSampleOptions]] = PerSampleOptions
    layout: ClassVar[str] = "per_sample"
    index_version: ClassVar[int] = 4
    index_options: ClassVar[tuple[str, ...]] = ("group", "sample")

    @classmethod
    def _find(cls, files: Hdf5Files) -> Contents:
        index = cls._index(files)
        if not index.count:
            raise FormatError(f"{files.url}: {files.settings.group} holds no dataset, so no sample")
        plan = msgspec.convert(index.facts, _SamplePlan)

        classes, numbers, count = plan.classes, index.numbers, index.count

        def element(part: Part, field: Field, number: int) -> Any:
            return read_element(files, field, path(part, number))

        def attribute(part: Part, name: str, field: Field, number: int) -> Any:
            return read_attribute(files, path(part, number), name, field)

        def path(part: Part, number: int) -> str:
            return _path_of(plan.group, part, index.name(number), classes is not None)

        columns: dict[str, Values] = {
            name: Computed(plan.fields[name], count, functools.partial(element, part, plan.fields[name]))
            for name, part in plan.parts.items()
        }
        attrs: dict[str, JSON] = {}
        if classes is not None:
            columns[plan.label] = Computed(Field("str"), count, lambda at: classes[int(numbers[at])])
            if plan.label == LABEL:
                columns[LABEL] = _Labels(numbers)
                attrs["classes"] = list(classes)
        columns[KEY] = Computed(Field("str"), count, index.name)
        for name, (part, noted) in plan.attributes.items():
            field = plan.attribute_kinds[name]
            columns[name] = Computed(field, count, functools.partial(attribute, part, noted, field))
        return Contents(columns, count, attrs, [plan.group, list(plan.parts)])

    @classmethod
    def _scan(cls, files: Hdf5Files) -> Array:
        try:
            found = arrange(files, files.settings.group, files.settings.sample)
        except SeveralWaysError as error:
            raise _ambiguous(files, error) from None
        if found is None:
            raise _no_samples(files)
        return PackedIndex.pack(found.series.keys, found.labels, msgspec.to_builtins(_plan(files, found)))

    @classmethod
    def _unread_in(cls, files: Hdf5Files) -> Unread:
        unread = Unread()
        index = cls._index(files)
        plan = msgspec.convert(index.facts, _SamplePlan)
        read = {after.removeprefix("/") for before, after in plan.parts.values() if not before and after[:1] == "/"}
        if len(read) != len(plan.parts):
            return unread  # samples are not groups, so each dataset is a part of one
        groups = [index.name(at) for at in sample_evenly(range(index.count))]
        there: dict[str, list[Member]] = {}
        for key in groups:
            for member in members(files, f"{plan.group}/{key}"):
                there.setdefault(member.path, []).append(member)
        for name, some in there.items():
            unread.add(some[0], None if name in read else f"in {len(some)} of {len(groups)} groups inspected")
        return unread

    @classmethod
    def _guess(cls, files: Hdf5Files) -> str | None:
        group, names, groups = enter(files, files.settings.group)
        if bool(names) == bool(groups) or (groups and are_splits(groups)):
            return None
        if groups and holds_frames(files, group, groups):
            return None
        try:
            found = arrange(files, group, files.settings.sample)
        except SeveralWaysError as error:
            if groups and frames_or_samples(files, group, groups) == "frames":
                return None
            raise _ambiguous(files, error) from None
        if found is None or not (files.settings.sample or _are_samples(files, found, groups)):
            return None
        return _evidence(found)


def _no_samples(files: Hdf5Files) -> FormatError:
    group = files.settings.group
    names, groups = split(files.group(group))
    if names and groups:
        return FormatError(
            f"{files.url}: {group} holds datasets and groups ({names[0]!r}, {groups[0]!r}); group= names the one that holds samples"
        )
    if not groups:
        return FormatError(f"{files.url}: {group} holds no dataset, so no sample")
    there = ", ".join(natural_order(groups)[:4])
    return FormatError(
        f"{files.url}: the groups of {group} ({there}) are neither samples, which hold the same datasets each, nor classes, whose "
        "samples are alike; group= names the one that holds samples"
    )


def _ambiguous(files: Hdf5Files, error: SeveralWaysError) -> AmbiguousError:
    options = files.settings.model_dump()
    readings = [
        Reading(f"sample={way!r}", why, functools.partial(PerSampleHdf5, files.path, **{**options, "sample": way}))
        for way, why in error.ways.items()
    ]
    return ambiguous(files.url, readings)


def _are_samples(files: Hdf5Files, found: Arrangement, groups: Sequence[str]) -> bool:
    sort, group = found.series.sort, found.group
    if sort == "fields":
        return are_field_names(groups) or frames_or_samples(files, group, groups) != "frames"
    if found.classes is not None and _are_named_frames(found):
        return False
    inner = [group] if found.classes is None else [f"{group}/{name}" for name in found.classes]
    if sort == "groups":
        return is_sample(files, _path_of(group, ("", ""), found.series.keys[0], False), list(found.series.parts))
    if sort == "numbered":
        return True
    if found.classes is not None and frames_or_samples(files, group, groups) == "frames":
        return False
    return all(_are_alike(files, path, split(files.group(path))[0]) for path in inner)


def _are_alike(files: Hdf5Files, group: str, names: Sequence[str]) -> bool:
    """Whether the datasets of a group may be samples by their names; raises FormatError if they are of different kinds."""
    paths = [f"{group}/{name}" for name in sample_evenly(names)]
    one_series = len({stem(name) for name in names}) == 1 and stem(names[0]) is not None
    if not one_series and len(names) < MOST_FIELDS:
        return not are_field_names(names) and are_encoded_images(files, [files.dataset(path) for path in paths])
    element_field(files, paths)
    return True


def _are_named_frames(found: Arrangement) -> bool:
    """Whether the members of groups are named as frames, so the groups are videos of a layout that storeds cannot read."""
    names = (*found.series.parts, found.series.keys[0].rpartition("/")[2])
    return found.series.sort != "datasets" and any(name.lower().startswith("frame") for name in names)


def _evidence(found: Arrangement) -> str:
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
    return f"each of {len(found.classes)} groups of {group} holds {what}, as a class holds its samples: {count}"


class _Labels(Computed):
    """The number of each sample's class."""

    def __init__(self, numbers: Array) -> None:
        super().__init__(Field("int"), len(numbers), lambda at: int(numbers[at]))
        self._numbers = numbers

    def column(self) -> Array:
        # docstring inherited
        return np.array(self._numbers)
