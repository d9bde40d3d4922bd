"""HDF5 files of robot demonstrations, as robomimic, robosuite and LIBERO write them: ``data/demo_0/actions``, ``…/obs/…``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

import h5py
import numpy as np

from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.hdf5.base import Contents
from storeds.layouts.hdf5.files import (
    ForeignOptions,
    Hdf5Files,
    Member,
    NoSuchNameError,
    Unread,
    attributes,
    field_names,
    members,
    natural_order,
    split,
)
from storeds.layouts.hdf5.index import IndexedHdf5, PackedIndex, RowNumbers, SequenceRows, SequenceValues, StepKeys
from storeds.layouts.hdf5.values import Values, values_of
from storeds.protocols import JSON, Array, Field
from storeds.records.fields import fields_from_json, fields_to_json

__all__ = ["PerEpisodeHdf5", "PerEpisodeOptions"]

EPISODE, STEP, KEY = "episode", "step", "key"
_DEMO = re.compile(r"demo_\d+")
_LONGEST = 4096  # characters of an attribute that is kept
_LISTED = 4


class PerEpisodeOptions(ForeignOptions):
    """Options of layout ``per_episode``, besides those of every foreign HDF5 layout.

    Attributes
    ----------
    mask : str, optional
        A filter key, as robomimic calls it: the dataset of the file's group ``mask`` that lists the demonstrations to
        read, for example ``"train"``. By default all are read.
    """

    mask: str | None = None


class PerEpisodeHdf5(IndexedHdf5):
    """Reads each step of each demonstration as a record: its datasets, ``episode``, ``step`` and ``key``.

    Parameters
    ----------
    url : str
    **options
        See `PerEpisodeOptions`.

    Notes
    -----
    Fields are named by path, ``obs/agentview_rgb`` as ``obs_agentview_rgb``. ``episode`` is the number in the name of the
    demonstration, ``step`` counts from 0 in each. ``meta.attrs`` has the attributes of ``data`` and the names of the masks.
    """

    Options: ClassVar[type[PerEpisodeOptions]] = PerEpisodeOptions
    layout: ClassVar[str] = "per_episode"
    index_version: ClassVar[int] = 1
    index_options: ClassVar[tuple[str, ...]] = ("group", "mask")

    @classmethod
    def _find(cls, files: Hdf5Files) -> Contents:
        index = cls._index(files)
        demos = [index.name(at) for at in range(index.count)]
        bounds, where = index.numbers, index.facts["where"]
        columns: dict[str, Values] = {
            name: SequenceRows(files, [_path(files, "data", demo, where[name]) for demo in demos], bounds, field)
            for name, field in fields_from_json(index.facts["fields"]).items()
        }
        numbers = [int(demo.rpartition("_")[2]) for demo in demos]
        columns[EPISODE] = SequenceValues(bounds, Field("int"), numbers)
        columns[STEP] = RowNumbers(bounds)
        columns[KEY] = StepKeys(bounds, demos)
        return Contents(columns, int(bounds[-1]), index.facts["attrs"], where)

    @classmethod
    def _scan(cls, files: Hdf5Files) -> Array:
        demos = _demos(files)
        columns = _columns(files, demos[0])
        names = field_names(list(columns), [EPISODE, STEP, KEY])
        fields = {names[path]: values_of(files, dataset)[""].field for path, dataset in columns.items()}
        counts = [_check_steps(files, demo, list(columns)) for demo in demos]
        facts: dict[str, JSON] = {
            "fields": fields_to_json(fields),
            "where": {names[path]: path for path in columns},
            "attrs": _attrs(files),
        }
        return PackedIndex.pack(demos, np.cumsum([0, *counts], dtype=np.int64), facts)

    @classmethod
    def _unread_in(cls, files: Hdf5Files) -> Unread:
        unread = Unread()
        demo = _demos(files)[0]
        steps = _count_steps(files, demo)
        for member in members(files, _path(files, "data", demo)):
            why = _why_unread(member, steps)
            unread.add(member, f"{why}, in {demo}" if why else None)
        return unread

    @classmethod
    def _guess(cls, files: Hdf5Files) -> str | None:
        if "data" not in split(files.group(files.settings.group))[1]:
            return None
        datasets, groups = split(files.group(_path(files, "data")))
        if datasets or not groups or not all(map(_DEMO.fullmatch, groups)):
            return None
        if "actions" not in split(files.group(_path(files, "data", natural_order(groups)[0])))[0]:
            return None
        found = list(_columns(files, _demos(files)[0]))
        more = " …" if len(found) > _LISTED else ""
        masks = ", ".join(_masks(files)) or "none"
        return f"{len(groups)} demonstrations in {_path(files, 'data')}, with {', '.join(found[:_LISTED])}{more}; masks: {masks}"


def _path(files: Hdf5Files, *names: str) -> str:
    return "/".join((files.settings.group.rstrip("/"), *names))


def _demos(files: Hdf5Files) -> list[str]:
    """Return the names of the demonstrations to read, in the order of their numbers."""
    data, mask = _path(files, "data"), files.settings.mask
    there = [name for name in natural_order(split(files.group(data))[1]) if _DEMO.fullmatch(name)]
    if not there:
        raise FormatError(f"{files.url}: {data} holds no demonstrations demo_0, demo_1 …; group= names its parent")
    if mask is None:
        return there
    masks = _masks(files)
    if mask not in masks:
        raise ConfigError(f"{files.url}: no mask {mask!r}; {suggest(mask, masks, 'masks')}")
    listed = {
        name.decode() if isinstance(name, bytes) else str(name)
        for name in files.dataset(_path(files, "mask", mask))[()].reshape(-1)
    }
    missing = listed.difference(there)
    if missing:
        raise FormatError(f"{files.url}: mask {mask!r} lists {natural_order(missing)[0]!r}, which {data} lacks")
    return [name for name in there if name in listed]


def _masks(files: Hdf5Files) -> list[str]:
    try:
        return split(files.group(_path(files, "mask")))[0]
    except NoSuchNameError:
        return []


def _columns(files: Hdf5Files, demo: str) -> dict[str, h5py.Dataset]:
    """Return path → dataset for each dataset with a row for each step, from one demonstration."""
    steps = _count_steps(files, demo)
    found = members(files, _path(files, "data", demo))
    return {member.path: member.dataset for member in found if _why_unread(member, steps) is None}


def _why_unread(member: Member, steps: int) -> str | None:
    dataset = member.dataset
    if dataset.shape[:1] != (steps,):
        return f"not one row for each of {steps} steps"
    return None if dataset.dtype.names is None else "a table"


def _count_steps(files: Hdf5Files, demo: str) -> int:
    dataset = files.dataset(_path(files, "data", demo, "actions"))
    return int(dataset.shape[0]) if dataset.shape else 0


def _check_steps(files: Hdf5Files, demo: str, paths: Sequence[str]) -> int:
    """Return how many steps a demonstration has; raises FormatError if a dataset has another number of rows."""
    steps = _count_steps(files, demo)
    for path in paths:
        shape = files.dataset(_path(files, "data", demo, path)).shape
        if shape[:1] != (steps,):
            raise FormatError(f"{files.url}: {demo} has {steps} actions, and {path} of shape {shape}; record it again")
    return steps


def _attrs(files: Hdf5Files) -> dict[str, JSON]:
    """Return the attributes of all demonstrations, JSON texts parsed, and the names of the masks."""
    out: dict[str, JSON] = {}
    for name, value in attributes(files.group(_path(files, "data"))).items():
        if not isinstance(value, str) or len(value) <= _LONGEST:
            out[name] = _parse_json(value)
    masks = _masks(files)
    return {**out, "masks": list(masks)} if masks else out


def _parse_json(value: JSON) -> JSON:
    if isinstance(value, str) and value[:1] in "{[":
        try:
            parsed: JSON = json.loads(value)
        except ValueError:
            return value
        return parsed
    return value
