"""Sources for videos: files, or folders of frames. Each video becomes consecutive records, one per frame."""

from __future__ import annotations

import copy
import io
import itertools
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from PIL import Image

from storeds.errors import ConfigError, MissingDependencyError
from storeds.ops.packing.sources.base import (
    BadItem,
    Fingerprint,
    Problem,
    Root,
    StringArray,
    class_notes,
    file_state,
    locate,
    read_file,
    show,
)
from storeds.ops.packing.sources.old_folders import FoundFile, Walk, folders_in
from storeds.protocols import JSON, Field, Record

if TYPE_CHECKING:
    import av.container
    import av.video.stream

__all__ = ["VIDEO_SUFFIXES", "FrameFolderSource", "VideoSource"]


class _Videos:
    """Videos below a folder: the base of sources whose records are frames.

    Parameters
    ----------
    root : str
        The folder.
    label : bool or None
        Whether its folders are classes; None detects that.
    allow_empty : bool
        Accept classes without a video.
    """

    fields: Mapping[str, Field]

    def __init__(self, root: str, *, label: bool | None, allow_empty: bool) -> None:
        self._root, self._allow_empty, self._has_labels = os.path.abspath(root), allow_empty, label
        self._keys, self._labels, self._ends = StringArray(), array("q"), array("q")
        self._fingerprint = Fingerprint()
        self.problems: Sequence[Problem] = ()
        self.notes: Sequence[str] = ()
        self.attrs: Mapping[str, JSON] = {}

    def _classify(self, names: Sequence[str], walk: Walk, what: str) -> dict[str, int]:
        """Return the label of each class, if videos have labels. `names` are paths relative to the root."""
        inside = [name for name in names if "/" in name]
        if self._has_labels is None and inside and len(inside) < len(names):
            outside = next(name for name in names if "/" not in name)
            raise ConfigError(
                f"{show(self._root)} contains {what} beside its folders ({outside!r}) and in them ({inside[0]!r}); pass "
                "label=False (--no-label) to pack all without labels"
            )
        if self._has_labels and len(inside) < len(names):
            outside = next(name for name in names if "/" not in name)
            raise ConfigError(f"label=True: {outside!r} is not in a folder that gives its class")
        self._has_labels = bool(inside) if self._has_labels is None else self._has_labels
        if not self._has_labels:
            return {}
        classes = sorted(folders_in(self._root, walk))
        held = {name.split("/", 1)[0] for name in inside} | {problem.name.split("/", 1)[0] for problem in walk.problems}
        empty = [name for name in classes if show(name) not in held]
        if empty and not self._allow_empty:
            raise ConfigError(
                f"{show(self._root)}: no {what} in {', '.join(map(show, empty[:8]))}; remove these folders, fill them, or "
                "pass allow_empty=True (--allow-empty)"
            )
        listed: list[JSON] = [show(name) for name in classes]
        self.attrs = {"classes": listed}
        return {name: label for label, name in enumerate(classes)}

    def _add(self, key: str, label: int, count: int, *numbers: int) -> None:
        self._keys.append(key)
        self._labels.append(label)
        self._ends.append(count + (self._ends[-1] if self._ends else 0))
        self._fingerprint.add(key, label, count, *numbers)

    def _finish(self, kind: str, more: Mapping[str, Field], walk: Walk) -> None:
        names: Any = self.attrs.get("classes", [])
        self.problems, self.notes = tuple(walk.problems), (*class_notes(names), *walk.hidden.notes())
        label = {"label": Field("int")} if self._has_labels else {}
        numbers = {"video": Field("int"), "frame": Field("int")}
        self.fields = {"image": Field("image"), **label, **numbers, "key": Field("str"), **more}
        self.fingerprint: JSON = self._fingerprint.finish(kind, len(self))
        del self._fingerprint  # it does not pickle

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def strata(self) -> Iterator[tuple[str, int]]:
        """Yield the key and the label of each item."""
        start = 0
        for video, end in enumerate(self._ends):
            yield from itertools.repeat((self._keys[video], self._labels[video]), end - start)
            start = end

    def name(self, index: int, /) -> str:
        # docstring inherited
        video, frame = locate(self._ends, index)
        return f"{self._keys[video]} frame {frame}"

    def _record(self, video: int, frame: int, image: bytes) -> Record:
        label = {"label": self._labels[video]} if self._has_labels else {}
        return {"image": image, **label, "video": video, "frame": frame, "key": self._keys[video]}


_TIMED = {"mp4", "matroska", "webm"}
"""Containers that store when each frame is shown. Others store when it is decoded, or libavformat guesses."""

_FAR = 250
"""Decoding this many frames is faster than seeking: about the distance of two key frames."""


