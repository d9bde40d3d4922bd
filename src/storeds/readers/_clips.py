"""Which frames of a video a sample takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from storeds._suggest import suggest
from storeds.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["BadFrames", "ClipPlan", "Sampling", "Short", "stand_ins"]

BadFrames = Literal["error", "repeat"]
Sampling = Literal["all", "uniform", "random", "spaced"]
Short = Literal["repeat", "pad", "error"]


@dataclass(frozen=True)
class ClipPlan:
    """How frames are chosen; `storeds.readers.video.VideoReader` says what each parameter means."""

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
                raise ConfigError(f"{name} is a number, 1 or more, got {value!r}")
        for name, choice in (("sampling", Sampling), ("short", Short), ("bad_frames", BadFrames)):
            known = get_args(choice)
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"unknown {name} {getattr(self, name)!r}; {suggest(getattr(self, name), known, name)}"
                )
        self._check_together()

    def _check_together(self) -> None:
        if (self.frames is None) != (self.sampling == "all"):
            what = "takes every frame; leave frames out" if self.frames else "needs frames, their number"
            raise ConfigError(f"sampling={self.sampling!r} {what}")
        if self.clips > 1 and self.sampling in ("all", "uniform"):
            raise ConfigError(f"sampling={self.sampling!r} makes one clip of a video, not {self.clips}; use 'spaced'")
        if self.stride > 1 and self.sampling == "uniform":
            raise ConfigError("sampling='uniform' spreads the frames over the whole video; it takes no stride")
        if self.clips > 1 and self.short == "pad":
            raise ConfigError("short='pad' leaves clips of several lengths, which make no one tensor: use 'repeat'")

    @property
    def needs(self) -> int:
        """How many frames a video has at least, unless it is a short one."""
        if self.frames is None:
            return 1
        return self.frames if self.sampling == "uniform" else (self.frames - 1) * self.stride + 1

    def choose(self, count: int, generator: torch.Generator | None = None) -> list[int]:
        """Return the numbers of the frames to take from a video of `count` frames, clip by clip.

        Parameters
        ----------
        generator : torch.Generator, optional
            Draws where random clips begin; torch's global one by default. Nothing is drawn for other samplings.
        """
        if self.frames is None:
            return list(range(0, count, self.stride))
        if count < self.needs and self.short != "repeat":
            # For an error, the first frame is enough to say which video it is.
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

        # Drawn even where there is one place only, so that what is drawn after it does not depend on the length.
        drawn: Any = torch.randint(places, (self.clips,), generator=generator)
        return [int(start) for start in drawn]


def stand_ins(good: Sequence[bool], size: int) -> dict[int, int]:
    """Return, for each place that has no frame of its own, the place whose frame it gets.

    That is the one before it in its clip, which has `size` places; else the first that is there in its clip, or at all.
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
