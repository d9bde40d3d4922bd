"""Which frames of a video a clip takes, for videos stored frame by frame and for video files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storeds._utils.arguments import check_int
from storeds.errors import ConfigError, suggest

if TYPE_CHECKING:
    import torch

__all__ = ["ClipPlan"]

_CHOICES = {
    "sampling": ("all", "uniform", "random", "spaced"),
    "short": ("repeat", "pad", "error"),
}


@dataclass(frozen=True)
class ClipPlan:
    """The frames that a clip takes. `VideoReader` describes the parameters."""

    frames: int | None = None
    stride: int = 1
    clips: int = 1
    sampling: str = "all"
    short: str = "repeat"

    def __post_init__(self) -> None:
        for name in ("stride", "clips") if self.frames is None else ("frames", "stride", "clips"):
            check_int(name, getattr(self, name), 1)
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}; {suggest(value, known, name)}")
        if (self.frames is None) != (self.sampling == "all"):
            what = "takes every frame; do not pass frames" if self.frames else "needs frames, the number of frames"
            raise ConfigError(f"sampling={self.sampling!r} {what}")
        if self.clips > 1 and self.sampling in ("all", "uniform"):
            raise ConfigError(f"sampling={self.sampling!r} gives one clip per video, not {self.clips}; use 'spaced'")
        if self.frames is None and self.short != "repeat":
            raise ConfigError(f"short={self.short!r} is for clips of a number of frames; pass frames, or leave it out")
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

    def refuses(self, count: int) -> bool:
        """Return whether a video of `count` frames is too short, and `short` makes that an error."""
        return self.short == "error" and count < self.needs

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

    def by_clip(self, values: Any) -> Any:
        """Add a dimension for the clips to the values of all frames, if there are several clips."""
        if self.clips == 1:
            return values
        if isinstance(values, list):
            size = len(values) // self.clips
            return [values[at : at + size] for at in range(0, len(values), size)]
        return values.unflatten(0, (self.clips, -1))

    def _starts(self, count: int, generator: torch.Generator | None) -> list[int]:
        places = max(count - self.needs, 0) + 1
        if self.sampling == "spaced":
            return [(2 * clip + 1) * places // (2 * self.clips) for clip in range(self.clips)]
        import torch

        # Draw even for a single place, so that later draws do not depend on the length.
        drawn: Any = torch.randint(places, (self.clips,), generator=generator, device="cpu")
        return [int(start) for start in drawn]
