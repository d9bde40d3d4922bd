"""Reads clips of videos that are stored as runs of records, one record per frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast, get_args

import numpy as np

from storeds.errors import ConfigError, DecodeError, suggest
from storeds.protocols import Array, Backend, Decoder, Field, Note, Record, SampleContext
from storeds.readers.base import INDEX
from storeds.readers.image import PictureReader
from storeds.records.columns import index_path, load_index, read_column, save_index
from storeds.records.fields import Count

if TYPE_CHECKING:
    import torch

__all__ = ["BadFrames", "ClipPlan", "Runs", "Sampling", "Short", "VideoReader", "replacements"]


BadFrames = Literal["error", "repeat"]
Sampling = Literal["all", "uniform", "random", "spaced"]
Short = Literal["repeat", "pad", "error"]


@dataclass(frozen=True)
class ClipPlan:
    """The frames that a clip takes. `VideoReader` describes the parameters."""

    frames: int | None = None
    stride: int = 1
    clips: int = 1
    sampling: str = "all"
    short: str = "repeat"
    bad_frames: str = "error"

    def __post_init__(self) -> None:
        for name in ("stride", "clips") if self.frames is None else ("frames", "stride", "clips"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be an int of 1 or more, got {value!r}")
        for name, choice in (("sampling", Sampling), ("short", Short), ("bad_frames", BadFrames)):
            known = get_args(choice)
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"unknown {name} {getattr(self, name)!r}; {suggest(getattr(self, name), known, name)}"
                )
        self._check_together()

    def _check_together(self) -> None:
        if (self.frames is None) != (self.sampling == "all"):
            what = "takes every frame; do not pass frames" if self.frames else "needs frames, the number of frames"
            raise ConfigError(f"sampling={self.sampling!r} {what}")
        if self.clips > 1 and self.sampling in ("all", "uniform"):
            raise ConfigError(f"sampling={self.sampling!r} gives one clip per video, not {self.clips}; use 'spaced'")
        if self.stride > 1 and self.sampling == "uniform":
            raise ConfigError("sampling='uniform' spreads the frames over the whole video; do not pass stride")
        if self.clips > 1 and self.short == "pad":
            raise ConfigError("short='pad' gives clips of different lengths, which do not fit one tensor: use 'repeat'")

    @property
    def needs(self) -> int:
        """Number of frames below which a video is short."""
        if self.frames is None:
            return 1
        return self.frames if self.sampling == "uniform" else (self.frames - 1) * self.stride + 1

    def choose(self, count: int, generator: torch.Generator | None = None) -> list[int]:
        """Return the indices of the frames to take from a video of `count` frames, clip by clip.

        Parameters
        ----------
        generator : torch.Generator, optional
            Draws the beginnings of random clips. Default: torch's global generator. Other samplings draw nothing.
        """
        if self.frames is None:
            return list(range(0, count, self.stride))
        if count < self.needs and self.short != "repeat":
            # To report an error, the first frame is enough.
            step = 1 if self.sampling == "uniform" else self.stride
            return list(range(0, count, step)) if self.short == "pad" else [0]
        if self.sampling == "uniform":  # the middles of equal parts
            return [(2 * at + 1) * count // (2 * self.frames) for at in range(self.frames)]
        return [
            min(start + at * self.stride, count - 1)
            for start in self._starts(count, generator)
            for at in range(self.frames)
        ]

    def _starts(self, count: int, generator: torch.Generator | None) -> list[int]:
        places = max(count - self.needs, 0) + 1
        if self.sampling == "spaced":
            return [(2 * clip + 1) * places // (2 * self.clips) for clip in range(self.clips)]
        import torch

        # Draw even for a single place, so that later draws do not depend on the length.
        drawn: Any = torch.randint(places, (self.clips,), generator=generator)
        return [int(start) for start in drawn]


def replacements(good: Sequence[bool], size: int) -> dict[int, int]:
    """Return for each bad frame of clips of `size` frames the frame that replaces it.

    That is the last good frame before it in its clip, otherwise the first good one in its clip, or in any clip.
    """
    found: dict[int, int] = {}
    anywhere = good.index(True)
    for start in range(0, len(good), size):
        clip = range(start, start + size)
        last = next((at for at in clip if good[at]), anywhere)
        for at in clip:
            if good[at]:
                last = at
            else:
                found[at] = last
    return found


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
    All processes share the bounds in a memory-mapped index file, and a pickle carries only its key. Otherwise each
    worker would read the columns again, or the pickle would grow with the store. If no file can be written, each
    process reads the columns.
    """

    def __init__(self, view: Backend, by: str, frame: str | None) -> None:
        self._view, self._by, self._frame = view, by, frame
        where = getattr(view, "where", None)  # a selection has the url and build of its store
        self._index = index_path(view.url, view.meta.build, repr(where), "runs", by, frame)
        self._bounds: Array | None = None
        self._count = Count(len(self.bounds) - 1)

    @property
    def bounds(self) -> Array:
        """The first position of each run, followed by the end of the last run, int64."""
        if self._bounds is None:
            found = load_index(self._index)
            if found is None or not len(found) or found[-1] != len(self._view):
                found = save_index(self._index, self._find())
            self._bounds = np.asarray(found)  # the same memory, but faster access to items than memmap
        return self._bounds

    def _find(self) -> Array:
        count = len(self._view)
        if not count:
            return np.zeros(1, np.int64)
        names = read_column(self._view, self._by)
        starts = names[1:] != names[:-1]
        if self._frame is not None:
            frames = read_column(self._view, self._frame)
            starts |= frames[1:] <= frames[:-1]
        return np.concatenate([[0], np.flatnonzero(starts) + 1, [count]]).astype(np.int64)

    def __len__(self) -> int:
        return self._count

    def span(self, index: int) -> tuple[int, int]:
        """Return the first position of run `index`, and its number of records."""
        bounds = self.bounds
        start, stop = int(bounds[index]), int(bounds[index + 1])
        return start, stop - start

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bounds": None}


