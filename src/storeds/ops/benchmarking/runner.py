"""What the loader of a benchmark asks for batches: a dataset that does part of the work, and says how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from torch.utils.data import DataLoader, Dataset

from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.pipeline import SamplePipeline
from storeds.errors import RecordError
from storeds.ops.benchmarking.report import Measurement
from storeds.protocols import Array, Backend, Reader, Record, SampleContext
from storeds.transforms import BoundTransform

__all__ = ["STAGES", "Batch", "Probe", "Runner", "endless", "once"]


STAGES = ("raw", "decoded", "full")
"""From the store alone to the batch that a training loop gets; each does what the one before does, and more."""


@dataclass
class Batch:
    """What became of one batch.

    Attributes
    ----------
    samples, bad, records, bytes : int
        Asked for; of these, not to be had; read for them; in their values.
    seconds : dict
        Part of the work → how long it took.
    values : Any
        The batch itself, for the way to the process that asked.
    """

    samples: int = 0
    bad: int = 0
    records: int = 0
    bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    values: Any = None

    def took(self, part: str, since: float) -> None:
        """Count the time since then for a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - since


@dataclass
class _Meter:
    """Where the seams of a pipeline count; one in each process."""

    batch: Batch = field(default_factory=Batch)


@dataclass(frozen=True)
class _View:
    """A backend's reads, timed."""

    backend: Backend
    meter: _Meter

    @property
    def url(self) -> str:
        return self.backend.url

    def get_many(self, positions: Sequence[int], fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        began = time.perf_counter()
        records = self.backend.get_many(positions, fields)
        batch = self.meter.batch
        batch.took("storage", began)
        batch.records += len(records)
        batch.bytes += sum(_size(record) for record in records if not isinstance(record, RecordError))
        return records


@dataclass(frozen=True)
class _Reader:
    """A reader whose decoding is timed."""

    reader: Reader[Any]
    meter: _Meter

    @property
    def fields(self) -> tuple[str, ...]:
        return self.reader.fields

    @property
    def stored(self) -> tuple[str, ...]:
        return self.reader.stored

    def locate(self, index: int, context: SampleContext) -> Sequence[int]:
        return self.reader.locate(index, context)

    def build(self, records: Sequence[Record], context: SampleContext) -> Any:
        began = time.perf_counter()
        try:
            return self.reader.build(records, context)
        finally:
            self.meter.batch.took("decode", began)


@dataclass(frozen=True)
class _Transform:
    """A transform that is timed."""

    bound: BoundTransform
    meter: _Meter

    def __call__(self, value: Any, context: SampleContext) -> Any:
        began = time.perf_counter()
        try:
            return self.bound(value, context)
        finally:
            self.meter.batch.took("transform", began)


class Probe(Dataset[Any]):
    """Does one stage of the work of a dataset, by the same code as training does it.

    Parameters
    ----------
    dataset : StoreDataset
    stage : str
        One of `STAGES`.
    collate : callable
        Makes the batch of the good samples; bad ones are counted.
    """

    def __init__(self, dataset: StoreDataset, stage: str, collate: Callable[[Sequence[Any]], Any]) -> None:
        self._dataset, self._stage, self._collate = dataset, stage, collate
        self._meter = _Meter()
        pipeline = dataset._pipeline
        transforms = [(name, _Transform(bound, self._meter)) for name, bound in pipeline.transforms]
        self._pipeline: SamplePipeline = replace(
            pipeline,
            view=cast("Backend", _View(pipeline.view, self._meter)),
            reader=cast("Reader[Any]", _Reader(pipeline.reader, self._meter)),
            transforms=cast("Sequence[tuple[str, BoundTransform]]", transforms if stage == "full" else ()),
        )

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Do the work for one batch; an empty one does not touch the store."""
        batch = self._meter.batch = Batch(samples=len(indices))
        if not indices:
            return batch
        contexts = self._dataset._contexts(indices)
        if self._stage == "raw":
            batch.bad = sum(isinstance(record, RecordError) for record in self._read(contexts))
            return batch
        made = [sample for sample, _ in self._pipeline.make(contexts)]
        good = [sample for sample in made if not isinstance(sample, RecordError)]
        batch.bad = len(made) - len(good)
        if self._stage == "full" and good:
            began = time.perf_counter()
            batch.values = self._collate(good)
            batch.took("collate", began)
        return batch

    def _read(self, contexts: Sequence[SampleContext]) -> list[Record | RecordError]:
        reader = self._pipeline.reader
        positions = [at for context in contexts for at in reader.locate(context.index, context)]
        return self._pipeline.view.get_many(positions, reader.stored)


def _size(record: Record) -> int:
    return sum(_bytes(value) for value in record.values())


def _bytes(value: Any) -> int:
    if isinstance(value, (bytes, str)):
        return len(value)
    return value.nbytes if isinstance(value, np.ndarray) else 8


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
