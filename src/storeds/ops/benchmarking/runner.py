"""Runs the stages of a benchmark: a dataset that times each part of its work, and a loader that runs for some seconds."""

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
from storeds.records.roles import Sample
from storeds.transforms import BoundTransform

__all__ = ["STAGES", "Batch", "Probe", "Runner", "endless", "once"]


STAGES = ("raw", "decoded", "full")
"""From reading alone to whole batches. Each stage includes the one before."""


@dataclass
class Batch:
    """The counts and times of one batch.

    Attributes
    ----------
    samples, bad, records, bytes : int
        Samples requested; bad ones among them; records read for them; bytes in their values.
    seconds : dict
        Part of the work → seconds.
    values : Any
        The batch itself, which is transferred to the requesting process.
    """

    samples: int = 0
    bad: int = 0
    records: int = 0
    bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    values: Any = None

    def took(self, part: str, since: float) -> None:
        """Add the time since `since` to a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - since


@dataclass
class _Meter:
    """The batch that the timed parts of a pipeline add to; one per process."""

    batch: Batch = field(default_factory=Batch)


@dataclass(frozen=True)
class _View:
    """A backend with timed reads."""

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
    """A reader with timed decoding."""

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
    """A timed transform."""

    bound: BoundTransform
    meter: _Meter

    def __call__(self, value: Any, context: SampleContext) -> Any:
        began = time.perf_counter()
        try:
            return self.bound(value, context)
        finally:
            self.meter.batch.took("transform", began)


@dataclass(frozen=True)
class _Joint:
    """Timed transforms of whole samples."""

    joint: Callable[[Sample, SampleContext], dict[str, Any]]
    meter: _Meter

    def __call__(self, sample: Sample, context: SampleContext) -> dict[str, Any]:
        began = time.perf_counter()
        try:
            return self.joint(sample, context)
        finally:
            self.meter.batch.took("transform", began)


class Probe(Dataset[Any]):
    """A dataset that does one stage of the work with the code that training uses.

    Parameters
    ----------
    dataset : StoreDataset
    stage : str
        One of `STAGES`.
    collate : callable
        Makes the batch from the good samples.
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
            joint=None if pipeline.joint is None or stage != "full" else _Joint(pipeline.joint, self._meter),
        )

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Do the work for one batch. An empty batch does not touch the store."""
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


_ONE_PASS = 200_000  # samples: more than a pipeline reads in a few seconds, and quick to permute


def once(count: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield batches of samples out of `count` in random order, each sample at most once."""
    drawn = rng.choice(count, min(count, _ONE_PASS), replace=False)
    for start in range(0, len(drawn), size):
        yield drawn[start : start + size].tolist()


def endless(indices: Array, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield batches of `indices` forever, in a new order each time."""
    left = np.empty(0, np.int64)
    while True:
        while len(left) < size:
            left = np.concatenate([left, rng.permutation(indices)])
        yield left[:size].tolist()
        left = left[size:]


class _Plan:
    """The batches that a loader requests until the time is over."""

    def __init__(self) -> None:
        self.began = 0.0
        self._batches: Iterable[list[int]] = ()
        self._seconds = 0.0
        self.requested: list[list[int]] = []

    def begin(self, batches: Iterable[list[int]], seconds: float) -> None:
        self._batches, self._seconds, self.requested = batches, seconds, []

    def __iter__(self) -> Iterator[list[int]]:
        # The clock starts here, after the loader has waited for all workers.
        self.began = time.perf_counter()
        for batch in self._batches:
            self.requested.append(batch)
            yield batch
            if time.perf_counter() - self.began >= self._seconds:
                return


class Runner:
    """A loader whose workers have started but not yet touched the store.

    Parameters
    ----------
    probe : Probe
    stage : str
        The stage of the probe, for the report.
    workers : int
        Worker processes; 0 works in this process.
    on_batch : callable
        Called with each `Batch` that arrives.
    """

    def __init__(self, probe: Probe, stage: str, workers: int, on_batch: Callable[[Batch], None]) -> None:
        self._stage, self._workers, self._on_batch = stage, workers, on_batch
        self._plan = _Plan()
        self._loader: DataLoader[Any] = DataLoader(
            probe,
            batch_sampler=self._plan,
            collate_fn=_unchanged,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        began = time.perf_counter()
        self._pass([[]] * workers, float("inf"))
        self._start_seconds = time.perf_counter() - began

    def warm_up(self, batches: Iterator[list[int]]) -> None:
        """Let every worker read one batch, so that one-time work of a process is done."""
        self._pass([next(batches) for _ in range(max(self._workers, 1))], float("inf"))

    def measure(self, batches: Iterable[list[int]], seconds: float, cache: str) -> Measurement:
        """Measure for `seconds`, and at least for the batches that the loader requests at once."""
        done, arrived = self._pass(batches, seconds)
        # Workers get batches in turn, so in whole rounds each has done the same number of batches.
        side = max(self._workers, 1)
        used = len(done) // side * side or len(done)
        return Measurement.of(
            self._stage, self._workers, cache, done[:used], arrived[used - 1] - self._plan.began, self._start_seconds
        )

    @property
    def seen(self) -> Array:
        """The samples of the last pass."""
        return np.unique(np.concatenate([np.asarray(batch, np.int64) for batch in self._plan.requested]))

    def _pass(self, batches: Iterable[list[int]], seconds: float) -> tuple[list[Batch], Sequence[float]]:
        self._plan.begin(batches, seconds)
        done: list[Batch] = []
        arrived: list[float] = []
        for batch in self._loader:
            arrived.append(time.perf_counter())
            batch.values = None  # released, as in a training loop
            done.append(batch)
            self._on_batch(batch)
        return done, arrived


def _unchanged(batch: Any) -> Any:
    return batch
