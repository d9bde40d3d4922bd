"""HDF5 files with one group for each video: its frames as one dataset or as numbered ones, and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import h5py
import numpy as np

from storeds.errors import ConfigError, FormatError, StoredsError, UnavailableError
from storeds.layouts.hdf5.base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts.hdf5.detection import (
    FRAME_NAMES,
    LOOKED_AT,
    frames_or_samples,
    is_one_image,
    is_series,
    series_of,
    spread,
)
from storeds.layouts.hdf5.elements import Datasets, Elements, attribute_fields, attributes, element_field, single_values
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files
from storeds.layouts.hdf5.names import PackedIndex, are_splits, field_names, natural_order, split
from storeds.layouts.hdf5.pairs import SeveralWaysError, are_field_names
from storeds.layouts.hdf5.tree import Left, members
from storeds.layouts.hdf5.values import Values, values_of
from storeds.protocols import JSON, Array, Field
from storeds.records.columns import SCALARS, column_of
from storeds.records.fields import fields_from_json, fields_to_json

__all__ = [
    "FRAME",
    "VIDEO",
    "PerVideoHdf5",
    "PerVideoOptions",
    "VideoPlan",
    "VideoScan",
    "frame_source",
    "holds_frames",
    "video_sources",
]


VIDEO, FRAME = "video", "frame"


@dataclass(frozen=True)
class VideoPlan:
    """How the groups of videos are laid out; equal in all of them.

    Attributes
    ----------
    numbered : str or None
        The sub-group that holds a dataset for each frame, ``""`` for the group of the video itself; None where frames
        are the rows of datasets.
    columns : mapping of str to str
        Field → dataset whose rows are frames.
    fields : mapping of str to Field
        Of the frames; not of the video.
    attributes : mapping of str to str
        Field → attribute of the video's group, or dataset of one value in it.
    """

    numbered: str | None
    columns: Mapping[str, str]
    fields: Mapping[str, Field]
    attributes: Mapping[str, str] = field(default_factory=dict)
    attribute_kinds: Mapping[str, Field] = field(default_factory=dict)

    def to_json(self) -> JSON:
        """Return the plan as JSON."""
        return {
            "numbered": self.numbered,
            "columns": dict(self.columns),
            "fields": fields_to_json(self.fields),
            "attributes": dict(self.attributes),
            "attribute_kinds": fields_to_json(self.attribute_kinds) if self.attribute_kinds else [],
        }

    @classmethod
    def from_json(cls, told: Any) -> VideoPlan:
        """Return the plan that `to_json` wrote."""
        kinds = fields_from_json(told["attribute_kinds"]) if told["attribute_kinds"] else {}
        fields = fields_from_json(told["fields"])
        return cls(told["numbered"], told["columns"], fields, told["attributes"], kinds)


def frame_source(group: h5py.Group, wanted: str | None) -> tuple[str | None, str] | None:
    """Return (sub-group of numbered frames, "") or (None, dataset of frames) of a video's group; None if it has neither."""
    datasets, groups = split(group)
    if wanted is not None:
        return (wanted, "") if wanted in groups else (None, wanted) if wanted in datasets else None
    if is_series(datasets):
        return "", ""
    named = {name.lower(): name for name in (*datasets, *groups)}
    chosen = next((named[name] for name in FRAME_NAMES if name in named), None)
    if chosen is None and len(datasets) == 1 and not groups:
        chosen = datasets[0]
    if chosen is None or (chosen in datasets and is_one_image(group[chosen])):
        return None
    return (chosen, "") if chosen in groups else (None, chosen)


def video_sources(
    files: Hdf5Files, group: str, groups: Sequence[str], wanted: str | None = None
) -> dict[str, tuple[str | None, str]]:
    """Return where frames are, for some of the groups; nothing where none has any, or each only one: those are samples."""
    told = {name: frame_source(files.group(f"{group}/{name}"), wanted) for name in spread(natural_order(groups))}
    found = {name: source for name, source in told.items() if source is not None}
    single = (
        source[0] is None and files.dataset(f"{group}/{name}/{source[1]}").size == 1 for name, source in found.items()
    )
    return {} if wanted is None and all(single) else found


