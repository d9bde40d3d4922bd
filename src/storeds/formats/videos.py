"""Reads video files: each becomes consecutive records, one per frame."""

from __future__ import annotations

import io
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from storeds.errors import ConfigError, MissingDependencyError
from storeds.formats.format import Format
from storeds.formats.frames import label_of, video_fields, video_labels
from storeds.layouts.files.folders import class_notes
from storeds.layouts.files.rows import Bad, BadItem, File, Row, Rows
from storeds.layouts.files.walk import VIDEO_SUFFIXES, Root, Walk, folders_in, show
from storeds.protocols import JSON, Field

if TYPE_CHECKING:
    import av.container
    import av.video.stream

__all__ = ["VIDEOS", "videos"]

_TIMED = {"mp4", "matroska", "webm"}
"""Containers that store when each frame is shown. Others store when it is decoded, or libavformat guesses."""

_QUALITY = 90


def videos(
    path: str | os.PathLike[str],
    *,
    fps: float | str | None = None,
    label: bool | None = None,
    classes: Sequence[str] | os.PathLike[str] | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    allow_outside: bool = False,
) -> Rows:
    """Rows of a folder of videos, including the folders below it, or of one video. Each frame is encoded as JPEG.

    Parameters
    ----------
    path : path
        The folder or the video. If videos are only in its sub-folders, these are their classes.
    fps : float or str, optional
        The most frames per second to pack, also as ``"30000/1001"``; all by default.
    label : bool, optional
        Whether the folders are classes; detected by default.
    classes
        As for `~storeds.layouts.files.folders.imagefolder`.
    max_side, quality : int, optional
        As for `storeds.pack`, which passes its own here, so that no frame is encoded twice.
    allow_outside
        As for `~storeds.layouts.files.folders.imagefolder`.

    Notes
    -----
    Records have ``image``, ``label`` (if there are classes), ``video``, ``frame``, ``key`` (the path of the video, so that
    a split keeps a video together) and ``time`` (in seconds from the beginning of the video). Listing reads the packets
    of a video. It decodes frames only if the file is neither MP4 nor Matroska, because only these store when frames are
    shown. Reading decodes one frame after the other and holds one in memory.

    A video that cannot be opened or is cut short is a bad item. So is each frame that cannot be decoded completely.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It contains no videos; an option is malformed.
    MissingDependencyError
        PyAV is not installed.
    """
    _import_av()
    where, rate = os.path.abspath(path), _rate(fps)
    is_file = os.path.isfile(where)
    top = os.path.dirname(where) if is_file else where
    walk = Walk(Root(top, allow_outside=allow_outside), VIDEO_SUFFIXES)
    found: list[tuple[str, File] | Bad] = [(os.path.basename(where), File(where))]
    if not is_file:
        folders_in(top)
        found = list(walk.files(""))
    if not found:
        raise ConfigError(
            f"{show(where)} contains no videos ({' '.join(VIDEO_SUFFIXES)}), not even in folders below it"
        )
    label = False if is_file else label
    labels, names = video_labels(top, found, walk.hidden, label=label, classes=classes)
    listed = list(_list_videos(found, rate, labels))
    states = [(each.name, *each.file.state, each.is_ordered) for each in listed if isinstance(each, _Video)]

    def items(start: int) -> Iterator[Row | Bad]:
        for each in listed:
            if start >= _count(each):
                start -= _count(each)
                continue
            yield from (each,) if isinstance(each, Bad) else each.rows(start, max_side, quality)
            start = 0

    def strata() -> Iterator[Row | Bad]:
        for each in listed:
            yield from [each if isinstance(each, Bad) else Row(each.name, each.values)] * _count(each)

    return Rows(
        fields=video_fields(labels) | {"time": Field("float")},
        attrs={} if labels is None else {"classes": list[JSON](names)},
        items=items,
        state=(states, list(map(_count, listed)), rate, max_side, quality),
        is_encoded=True,
        count=sum(map(_count, listed)),
        strata=strata,
        notes=[*(class_notes(names) if classes is None else ()), *walk.notes()],
    )