@dataclass(frozen=True)
class _Video:
    """The frames to pack from one video file.

    Attributes
    ----------
    marks : array of int64
        The presentation time of each frame in units of the file, or its position among all frames if `ordered`.
    unit : Fraction
        Seconds per unit of a mark.
    start : int
        The mark of the first frame of the file.
    ordered : bool
        Whether the file has no reliable presentation times, so that frames are found by counting.
    size : tuple of int
        Width and height.
    missing : int
        Frames that the header announces but the file lacks, or that cannot be decoded at all.
    """

    marks: array[int]
    unit: Fraction
    start: int
    ordered: bool
    size: tuple[int, int]
    missing: int = 0

    def time(self, at: int) -> float:
        """Return when frame `at` is shown, in seconds from the first frame of the file."""
        return float((self.marks[at] - self.start) * self.unit)


def _import_av() -> Any:
    """Return PyAV; raises MissingDependencyError."""
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(
            f"packing videos needs PyAV: {error}; install it: pip install 'storeds[video]'"
        ) from error
    return av


def _list_frames(path: str, fps: Fraction | None) -> _Video:
    """Return the frames to pack from the video at `path`; raises `BadItem` if it cannot be read.

    Parameters
    ----------
    fps : Fraction, optional
        The most frames per second to pack: the frame shown at each multiple of ``1 / fps`` seconds, but none twice.
    """
    av = _import_av()
    try:
        with av.open(path) as container:
            stream = _video_of(container)
            packets = [packet for packet in container.demux(stream) if packet.size]
            shown = [packet.pts for packet in packets if not packet.is_discard]
            ordered = None in shown or not _TIMED.intersection(container.format.name.split(","))
            unit, rate = Fraction(stream.time_base or 1), Fraction(stream.average_rate or 25)
            size, missing = (stream.width, stream.height), max(_promised(stream, shown) - len(packets), 0)
        if ordered:
            cursor = _FrameCursor(path, ordered=True)
            shown, unit, missing = list(range(sum(1 for _ in cursor.frames()))), 1 / rate, cursor.faults
    except av.error.FFmpegError as error:
        raise BadItem(f"cannot be read as a video: {error.strerror}") from None
    marks = np.unique(np.array(shown, np.int64))
    if not marks.size:
        raise BadItem("is a video without frames")
    taken = marks if fps is None else _thinned(marks, unit, fps)
    return _Video(array("q", taken.tolist()), unit, int(marks[0]), ordered, size, missing)


def _promised(stream: av.video.stream.VideoStream, shown: list[int | None]) -> int:
    """Return how many packets the header announces: MP4 stores their number, Matroska their duration."""
    if stream.frames:
        return stream.frames
    long = re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", ""))
    marks = [mark for mark in shown if mark is not None]
    if long is None or not marks or stream.time_base is None:
        return 0
    duration = (int(long[1]) * 60 + int(long[2])) * 60 + Fraction(long[3])
    lacking = (duration - max(marks) * stream.time_base) * Fraction(stream.average_rate or 25)
    return len(marks) + round(lacking) - 1  # the last frame has a duration, too


