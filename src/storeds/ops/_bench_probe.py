"""What the loader of a benchmark asks for batches: a dataset that does part of the work, and says how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from torch.utils.data import Dataset

from storeds._samples import SampleMaker
from storeds.dataset import StoreDataset
from storeds.errors import RecordError
from storeds.protocols import Backend, Reader, Record, SampleContext
from storeds.transforms import BoundTransform

__all__ = ["STAGES", "Batch", "Probe"]

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
        maker = dataset._maker
        transforms = [(name, _Transform(bound, self._meter)) for name, bound in maker.transforms]
        self._maker: SampleMaker = replace(
            maker,
            view=cast("Backend", _View(maker.view, self._meter)),
            reader=cast("Reader[Any]", _Reader(maker.reader, self._meter)),
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
        made = [sample for sample, _ in self._maker.make(contexts)]
        good = [sample for sample in made if not isinstance(sample, RecordError)]
        batch.bad = len(made) - len(good)
        if self._stage == "full" and good:
            began = time.perf_counter()
            batch.values = self._collate(good)
            batch.took("collate", began)
        return batch

    def _read(self, contexts: Sequence[SampleContext]) -> list[Record | RecordError]:
        reader = self._maker.reader
        positions = [at for context in contexts for at in reader.locate(context.index, context)]
        return self._maker.view.get_many(positions, reader.stored)


def _size(record: Record) -> int:
    return sum(_bytes(value) for value in record.values())


def _bytes(value: Any) -> int:
    if isinstance(value, (bytes, str)):
        return len(value)
    return value.nbytes if isinstance(value, np.ndarray) else 8
