"""Reads films with PyAV: which frames there are, without decoding them, and then single frames, one after the other."""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from storeds.errors import MissingDependencyError
from storeds.ops.sources.base import BadItem

if TYPE_CHECKING:
    import av.container
    import av.video.stream

__all__ = ["Film", "FilmCursor", "encode", "import_av", "list_film"]

_TIMED = {"mp4", "matroska", "webm"}
"""Containers that keep when each frame is shown; others keep when it is decoded, or what libavformat guesses from it."""

_FAR = 250
"""Frames that are sooner decoded than jumped over: about what lies between two key frames."""


@dataclass(frozen=True)
class Film:
    """Which frames to take from one film.

    Attributes
    ----------
    marks : array of int64
        The presentation time of each, in units of the film; or its place among all frames, where `ordered`.
    unit : Fraction
        Seconds for one step of a mark.
    start : int
        The mark of the first frame of the film.
    ordered : bool
        Whether the file has no times of presentation that hold, so that frames are found by counting.
    size : tuple of int
        Width and height.
    missing : int
        How many frames the file promises beyond those it holds, or that cannot be decoded at all.
    """

    marks: array[int]
    unit: Fraction
    start: int
    ordered: bool
    size: tuple[int, int]
    missing: int = 0

    def time(self, at: int) -> float:
        """Return when frame `at` is shown, in seconds from the film's first frame."""
        return float((self.marks[at] - self.start) * self.unit)


def import_av() -> Any:
    """Return PyAV; raises MissingDependencyError."""
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(
            f"packing films needs PyAV: {error}; install it: pip install 'storeds[video]'"
        ) from error
    return av


def list_film(path: str, fps: Fraction | None) -> Film:
    """Return the frames to take from the film at `path`; raises `BadItem` if it is none that can be read.

    Parameters
    ----------
    fps : Fraction, optional
        The most frames to take from a second: for each ``1 / fps`` seconds the frame that is shown then, but none twice.
    """
    av = import_av()
    try:
        with av.open(path) as container:
            stream = _video_of(container)
            packets = [packet for packet in container.demux(stream) if packet.size]
            shown = [packet.pts for packet in packets if not packet.is_discard]
            ordered = None in shown or not _TIMED.intersection(container.format.name.split(","))
            unit, rate = Fraction(stream.time_base or 1), Fraction(stream.average_rate or 25)
            size, missing = (stream.width, stream.height), max(_promised(stream, shown) - len(packets), 0)
        if ordered:
            cursor = FilmCursor(path, ordered=True)
            shown, unit, missing = list(range(sum(1 for _ in cursor.frames()))), 1 / rate, cursor.faults
    except av.error.FFmpegError as error:
        raise BadItem(f"is no film that can be read: {error.strerror}") from None
    marks = np.unique(np.array(shown, np.int64))
    if not marks.size:
        raise BadItem("is a film without frames")
    taken = marks if fps is None else _thinned(marks, unit, fps)
    return Film(array("q", taken.tolist()), unit, int(marks[0]), ordered, size, missing)