def _video_of(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    """Return the first video stream that is not a cover picture."""
    for stream in container.streams.video:
        if "attached_pic" not in str(getattr(stream, "disposition", "")):
            return stream
    raise BadItem("contains no video, only " + (", ".join({stream.type for stream in container.streams}) or "nothing"))


def _thinned(marks: np.ndarray[Any, np.dtype[np.int64]], unit: Fraction, fps: Fraction) -> Any:
    """Return the `marks` of the frames shown at multiples of ``1 / fps``."""
    step = 1 / (fps * unit)
    count = int((int(marks[-1]) - int(marks[0])) / step) + 1
    times = np.array([int(marks[0]) + int(at * step) for at in range(count)], np.int64)
    return marks[np.unique(np.searchsorted(marks, times, side="right") - 1)]


@dataclass
class _FrameCursor:
    """Finds frames of one video file: fast in order, and in any order. Not thread-safe.

    Parameters
    ----------
    path : str
        The file.
    ordered : bool
        Whether marks are positions, not times.
    """

    path: str
    ordered: bool
    faults: int = 0
    """Packets so far that did not decode."""
    _container: Any = field(default=None, repr=False)
    _frames: Iterator[tuple[int, Any, bool]] = field(default_factory=lambda: iter(()), repr=False)
    _current: tuple[int, Any, bool] | None = field(default=None, repr=False)
    _at: int = -1

    def find(self, video: _Video, at: int) -> Any:
        """Return frame `at` of `video`, an `av.VideoFrame`; raises `BadItem` if it is damaged or missing."""
        mark = video.marks[at]
        av = _import_av()
        try:
            if self._current is None or self._current[0] > mark or at - self._at > _FAR:
                self._seek(mark, video.start)
            self._at = at
            while self._current is not None and self._current[0] < mark:
                self._current = next(self._frames, None)
        except av.error.FFmpegError as error:
            self.close()
            raise BadItem(f"cannot be decoded: {error.strerror}") from None
        if self._current is None or self._current[0] != mark:
            raise BadItem("cannot be decoded: the file is damaged there")
        if self._current[2]:
            raise BadItem("cannot be decoded completely: the file is damaged there, or since the last key frame")
        return self._current[1]

    def frames(self) -> Iterator[tuple[int, Any, bool]]:
        """Reopen the file and yield mark, frame, and whether it is damaged, for each frame."""
        self._open()
        yield from self._frames
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._container is not None:
            self._container.close()
        self._container, self._current, self._frames, self._at = None, None, iter(()), -1

    def _open(self) -> None:
        self.close()
        self._container = _import_av().open(self.path)
        stream = _video_of(self._container)
        stream.thread_type = "AUTO"
        # By default the decoder fills damaged frames with guesses and reports nothing.
        stream.codec_context.options = {"err_detect": "explode"}
        self._frames = self._decode(stream)

    def _seek(self, mark: int, start: int) -> None:
        """Move to a frame at or before `mark`: the key frame before it if the file is seekable."""
        self._open()
        if not self.ordered and mark > start:
            self._container.seek(mark, stream=_video_of(self._container))
            self._current = next(self._frames, None)
            if self._current is not None and self._current[0] <= mark:
                return
            self._open()
        self._current = next(self._frames, None)

    def _decode(self, stream: Any) -> Iterator[tuple[int, Any, bool]]:
        av, place, is_damaged = _import_av(), 0, False
        for packet in self._container.demux(stream):
            try:
                frames = packet.decode()
            except av.error.InvalidDataError:
                frames, is_damaged = [], True
                self.faults += 1
            for frame in frames:
                # Frames decoded from damaged ones are damaged, up to the next key frame.
                is_damaged = frame.is_corrupt or (is_damaged and not frame.key_frame)
                yield place if self.ordered else frame.pts, frame, is_damaged
                place += 1
            is_damaged = is_damaged or packet.is_corrupt


def _encode(frame: Any, max_side: int | None, quality: int) -> bytes:
    """Return an `av.VideoFrame` as an upright JPEG, its longer side scaled down to `max_side`."""
    size = _scaled(frame.width, frame.height, max_side)
    scale = {} if size == (frame.width, frame.height) else dict(zip(("width", "height"), size, strict=True))
    image: Image.Image = frame.to_image(**scale, interpolation="LANCZOS") if scale else frame.to_image()
    if rotation := getattr(frame, "rotation", 0):  # videos of phones; PyAV reports it since version 14
        image = image.rotate(rotation, expand=True)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _scaled(width: int, height: int, max_side: int | None) -> tuple[int, int]:
    """Return width and height such that the longer one is `max_side` at most."""
    longer = max(width, height)
    if max_side is None or longer <= max_side:
        return width, height
    return max(1, round(width * max_side / longer)), max(1, round(height * max_side / longer))


VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv")
_QUALITY = 90
_PIXELS_PER_BYTE = 8  # of a JPEG, about


class VideoSource(_Videos):
    """A folder of videos, including the folders below it, or one video. Each frame is encoded as JPEG.

    Parameters
    ----------
    root : path
        The folder or the video. If videos are only in its sub-folders, these are their classes.
    fps : float or str, optional
        The most frames per second to pack, also as ``"30000/1001"``; all by default.
    label : bool, optional
        Whether the folders are classes; detected by default.
    max_side, quality : int, optional
        As for `storeds.pack`, which passes its own here, so that no frame is encoded twice.
    allow_outside : bool
        Follow links that lead out of the folder.
    allow_empty : bool
        Accept classes without a video.
    include_hidden : bool
        Include hidden files and folders.

    Notes
    -----
    Records have ``image``, ``label`` (if there are classes), ``video``, ``frame``, ``key`` (the path of the video, so that
    a split keeps a video together) and ``time`` (in seconds from the beginning of the video). Listing reads the packets
    of a video. It decodes frames only if the file is neither MP4 nor Matroska, because only these store when frames are
    shown. Reading decodes one frame after the other and holds one in memory.

    A video that cannot be opened or is cut short is a problem. Frames that cannot be decoded completely are bad items.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It contains no videos; an option is malformed.
    MissingDependencyError
        PyAV is not installed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        fps: float | str | None = None,
        label: bool | None = None,
        max_side: int | None = None,
        quality: int | None = None,
        allow_outside: bool = False,
        allow_empty: bool = False,
        include_hidden: bool = False,
    ) -> None:
        _import_av()
        path = os.fspath(root)
        single = os.path.isfile(path)
        folder = os.path.dirname(os.path.abspath(path)) if single else path
        super().__init__(folder, label=False if single else label, allow_empty=allow_empty)
        rate = _rate(fps)
        self._max_side, self._quality = max_side, quality
        walk = Walk(Root(self._root, allow_outside=allow_outside), VIDEO_SUFFIXES, include_hidden=include_hidden)
        if not single:
            folders_in(folder)
        found = [(os.path.basename(path), *file_state(path))] if single else list(walk.files(""))
        if not found and not walk.problems:
            raise ConfigError(f"{root} contains no videos ({' '.join(VIDEO_SUFFIXES)}), not even in folders below it")
        classes = self._classify([key for key, _, _ in found], walk, "videos")
        self._videos: list[_Video] = []
        for key, size, mtime in found:
            self._list(key, classes.get(key.split("/", 1)[0], -1), size, mtime, rate, walk.problems)
        self._fingerprint.add(f"{rate} {max_side} {quality}")
        self._cursor: _FrameCursor | None = None
        self._finish("videos", {"time": Field("float")}, walk)

    def _list(
        self, key: str, label: int, size: int, mtime: int, rate: Fraction | None, problems: list[Problem]
    ) -> None:
        try:
            video = _list_frames(self._path(key), rate)
        except BadItem as error:
            problems.append(Problem(key, str(error)))
            return
        if video.missing:
            problems.append(Problem(key, f"is cut short or damaged: about {video.missing} of its frames are missing"))
        self._videos.append(video)
        self._add(key, label, len(video.marks), size, mtime)

    def encoded(self, max_side: int | None, quality: int | None) -> Self:
        """Return a source of the same videos with these settings; None leaves a setting unchanged."""
        other = copy.copy(self)
        other._max_side = self._max_side if max_side is None else max_side
        other._quality = self._quality if quality is None else quality
        return other

    def size(self, index: int, /) -> int:
        # docstring inherited
        width, height = _scaled(*self._videos[locate(self._ends, index)[0]].size, self._max_side)
        return width * height // _PIXELS_PER_BYTE + 1

    def read(self, index: int, /) -> Record:
        # docstring inherited
        number, frame = locate(self._ends, index)
        video, path = self._videos[number], self._path(self._keys[number])
        if self._cursor is None or self._cursor.path != path:
            if self._cursor is not None:
                self._cursor.close()
            self._cursor = _FrameCursor(path, video.ordered)
        image = _encode(self._cursor.find(video, frame), self._max_side, self._quality or _QUALITY)
        return {**self._record(number, frame, image), "time": video.time(frame)}

    def _path(self, key: str) -> str:
        return os.path.join(self._root, key.replace("/", os.sep))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": None}


class FrameFolderSource(_Videos):
    """A folder of videos, each a folder of images ordered by the numbers in their names. Images keep their bytes.

    Parameters
    ----------
    root : path
        The folder. If it contains folders of videos, these are their classes: ``root/class/video/0001.jpg``.
    label, allow_outside, allow_empty, include_hidden
        As for `VideoSource`.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It contains no folders of images.
    """

    thread_safe = True

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        label: bool | None = None,
        allow_outside: bool = False,
        allow_empty: bool = False,
        include_hidden: bool = False,
    ) -> None:
        super().__init__(os.fspath(root), label=label, allow_empty=allow_empty)
        folders_in(os.fspath(root))
        walk = Walk(Root(self._root, allow_outside=allow_outside), include_hidden=include_hidden)
        videos: dict[str, list[FoundFile]] = {}
        for one in walk.files(""):
            videos.setdefault(os.path.dirname(one[0]), []).append(one)
        if not (videos or walk.problems) or "" in videos:
            held = "images beside them" if "" in videos else "none"
            raise ConfigError(f"{root}: expected folders of images, one per video, but there are {held}")
        classes = self._classify(list(videos), walk, "videos")
        self._frames, self._sizes = StringArray(), array("q")
        for key, frames in videos.items():
            frames.sort(key=lambda one: _natural(one[0]))
            for path, size, mtime in frames:
                self._frames.append(path)
                self._sizes.append(size)
                self._fingerprint.add(path, size, mtime)
            self._add(key, classes.get(key.split("/", 1)[0], -1), len(frames))
        self._finish("frames", {}, walk)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return self._frames[index]

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]

    def read(self, index: int, /) -> Record:
        # docstring inherited
        path = os.path.join(self._root, self._frames[index].replace("/", os.sep))
        return self._record(*locate(self._ends, index), read_file(path))


def _rate(fps: float | str | None) -> Fraction | None:
    if fps is None:
        return None
    try:
        rate = Fraction(str(fps))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if isinstance(fps, bool) or rate <= 0:
        raise ConfigError(f"fps must be a number of frames per second above 0, got {fps!r}")
    return rate


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a sort key that puts 2 before 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]
