"""What is asked of a dataset for one batch, and what comes back: samples, and everything that happened to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from storeds.datasets.counters import Event
from storeds.protocols import Array
from storeds.transforms.tail import Tail

__all__ = ["STAGES", "Ask", "Counted", "Made", "Work"]

STAGES = ("read", "decode", "transform", "collate")


class Ask(NamedTuple):
    """The samples that one batch needs.

    Attributes
    ----------
    indices : list of int
    epoch : int or None
        Their randomness depends on it. None is that of their dataset, see `SharedEpoch`.
    seed : int or None
        For samples whose dataset has no seed.
    fill : bool
        Whether replacements make up a batch in which every sample would be skipped.
    tails : mapping of str to Tail
        What the batch does for elements that are uint8. If the transforms end otherwise, samples are whole.
    as_columns : bool
        Whether there may be one array for each element instead of samples.
    allowed : callable or None
        ``allowed(leaf, index)`` returns the ascending indices of the samples of a leaf that may replace a bad one, None if each
        may. The pipeline of a leaf gets it without the leaf.
    """

    indices: list[int]
    epoch: int | None = None
    seed: int | None = None
    fill: bool = True
    tails: Mapping[str, Tail] = MappingProxyType({})
    as_columns: bool = False
    allowed: Callable[..., Array | None] | None = None


@dataclass
class Work:
    """What making a batch took.

    Attributes
    ----------
    seconds : dict
        Stage → seconds; ``outside`` is what datasets and collate functions of users took, if there are any.
    steps : dict
        Stage → name → seconds: of each transform, for some of the samples; of each dataset or function of users.
    bytes : int
        Of the records.
    cold_bytes : int
        Read from a disk, because the page cache did not hold them.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    bytes: int = 0
    cold_bytes: int = 0

    def add_time(self, stage: str, since: float, within: str | None = None, step: str | None = None) -> float:
        """Add the time since `since`, a value of `time.perf_counter`, to a stage, and to a step of it; return the present time.

        With `within`, that stage goes on, and the caller adds all of its time later: so this part is taken off now.
        """
        now = perf_counter()
        if step is not None:
            steps = self.steps.setdefault(stage, {})
            steps[step] = steps.get(step, 0.0) + now - since
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - since
        if within is not None:
            self.seconds[within] -= now - since
        return now

    def add(self, other: Work) -> None:
        """Add what making a part of the batch took."""
        _add(self.seconds, other.seconds)
        for stage, steps in other.steps.items():
            _add(self.steps.setdefault(stage, {}), steps)
        self.bytes += other.bytes
        self.cold_bytes += other.cold_bytes

    def add_bytes(self, records: Iterable[Any]) -> None:
        """Add the bytes and arrays of some records, or the arrays of a batch."""
        for record in records:
            if isinstance(record, Mapping):
                for value in record.values():
                    if type(value) is bytes:
                        self.bytes += len(value)
                    elif isinstance(value, np.ndarray):
                        self.bytes += value.nbytes


def _add(seconds: dict[str, float], more: Mapping[str, float]) -> None:
    for name, spent in more.items():
        seconds[name] = seconds.get(name, 0.0) + spent


class Counted(NamedTuple):
    """What happened to the samples that one batch takes from a leaf of a dataset, see `storeds.datasets.tree.leaves`.

    Attributes
    ----------
    leaf : Any
        The dataset; on the way from a worker, its place among `leaves`.
    epoch, seen : int
        How many samples of which epoch were requested.
    events : sequence of Event
    """

    leaf: Any
    epoch: int
    seen: int
    events: Sequence[Event]


@dataclass
class Made:
    """What a dataset made of an `Ask`.

    Attributes
    ----------
    samples : list, or dict of str to array
        In the order of the indices, or element → an array of shape (n, …).
    counted : list of Counted
    work : Work
    error : Exception or None
        Why there are no samples.
    """

    samples: Any = ()
    counted: list[Counted] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    error: Exception | None = None

    def result(self) -> Any:
        """Return the samples; raises the error instead."""
        error, self.error = self.error, None
        if error is None:
            return self.samples
        try:
            raise error
        finally:
            del error  # its traceback has this frame
