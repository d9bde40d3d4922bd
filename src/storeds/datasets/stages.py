"""Times the stages of making a batch: read, decode, transform and collate. The pipeline and the loaders call it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from storeds._utils.prefetch import blocks_read

__all__ = ["STAGES", "StageTotals", "Work", "add_bytes", "add_time", "take_work"]

STAGES = ("read", "decode", "transform", "collate")


def _zeros() -> dict[str, float]:
    return dict.fromkeys(STAGES, 0.0)


class _Thread(threading.local):
    """The work of one thread, which makes one batch at a time."""

    def __init__(self) -> None:
        self.seconds = _zeros()
        self.bytes = 0
        self.blocks = blocks_read()


_THREAD = _Thread()


class Work(NamedTuple):
    """What making a batch took.

    Attributes
    ----------
    seconds : dict
        Stage → seconds.
    bytes : int
        Of the records.
    cold_bytes : int
        Read from a disk, because the page cache did not hold them.
    """

    seconds: dict[str, float]
    bytes: int
    cold_bytes: int


def add_time(stage: str, since: float, within: str | None = None) -> float:
    """Add the time since `since`, a value of `time.perf_counter`, to a stage of this thread; return the present time.

    With `within`, that stage goes on, and the caller adds all of its time later: so this part is taken off now.
    """
    now, seconds = perf_counter(), _THREAD.seconds
    seconds[stage] += now - since
    if within is not None:
        seconds[within] -= now - since
    return now


def add_bytes(records: Iterable[Any]) -> None:
    """Add the bytes and arrays of some records, or the arrays of a batch."""
    total = 0
    for record in records:
        if isinstance(record, Mapping):
            for value in record.values():
                if type(value) is bytes:
                    total += len(value)
                elif isinstance(value, np.ndarray):
                    total += value.nbytes
    _THREAD.bytes += total


def take_work() -> Work:
    """Return what this thread did since the last call."""
    blocks = blocks_read()
    work = Work(_THREAD.seconds, _THREAD.bytes, (blocks - _THREAD.blocks) * 512)
    _THREAD.seconds, _THREAD.bytes, _THREAD.blocks = _zeros(), 0, blocks
    return work


@dataclass
class StageTotals:
    """The batches that a training loop received so far, of all workers or of one.

    Attributes
    ----------
    batches, samples, bytes, cold_bytes : int
    seconds : dict
        Stage → seconds that workers spent on these batches, added up.
    """

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    cold_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=_zeros)

    def add(self, samples: int, work: Work) -> None:
        """Add a batch."""
        self.batches += 1
        self.samples += samples
        self.bytes += work.bytes
        self.cold_bytes += work.cold_bytes
        for stage, spent in work.seconds.items():
            self.seconds[stage] += spent
