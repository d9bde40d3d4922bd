"""`video`: reads clips of videos, from runs of records that are frames or from video files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from storeds.errors import ConfigError, DecodeError, suggest
from storeds.pictures.decoders import bad_picture
from storeds.pictures.header import MAX_PIXELS
from storeds.protocols import Backend, Field, Record, Repair
from storeds.readers.choice import INDEX, Fields, choose, target_of
from storeds.readers.clips import ClipPlan
from storeds.readers.elements import Element, Facts, stacked
from storeds.readers.images import bind_images, default_image
from storeds.readers.options import Decode, Modes, PictureOptions, Positions
from storeds.readers.reader import ElementReader
from storeds.readers.rows import Clip
from storeds.readers.runs import runs_of
from storeds.readers.video_files import bind_video_files
from storeds.records.shapes import with_pictures

if TYPE_CHECKING:
    import torch

__all__ = ["video"]

_FRAME = "frame"
_PER_FRAME = (_FRAME, "time")


def video(
    fields: Fields = (),
    *,
    decode: Decode | None = None,
    mode: Modes = "RGB",
    channels: Positions = None,
    repair: bool = True,
    min_recovered: float = 0.5,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
    frames: int | None = None,
    stride: int = 1,
    clips: int = 1,
    sampling: str | None = None,
    short: str = "repeat",
    per_frame: Sequence[str] = _PER_FRAME,
    by: str = "video",
) -> VideoSpec:
    """One run of frame records → ``{"image": clip, "label": …}``. Reads only the records of the frames that it takes.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample. Default: the image and, if there is one, the label. Images become clips.
        Fields in `per_frame` become a tensor of one number per frame, or a list. Any other field has the value of the
        first frame of the sample.
    decode, mode, channels, repair, min_recovered, orient, max_pixels
        Apply to each frame, see `image`; by default frames are decoded to tensors. Frames that decode to tensors become one uint8 tensor of shape
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
    more = () if per_frame == _PER_FRAME else ("per_frame",)
    options = PictureOptions(decode, mode, channels, repair, min_recovered, orient, max_pixels, more=more)
    if isinstance(per_frame, str):
        raise ConfigError(f"per_frame must be a sequence of names, not the string {per_frame!r}")
    plan = ClipPlan(frames, stride, clips, sampling or ("all" if frames is None else "random"), short)
    return VideoSpec(fields, options, plan, tuple(per_frame), by)


@dataclass(frozen=True)
class VideoSpec:
    """The options of `video`."""

    fields: Fields
    options: PictureOptions
    plan: ClipPlan
    per_frame: tuple[str, ...]
    by: str

    def bind(self, view: Backend, /) -> ElementReader:
        """Return the reader of a store; raises ConfigError if it does not fit."""
        declared = dict(view.meta.fields)
        if self.by not in declared:
            raise ConfigError(
                f"reader 'video' needs a field that distinguishes the videos, but {view.url} has no {self.by!r}; "
                f"{suggest(self.by, declared, 'fields')}; name another field with by="
            )
        if declared[self.by].kind == "bytes":
            return bind_video_files(view, self.fields, self.by, self.options, self.plan)
        if declared[self.by].kind not in ("int", "str"):
            raise ConfigError(f"by={self.by!r} is a field of kind {declared[self.by].kind}; expected int, str or bytes")
        for name in self.per_frame:
            if name not in (*declared, INDEX, *_PER_FRAME):
                raise ConfigError(f"per_frame: {view.url} has no field {name!r}; {suggest(name, declared, 'fields')}")
        frame = _FRAME if declared.get(_FRAME, Field("json")).kind == "int" else None
        rows = Clip(self.by, frame, runs_of(view, self.by, frame), self.plan)
        return self._of_frames(view, rows)

    def _of_frames(self, view: Backend, rows: Clip) -> ElementReader:
        """Return the reader of videos that are stored frame by frame."""
        fields = with_pictures(view.meta.fields)
        chosen = choose(view, self.fields, lambda: default_image("video", view, self.options), fields)
        data, images = bind_images(view, chosen, self.options)
        several = [each.name for each in chosen if each.path and each.source in self.per_frame]
        elements: list[Element] = []
        for each in chosen:
            frame = images.get(each.name)
            if frame is not None or each.declared.kind == "image":
                elements.append(each.as_kind(ClipElement, inner=frame or each, rows=rows))
            elif each.name in several:
                elements.append(each.as_kind(PerFrameElement, plan=self.plan))
            else:
                elements.append(each)
        self.options.check(elements)
        shared = [each.name for each in chosen if each.source in (self.by, *self.per_frame)]
        return ElementReader("video", rows, tuple(elements), data, target_of(chosen, (data, *shared)))


@dataclass(frozen=True, kw_only=True)
class ClipElement(Element):
    """The decoded frames as one tensor, or as a list.

    Parameters
    ----------
    inner : Element
        Decodes one frame.
    rows : Clip
    """

    inner: Element
    rows: Clip

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        frames: dict[int, Any] = {}
        clip: list[Any] = []
        for at, record in enumerate(rows):
            # Backends return the same object for a repeated position, which is decoded once.
            place = id(record[self.source])
            if place in frames:  # a Pillow image in a list is an object of its own
                frame = frames[place].copy() if hasattr(frames[place], "copy") else frames[place]
            else:
                frame = frames[place] = self._frame(record, at, facts)
            clip.append(frame)
        return self.rows.plan.by_clip(stacked(clip, lambda at: self.rows.name_of(rows[at], at)))

    def _frame(self, record: Record, at: int, facts: Facts) -> Any:
        """Return a decoded frame; errors and repairs name it."""
        notes = facts.context.notes
        noted = len(notes)
        try:
            frame = self.inner.value([record], facts)
        except DecodeError as error:
            raise bad_picture(f"{self.rows.name_of(record, at)}: {error}", error.kind) from error.__cause__
        for number, note in enumerate(notes[noted:], noted):
            notes[number] = Repair(note.kind, f"{self.rows.name_of(record, at)}: {note.message}")
        return _tensor(frame) if isinstance(frame, np.ndarray) else frame


@dataclass(frozen=True, kw_only=True)
class PerFrameElement(Element):
    """The values of all frames, as a tensor of numbers or as a list."""

    plan: ClipPlan

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return ("per_frame",)

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        values: Any = [record[self.source] for record in rows]
        is_number = self.declared.is_scalar or self.declared.is_fixed
        return self.plan.by_clip(_tensor(values) if is_number else values)


def _tensor(values: Any) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.asarray(values))
