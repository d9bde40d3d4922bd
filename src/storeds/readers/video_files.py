"""Reads clips of video files, each stored as one record: MP4, WebM and other formats that FFmpeg reads."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from storeds.errors import ConfigError, DecodeError, MissingDependencyError
from storeds.pictures import MAX_PIXELS
from storeds.pictures.decoders import check_pixels
from storeds.protocols import Array, Backend, Decoder, Field, SampleContext
from storeds.readers.base import RecordReader
from storeds.readers.clips import ClipPlan
from storeds.readers.image import label_of

__all__ = ["VideoFileReader"]

_OF_FRAMES = ("repair", "min_recovered", "orient", "channels", "strided", "per_frame")
_MODES = {"RGB": "rgb24", "L": "gray"}


@dataclass(frozen=True)
class VideoFileReader(RecordReader):
    """One record → a clip of the video file in its field `by`, decoded by PyAV.

    A `VideoReader` becomes it when it is bound to a store in which the field `by` is of kind bytes, and describes the
    parameters.

    Notes
    -----
    Decodes from the key frame before the clip to the last frame of the clip. A frame of the clip that cannot be decoded
    raises `DecodeError`.
    """

    by: str = "video"
    decode: str | Decoder | Mapping[str, str | Decoder] = "tensor"
    mode: str | Mapping[str, str] = "RGB"
    max_pixels: int = MAX_PIXELS
    plan: ClipPlan = field(default_factory=ClipPlan)

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        if self.decode not in ("tensor", "pil"):
            raise ConfigError(f"decode={self.decode!r} is for images; video files are decoded to 'tensor' or 'pil'")
        _import_av()
        bound = super().bind(backend)
        if bound._file_mode not in _MODES:
            raise ConfigError(f"mode={self.mode!r}: video files are decoded to mode RGB or L")
        return bound

    def _choose(self, fields: dict[str, Field]) -> tuple[str, ...]:
        return (self.by, *label_of(fields))

    def without_effect(self) -> dict[str, str]:
        # docstring inherited
        return dict.fromkeys(_OF_FRAMES, "videos that are stored frame by frame")

    @property
    def data(self) -> str | None:
        # docstring inherited
        return next((name for name, source in self.elements() if source == self.by), None)

    @property
    def _file_mode(self) -> str:
        return self.mode if isinstance(self.mode, str) else self.mode.get(self.data or "", "RGB")

    def _value(self, name: str, field: Field, value: Any, context: SampleContext) -> Any:
        return self.plan.by_clip(self._clip(value, context)) if self.stored_as(name) == self.by else value

    def _clip(self, blob: bytes, context: SampleContext) -> Any:
        """Return the frames of a clip as one tensor, or as a list of Pillow images."""
        generator = context.generator if self.plan.sampling == "random" else None

        def choose(count: int) -> list[int]:
            if self.plan.refuses(count):
                raise DecodeError(f"the video is short: it has {count} frames, but a clip needs {self.plan.needs}")
            return self.plan.choose(count, generator)

        frames = [_pixels(frame, _MODES[self._file_mode]) for frame in _decode(blob, choose, self.max_pixels)]
        if self.decode == "pil":
            from PIL import Image

            return [
                Image.fromarray(np.ascontiguousarray(frame.squeeze(-1) if frame.shape[2] == 1 else frame))
                for frame in frames
            ]
        import torch

        return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).contiguous()


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
            check_pixels(stream.width, stream.height, max_pixels)
            marks = [packet.pts for packet in container.demux(stream) if packet.size and not packet.is_discard]
        if not marks:
            raise DecodeError("the video has no frames")
        if None in marks:  # a container without presentation times
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
