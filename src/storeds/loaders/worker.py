"""Makes the batches of a loader: a `Request` goes to a worker, a thread or the training process itself, and a `Result` comes back."""

from __future__ import annotations

import functools
import operator
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, get_worker_info

from storeds._utils.prefetch import blocks_read
from storeds._utils.text import name_of
from storeds.batching.buffers import BufferPool, Empty
from storeds.batching.collate import collate, collate_columns
from storeds.batching.memory import PackedBatch, SlotMemory, SlotName
from storeds.batching.roles import does_tails, fit_collate, is_collate
from storeds.datasets.assembly import declared_elements
from storeds.datasets.batch import Ask, Counted, Made, Work
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.pipeline import SamplePipeline
from storeds.datasets.reading import is_of_storeds, read
from storeds.datasets.tree import leaves
from storeds.errors import ConfigError, RecordError
from storeds.loaders.plan import Plan
from storeds.loaders.planning import Replacements, replaces_samples
from storeds.loaders.position import BatchRequest
from storeds.protocols import Field
from storeds.readers.reader import built_in
from storeds.transforms.tail import Tail

__all__ = ["BatchFetcher", "Error", "Failure", "Request", "Result", "begin_worker", "fitted_collate"]


class Request(NamedTuple):
    """What a worker receives: which samples to make, and where to put them.

    Attributes
    ----------
    batch : BatchRequest
        Epoch, seed and indices, and which batch of which pass it is.
    slot : SlotName or None
        Memory of the training process; None if there is none, or if the batch is made in that process.
    """

    batch: BatchRequest
    slot: SlotName | None = None


class Result(NamedTuple):
    """What the training process receives: a batch, and what happened to its samples.

    Attributes
    ----------
    progress, number : int
        Those of its `BatchRequest`.
    size : int
        How many indices were requested.
    batch : Any
        The result of the ``collate_fn``, or in its place a `Failure`, or an `Error` of this process.
    counted : list of Counted
        Of each store that took part.
    work : Work
    worker : int
        Which worker made it; 0 without workers.
    """

    progress: int
    number: int
    size: int
    batch: Any
    counted: list[Counted]
    work: Work
    worker: int


class Failure(ExceptionWrapper):
    """The exception of a worker, for the training process to raise. A RecordError keeps its attributes."""

    def __init__(self, error: Exception, worker: int) -> None:
        super().__init__(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]  # torch leaves it without types
        self.known: dict[str, Any] = {}
        if isinstance(error, RecordError):
            self.known = {name: getattr(error, name) for name in RecordError.__annotations__}
        try:
            pickle.dumps(self.exc_type)
        except Exception:  # of a class inside a function: the queue would drop it, and the training loop wait for ever
            self.exc_type = RuntimeError

    def reraise(self) -> None:
        try:
            super().reraise()  # type: ignore[no-untyped-call]
        except RecordError as error:
            vars(error).update(self.known)
            raise


class Error(NamedTuple):
    """An exception of the process that makes the batches itself."""

    error: Exception

    def reraise(self) -> None:
        try:
            raise self.error
        finally:
            del self  # the traceback has this frame


