"""HDF5 files with one group for each video: its frames as one dataset or as numbered ones, and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from storeds._columns import SCALARS, column_of
from storeds.errors import ConfigError, StoredsError, UnavailableError
from storeds.layouts._hdf5_base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts._hdf5_elements import Datasets, Elements
from storeds.layouts._hdf5_evidence import frames_or_samples
from storeds.layouts._hdf5_files import ForeignOptions, Hdf5Files
from storeds.layouts._hdf5_frames import FRAME, VIDEO, VideoPlan, VideoScan, frame_source, video_sources
from storeds.layouts._hdf5_names import PackedIndex, are_splits, split
from storeds.layouts._hdf5_pairs import SeveralWaysError, are_field_names
from storeds.layouts._hdf5_series import LOOKED_AT, series_of, spread
from storeds.layouts._hdf5_tree import Left, members
from storeds.layouts._hdf5_values import Values, values_of
from storeds.protocols import Array, Field

__all__ = ["PerVideoHdf5", "PerVideoOptions"]

_INDEX = 2  # version of the kept index


class PerVideoOptions(ForeignOptions):
    """Options of layout ``per_video``, besides those that every foreign HDF5 layout has; `group` holds the videos.

    Attributes
    ----------
    frames : str, optional
        What the dataset of frames, or the group of numbered frames, is called in each video's group.
    empty : str
        A video without frames is an error (``refuse``), or left out (``skip``).
    """

    frames: str | None = None
    empty: Literal["refuse", "skip"] = "refuse"


@dataclass(frozen=True)
class PerVideoOpener(ForeignOpener):
    """Finds the frames of all videos, once."""

    layout: ClassVar[str] = "per_video"
    settings: PerVideoOptions

    def find(self, files: Hdf5Files) -> Found:
        # docstring inherited
        index = self._index(files)
        plan = VideoPlan.from_json(index.facts["plan"])
        bounds, prefix = index.numbers, index.facts["group"]
        count = int(bounds[-1])
        names: list[str] = index.facts["videos"]
        columns: dict[str, Values] = {}
        if plan.numbered is not None:
            ((name, kind),) = plan.fields.items()
            columns[name] = Datasets(count, lambda at: f"{prefix}/{index.name(at)}", Elements(files, kind))
        for name, where in plan.columns.items():
            columns[name] = FrameRows(
                files, [f"{prefix}/{video}/{where}" for video in names], bounds, plan.fields[name]
            )
        columns[VIDEO] = OfVideo(bounds, Field("str"), names)
        columns[FRAME] = FrameNumbers(bounds)
        for name, kind in plan.attribute_kinds.items():
            columns[name] = OfVideo(bounds, kind, index.facts["attributes"][name])
        return Found(columns, count, {}, [self.settings.group, bounds.tolist()[:: max(1, len(names) // 64)]])

    def _index(self, files: Hdf5Files) -> PackedIndex:
        group, frames, empty = self.settings.group, self.settings.frames, self.settings.empty

        def scan() -> Array:
            with self.look() as apart:  # what it opens must not tell the store that was scanned from the same one later
                return VideoScan(apart, _enter(apart, group, frames), frames, skip_empty=empty == "skip").scan()

        return PackedIndex.load([self.layout, _INDEX, group, frames, empty, *files.identity()], scan)

    def left(self, files: Hdf5Files) -> Left:
        # docstring inherited
        index = self._index(files)
        plan = VideoPlan.from_json(index.facts["plan"])
        taken = {*plan.columns.values(), *plan.attributes.values()}
        left, seen = Left(), set()
        for video in spread(index.facts["videos"], LOOKED_AT):
            for member in members(files, f"{index.facts['group']}/{video}"):
                head, _, tail = member.path.rpartition("/")
                numbered = plan.numbered is not None and head == plan.numbered and bool(tail)
                read = numbered or member.path in taken
                if read or member.path not in seen:
                    left.add(member, None if read else f"not one value for each frame, in {video!r}")
                seen.add(member.path)
        return left

    def recognise(self, files: Hdf5Files) -> str | None:
        # docstring inherited
        wanted = self.settings.frames
        group = _enter(files, self.settings.group, wanted)
        datasets, groups = split(files.group(group))
        alone = len(groups) == 1 and wanted is None and self.settings.group == "/"
        if datasets or not groups or alone or are_splits(groups):
            return None
        found = video_sources(files, group, groups, wanted)
        if not found:
            if wanted is None:
                return None
            raise ConfigError(
                f"{files.url}: frames={wanted!r} names nothing in the groups of {group}; {groups[0]!r} holds "
                f"{', '.join(files.group(f'{group}/{groups[0]}')) or 'nothing'}"
            )
        name, (numbered, dataset) = next(iter(found.items()))
        if not (
            _are_numbered(files, group, groups, name)
            if numbered == ""
            else _are_frames(files, f"{group}/{name}", dataset)
        ):
            return None
        what = f"numbered datasets in {name}/{numbered}" if numbered is not None else f"frames in {name}/{dataset}"
        told = f"{len(found)} of {min(len(groups), LOOKED_AT)} groups looked at"
        return f"{told}, of {len(groups)} in {group}, hold frames, as {what}"


def _enter(files: Hdf5Files, group: str, frames: str | None) -> str:
    """Return the group of the videos: `group`, or the one that it holds alone, unless that one is a video."""
    names, groups = split(files.group(group))
    if names or len(groups) != 1:
        return group
    inner = f"{group.rstrip('/')}/{groups[0]}"
    return group if frame_source(files.group(inner), frames) is not None else _enter(files, inner, frames)


def _are_numbered(files: Hdf5Files, group: str, groups: Sequence[str], video: str) -> bool:
    """Whether groups of numbered datasets may be videos, rather than the classes or the fields of samples."""
    try:
        series = series_of(files, group)
    except SeveralWaysError:
        series = None  # what they are else, layout per_sample says
    members = split(files.group(f"{group}/{video}"))[0]
    if len(members) < 2 or (series is not None and (series.sort != "fields" or are_field_names(groups))):
        return False
    said = frames_or_samples(files, group, groups)
    return said == "frames" or (series is None and said == "either")


def _are_frames(files: Hdf5Files, video: str, name: str) -> bool:
    if not name:
        return True
    values = values_of(files, files.dataset(f"{video}/{name}"))
    return "" in values and _is_frame(values[""].field)


class PerVideoHdf5(ForeignHdf5):
    """Reads each frame of each video as a record: ``image`` or ``array``, ``video``, ``frame``, the video's attributes.

    Parameters
    ----------
    url : str
    **options
        See `PerVideoOptions`.
    """

    Options: ClassVar[type[PerVideoOptions]] = PerVideoOptions
    Opener: ClassVar[type[PerVideoOpener]] = PerVideoOpener


def _is_frame(field: Field) -> bool:
    return field.kind in ("image", "bytes") or (field.kind == "array" and len(field.shape or ()) >= 2)


class FrameRows(Values):
    """Frames that are the rows of one dataset for each video."""

    def __init__(self, files: Hdf5Files, paths: Sequence[str], bounds: Array, field: Field) -> None:
        self.field, self.count = field, int(bounds[-1])
        self._files, self._paths, self._bounds = files, paths, bounds

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        asked = np.asarray(positions, np.int64)
        videos = np.searchsorted(self._bounds, asked, "right") - 1
        out: list[Any] = []
        for video in np.unique(videos).tolist():
            frames = asked[videos == video] - self._bounds[video]
            out += self._read(self._paths[video], frames.tolist())
        return out

    def _read(self, path: str, frames: list[int]) -> list[Any]:
        try:
            dataset = self._files.dataset(path)
            return values_of(self._files, dataset, field=self.field)[""].read(frames)
        except UnavailableError:
            raise
        except (StoredsError, OSError, RuntimeError, KeyError, TypeError) as error:
            reason = str(error).removeprefix(f"{self._files.url}: ")
            return [ValueError(f"dataset {path} cannot be read: {reason}")] * len(frames)


class OfVideo(Values):
    """What all frames of a video have in common: its name, an attribute."""

    def __init__(self, bounds: Array, field: Field, values: list[Any]) -> None:
        self.field, self.count = field, int(bounds[-1])
        self._bounds, self._values = bounds, values

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        videos = np.searchsorted(self._bounds, np.asarray(positions, np.int64), "right") - 1
        return [self._values[video] for video in videos.tolist()]

    def column(self) -> Array:
        # docstring inherited
        try:
            return np.repeat(column_of(self.field, self._values), np.diff(self._bounds))
        except OverflowError:
            raise ValueError("it has integers beyond the int64 range") from None


class FrameNumbers(Values):
    """The number of each frame in its video, from 0."""

    def __init__(self, bounds: Array) -> None:
        self.field, self.count, self._bounds = Field("int"), int(bounds[-1]), bounds

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        asked = np.asarray(positions, np.int64)
        numbers: list[int] = (asked - self._bounds[np.searchsorted(self._bounds, asked, "right") - 1]).tolist()
        return numbers

    def column(self) -> Array:
        # docstring inherited
        numbers: Array = np.arange(self.count, dtype=SCALARS["int"])
        numbers -= np.repeat(self._bounds[:-1], np.diff(self._bounds))
        return numbers
