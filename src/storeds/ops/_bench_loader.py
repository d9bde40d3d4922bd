"""Runs a `Probe` through a DataLoader, cold or warm, for a limited time, and measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from storeds.ops._bench_probe import Batch, Probe
from storeds.ops._bench_report import Measurement
from storeds.protocols import Array

__all__ = ["Runner", "endless", "once"]

_ONE_PASS = 200_000  # samples: more than any pipeline makes in a few seconds, and a permutation of so many is quick


def once(count: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield batches of different samples out of `count`, in random order, each sample at most once."""
    drawn = rng.choice(count, min(count, _ONE_PASS), replace=False)
    for start in range(0, len(drawn), size):
        yield drawn[start : start + size].tolist()


def endless(indices: Array, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield batches of `indices` for ever, in a new order each time round."""
    left = np.empty(0, np.int64)
    while True:
        while len(left) < size:
            left = np.concatenate([left, rng.permutation(indices)])
        yield left[:size].tolist()
        left = left[size:]


class _Plan:
    """The batches that a loader is to ask for next, until the time is over."""

    def __init__(self) -> None:
        self.began = 0.0
        self._batches: Iterable[list[int]] = ()
        self._seconds = 0.0
        self.asked: list[list[int]] = []

    def begin(self, batches: Iterable[list[int]], seconds: float) -> None:
        self._batches, self._seconds, self.asked = batches, seconds, []

    def __iter__(self) -> Iterator[list[int]]:
        # Only now: a loader that begins anew has waited for all of its workers before.
        self.began = time.perf_counter()
        for batch in self._batches:
            self.asked.append(batch)
            yield batch
            if time.perf_counter() - self.began >= self._seconds:
                return


class Runner:
    """One loader with its workers, which have started and not touched the store when it is made.

    Parameters
    ----------
    probe : Probe
    stage : str
        What the probe does, for the report.
    workers : int
        Processes; with 0, this one does the work.
    told : callable
        Called with each `Batch` that arrives.
    """

    def __init__(self, probe: Probe, stage: str, workers: int, told: Callable[[Batch], None]) -> None:
        self._stage, self._workers, self._told = stage, workers, told
        self._plan = _Plan()
        self._loader: DataLoader[Any] = DataLoader(
            probe,
            batch_sampler=self._plan,
            collate_fn=_as_it_is,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        began = time.perf_counter()
        self._pass([[]] * workers, float("inf"))
        self._start_seconds = time.perf_counter() - began

    def touch(self, batches: Iterator[list[int]]) -> None:
        """Let every worker read one batch, so that what is done once in a process is done."""
        self._pass([next(batches) for _ in range(max(self._workers, 1))], float("inf"))

    def measure(self, batches: Iterable[list[int]], seconds: float, cache: str) -> Measurement:
        """Return what the workers do in so many seconds, and at least in the batches that are handed out at once."""
        done, arrived = self._pass(batches, seconds)
        # Workers get their batches in turn: of whole rounds, each has done the same number, and none has waited idly.
        side = max(self._workers, 1)
        used = len(done) // side * side or len(done)
        return Measurement.of(
            self._stage, self._workers, cache, done[:used], arrived[used - 1] - self._plan.began, self._start_seconds
        )

    @property
    def seen(self) -> Array:
        """The samples of the last pass."""
        return np.unique(np.concatenate([np.asarray(batch, np.int64) for batch in self._plan.asked]))

    def _pass(self, batches: Iterable[list[int]], seconds: float) -> tuple[list[Batch], Sequence[float]]:
        self._plan.begin(batches, seconds)
        done: list[Batch] = []
        arrived: list[float] = []
        for batch in self._loader:
            arrived.append(time.perf_counter())
            batch.values = None  # received, and let go as a training loop does
            done.append(batch)
            self._told(batch)
        return done, arrived


def _as_it_is(batch: Any) -> Any:
    return batch