class BatchFetcher(Dataset[Result]):
    """Makes finished batches of a dataset, in the training process, in its threads or in workers.

    Because it knows both the dataset and the ``collate_fn``, it can skip work between the two: for `storeds.collate`,
    samples of fixed shape are read as columns, and `collate` does the tails of transforms in the memory of the batch.

    Parameters
    ----------
    dataset : Dataset
        Map-style.
    collate_fn : callable
        Makes a batch of a list of samples, or converts a single sample that is not batched.
    memory : BufferPool
        For the batches that are made in the process of the fetcher.
    plan : Plan, optional
        Which replacements of bad samples keep to.
    """

    def __init__(self, dataset: Any, collate_fn: Any, memory: BufferPool, plan: Plan | None) -> None:
        self.dataset, self._given, self._memory = dataset, collate_fn, memory
        self._replacements = Replacements(dataset, plan) if replaces_samples(dataset) else None
        self.fit()

    def fit(self) -> None:
        """Fit the ``collate_fn`` to the present settings of the dataset."""
        self._leaves = leaves(self.dataset)
        self._stores = [leaf for leaf in self._leaves if is_of_storeds(leaf)]
        self._places = {id(leaf): place for place, leaf in enumerate(self._leaves)}
        pipelines = self._present_pipelines()
        self.collate_fn = fitted_collate(self._given, self.dataset)
        self._is_ours = is_collate(self.collate_fn)
        self._tails: Mapping[str, Tail] = pipelines[0].tails if does_tails(self.collate_fn) else {}
        self._pipelines = pipelines  # last: another thread may be here

    def _present_pipelines(self) -> list[SamplePipeline]:
        """Return what makes the samples of each store; assigning to a dataset replaces it."""
        return [store._pipeline for store in self._stores]

    def __getitem__(self, request: Request) -> Result:
        """Return the batch of a request."""
        asked, slot = request
        worker = get_worker_info()
        memory = self._memory if worker is None else _opened(slot)
        if any(map(operator.is_not, self._pipelines, self._present_pipelines())):
            self.fit()
        blocks, made = blocks_read(), Made()
        batch: Any
        try:
            made = read(self.dataset, self._ask(asked))
            is_batch = not isinstance(asked.indices, int)
            batch = self._collated(made.result(), made.work, memory, is_batch=is_batch)
            if worker is not None:
                began = time.perf_counter()
                batch = PackedBatch.of(batch, slot, memory if isinstance(memory, SlotMemory) else None)
                made.work.add_time("collate", began)
        except Exception as error:
            # The arrival of a worker's makes the slot free.
            batch = Error(error) if worker is None else PackedBatch(slot, 0, Failure(error, worker.id))
        made.work.cold_bytes = (blocks_read() - blocks) * 512
        size = 1 if isinstance(asked.indices, int) else len(asked.indices)
        at = 0 if worker is None else worker.id
        counted = [each._replace(leaf=self._places[id(each.leaf)]) for each in made.counted]
        return Result(asked.progress, asked.number, size, batch, counted, made.work, at)

    def _ask(self, asked: BatchRequest) -> Ask:
        is_batch = not isinstance(asked.indices, int)
        return Ask(
            asked.indices if isinstance(asked.indices, list) else [asked.indices],
            asked.epoch,
            asked.seed,
            fill=is_batch,
            tails=self._tails if is_batch else {},
            as_columns=is_batch and self.collate_fn is collate,
            allowed=self._replacements,
        )

    def _collated(self, samples: Any, work: Work, memory: BufferPool | SlotMemory | None, *, is_batch: bool) -> Any:
        began, store = time.perf_counter(), self._leaves[0]
        try:
            if isinstance(samples, dict):
                return collate_columns(samples, store.as_dict)
            if not is_batch:
                return self.collate_fn(samples[0])
            # A function of the user may keep a batch that it made with `collate`, and a slot is used again.
            into: dict[str, Empty] = {"empty": memory.empty} if self._is_ours and memory is not None else {}
            return self.collate_fn(samples, **into)
        except ConfigError as error:
            if not is_of_storeds(store) or store.as_dict:  # the message has the names, if there are any
                raise
            names = ", ".join(f"{place} {name!r}" for place, name in enumerate(store.reader.fields))
            raise ConfigError(f"{error}. The elements of these samples are {names}") from error
        finally:
            if self._is_ours:
                work.add_time("collate", began)
            else:
                work.add_time("outside", began, step=f"the collate_fn {name_of(self._given)}")


def begin_worker(function: Callable[[int], object] | None, worker: int) -> None:
    """Call a ``worker_init_fn`` in its worker, where ``get_worker_info().dataset`` is the dataset, as in a DataLoader."""
    info = get_worker_info()
    fetcher: Any = info.dataset  # type: ignore[union-attr]  # this is a worker
    object.__setattr__(info, "dataset", fetcher.dataset)  # torch refuses an assignment
    if function is not None:
        function(worker)
    fetcher.fit()  # to the datasets of this process


def _opened(slot: SlotName | None) -> SlotMemory | None:
    """Return the memory of a slot, in a worker; None where this process may not open it: then PyTorch sends batches."""
    try:
        return None if slot is None else SlotMemory(slot)
    except OSError:
        return None


def fitted_collate(collate_fn: Any, dataset: Any) -> Any:
    """Return a ``collate_fn`` of storeds fitted to the elements of a dataset; other functions are returned unchanged.

    So is a function for samples that are not those of stores, or of stores whose batches would differ.
    """
    stores = leaves(dataset)
    if not is_collate(collate_fn) or not all(map(is_of_storeds, stores)):
        return collate_fn
    fitted = [_fit_to_store(collate_fn, store) for store in stores]
    settings = [(each.func, each.keywords) if isinstance(each, functools.partial) else (each, {}) for each in fitted]
    return fitted[0] if all(each == settings[0] for each in settings) else collate_fn


def _fit_to_store(collate_fn: Any, store: StoreDataset) -> Any:
    changed = [name for name, _ in store._pipeline.transforms]
    tails = store._pipeline.tails
    return fit_collate(collate_fn, _elements(store), as_dict=store.as_dict, changed=changed, tails=tails)


def _elements(store: StoreDataset) -> dict[str, Field]:
    """Return the declarations of the elements of a sample, in order, as the samples have them."""
    reader = store.reader
    declared = declared_elements(reader, store.backend.meta.fields)
    computed = Field("bytes")  # of values that the reader computes, about whose structure nothing is declared
    elements = {name: declared.get(name, computed) for name in reader.fields}
    own = built_in(reader)
    return elements if own is None or own.joint is None else {**elements, **own.joint.produced()}
