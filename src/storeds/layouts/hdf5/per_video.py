"""HDF5 files with one group for each video: its frames as one dataset or as numbered ones, and attributes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import h5py
import msgspec
import numpy as np

from storeds.backends.opening import open_backend
from storeds.backends.readings import Reading, ambiguous
from storeds.errors import ConfigError, FormatError
from storeds.layouts.hdf5.base import Contents
from storeds.layouts.hdf5.elements import default_name, element_field, read_element, single_values
from storeds.layouts.hdf5.files import (
    ForeignOptions,
    Hdf5Files,
    Unread,
    are_splits,
    attribute_fields,
    attributes,
    field_names,
    members,
    natural_order,
    split,
)
from storeds.layouts.hdf5.index import IndexedHdf5, PackedIndex, RowNumbers, SequenceRows, SequenceValues
from storeds.layouts.hdf5.series import (
    FRAME_NAMES,
    LOOKED_AT,
    NUMBERED_VIDEO,
    VIDEO_NAMES,
    SeveralWaysError,
    are_field_names,
    frames_or_samples,
    is_one_image,
    is_series,
    sample_evenly,
    series_of,
)
from storeds.layouts.hdf5.values import Computed, Values, values_of
from storeds.protocols import JSON, Array, Field

__all__ = ["PerVideoHdf5", "PerVideoOptions", "holds_frames"]


VIDEO, FRAME = "video", "frame"


@dataclass(frozen=True)
class _VideoPlan:
    """How the group of each video is laid out.

    Attributes
    ----------
    numbered : str or None
        The sub-group that holds a dataset for each frame, ``""`` for the group of the video itself; None if frames are the
        rows of datasets.
    columns : dict of str to str
        Field → dataset whose rows are frames.
    fields : dict of str to Field
        Of the frames, not of the video.
    attributes : dict of str to str
        Field → attribute of the video's group, or dataset of one value in it.
    attribute_kinds : dict of str to Field
    """

    numbered: str | None
    columns: dict[str, str]
    fields: dict[str, Field]
    attributes: dict[str, str] = field(default_factory=dict)
    attribute_kinds: dict[str, Field] = field(default_factory=dict)


@dataclass(frozen=True)
class _VideoFacts:
    """What the index of a store holds beside its numbers: `attributes` are the values of each field, by video."""

    group: str
    videos: list[str]
    plan: _VideoPlan
    attributes: dict[str, list[bool | int | float | str]]


def _frame_source(group: h5py.Group, wanted: str | None) -> tuple[str | None, str] | None:
    """Return where the frames of a video's group are, or None if it has none.

    That is (sub-group of numbered frames, "") or (None, dataset of frames).
    """
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


def _video_sources(
    files: Hdf5Files, group: str, groups: Sequence[str], wanted: str | None = None
) -> dict[str, tuple[str | None, str]]:
    """Return where frames are, for some of the groups; empty if there are none, or one in each, which are samples."""
    sources = {
        name: _frame_source(files.group(f"{group}/{name}"), wanted) for name in sample_evenly(natural_order(groups))
    }
    found = {name: source for name, source in sources.items() if source is not None}
    single = (
        source[0] is None and files.dataset(f"{group}/{name}/{source[1]}").size == 1 for name, source in found.items()
    )
    return {} if wanted is None and all(single) else found


def holds_frames(files: Hdf5Files, group: str, groups: Sequence[str]) -> bool:
    """Whether groups are videos because the names show where the frames are, not only numbered datasets."""
    return any(source != ("", "") for source in _video_sources(files, group, groups).values())


class _VideoScan:
    """Inspects every video of a file once.

    Parameters
    ----------
    files : Hdf5Files
    group : str
        Its groups are the videos.
    wanted : str or None
        The name of the frames in each, if the user gave it.
    skip_empty : bool
        Leave out videos without frames. By default they are an error.
    """

    def __init__(self, files: Hdf5Files, group: str, wanted: str | None, *, skip_empty: bool) -> None:
        self._files, self._group, self._wanted, self._skip_empty = files, group.rstrip("/"), wanted, skip_empty

    def scan(self) -> Array:
        """Return the array of a `PackedIndex`: names of numbered frames, the first frame of each video, the facts."""
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
            self._add_attributes(plan, video, found)
        if empty and not self._skip_empty:
            shown = ", ".join(map(repr, empty[:5])) + (" …" if len(empty) > 5 else "")
            raise FormatError(
                f"{self._files.url}: {len(empty)} of {len(videos)} videos have no frames: {shown}; empty='skip' leaves them out"
            )
        fields = {name: _merged(declared, inner[name]) for name, declared in plan.fields.items()}
        if plan.numbered is not None:
            kind = element_field(self._files, [f"{self._group}/{name}" for name in sample_evenly(names)])
            fields = {default_name(kind): kind}
        facts = {
            "group": self._group,
            "videos": kept,
            "plan": msgspec.to_builtins(replace(plan, fields=fields)),
            "attributes": found,
        }
        return PackedIndex.pack(names, np.cumsum([0, *counts], dtype=np.int64), facts)

    def _path(self, *parts: str) -> str:
        return "/".join((self._group, *filter(None, parts)))

    def _plan(self, videos: Sequence[str]) -> _VideoPlan:
        """Return how the first video that has frames is laid out."""
        for video in videos:
            group = self._files.group(self._path(video))
            source = _frame_source(group, self._wanted)
            if source is None:
                continue
            if source[0] is not None:
                if split(self._files.group(self._path(video, source[0])))[0]:
                    taken = [VIDEO, FRAME, "image", "array"]
                    return _VideoPlan(source[0], {}, {}, *self._attribute_plan(video, source[0], taken))
                continue
            main = values_of(self._files, self._files.dataset(self._path(video, source[1])))
            if "" not in main or not main[""].count:
                continue
            values = {default_name(main[""].field): (source[1], main[""])}
            others = [name for name in split(group)[0] if name != source[1]]
            for name, field_ in field_names(others, [VIDEO, FRAME, *values]).items():
                dataset = self._files.dataset(self._path(video, name))
                if dataset.shape[:1] == (main[""].count,):
                    values[field_] = name, values_of(self._files, dataset)[""]
            columns = {field_: name for field_, (name, _) in values.items()}
            fields = {field_: found.field for field_, (_, found) in values.items()}
            return _VideoPlan(None, columns, fields, *self._attribute_plan(video, None, [VIDEO, FRAME, *columns]))
        there = "it has none"
        if videos:
            there = f"the first holds {', '.join(self._files.group(self._path(videos[0]))) or 'nothing'}"
        raise FormatError(
            f"{self._files.url}: no group of {self._group or '/'} holds frames ({there}); group= names the group that holds "
            "the videos, frames= the dataset or group of frames in each"
        )

    def _attribute_plan(
        self, video: str, numbered: str | None, taken: Sequence[str]
    ) -> tuple[dict[str, str], dict[str, Field]]:
        found = self._attributes_of(video, numbered)
        names = {field_: name for name, field_ in field_names(list(found), taken).items()}
        kinds = attribute_fields(found)
        return names, {field_: kinds[name] for field_, name in names.items()}

    def _attributes_of(self, video: str, numbered: str | None) -> dict[str, JSON]:
        """Return the attributes of a video's group, and the datasets of one number or text beside the frames."""
        path = self._path(video)
        found = attributes(self._files.group(path))
        return found if numbered == "" else {**single_values(self._files, path), **found}

    def _numbered(self, plan: _VideoPlan, video: str) -> list[str]:
        assert plan.numbered is not None
        group = self._files.group(self._path(video))
        if plan.numbered and plan.numbered not in group:
            return []
        return natural_order(split(self._files.group(self._path(video, plan.numbered)))[0])

    def _rows(self, plan: _VideoPlan, video: str, inner: dict[str, set[tuple[int, ...]]]) -> int:
        """Return how many frames a video has, and add the shapes of its rows to `inner`."""
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

    def _add_attributes(self, plan: _VideoPlan, video: str, found: dict[str, list[JSON]]) -> None:
        if not plan.attributes:
            return
        has = self._attributes_of(video, plan.numbered)
        kinds = attribute_fields(has)
        for field_, name in plan.attributes.items():
            if kinds.get(name) != plan.attribute_kinds[field_]:
                raise FormatError(
                    f"{self._files.url}: {name!r} of video {video!r} is {has.get(name, 'missing')!r}, expected "
                    f"{plan.attribute_kinds[field_].kind} as in other videos"
                )
            found[field_].append(has[name])


