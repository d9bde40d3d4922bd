"""Reads clips of video files, each stored as one record: MP4, WebM and other formats that FFmpeg reads."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.errors import ConfigError, DecodeError, MissingDependencyError
from storeds.pictures.decoders import check_pixels
from storeds.protocols import Array, Backend, Record
from storeds.readers.choice import Fields, choose, label_of, target_of
from storeds.readers.clips import ClipPlan
from storeds.readers.elements import Element, Facts
from storeds.readers.options import PictureOptions
from storeds.readers.reader import ElementReader
from storeds.readers.rows import OneRow

__all__ = ["bind_video_files"]

_MODES = {"RGB": "rgb24", "L": "gray"}


def bind_video_files(view: Backend, fields: Fields, by: str, options: PictureOptions, plan: ClipPlan) -> ElementReader:
    """Return the reader of a store in which the field `by` holds video files. The function `video` describes the options.

    Raises
    ------
    ConfigError
        An option is for videos that are stored frame by frame.
    """
    declared = view.meta.fields
    _import_av()
    chosen = choose(view, fields, lambda: (by, *label_of(declared)), declared)
    elements: list[Element] = []
    for each in chosen:
        if each.path is None or each.source != by:
            elements.append(each)
            continue
        decode, mode = options.decode_of(each.name), options.mode_of(each.name, is_data=True)
        if decode not in ("tensor", "pil"):
            raise ConfigError(f"decode={decode!r} is for images; video files are decoded to 'tensor' or 'pil'")
        if mode not in _MODES:
            raise ConfigError(f"mode={mode!r}: video files are decoded to mode RGB or L")
        elements.append(each.as_kind(FilmElement, decode=decode, mode=mode, max_pixels=options.max_pixels, plan=plan))
    data = next((each.name for each in elements if isinstance(each, FilmElement)), None)
    options.check(elements)
    return ElementReader("video", OneRow(len(view)), tuple(elements), data, target_of(chosen, (data,)))


@dataclass(frozen=True, kw_only=True)
class FilmElement(Element):
    """A clip of a video file, decoded by PyAV.

    Decodes from the key frame before the clip to the last frame of the clip. A frame of the clip that cannot be decoded
    raises `DecodeError`.

    Parameters
    ----------
    decode : str
        ``tensor`` or ``pil``.
    mode : str
        ``RGB`` or ``L``.
    max_pixels : int
        A video of larger frames raises DecodeError.
    plan : ClipPlan
        Which frames.
    """

    decode: Any
    mode: str
    max_pixels: int
    plan: ClipPlan

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return ("decode", "mode", "max_pixels")

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        generator = facts.context.generator if self.plan.sampling == "random" else None

        def choose(count: int) -> list[int]:
            if self.plan.refuses(count):
                raise DecodeError(f"the video is short: it has {count} frames, but a clip needs {self.plan.needs}")
            return self.plan.choose(count, generator)

        decoded = _decode(self._stored(rows[0]), choose, self.max_pixels)
        return self.plan.by_clip(self._clip([_pixels(frame, _MODES[self.mode]) for frame in decoded]))

    def _clip(self, frames: Sequence[Array]) -> Any:
        """Return frames as one tensor, or as a list of Pillow images."""
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