def _promised(stream: av.video.stream.VideoStream, shown: list[int | None]) -> int:
    """Return how many packets the stream has by its header: MP4 counts them, Matroska tells how long they take."""
    if stream.frames:
        return stream.frames
    long = re.fullmatch(r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", ""))
    marks = [mark for mark in shown if mark is not None]
    if long is None or not marks or stream.time_base is None:
        return 0
    told = (int(long[1]) * 60 + int(long[2])) * 60 + Fraction(long[3])
    lacking = (told - max(marks) * stream.time_base) * Fraction(stream.average_rate or 25)
    return len(marks) + round(lacking) - 1  # the last frame takes its time, too


def _video_of(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    """Return the first stream of pictures that move; a cover is none."""
    for stream in container.streams.video:
        if "attached_pic" not in str(getattr(stream, "disposition", "")):
            return stream
    raise BadItem("holds no video, only " + (", ".join({stream.type for stream in container.streams}) or "nothing"))


def _thinned(marks: np.ndarray[Any, np.dtype[np.int64]], unit: Fraction, fps: Fraction) -> Any:
    """Return those of `marks` that are shown at multiples of ``1 / fps``."""
    step = 1 / (fps * unit)
    count = int((int(marks[-1]) - int(marks[0])) / step) + 1
    times = np.array([int(marks[0]) + int(at * step) for at in range(count)], np.int64)
    return marks[np.unique(np.searchsorted(marks, times, side="right") - 1)]


@dataclass
class FilmCursor:
    """Finds frames of one film: quickly one after the other, and in any order. For one thread of one process.

    Parameters
    ----------
    path : str
        The film.
    ordered : bool
        Whether marks are places, not times.
    """

    path: str
    ordered: bool
    faults: int = 0
    """Packets so far that did not decode."""
    _container: Any = field(default=None, repr=False)
    _frames: Iterator[tuple[int, Any, bool]] = field(default_factory=lambda: iter(()), repr=False)
    _current: tuple[int, Any, bool] | None = field(default=None, repr=False)
    _at: int = -1

    def find(self, film: Film, at: int) -> Any:
        """Return frame `at` of `film`, an `av.VideoFrame`; raises `BadItem` if it is damaged or not there."""
        mark = film.marks[at]
        av = import_av()
        try:
            if self._current is None or self._current[0] > mark or at - self._at > _FAR:
                self._jump(mark, film.start)
            self._at = at
            while self._current is not None and self._current[0] < mark:
                self._current = next(self._frames, None)
        except av.error.FFmpegError as error:
            self.close()
            raise BadItem(f"cannot be decoded: {error.strerror}") from None
        if self._current is None or self._current[0] != mark:
            raise BadItem("cannot be decoded: the film is damaged there")
        if self._current[2]:
            raise BadItem("cannot be decoded whole: the film is damaged there, or before it since the last key frame")
        return self._current[1]

    def frames(self) -> Iterator[tuple[int, Any, bool]]:
        """Open the film anew and yield mark, frame, and whether it is damaged, for each frame."""
        self._open()
        yield from self._frames
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._container is not None:
            self._container.close()
        self._container, self._current, self._frames, self._at = None, None, iter(()), -1

    def _open(self) -> None:
        self.close()
        self._container = import_av().open(self.path)
        stream = _video_of(self._container)
        stream.thread_type = "AUTO"
        # Else damaged frames are filled with what the decoder guesses, and nobody is told.
        stream.codec_context.options = {"err_detect": "explode"}
        self._frames = self._decode(stream)

    def _jump(self, mark: int, start: int) -> None:
        """Go to a frame at or before `mark`: that of the key frame before it, where the file can be searched."""
        self._open()
        if not self.ordered and mark > start:
            self._container.seek(mark, stream=_video_of(self._container))
            self._current = next(self._frames, None)
            if self._current is not None and self._current[0] <= mark:
                return
            self._open()
        self._current = next(self._frames, None)

    def _decode(self, stream: Any) -> Iterator[tuple[int, Any, bool]]:
        av, place, is_damaged = import_av(), 0, False
        for packet in self._container.demux(stream):
            try:
                frames = packet.decode()
            except av.error.InvalidDataError:
                frames, is_damaged = [], True
                self.faults += 1
            for frame in frames:
                # What is decoded from damaged frames is damaged, up to the next one that is decoded from none.
                is_damaged = frame.is_corrupt or (is_damaged and not frame.key_frame)
                yield place if self.ordered else frame.pts, frame, is_damaged
                place += 1
            is_damaged = is_damaged or packet.is_corrupt


def encode(frame: Any, max_side: int | None, quality: int) -> bytes:
    """Return an `av.VideoFrame` as JPEG, upright, its longer side scaled down to `max_side`."""
    size = scaled(frame.width, frame.height, max_side)
    scale = {} if size == (frame.width, frame.height) else dict(zip(("width", "height"), size, strict=True))
    image: Image.Image = frame.to_image(**scale, interpolation="LANCZOS") if scale else frame.to_image()
    if rotation := getattr(frame, "rotation", 0):  # of phones; PyAV tells since version 14
        image = image.rotate(rotation, expand=True)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def scaled(width: int, height: int, max_side: int | None) -> tuple[int, int]:
    """Return width and height such that the longer one is `max_side` at most."""
    longer = max(width, height)
    if max_side is None or longer <= max_side:
        return width, height
    return max(1, round(width * max_side / longer)), max(1, round(height * max_side / longer))