def _merged(declared: Field, shapes: set[tuple[int, ...]]) -> Field:
    if declared.kind != "array" or len(shapes) < 2:
        return declared
    sizes = tuple(axis[0] if len(set(axis)) == 1 else None for axis in zip(*shapes, strict=True))
    return Field("array", declared.dtype, sizes)


class PerVideoOptions(ForeignOptions):
    """Options of layout ``per_video``, besides those of every foreign HDF5 layout. `group` holds the videos.

    Attributes
    ----------
    frames : str, optional
        The name of the dataset of frames, or of the group of numbered frames, in each video's group.
    empty : str
        A video without frames is an error (``refuse``), or left out (``skip``).
    """

    frames: str | None = None
    empty: Literal["refuse", "skip"] = "refuse"


class PerVideoHdf5(IndexedHdf5):
    """Reads each frame of each video as a record: ``image`` or ``array``, ``video``, ``frame``, the video's attributes.

    Parameters
    ----------
    url : str
    **options
        See `PerVideoOptions`.
    """

    Options: ClassVar[type[PerVideoOptions]] = PerVideoOptions
    layout: ClassVar[str] = "per_video"
    index_version: ClassVar[int] = 3
    index_options: ClassVar[tuple[str, ...]] = ("group", "frames", "empty")

    @classmethod
    def _find(cls, files: Hdf5Files) -> Contents:
        index = cls._index(files)
        facts = msgspec.convert(index.facts, _VideoFacts)
        plan, bounds, prefix, names = facts.plan, index.numbers, facts.group, facts.videos
        count = int(bounds[-1])
        columns: dict[str, Values] = {}
        if plan.numbered is not None:
            ((name, kind),) = plan.fields.items()
            columns[name] = Computed(kind, count, lambda at: read_element(files, kind, f"{prefix}/{index.name(at)}"))
        for name, where in plan.columns.items():
            paths = [f"{prefix}/{video}/{where}" for video in names]
            columns[name] = SequenceRows(files, paths, bounds, plan.fields[name])
        columns[VIDEO] = SequenceValues(bounds, Field("str"), names)
        columns[FRAME] = RowNumbers(bounds)
        for name, field_ in plan.attribute_kinds.items():
            columns[name] = SequenceValues(bounds, field_, facts.attributes[name])
        return Contents(columns, count, {}, [files.settings.group, bounds.tolist()[:: max(1, len(names) // 64)]])

    @classmethod
    def _scan(cls, files: Hdf5Files) -> Array:
        frames = files.settings.frames
        group = _enter(files, files.settings.group, frames)
        return _VideoScan(files, group, frames, skip_empty=files.settings.empty == "skip").scan()

    @classmethod
    def _unread_in(cls, files: Hdf5Files) -> Unread:
        facts = msgspec.convert(cls._index(files).facts, _VideoFacts)
        plan = facts.plan
        known = {*plan.columns.values(), *plan.attributes.values()}
        unread, seen = Unread(), set()
        for video in sample_evenly(facts.videos):
            for member in members(files, f"{facts.group}/{video}"):
                head, _, tail = member.path.rpartition("/")
                read = member.path in known or (plan.numbered is not None and head == plan.numbered and bool(tail))
                if read or member.path not in seen:
                    unread.add(member, None if read else f"not one value for each frame, in {video!r}")
                seen.add(member.path)
        return unread

    @classmethod
    def _guess(cls, files: Hdf5Files) -> str | None:
        wanted = files.settings.frames
        group = _enter(files, files.settings.group, wanted)
        datasets, groups = split(files.group(group))
        alone = len(groups) == 1 and wanted is None and files.settings.group == "/"
        if datasets or not groups or alone or are_splits(groups):
            return None
        found = _video_sources(files, group, groups, wanted)
        if not found:
            if wanted is None:
                return None
            raise ConfigError(
                f"{files.url}: frames={wanted!r} names nothing in the groups of {group}; {groups[0]!r} holds "
                f"{', '.join(files.group(f'{group}/{groups[0]}')) or 'nothing'}"
            )
        name, (numbered, dataset) = next(iter(found.items()))
        if numbered == "":
            fits = _are_numbered_frames(files, group, groups, name)
        else:
            fits = not dataset or _are_frames(files, f"{group}/{name}/{dataset}")
        if not fits:
            return None
        if numbered is None and wanted is None and not _are_videos(files, group, groups, name, dataset):
            raise ambiguous(files.url, [*_readings(files, group, groups, dataset)])
        what = f"numbered datasets in {name}/{numbered}" if numbered is not None else f"frames in {name}/{dataset}"
        inspected = min(len(groups), LOOKED_AT)
        return f"{len(found)} of {inspected} groups inspected, of {len(groups)} in {group}, hold frames, as {what}"


def _enter(files: Hdf5Files, group: str, frames: str | None) -> str:
    """Return the group of the videos: `group`, or the only group in it, unless that one is a video."""
    names, groups = split(files.group(group))
    if names or len(groups) != 1:
        return group
    inner = f"{group.rstrip('/')}/{groups[0]}"
    return group if _frame_source(files.group(inner), frames) is not None else _enter(files, inner, frames)


def _are_numbered_frames(files: Hdf5Files, group: str, groups: Sequence[str], video: str) -> bool:
    """Whether groups of numbered datasets may be videos, not the classes or the fields of samples."""
    try:
        series = series_of(files, group)
    except SeveralWaysError:
        series = None  # layout per_sample reports the other readings
    frames = split(files.group(f"{group}/{video}"))[0]
    if len(frames) < 2 or (series is not None and (series.sort != "fields" or are_field_names(groups))):
        return False
    verdict = frames_or_samples(files, group, groups)
    return verdict == "frames" or (series is None and verdict == "either")


def _are_videos(files: Hdf5Files, group: str, groups: Sequence[str], video: str, dataset: str) -> bool:
    """Whether rows of a dataset can only be frames: named so, in groups named as videos, or described as a video is."""
    named = dataset.lower() in VIDEO_NAMES or all(map(NUMBERED_VIDEO.fullmatch, groups))
    path = f"{group.rstrip('/')}/{video}"
    return named or bool(attributes(files.group(path))) or bool(single_values(files, path))


def _readings(files: Hdf5Files, group: str, groups: Sequence[str], dataset: str) -> Iterator[Reading]:
    """Yield the two ways to read groups that are videos or classes."""
    options = files.settings.model_dump()
    frames = f"each group is a video, and the rows of its {dataset!r} are frames"
    yield Reading("layout='per_video'", frames, functools.partial(PerVideoHdf5, files.path, **options))
    names, prefix = natural_order(groups), group.strip("/")
    start = f"hdf5://{files.path}?group={prefix}{'/' if prefix else ''}"
    opened = functools.partial(open_backend, [f"{start}{name}" for name in names])
    classes = "each group is a class, in this order, and its rows are samples; no field holds the name of the group"
    yield Reading(f"[f'{start}{{name}}' for name in {names!r}] as the source", classes, opened)


def _are_frames(files: Hdf5Files, name: str) -> bool:
    values = values_of(files, files.dataset(name))
    if "" not in values:
        return False
    kind = values[""].field
    return kind.kind in ("image", "bytes") or (kind.kind == "array" and len(kind.shape or ()) >= 2)