@dataclass
class _Video:
    """The frames to pack from one video file.

    Attributes
    ----------
    name, file
        Its path below the root, and the file.
    marks : array of int64
        The presentation time of each frame in units of the file, or its position among all frames if `is_ordered`.
    start : int
        The mark of the first frame of the file.
    unit : Fraction
        Seconds per unit of a mark.
    is_ordered : bool
        Whether the file has no reliable presentation times, so that frames are found by counting.
    values : dict
        The fields that are equal in all frames.
    """

    name: str
    file: File
    marks: array[int]
    start: int
    unit: Fraction
    is_ordered: bool
    values: dict[str, Any] = field(default_factory=dict)

    def rows(self, first: int, max_side: int | None, quality: int | None) -> Iterator[Row | Bad]:
        """Yield the frames from `first` on, decoded in order from the first of the file."""
        av = _import_av()
        decoded = _decode(self.file.path, is_ordered=self.is_ordered)
        current: _Decoded | None = None
        fault = "the file is damaged there"
        for at, mark in enumerate(self.marks):
            try:
                while current is None or current[0] < mark:
                    current = next(decoded)
            except StopIteration:
                current = None
            except av.error.FFmpegError as error:
                current, fault = None, error.strerror
            if at < first:
                continue
            name = f"{self.name} frame {at}"
            if current is None or current[0] != mark:
                yield Bad(name, f"cannot be decoded: {fault}")
            elif current[2]:
                yield Bad(name, "cannot be decoded completely: the file is damaged there, or since the last key frame")
            else:
                time = float((mark - self.start) * self.unit)
                image = _encode(current[1], max_side, quality or _QUALITY)
                yield Row(name, {"image": image, **self.values, "frame": at, "time": time})


_Decoded = tuple[int, Any, bool]
"""The mark of a frame, the `av.VideoFrame`, and whether it is damaged."""


def _count(listed: Bad | _Video) -> int:
    return 1 if isinstance(listed, Bad) else len(listed.marks)


def _encode(frame: Any, max_side: int | None, quality: int) -> bytes:
    """Return an `av.VideoFrame` as an upright JPEG, its longer side scaled down to `max_side`."""
    longer, scale = max(frame.width, frame.height), {}
    if max_side is not None and longer > max_side:
        sides = (max(1, round(side * max_side / longer)) for side in (frame.width, frame.height))
        scale = dict(zip(("width", "height"), sides, strict=True), interpolation="LANCZOS")
    image: Image.Image = frame.to_image(**scale)
    if rotation := getattr(frame, "rotation", 0):  # videos of phones; PyAV reports it since version 14
        image = image.rotate(rotation, expand=True)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _import_av() -> Any:
    """Return PyAV; raises MissingDependencyError."""
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(
            f"packing videos needs PyAV: {error}; install it: pip install 'storeds[video]'"
        ) from error
    return av


def _list_videos(
    found: Iterable[tuple[str, File] | Bad], rate: Fraction | None, labels: Mapping[str, int] | None
) -> Iterator[Bad | _Video]:
    """Yield the videos with their frames, and what is wrong with files."""
    number = 0
    for each in found:
        if isinstance(each, Bad):
            yield each
            continue
        key, file = each
        try:
            video, missing = _list_frames(key, file, rate)
        except BadItem as error:
            yield Bad(key, str(error))
            continue
        if missing:
            yield Bad(key, f"is cut short or damaged: about {missing} of its frames are missing")
        video.values = {**label_of(labels, key), "video": number, "key": key}
        yield video
        number += 1