_FRAME, _DECODED = "frame", "decoded"
_PER_FRAME = (_FRAME, "time")


@dataclass(frozen=True)
class VideoReader(PictureReader):
    """One run of frame records → ``{"image": clip, "label": …}``. Reads only the records of the frames that it takes.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample. Default: the image and, if there is one, the label. Fields of kind image become clips.
        Fields in `per_frame` become a tensor of one number per frame, or a list. Any other field has the value of the
        first frame of the sample. ``"decoded"`` is a tensor that tells which frames decoded, see `bad_frames`.
    decode, mode, repair, min_recovered, orient, max_pixels
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
    bad_frames : str
        How to treat a frame that cannot be decoded. ``"error"``: raise `DecodeError`, which the dataset's policy
        handles. ``"repeat"``: use the frame before it (or the one after it, for the first). The report counts the frame
        as repaired, and ``"decoded"`` is False for it. If no frame of a video decodes, raise `DecodeError`.
    per_frame : sequence of str
        Fields that differ between frames. Default: ``"frame"`` and ``"time"``, if the store has them.
    by : str
        Field of kind int or str that all frames of a video share. Or a field of kind bytes that holds video files, such
        as MP4: then each record is one video, and PyAV decodes the frames.

    Notes
    -----
    Random clips are drawn from the sample's own generator, or from torch's global one without a seed.
    """

    computes: ClassVar[tuple[str, ...]] = (INDEX, _DECODED)

    decode: str | Decoder = "tensor"
    frames: int | None = None
    stride: int = 1
    clips: int = 1
    sampling: str | None = None
    short: str = "repeat"
    per_frame: Sequence[str] = _PER_FRAME
    by: str = "video"
    bad_frames: str = "error"
    _plan: ClipPlan = field(init=False, repr=False, compare=False)
    _runs: Runs | None = field(default=None, repr=False, compare=False)
    _numbered: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.per_frame, str):
            raise ConfigError(f"per_frame must be a sequence of names, not the string {self.per_frame!r}")
        sampling = self.sampling or ("all" if self.frames is None else "random")
        plan = ClipPlan(self.frames, self.stride, self.clips, sampling, self.short, self.bad_frames)
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
            from storeds.readers.video_files import VideoFileReader

            return cast("Self", VideoFileReader.of(self, backend))
        if declared[self.by].kind not in ("int", "str"):
            raise ConfigError(f"by={self.by!r} is a field of kind {declared[self.by].kind}; expected int, str or bytes")
        for name in self.per_frame:
            if name not in (*declared, *self.computes, *_PER_FRAME):
                raise ConfigError(
                    f"per_frame: {backend.url} has no field {name!r}; {suggest(name, declared, 'fields')}"
                )
        numbered = _FRAME in declared and declared[_FRAME].kind == "int"
        bound = super().bind(backend)
        runs = Runs(backend, self.by, _FRAME if numbered else None)
        return replace(bound, _runs=runs, _numbered=numbered)

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
        if self._plan.short == "error":
            self._refuse_short(records[0], context)
        bad: set[int] = set()
        clips = {name: self._clip(name, records, bad, context) for name in self._images()}
        computed = {INDEX: context.index, _DECODED: self._by_clip(_flags(len(records), bad))}
        sample: dict[str, Any] = {}
        for name, source, declared in zip(self.fields, self.sources or self.fields, self.kinds, strict=True):
            if source in self.computed:
                sample[name] = computed[source]
            elif name in clips:
                sample[name] = self._by_clip(clips[name])
            elif source in self.per_frame:
                sample[name] = self._by_clip(_numbers(declared, [record[source] for record in records]))
            else:
                sample[name] = records[0][source]
        return sample

    def _refuse_short(self, record: Record, context: SampleContext) -> None:
        _, count = self._bound().span(context.index)
        if count < self._plan.needs:
            raise DecodeError(
                f"video {record[self.by]} is short: it has {count} frames, but a clip needs {self._plan.needs}; "
                "short='repeat' and 'pad' accept it"
            )

    def _bound(self) -> Runs:
        if self._runs is None:
            raise ConfigError("this reader is not bound to a store; call bind first")
        return self._runs

    def _clip(self, name: str, records: Sequence[Record], bad: set[int], context: SampleContext) -> Any:
        """Return the decoded frames as one tensor, or as a list. Add to `bad` the indices of replaced frames."""
        first: dict[int, int] = {}
        clip: Any = None
        good: list[bool] = []
        lost: DecodeError | None = None
        for at, record in enumerate(records):
            # Backends return the same object for a repeated position. Comparing the bytes would take as long as
            # reading.
            same = first.setdefault(id(record[self.stored_as(name)]), at)
            if same != at:
                good.append(good[same])
                if good[same]:
                    clip[at] = _copy(clip[same])
                continue
            try:
                frame = self._frame(name, record, at, context)
            except DecodeError as error:
                if self.bad_frames == "error":
                    raise
                lost = lost or error
                context.notes.append(Note(error.kind, f"{error}; another frame replaces it"))
                good.append(False)
                continue
            clip = self._put(frame, clip, at, records)
            good.append(True)
        if lost is not None and not any(good):
            raise lost
        for at, other in replacements(good, len(records) // self.clips).items():
            clip[at] = _copy(clip[other])
            bad.add(at)
        return clip

    def _put(self, frame: Any, clip: Any, at: int, records: Sequence[Record]) -> Any:
        """Store a frame in the clip, which the first frame creates."""
        import torch

        is_tensor = isinstance(frame, torch.Tensor)
        if clip is None:
            # Fill the clip in place, so that memory holds it only once.
            clip = frame.new_empty((len(records), *frame.shape)) if is_tensor else [None] * len(records)
        if is_tensor and (frame.shape, frame.dtype) != (clip.shape[1:], clip.dtype):
            one, other = (
                f"{tuple(shape)} of {kind}"
                for shape, kind in ((frame.shape, frame.dtype), (clip.shape[1:], clip.dtype))
            )
            raise DecodeError(f"{self._named(records[at], at)} has shape {one}, but the first one has {other}")
        clip[at] = frame
        return clip

    def _frame(self, name: str, record: Record, at: int, context: SampleContext) -> Any:
        noted = len(context.notes)
        try:
            frame = self._image(name, self.stored_as(name), record, context)
        except DecodeError as error:
            placed = DecodeError(f"{self._named(record, at)}: {error}")
            placed.kind = error.kind
            raise placed from error.__cause__
        context.notes[noted:] = [
            Note(note.kind, f"{self._named(record, at)}: {note.message}") for note in context.notes[noted:]
        ]
        if isinstance(frame, np.ndarray):
            import torch

            return torch.from_numpy(frame)
        return frame

    def _named(self, record: Record, at: int) -> str:
        frame = f"frame {record[_FRAME]}" if self._numbered else f"frame {at} of the sample"
        return f"{frame} of video {record[self.by]}"

    def _by_clip(self, values: Any) -> Any:
        """Add a dimension for the clips to the values of all frames, if there are several clips."""
        if self.clips == 1:
            return values
        if isinstance(values, list):
            size = len(values) // self.clips
            return [values[at : at + size] for at in range(0, len(values), size)]
        return values.unflatten(0, (self.clips, -1))


def _numbers(declared: Field, values: list[Any]) -> Any:
    if not (declared.is_scalar or declared.is_fixed):
        return values
    import torch

    return torch.from_numpy(np.asarray(values))


def _flags(count: int, bad: set[int]) -> Any:
    import torch

    return torch.tensor([at not in bad for at in range(count)])


def _copy(frame: Any) -> Any:
    """Return a frame that shares no memory. Tensors are returned unchanged, since storing them in a clip copies."""
    return frame.copy() if hasattr(frame, "copy") else frame