def holds_frames(files: Hdf5Files, group: str, groups: Sequence[str]) -> bool:
    """Whether the groups are videos that say where their frames are, rather than hold numbered datasets."""
    return any(source != ("", "") for source in video_sources(files, group, groups).values())


class VideoScan:
    """Looks at every video of a file once.

    Parameters
    ----------
    files : Hdf5Files
    group : str
        Whose groups are the videos.
    wanted : str or None
        The name of the frames in each, if the user said so.
    skip_empty : bool
        Whether videos without frames are left out, or an error.
    """

    def __init__(self, files: Hdf5Files, group: str, wanted: str | None, *, skip_empty: bool) -> None:
        self._files, self._group, self._wanted, self._skip_empty = files, group.rstrip("/"), wanted, skip_empty

    def scan(self) -> Array:
        """Return the array of a `PackedIndex`: numbered frames by name, the first frame of each video, and the plan."""
        videos = natural_order(split(self._files.group(self._group or "/"))[1])
        plan = self._plan(videos)
        kept, counts, names, empty = [], [], [], []
        inner: dict[str, set[tuple[int, ...]]] = {name: set() for name in plan.fields}
        found: dict[str, list[JSON]] = {name: [] for name in plan.attributes}
        for video in videos:
            frames = self._numbered(plan, video) if plan.numbered is not None else []
            count = len(frames) if plan.numbered is not None else self._rows(plan, video, inner)
            if not count:
                empty.append(video)
                continue
            kept.append(video)
            counts.append(count)
            names += [f"{video}/{plan.numbered}/{name}".replace("//", "/") for name in frames]
            self._attributes(plan, video, found)
        if empty and not self._skip_empty:
            shown = ", ".join(map(repr, empty[:5])) + (" …" if len(empty) > 5 else "")
            raise FormatError(
                f"{self._files.url}: {len(empty)} of {len(videos)} videos have no frames: {shown}; empty='skip' leaves them out"
            )
        fields = {name: _merged(declared, inner[name]) for name, declared in plan.fields.items()}
        if plan.numbered is not None:
            field_ = element_field(self._files, [f"{self._group}/{name}" for name in spread(names)])
            fields = {_called(field_): field_}
        whole = VideoPlan(plan.numbered, plan.columns, fields, plan.attributes, plan.attribute_kinds)
        facts: dict[str, JSON] = {
            "group": self._group,
            "videos": kept,
            "plan": whole.to_json(),
            "attributes": dict(found),
        }
        return PackedIndex.make(names, np.cumsum([0, *counts], dtype=np.int64), facts)

    def _path(self, *parts: str) -> str:
        return "/".join((self._group, *filter(None, parts)))

    def _plan(self, videos: Sequence[str]) -> VideoPlan:
        """Return how the first video that has frames is laid out."""
        for video in videos:
            group = self._files.group(self._path(video))
            source = frame_source(group, self._wanted)
            if source is None:
                continue
            if source[0] is not None:
                if split(self._files.group(self._path(video, source[0])))[0]:
                    taken = [VIDEO, FRAME, "image", "array"]
                    return VideoPlan(source[0], {}, {}, *self._attribute_plan(video, source[0], taken))
                continue
            main = values_of(self._files, self._files.dataset(self._path(video, source[1])))
            if "" not in main or not main[""].count:
                continue
            values = {_called(main[""].field): (source[1], main[""])}
            others = [name for name in split(group)[0] if name != source[1]]
            for name, field_ in field_names(others, [VIDEO, FRAME, *values]).items():
                dataset = self._files.dataset(self._path(video, name))
                if dataset.shape[:1] == (main[""].count,):
                    values[field_] = name, values_of(self._files, dataset)[""]
            columns = {field_: name for field_, (name, _) in values.items()}
            fields = {field_: made.field for field_, (_, made) in values.items()}
            return VideoPlan(None, columns, fields, *self._attribute_plan(video, None, [VIDEO, FRAME, *columns]))
        there = (
            f"the first holds {', '.join(self._files.group(self._path(videos[0]))) or 'nothing'}"
            if videos
            else "it has none"
        )
        raise FormatError(
            f"{self._files.url}: no group of {self._group or '/'} holds frames ({there}); group= names the group that holds "
            "the videos, frames= the dataset or group of frames in each"
        )

    def _attribute_plan(
        self, video: str, numbered: str | None, taken: Sequence[str]
    ) -> tuple[dict[str, str], dict[str, Field]]:
        found = self._said(video, numbered)
        names = {field_: name for name, field_ in field_names(list(found), taken).items()}
        kinds = attribute_fields(found)
        return names, {field_: kinds[name] for field_, name in names.items()}

    def _said(self, video: str, numbered: str | None) -> dict[str, JSON]:
        """Return what is said of a video: its group's attributes, and datasets of one number or text beside the frames."""
        path = self._path(video)
        found = attributes(self._files.group(path))
        return found if numbered == "" else {**single_values(self._files, path), **found}

    def _numbered(self, plan: VideoPlan, video: str) -> list[str]:
        assert plan.numbered is not None
        group = self._files.group(self._path(video))
        if plan.numbered and plan.numbered not in group:
            return []
        return natural_order(split(self._files.group(self._path(video, plan.numbered)))[0])

    def _rows(self, plan: VideoPlan, video: str, inner: dict[str, set[tuple[int, ...]]]) -> int:
        """Return how many frames a video has, and note the shapes of its rows."""
        group = self._files.group(self._path(video))
        main = next(iter(plan.columns.values()))
        if main not in group:
            return 0
        count = 0
        for name, where in plan.columns.items():
            if where not in group:
                raise FormatError(f"{self._files.url}: video {video!r} has no {where!r}; it holds {', '.join(group)}")
            dataset = self._files.dataset(self._path(video, where))
            length = dataset.shape[0] if dataset.shape else 0
            if where == main:
                count = length
            elif length != count:
                raise FormatError(
                    f"{self._files.url}: video {video!r} has {count} rows in {main!r} and {length} in {where!r}, expected equal lengths"
                )
            if length:
                self._check_kind(plan.fields[name], dataset)
                inner[name].add(tuple(dataset.shape[1:]))
        return int(count)

    def _check_kind(self, declared: Field, dataset: h5py.Dataset) -> None:
        got = values_of(self._files, dataset, field=declared)[""].field
        dims = len(declared.shape or ()), len(got.shape or ())
        if (got.kind, got.dtype) != (declared.kind, declared.dtype) or dims[0] != dims[1]:
            raise FormatError(
                f"{self._files.url}: {dataset.name} holds {got.kind} {got.dtype or ''} {got.shape or ''}, and other videos "
                f"{declared.kind} {declared.dtype or ''} {declared.shape or ''}"
            )

    def _attributes(self, plan: VideoPlan, video: str, found: dict[str, list[JSON]]) -> None:
        if not plan.attributes:
            return
        has = self._said(video, plan.numbered)
        kinds = attribute_fields(has)
        for field_, name in plan.attributes.items():
            if kinds.get(name) != plan.attribute_kinds[field_]:
                raise FormatError(
                    f"{self._files.url}: {name!r} of video {video!r} is {has.get(name, 'missing')!r}, expected "
                    f"{plan.attribute_kinds[field_].kind} as in other videos"
                )
            found[field_].append(has[name])


def _called(declared: Field) -> str:
    return declared.kind if declared.kind in ("image", "bytes", "array") else "value"


def _merged(declared: Field, shapes: set[tuple[int, ...]]) -> Field:
    if declared.kind != "array" or len(shapes) < 2:
        return declared
    sizes = tuple(axis[0] if len(set(axis)) == 1 else None for axis in zip(*shapes, strict=True))
    return Field("array", declared.dtype, sizes)


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

    def guess_can_open(self, files: Hdf5Files) -> str | None:
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
