"""Times the stages of making a batch: read, decode, transform and collate. The pipeline and the loaders call it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["STAGES", "StageTotals", "add_time", "take_times"]

STAGES = ("read", "decode", "transform", "collate")


def _zeros() -> dict[str, float]:
    return dict.fromkeys(STAGES, 0.0)


class _Thread(threading.local):
    """The seconds of one thread, which makes one batch at a time."""

    def __init__(self) -> None:
        self.seconds = _zeros()


_THREAD = _Thread()


def add_time(stage: str, since: float, within: str | None = None) -> float:
    """Add the time since `since`, a value of `time.perf_counter`, to a stage of this thread; return the present time.

    With `within`, that stage goes on, and the caller adds all of its time later: so this part is taken off now.
    """
    now, seconds = time.perf_counter(), _THREAD.seconds
    seconds[stage] += now - since
    if within is not None:
        seconds[within] -= now - since
    return now


def take_times() -> dict[str, float]:
    """Return the seconds of this thread by stage since the last call."""
    taken, _THREAD.seconds = _THREAD.seconds, _zeros()
    return taken


@dataclass
class StageTotals:
    """The batches that a training loop received so far.

    Attributes
    ----------
    batches, samples : int
    seconds : dict
        Stage → seconds that workers spent on these batches, added up.
    """

    batches: int = 0
    samples: int = 0
    seconds: dict[str, float] = field(default_factory=_zeros)

    def add(self, samples: int, seconds: Mapping[str, float]) -> None:
        """Add a batch."""
        self.batches += 1
        self.samples += samples
        for stage, spent in seconds.items():
            self.seconds[stage] += spent
