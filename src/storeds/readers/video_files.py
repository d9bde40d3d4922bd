"""Reads clips of video files, each stored as one record: MP4, WebM and other formats that FFmpeg reads."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from storeds.errors import ConfigError, DecodeError, MissingDependencyError
from storeds.protocols import Array, Backend, Field, Record, SampleContext
from storeds.readers.base import RecordReader
from storeds.readers.image import label_of
from storeds.readers.video import VideoReader
from storeds.records.columns import read_column

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["VideoFileReader"]

_DECODERS = ("tensor", "pil")
_MODES = {"RGB": "rgb24", "L": "gray"}


@dataclass(frozen=True)
class VideoFileReader(VideoReader):
    """The `VideoReader` for a field ``by`` of kind bytes: each record is a video file, which PyAV decodes.

    Notes
    -----
    Decodes from the key frame before the clip to the last frame of the clip. A frame of the clip that cannot be decoded
    raises `DecodeError`.
    """

    @classmethod
    def of(cls, reader: VideoReader, backend: Backend) -> Self:
        """Return a reader with the options of `reader`, bound to `backend`."""
        given = {each.name: getattr(reader, each.name) for each in fields(reader) if each.init}
        return cls(**given).bind(backend)

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        if self.decode not in _DECODERS:
            raise ConfigError(f"decode={self.decode!r} is for images; video files are decoded to 'tensor' or 'pil'")
        if self.bad_frames != "error":
            raise ConfigError("bad_frames='repeat' is for stores of frames; a damaged video file is an error")
        if backend.meta.fields[self.by].kind != "bytes":
            raise ConfigError(f"field {self.by!r} of {backend.url} does not hold video files: they are of kind bytes")
        _import_av()
        bound = RecordReader.bind(self, backend)
        if bound._file_mode not in _MODES:
            raise ConfigError(f"mode={self.mode!r}: video files are decoded to mode RGB or L")
        return bound

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        return (self.by, *label_of(fields))

    @property
    def stored(self) -> tuple[str, ...]:
        # docstring inherited
        return RecordReader.stored.fget(self)  # type: ignore[attr-defined, no-any-return]  # skip VideoReader's fields

    @property
    def data(self) -> str | None:
        # docstring inherited
        return next((name for name, source in self.elements() if source == self.by), None)

    def __len__(self) -> int:
        return self.count

    def column(self, view: Backend, name: str, /) -> Array:
        # docstring inherited
        return read_column(view, self.stored_as(name))

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        # docstring inherited
        return (index,)

    def build(self, records: Sequence[Record], context: SampleContext, /) -> dict[str, Any]:
        # docstring inherited
        (record,) = records
        sample: dict[str, Any] = {}
        for name, source in zip(self.fields, self.sources or self.fields, strict=True):
            if source == self.by:
                sample[name] = self._by_clip(self._read_clip(record[source], context))
            elif source in self.computed:
                sample[name] = context.index
            else:
                sample[name] = record[source]
        return sample

    @property
    def _file_mode(self) -> str:
        return self.mode if isinstance(self.mode, str) else self.mode.get(self.data or "", "RGB")

    def _read_clip(self, blob: bytes, context: SampleContext) -> Any:
        """Return the frames of a clip as one tensor, or as a list of Pillow images."""
        generator = context.generator if self._plan.sampling == "random" else None

        def choose(count: int) -> list[int]:
            if self._plan.short == "error" and count < self._plan.needs:
                raise DecodeError(f"the video is short: it has {count} frames, but a clip needs {self._plan.needs}")
            return self._plan.choose(count, generator)

        frames = _decode(blob, choose, self.max_pixels)
        if self.decode == "pil":
            return [_picture(frame, self._file_mode) for frame in frames]
        import torch

        pixels = np.stack([_pixels(frame, _MODES[self._file_mode]) for frame in frames])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def _import_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError(
            f"reading video files needs PyAV: {error}; install it: pip install 'storeds[video]'"
        ) from error
    return av


def _decode(blob: bytes, choose: Callable[[int], list[int]], max_pixels: int) -> list[Any]:
    """Decode the frames that `choose` selects, given their number, to `av.VideoFrame`; raise DecodeError on failure."""
    av = _import_av()
    try:
        with av.open(io.BytesIO(blob)) as container:
            stream = next(iter(container.streams.video), None)
            if stream is None:
                raise DecodeError("the file has no video stream")
            if stream.width * stream.height > max_pixels:
                raise DecodeError(
                    f"the video has {stream.width} x {stream.height} pixels, more than max_pixels={max_pixels}"
                )
            marks = [packet.pts for packet in container.demux(stream) if packet.size and not packet.is_discard]
        if not marks:
            raise DecodeError("the video has no frames")
        if None in marks:  # a container without presentation times
            found: list[Any] = []
            with av.open(io.BytesIO(blob)) as container:
                found = list(container.decode(video=0))
            return [found[at] for at in choose(len(found))] if found else []
        marks = sorted(set(marks))
        wanted = [marks[at] for at in choose(len(marks))]
        return _frames_at(av, blob, wanted, marks[0])
    except av.error.FFmpegError as error:
        raise DecodeError(f"the video cannot be decoded: {error.strerror}") from error


def _frames_at(av: Any, blob: bytes, wanted: Sequence[int], first: int) -> list[Any]:
    """Decode the frames with the presentation times `wanted`."""
    missing, found = set(wanted), dict[int, Any]()
    with av.open(io.BytesIO(blob)) as container:
        stream = container.streams.video[0]
        # Otherwise the decoder fills damaged frames with guesses, without an error.
        stream.codec_context.options = {"err_detect": "explode"}
        if min(wanted) > first:
            container.seek(min(wanted), stream=stream)
        for frame in container.decode(stream):
            if frame.pts in missing:
                if frame.is_corrupt:
                    break
                missing.discard(frame.pts)
                found[frame.pts] = frame
            if not missing:
                break
    if missing:
        raise DecodeError(f"the video is damaged: {len(missing)} of {len(set(wanted))} frames cannot be decoded")
    return [found[mark] for mark in wanted]


def _pixels(frame: Any, form: str) -> Array:
    """Return a frame upright, height x width x channels."""
    found: Array = frame.to_ndarray(format=form)
    found = found if found.ndim == 3 else found[:, :, np.newaxis]
    turns = round(getattr(frame, "rotation", 0) / 90) % 4  # set by phones; PyAV reports it since version 14
    return np.rot90(found, turns)


def _picture(frame: Any, mode: str) -> Image.Image:
    from PIL import Image

    pixels = _pixels(frame, _MODES[mode])
    return Image.fromarray(np.ascontiguousarray(pixels if mode == "RGB" else pixels[:, :, 0]))
