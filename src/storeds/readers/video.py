"""Reads clips of videos that are stored as runs of records, one record per frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from storeds.errors import ConfigError, DecodeError, suggest
from storeds.pictures.decoders import bad_picture
from storeds.protocols import Array, Backend, Decoder, Field, Record, Repair, SampleContext
from storeds.readers.base import INDEX
from storeds.readers.clips import ClipPlan
from storeds.readers.image import ImageReader
from storeds.readers.video_files import VideoFileReader
from storeds.records.columns import read_column
from storeds.records.index import Index

if TYPE_CHECKING:
    import torch

__all__ = ["VideoReader"]

_FRAME = "frame"
_PER_FRAME = (_FRAME, "time")


class Runs:
    """The runs of records with the same value in one field. Each run is a video.

    Parameters
    ----------
    view : Backend
        A store, or a selection from one.
    by : str
        Field with the number or name of the video.
    frame : str or None
        Field with the number of the frame. A run also ends where this number does not increase: several files opened as
        one may number their videos alike, so that adjacent videos have the same number.

    Notes
    -----
    All processes share the bounds in an `Index`. Otherwise each worker would read the columns again, or the pickle would
    grow with the store.
    """

    def __init__(self, view: Backend, by: str, frame: str | None) -> None:
        self._index = Index(partial(bounds_of_runs, view, by, frame), view.url, view.meta.build, "runs", by, frame)
        self._count = len(self.bounds) - 1

    @property
    def bounds(self) -> Array:
        """The first position of each run, followed by the end of the last run, int64."""
        return self._index.positions

    def __len__(self) -> int:
        return self._count

    def span(self, index: int) -> tuple[int, int]:
        """Return the first position of run `index`, and its number of records."""
        bounds = self.bounds
        start, stop = int(bounds[index]), int(bounds[index + 1])
        return start, stop - start


def bounds_of_runs(view: Backend, by: str, frame: str | None) -> Array:
    """Return what `Runs.bounds` is."""
    count = len(view)
    if not count:
        return np.zeros(1, np.int64)
    names = read_column(view, by)
    starts = names[1:] != names[:-1]
    if frame is not None:
        frames = read_column(view, frame)
        starts |= frames[1:] <= frames[:-1]
    return np.concatenate([[0], np.flatnonzero(starts) + 1, [count]]).astype(np.int64)


@dataclass(frozen=True)
class VideoReader(ImageReader):
    """One run of frame records → ``{"image": clip, "label": …}``. Reads only the records of the frames that it takes.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample. Default: the image and, if there is one, the label. Images become clips.
        Fields in `per_frame` become a tensor of one number per frame, or a list. Any other field has the value of the
        first frame of the sample.
    decode, mode, channels, repair, min_recovered, orient, max_pixels
        Apply to each frame, see `ImageReader`. Frames that decode to tensors become one uint8 tensor of shape
        (frames, channels, height, width), or (clips, frames, channels, height, width) for several clips. Other frames
        become a list, or a list of lists.
    frames : int, optional
        Number of frames per clip.
    stride : int
        Distance between the frames of a clip.
    clips : int
        Number of clips per sample.
    sampling : str, optional
        ``"all"``: every `stride`-th frame, the default without `frames`. ``"random"``: clips that begin anywhere, the
        default with `frames`. ``"spaced"``: clips at equal distances; a single clip lies in the middle. ``"uniform"``:
        one clip with frames spread over the whole video.
    short : str
        How to treat a video with too few frames. ``"repeat"``: repeat the last frame (``"uniform"`` repeats frames
        evenly). ``"pad"``: return a shorter clip, which `storeds.collate` pads, with a mask. ``"error"``: raise
        `DecodeError`, which the dataset's policy handles.
    per_frame : sequence of str
        Fields that differ between frames. Default: ``"frame"`` and ``"time"``, if the store has them.
    by : str
        Field of kind int or str that all frames of a video share. Or a field of kind bytes that holds video files, such
        as MP4: then each record is one video, and PyAV decodes the frames. Video files take no `repair`, `min_recovered`,
        `orient`, `channels` and `per_frame`.

    Notes
    -----
    Random clips are drawn from the sample's own generator, or from torch's global one without a seed.
    """

    decode: str | Decoder = "tensor"
    frames: int | None = None
    stride: int = 1
    clips: int = 1
    sampling: str | None = None
    short: str = "repeat"
    per_frame: Sequence[str] = _PER_FRAME
    by: str = "video"
    _plan: ClipPlan = field(init=False, repr=False, compare=False)
    _runs: Runs | None = field(default=None, repr=False, compare=False)
    _numbered: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.per_frame, str):
            raise ConfigError(f"per_frame must be a sequence of names, not the string {self.per_frame!r}")
        sampling = self.sampling or ("all" if self.frames is None else "random")
        plan = ClipPlan(self.frames, self.stride, self.clips, sampling, self.short)
        object.__setattr__(self, "per_frame", tuple(self.per_frame))
        object.__setattr__(self, "_plan", plan)

    def bind(self, backend: Backend, /) -> Self:
        # docstring inherited
        declared = dict(backend.meta.fields)
        if self.by not in declared:
            raise ConfigError(
                f"reader 'video' needs a field that distinguishes the videos, but {backend.url} has no {self.by!r}; "
                f"{suggest(self.by, declared, 'fields')}; name another field with by="
            )
        if declared[self.by].kind == "bytes":
            files = VideoFileReader(
                self.fields, by=self.by, decode=self.decode, mode=self.mode, max_pixels=self.max_pixels, plan=self._plan
            )
            return cast("Self", files.bind(backend))
        if declared[self.by].kind not in ("int", "str"):
            raise ConfigError(f"by={self.by!r} is a field of kind {declared[self.by].kind}; expected int, str or bytes")
        for name in self.per_frame:
            if name not in (*declared, INDEX, *_PER_FRAME):
                raise ConfigError(
                    f"per_frame: {backend.url} has no field {name!r}; {suggest(name, declared, 'fields')}"
                )
        numbered = _FRAME in declared and declared[_FRAME].kind == "int"
        runs = Runs(backend, self.by, _FRAME if numbered else None)
        return replace(super().bind(backend), _runs=runs, _numbered=numbered)

    def without_effect(self) -> dict[str, str]:
        # docstring inherited
        is_used = any(source in self.per_frame for _, source in self.elements())
        return super().without_effect() | ({} if is_used else {"per_frame": "fields of frames"})

    @property
    def stored(self) -> tuple[str, ...]:
        # Messages name a frame by these fields.
        more = (self.by, _FRAME) if self._numbered else (self.by,)
        return tuple(dict.fromkeys((*super().stored, *more)))

    @property
    def target(self) -> str | None:
        # docstring inherited
        per_frame = [name for name, source in self.elements() if source in (self.by, *self.per_frame)]
        return self._target_without(self.data, *per_frame)

    def __len__(self) -> int:
        return len(self._bound())

    def column(self, view: Backend, name: str, /) -> Array:
        """Return element `name`, one value per video: that of its first frame."""
        return read_column(view, self.stored_as(name))[self._bound().bounds[:-1]]

    def _bound(self) -> Runs:
        if self._runs is None:
            raise ConfigError("this reader is not bound to a store; call bind first")
        return self._runs

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        # docstring inherited
        start, count = self._bound().span(index)
        # Creating a generator takes longer than everything else here, so do it only to draw from it.
        generator = context.generator if self._plan.sampling == "random" else None
        return [start + at for at in self._plan.choose(count, generator)]

    def build(self, records: Sequence[Record], context: SampleContext, /) -> dict[str, Any]:
        # docstring inherited
        if not records:
            raise DecodeError(f"video {context.index} has no frames")
        _, count = self._bound().span(context.index)
        if self._plan.refuses(count):
            raise DecodeError(
                f"video {records[0][self.by]} is short: it has {count} frames, but a clip needs {self._plan.needs}; "
                "short='repeat' and 'pad' accept it"
            )
        sample: dict[str, Any] = {}
        for name, source, declared in zip(self.fields, self.sources or self.fields, self.kinds, strict=True):
            if source in self.computed:
                sample[name] = context.index
            elif declared.kind == "image" or name in self._decoders:
                sample[name] = self._plan.by_clip(self._clip(name, source, declared, records, context))
            elif source in self.per_frame:
                values: Any = [record[source] for record in records]
                sample[name] = self._plan.by_clip(
                    _tensor(values) if declared.is_scalar or declared.is_fixed else values
                )
            else:
                sample[name] = records[0][source]
        return sample

    def _clip(self, name: str, source: str, declared: Field, records: Sequence[Record], context: SampleContext) -> Any:
        """Return the decoded frames as one tensor, or as a list."""
        import torch

        frames: dict[int, Any] = {}
        clip: list[Any] = []
        for at, record in enumerate(records):
            # Backends return the same object for a repeated position, which is decoded once.
            place = id(record[source])
            if place in frames:  # a Pillow image in a list is an object of its own
                frame = frames[place].copy() if hasattr(frames[place], "copy") else frames[place]
            else:
                frame = frames[place] = self._frame(name, source, declared, record, at, context)
            if (
                clip
                and isinstance(frame, torch.Tensor)
                and (frame.shape, frame.dtype) != (clip[0].shape, clip[0].dtype)
            ):
                raise DecodeError(
                    f"{self._named(record, at)} has shape {tuple(frame.shape)} of {frame.dtype}, but the first one has "
                    f"{tuple(clip[0].shape)} of {clip[0].dtype}"
                )
            clip.append(frame)
        return torch.stack(clip) if isinstance(clip[0], torch.Tensor) else clip

    def _frame(self, name: str, source: str, declared: Field, record: Record, at: int, context: SampleContext) -> Any:
        """Return a decoded frame; errors and notes name it."""
        noted = len(context.notes)
        try:
            frame = self._element(name, source, declared, record, context)
        except DecodeError as error:
            raise bad_picture(f"{self._named(record, at)}: {error}", error.kind) from error.__cause__
        for number, note in enumerate(context.notes[noted:], noted):
            context.notes[number] = Repair(note.kind, f"{self._named(record, at)}: {note.message}")
        return _tensor(frame) if isinstance(frame, np.ndarray) else frame

    def _named(self, record: Record, at: int) -> str:
        frame = f"frame {record[_FRAME]}" if self._numbered else f"frame {at} of the sample"
        return f"{frame} of video {record[self.by]}"


def _tensor(values: Any) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.asarray(values))
