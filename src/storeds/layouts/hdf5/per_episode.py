"""HDF5 files of robot demonstrations, as robomimic, robosuite and LIBERO write them: ``data/demo_0/actions``, ``…/obs/…``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import h5py
import numpy as np

from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.hdf5.base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts.hdf5.elements import attributes
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files, NoSuchNameError
from storeds.layouts.hdf5.names import PackedIndex, field_names, natural_order, split
from storeds.layouts.hdf5.per_video import FrameNumbers, FrameRows, OfVideo
from storeds.layouts.hdf5.tree import Left, Member, members
from storeds.layouts.hdf5.values import Values, values_of
from storeds.protocols import JSON, Array, Field
from storeds.records.fields import fields_from_json, fields_to_json

__all__ = ["PerEpisodeHdf5", "PerEpisodeOptions"]

EPISODE, STEP, KEY = "episode", "step", "key"
_INDEX = 1  # version of the kept index
_DATA, _MASK, _ACTIONS = "data", "mask", "actions"
_DEMO = re.compile(r"demo_\d+")
_LONGEST = 4096  # characters of an attribute that is kept
_SHOWN = 4


class PerEpisodeOptions(ForeignOptions):
    """Options of layout ``per_episode``, besides those that every foreign HDF5 layout has.

    Attributes
    ----------
    mask : str, optional
        A filter key, as robomimic calls it: the dataset of the file's group ``mask`` that lists the demonstrations to
        read, for example ``"train"``. By default all are read.
    """

    mask: str | None = None


@dataclass(frozen=True)
class PerEpisodeOpener(ForeignOpener):
    """Finds the steps of all demonstrations, once."""

    layout: ClassVar[str] = "per_episode"
    settings: PerEpisodeOptions

    @property
    def _data(self) -> str:
        return f"{self.settings.group.rstrip('/')}/{_DATA}"

    def find(self, files: Hdf5Files) -> Found:
        # docstring inherited
        def scan() -> Array:
            with self.look() as apart:  # what it opens must not tell the store that was scanned from the same one later
                return self._scan(apart)

        key: list[JSON] = [self.layout, _INDEX, self.settings.group, self.settings.mask, *files.identity()]
        index = PackedIndex.load(key, scan)
        demos = [index.name(at) for at in range(index.count)]
        bounds = index.numbers
        fields, where = fields_from_json(index.facts["fields"]), index.facts["where"]
        columns: dict[str, Values] = {
            name: FrameRows(files, [f"{self._data}/{demo}/{where[name]}" for demo in demos], bounds, field)
            for name, field in fields.items()
        }
        columns[EPISODE] = OfVideo(bounds, Field("int"), [_number(demo) for demo in demos])
        columns[STEP] = FrameNumbers(bounds)
        columns[KEY] = _StepKeys(bounds, demos)
        return Found(columns, int(bounds[-1]), index.facts["attrs"], where)

    def _scan(self, files: Hdf5Files) -> Array:
        demos = self._demos(files)
        columns = self._columns(files, demos[0])
        names = field_names(list(columns), [EPISODE, STEP, KEY])
        fields = {names[path]: values_of(files, dataset)[""].field for path, dataset in columns.items()}
        counts = [self._steps(files, demo, list(columns)) for demo in demos]
        facts: dict[str, JSON] = {
            "fields": fields_to_json(fields),
            "where": {names[path]: path for path in columns},
            "attrs": self._attrs(files),
        }
        return PackedIndex.make(demos, np.cumsum([0, *counts], dtype=np.int64), facts)

    def _demos(self, files: Hdf5Files) -> list[str]:
        """Return the names of the demonstrations to read, in the order of their numbers."""
        there = [name for name in natural_order(split(files.group(self._data))[1]) if _DEMO.fullmatch(name)]
        if not there:
            raise FormatError(
                f"{self.url}: {self._data} holds no demonstrations demo_0, demo_1 …; group= names its parent"
            )
        if self.settings.mask is None:
            return there
        masks = self._masks(files)
        if self.settings.mask not in masks:
            raise ConfigError(
                f"{self.url}: no mask {self.settings.mask!r}; {suggest(self.settings.mask, masks, 'masks')}"
            )
        listed = {
            name.decode() if isinstance(name, bytes) else str(name)
            for name in files.dataset(f"{self._mask_group}/{self.settings.mask}")[()].reshape(-1)
        }
        absent = listed.difference(there)
        if absent:
            raise FormatError(
                f"{self.url}: mask {self.settings.mask!r} lists {natural_order(absent)[0]!r}, which {self._data} lacks"
            )
        return [name for name in there if name in listed]

    @property
    def _mask_group(self) -> str:
        return f"{self.settings.group.rstrip('/')}/{_MASK}"

    def _masks(self, files: Hdf5Files) -> list[str]:
        try:
            return split(files.group(self._mask_group))[0]
        except NoSuchNameError:
            return []

    def _columns(self, files: Hdf5Files, demo: str) -> dict[str, h5py.Dataset]:
        """Return path → dataset of what has a row for each step of a demonstration, by the first of them."""
        found = list(members(files, f"{self._data}/{demo}"))
        steps = self._length(files, demo)
        return {member.path: member.dataset for member in found if self._why_left(member, steps) is None}

    def _why_left(self, member: Member, steps: int) -> str | None:
        dataset = member.dataset
        if dataset.shape[:1] != (steps,):
            return f"not one row for each of {steps} steps"
        return None if dataset.dtype.names is None else "a table"

    def _length(self, files: Hdf5Files, demo: str) -> int:
        dataset = files.dataset(f"{self._data}/{demo}/{_ACTIONS}")
        return int(dataset.shape[0]) if dataset.shape else 0

    def _steps(self, files: Hdf5Files, demo: str, paths: Sequence[str]) -> int:
        """Return how many steps a demonstration has; raises FormatError where a dataset has another number, or is missing."""
        steps = self._length(files, demo)
        for path in paths:
            shape = files.dataset(f"{self._data}/{demo}/{path}").shape
            if shape[:1] != (steps,):
                raise FormatError(
                    f"{self.url}: {demo} has {steps} {_ACTIONS}, and {path} of shape {shape}; record it again"
                )
        return steps

    def _attrs(self, files: Hdf5Files) -> dict[str, JSON]:
        """Return what is said of all demonstrations, texts of JSON parsed, and the names of the masks."""
        out: dict[str, JSON] = {}
        for name, value in attributes(files.group(self._data)).items():
            if not isinstance(value, str) or len(value) <= _LONGEST:
                out[name] = _parsed(value)
        masks = self._masks(files)
        return {**out, "masks": list(masks)} if masks else out

    def left(self, files: Hdf5Files) -> Left:
        # docstring inherited
        left = Left()
        demo = self._demos(files)[0]
        steps = self._length(files, demo)
        for member in members(files, f"{self._data}/{demo}"):
            why = self._why_left(member, steps)
            left.add(member, f"{why}, in {demo}" if why else None)
        return left

    def guess_can_open(self, files: Hdf5Files) -> str | None:
        # docstring inherited
        if _DATA not in split(files.group(self.settings.group))[1]:
            return None
        datasets, groups = split(files.group(self._data))
        if datasets or not groups or not all(map(_DEMO.fullmatch, groups)):
            return None
        first = natural_order(groups)[0]
        if _ACTIONS not in split(files.group(f"{self._data}/{first}"))[0]:
            return None
        chosen = self._demos(files)
        found = list(self._columns(files, chosen[0]))
        more = " …" if len(found) > _SHOWN else ""
        masks = ", ".join(self._masks(files)) or "none"
        return f"{len(groups)} demonstrations in {self._data}, with {', '.join(found[:_SHOWN])}{more}; masks: {masks}"


def _number(demo: str) -> int:
    return int(demo.rpartition("_")[2])


def _parsed(value: JSON) -> JSON:
    if isinstance(value, str) and value[:1] in "{[":
        try:
            parsed: JSON = json.loads(value)
        except ValueError:
            return value
        return parsed
    return value


class _StepKeys(Values):
    """The name of each step: ``demo_3/17``."""

    def __init__(self, bounds: Array, demos: Sequence[str]) -> None:
        self.field, self.count, self._bounds, self._demos = Field("str"), int(bounds[-1]), bounds, demos

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        asked = np.asarray(positions, np.int64)
        numbers = np.searchsorted(self._bounds, asked, "right") - 1
        steps = asked - self._bounds[numbers]
        return [f"{self._demos[number]}/{step}" for number, step in zip(numbers.tolist(), steps.tolist(), strict=True)]


class PerEpisodeHdf5(ForeignHdf5):
    """Reads each step of each demonstration as a record: what the file has of it, ``episode``, ``step`` and ``key``.

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
    Opener: ClassVar[type[PerEpisodeOpener]] = PerEpisodeOpener