def _list_frames(key: str, file: File, fps: Fraction | None) -> tuple[_Video, int]:
    """Return a video, and how many frames its file announces but lacks; raises `BadItem`.

    With `fps`, it has the frame shown at each multiple of ``1 / fps`` seconds, but none twice.
    """
    av = _import_av()
    if not os.path.isfile(file.path):  # opening a FIFO would block
        raise BadItem("is no regular file")
    try:
        with av.open(file.path, metadata_errors="replace") as container:
            stream = _video_of(container)
            count, shown = 0, array("q")
            is_ordered = not _TIMED.intersection(container.format.name.split(","))
            for packet in container.demux(stream):  # each holds its bytes: keep none
                count += packet.size > 0
                if packet.size and not packet.is_discard:
                    is_ordered = is_ordered or packet.pts is None
                    if packet.pts is not None:
                        shown.append(packet.pts)
            unit, rate = Fraction(stream.time_base or 1), Fraction(stream.average_rate or 25)
            missing = max(_promised(stream, shown) - count, 0)
        if is_ordered:
            faults: list[str] = []
            count = sum(1 for _ in _decode(file.path, is_ordered=True, faults=faults))
            shown, unit, missing = array("q", range(count)), 1 / rate, len(faults)
    except av.error.FFmpegError as error:
        raise BadItem(f"cannot be read as a video: {error.strerror}") from None
    marks = np.unique(np.array(shown, np.int64))
    if not marks.size:
        raise BadItem("is a video without frames")
    start = int(marks[0])
    if fps is not None:
        step = 1 / (fps * unit)
        # The first multiple at or after each mark. Listing all multiples would take the memory that one mark claims.
        due = [start - (start - mark) // step * step for mark in marks.tolist()]
        stops = [*marks[1:].tolist(), marks[-1]]
        marks = marks[
            [at < stop or at == stop == mark for at, stop, mark in zip(due, stops, marks.tolist(), strict=True)]
        ]
    return _Video(key, file, array("q", marks.tolist()), start, unit, is_ordered), missing


def _promised(stream: av.video.stream.VideoStream, marks: Sequence[int]) -> int:
    """Return how many packets the header announces: MP4 stores their number, Matroska their duration."""
    if stream.frames:
        return stream.frames
    long = re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", ""))
    if long is None or not marks or stream.time_base is None:
        return 0
    duration = (int(long[1]) * 60 + int(long[2])) * 60 + Fraction(long[3])
    lacking = (duration - max(marks) * stream.time_base) * Fraction(stream.average_rate or 25)
    return len(marks) + round(lacking) - 1  # the last frame has a duration, too


def _video_of(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    """Return the first video stream that can be decoded and is not a cover picture."""
    for stream in container.streams.video:
        if stream.codec_context is not None and "attached_pic" not in str(getattr(stream, "disposition", "")):
            return stream
    found = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
    raise BadItem(f"contains no video that can be decoded; its streams are {found}")


def _decode(path: str, *, is_ordered: bool = False, faults: list[str] | None = None) -> Iterator[_Decoded]:
    """Yield each frame of a file; packets that fail go to `faults`."""
    av = _import_av()
    place, is_damaged = 0, False
    with av.open(path, metadata_errors="replace") as container:
        stream = _video_of(container)
        stream.thread_type = "AUTO"
        # By default the decoder fills damaged frames with guesses and reports nothing.
        stream.codec_context.options = {"err_detect": "explode"}
        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except av.error.InvalidDataError as error:
                frames, is_damaged = [], True
                if faults is not None:
                    faults.append(str(error))
            for frame in frames:
                # Frames decoded from damaged ones are damaged, up to the next key frame.
                is_damaged = frame.is_corrupt or (is_damaged and not frame.key_frame)
                yield place if is_ordered else frame.pts, frame, is_damaged
                place += 1
            is_damaged = is_damaged or packet.is_corrupt


def _rate(fps: float | str | None) -> Fraction | None:
    try:
        rate = None if fps is None else Fraction(str(fps))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if rate is not None and rate <= 0:
        raise ConfigError(f"fps must be a number of frames per second above 0, got {fps!r}")
    return rate


VIDEOS = Format(about="a folder of videos, or one: each frame is a record", read=videos, encodes=True)
