"""`StoreLoader`: a DataLoader that counts the batches it yields, so that it can resume within an epoch."""

from __future__ import annotations

import functools
import logging
import operator
import pickle
import re
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    get_worker_info,
)

from storeds._utils.prefetch import ReadAhead, blocks_read
from storeds._utils.text import html_table, name_of, some
from storeds.batching.buffers import BufferPool, Empty
from storeds.batching.collate import collate, collate_columns
from storeds.batching.memory import PackedBatch, SlotMemory, SlotName, SlotPool
from storeds.batching.roles import does_tails, fit_collate, is_collate
from storeds.datasets.assembly import declared_elements
from storeds.datasets.batch import Ask, Counted, Made, Work
from storeds.datasets.epoch import draw_seed
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.mixture import StoreMixture
from storeds.datasets.pipeline import SamplePipeline
from storeds.datasets.reading import count, is_of_storeds, read
from storeds.datasets.tree import inside, leaves
from storeds.errors import ConfigError, RecordError
from storeds.loaders.advice import explain
from storeds.loaders.device import map_tensors
from storeds.loaders.plan import Plan
from storeds.loaders.planning import PLAN_SETTINGS, Replacements, replaces_samples
from storeds.loaders.position import BatchRequest, Position
from storeds.loaders.sampler import EpochBatches, EpochSampler, OtherSampler, divides_again, is_plain_batches
from storeds.loaders.settings import LoaderSettings
from storeds.loaders.stats import LoaderStats
from storeds.loaders.threads import in_threads
from storeds.protocols import Backend, Field
from storeds.readers.reader import built_in
from storeds.transforms.tail import Tail

_LOG = logging.getLogger("storeds")

__all__ = ["BatchFetcher", "Request", "Result", "StoreLoader"]


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
        The result of the ``collate_fn``, or in its place a `_Failure`, or an `_Error` of this process.
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


class _Failure(ExceptionWrapper):
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


class _Error(NamedTuple):
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
        pipelines = self._present_pipelines()
        self.collate_fn = fitted_collate(self._given, self.dataset)
        self._is_ours = is_collate(self.collate_fn)
        self._tails: Mapping[str, Tail] = pipelines[0].tails if does_tails(self.collate_fn) else {}
        self._pipelines = pipelines  # last: another thread may be here

    def _present_pipelines(self) -> list[SamplePipeline]:
        """Return what makes the samples of each store; assigning to a dataset replaces it."""
        return [leaf._pipeline for leaf in leaves(self.dataset) if is_of_storeds(leaf)]

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
            batch = _Error(error) if worker is None else PackedBatch(slot, 0, _Failure(error, worker.id))
        made.work.cold_bytes = (blocks_read() - blocks) * 512
        size = 1 if isinstance(asked.indices, int) else len(asked.indices)
        at = 0 if worker is None else worker.id
        return Result(asked.progress, asked.number, size, batch, made.counted, made.work, at)

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
        began, store = time.perf_counter(), leaves(self.dataset)[0]
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


def _begin_worker(function: Callable[[int], object] | None, worker: int) -> None:
    """Call a ``worker_init_fn`` in its worker, where ``get_worker_info().dataset`` is the dataset, as in a DataLoader."""
    info = get_worker_info()
    fetcher: Any = info.dataset  # type: ignore[union-attr]  # this is a worker
    object.__setattr__(info, "dataset", fetcher.dataset)  # torch refuses an assignment
    if function is not None:
        function(worker)
        fetcher.fit()


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


class StoreLoader(DataLoader[Any]):
    """A `torch.utils.data.DataLoader` over an `EpochSampler`, whose state is the position of the training loop.

    `storeds.build_loader` makes one. Each pass is the next epoch: another order, other random transforms.

    Parameters
    ----------
    dataset : Dataset
        Map-style.
    sampler : Sampler, optional
        By default an `EpochSampler` over all of `dataset`, with `shuffle` and `seed`. Other samplers of PyTorch work too,
        but then the loader has no state to resume from.
    batch_sampler : Sampler, optional
        Yields lists of indices, instead of `sampler` and ``batch_size``. The loader has a state too if it is an `EpochSampler`
        that makes batches, or PyTorch's BatchSampler over an `EpochSampler`.
    collate_fn : callable, optional
        The same as `collate`.
    generator : torch.Generator, optional
        Without a `sampler` and a `seed`: draws the seed of the order at the first pass. Without that, it is the dataset's
        or, if that has none, drawn from torch's default generator.
    multiprocessing_context : optional
        As for `torch.utils.data.DataLoader`, instead of `start_method`.
    **settings
        The keys of ``[loader]`` in a config, which `LoaderSettings` lists. Those that `torch.utils.data.DataLoader` has
        are as there; those that `EpochSampler` has say what an epoch is. Others are:

        - `collate`: ``"storeds"`` for `storeds.collate` (the default), ``"detection"``, ``"default"`` for PyTorch's, a
          function, or its dotted path. `pad`, `ragged` and `pad_images` are settings of `storeds.collate`, and
          `label_offset` is one of `storeds.collate_detection`. They may name roles, and elements of tuples by their
          names. The declarations decide about the structure of batches: values that may differ in length get a mask in
          every batch, and JSON is listed, unless `ragged` names them. Elements with a transform of their own are as with
          `storeds.collate`.
        - `num_workers`: ``"auto"`` takes the CPUs that this process may use, divided by torchrun's number of ranks on this
          machine or, without torchrun, by the number of processes of torch.distributed. With 0, settings of workers have
          no effect.
        - `start_method`: how workers start, as processes by ``"fork"``, ``"spawn"`` or ``"forkserver"``, by default as
          Python's; or ``"thread"``.
        - `log_every`: log `why_slow` every so many seconds, at level INFO.

    Raises
    ------
    ConfigError
        The sampler is of another class, for example because a framework replaced it by one that shards the epoch again.
        Or arguments contradict each other.

    Notes
    -----
    *Epochs*: a pass begins with its first batch; ``iter()`` alone changes nothing. The first pass is epoch 0. Each later
    pass is the epoch after the pass that began last, even if that was broken off: ``next(iter(loader))`` twice makes two
    passes. `set_epoch`, here or on the dataset, sets the epoch of the next pass, and counting continues from there. The
    loader counts the epochs, so make it once, not in each epoch.

    *Workers* receive the epoch with each batch, so loaders that are read side by side do not disturb each other. Where an
    attribute of the loader, of the dataset or of one of its transforms was assigned since persistent workers began, the next
    pass starts others. A ``worker_init_fn`` finds the dataset of its worker at ``get_worker_info().dataset``.

    *Threads* make the same batches, without copying one between processes; the dataset must be thread-safe, as a
    `StoreDataset` is. Reading, decoding and the transforms of storeds run outside Python's lock; transforms written in Python
    take turns. Each thread computes with one thread of torch. They end with the pass, after a break with their batches. Do
    not fork during a pass, as another loader with workers would: a thread may be writing to a log file, which Python would
    leave locked in the child.

    *Memory*: without workers and with threads, the tensors of a batch that `storeds.collate` makes lie in memory that a later
    batch uses, once nothing refers to a tensor of the batch or a view of one.
    """

    sampler: Any

    def __init__(
        self,
        dataset: Any,
        *,
        sampler: Any = None,
        batch_sampler: Any = None,
        collate_fn: Callable[..., Any] | None = None,
        generator: torch.Generator | None = None,
        multiprocessing_context: Any = None,
        **settings: Any,
    ) -> None:
        name = type(self).__name__
        if collate_fn is not None and settings.get("collate") is not None:
            raise ConfigError(f"{name}: collate and collate_fn are the same; leave out one of them")
        chosen = LoaderSettings.of_arguments({"collate": collate_fn, **settings}, name)
        self._uses_threads = chosen.start_method == "thread"
        if isinstance(dataset, IterableDataset):
            raise ConfigError(f"{name} is for datasets with indices; pass a stream to torch.utils.data.DataLoader")
        given = sampler if batch_sampler is None else batch_sampler
        for setting in chosen.changed().keys() & {"shuffle", "seed", *PLAN_SETTINGS} if given is not None else ():
            raise ConfigError(
                f"{name}: {setting} is for the sampler that the loader makes itself, and one is passed; leave out one of them"
            )
        if divides_again(given):
            raise ConfigError(
                f"{name} received {given!r}, which divides what its EpochSampler has already divided among the ranks: samples "
                "would be lost. With Lightning, pass use_distributed_sampler=False to the Trainer"
            )
        if given is None:
            sampler = EpochSampler(
                dataset,
                shuffle=chosen.shuffle,
                seed=chosen.seed,
                generator=generator if chosen.seed is None else None,
                drop_last=chosen.drop_last,
                batch_size=chosen.batch_size,
                **{setting: getattr(chosen, setting) for setting in PLAN_SETTINGS},
            )
        collate_fn = chosen.collate_fn()
        fitted_collate(collate_fn, dataset)  # raises an error for names that no element has
        workers = chosen.for_workers(multiprocessing_context)
        super().__init__(
            dataset,
            batch_size=chosen.batch_size,
            sampler=sampler,
            batch_sampler=batch_sampler,
            collate_fn=collate_fn,
            # Single samples are in no batch that might be dropped.
            drop_last=chosen.drop_last and not (given is None and chosen.batch_size is None),
            generator=generator,
            pin_memory=chosen.pin_memory,
            pin_memory_device=chosen.pin_memory_device,
            in_order=chosen.in_order,
            **workers,
        )
        self._position, self._batching = self._drawn_from(sampler if batch_sampler is None else batch_sampler)
        self._copied: list[Any] = []
        self._stats = LoaderStats()
        self._log_every = chosen.log_every
        self._logged = time.monotonic()
        self._leaves = leaves(dataset)
        # One batch is in use, and another one is made; by threads more of them, ahead of the training loop.
        ahead = self.num_workers * (1 + (self.prefetch_factor or 0)) if self._uses_threads else 0
        self._memory = BufferPool(limit=2 + ahead)
        if given is None and not self.plan.is_batched and not len(self):  # the plan may draw a seed for its batches
            _warn_of_nothing(self, dataset)

    def _drawn_from(self, sampler: Any) -> tuple[Position | OtherSampler, tuple[int | None, bool]]:
        """Return what draws the batches of this loader, their size and whether a short one is left out."""
        batching = self.batch_size, self.drop_last
        if is_plain_batches(sampler) and isinstance(sampler.sampler, EpochSampler):
            sampler, batching = sampler.sampler, (sampler.batch_size, sampler.drop_last)
        if not isinstance(sampler, EpochSampler):
            return OtherSampler(sampler, self.dataset, self.batch_sampler), batching
        position = sampler._position
        if sampler is self.batch_sampler and not position.plan.is_batched:
            raise ConfigError(
                f"a batch_sampler yields lists of indices, and {sampler!r} yields indices: pass it as sampler"
            )
        if sampler is self.sampler and self.batch_sampler is not None:  # a DataLoader refuses that this is set
            self.__dict__["batch_sampler"] = EpochBatches(sampler, self.batch_size or 1, self.drop_last)
        return position, (position.settings.batch_size, False) if position.plan.is_batched else batching

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED:
            raise ConfigError(f"{name} cannot be assigned: it would have no effect; make another {type(self).__name__}")
        super().__setattr__(name, value)

    def check_worker_number_rationality(self) -> None:
        if not self._uses_threads:  # its warning is about processes
            super().check_worker_number_rationality()

    def _get_iterator(self) -> Any:
        """Return an iterator over results: one in threads, or a DataLoader's."""
        self._position.fix_seed()  # before DataLoader draws from the same generator
        fetcher = BatchFetcher(self.dataset, self.collate_fn, self._memory, self._position.plan)
        if self._uses_threads and self.num_workers:
            # Threads draw from torch's generator in no fixed order, so samples without a seed share one that is drawn here.
            seedless = any(getattr(each, "seed", 0) is None for each in inside(self.dataset))
            requests = iter(_Requests(self, None, draw_seed(self.generator) if seedless else None))
            fetch: Callable[[Request], Result] = fetcher.__getitem__
            fetch = functools.partial(_pinned, fetch) if self.pin_memory and torch.cuda.is_available() else fetch
            return in_threads(fetch, requests, self.num_workers, self.prefetch_factor or 1)
        batches: DataLoader[Any] = DataLoader(
            fetcher,
            batch_size=None,  # a request is one item of the fetcher
            sampler=_Requests(self, SlotPool() if self.num_workers else None),
            collate_fn=_unchanged,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=functools.partial(_begin_worker, self.worker_init_fn),
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            pin_memory_device=self.pin_memory_device,
            in_order=self.in_order,
        )
        return batches._get_iterator()

    def __iter__(self) -> Any:
        # A generator begins at the first batch: Lightning calls iter() first and set_epoch() then.
        results: Any = self._iterator  # with the persistent workers of an earlier pass
        try:
            _check_workers(results)
            if results is not None and not _are_same(self._copied, self._copies()):
                _LOG.info(
                    "loader: other workers start, because a setting was assigned that the persistent ones do not have"
                )
                results = self._iterator = None
            results = super().__iter__()
            self._copied = self._copies()
            yield from self._received(results)
        except Exception as error:
            if isinstance(results, ReadAhead):
                results.close()
            elif self.num_workers:
                # PyTorch's error refers to itself, and so to the workers. Those that the garbage collector ends take 5
                # seconds each: it drops the queue that tells them to end.
                traceback.clear_frames(error.__traceback__)
            is_death = isinstance(error, RuntimeError) and _DEATH.search(str(error))
            text = f"{error}{_ends(results)}{_advice(self.dataset)}" if is_death else ""
            del results
            if not is_death:
                raise
            self._iterator = None  # the next pass starts other workers
            raise RuntimeError(text) from error

    def _copies(self) -> list[Any]:
        """Return everything of which workers have copies: settings of this loader, and the parts of the dataset."""
        return _parts([getattr(self, name) for name in _OF_WORKERS])

    def _received(self, results: Iterator[Result]) -> Iterator[Any]:
        """Yield the batches of results, after counting what these say."""
        is_first, this_pass = True, object()
        began = time.perf_counter()
        for result in results:
            now, stats = time.perf_counter(), self._stats
            stats.wait(now - began, is_first=is_first)
            stats.add(result.worker, result.size, result.work, result.counted)
            is_first = False
            count(self._leaves, result.counted, this_pass)
            batch = result.batch
            if isinstance(batch, (_Failure, _Error)):
                batch.reraise()
            self._position.receive(result.progress, result.number, result.size)
            del result
            if self._log_every is not None and time.monotonic() - self._logged >= self._log_every:
                self._logged = time.monotonic()
                _LOG.info("loader: %s", self.why_slow())
            now = time.perf_counter()
            yield batch
            del batch
            began = time.perf_counter()
            self._stats.training += began - now
            _check_workers(results)

    def stats(self) -> dict[str, Any]:
        """Return what the batches took that the training loop received so far, as plain numbers.

        Returns
        -------
        dict
            ``batches``, ``samples``, ``bytes`` of the records, ``cold_bytes`` that came from a disk, ``bad`` and
            ``repaired`` samples; ``seconds`` by stage: of the training loop ``starting`` (until the first batch of a
            pass), ``waiting`` and ``training``, and of the workers ``read``, ``decode``, ``transform`` and ``collate``,
            added up; and ``workers``, the same for each worker by number. Of a mixture also ``sources``: the requested
            samples of each.
        """
        numbers = self._stats.to_dict()
        if isinstance(self.dataset, StoreMixture):
            numbers["sources"] = {name: self._stats.seen[leaf] for leaf, name in enumerate(self.dataset.names)}
        return numbers

    def reset_stats(self) -> None:
        """Count from here on, as after a warm-up."""
        self._stats = LoaderStats()

    def why_slow(self) -> str:
        """Return one sentence about what limits the training, with its evidence and what to change.

        It says "outside storeds" for the time of datasets and functions of users, into which it cannot see.
        """
        stores = [store for store in self._leaves if is_of_storeds(store)]
        return explain(self._stats, stores, self.num_workers)

    def __repr__(self) -> str:
        arguments = f"batch_size={self.batch_size}, num_workers={self.num_workers}, drop_last={self.drop_last}"
        return f"{type(self).__name__}({self.dataset!r}, {arguments}, sampler={self.sampler!r})"

    def _repr_html_(self) -> str:
        shown = {name: getattr(self, name) for name in ("dataset", "batch_size", "drop_last", "sampler")}
        return html_table({**shown, "num_workers": self.num_workers, "batches": len(self)})

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, for the order and the random transforms; later passes count from there."""
        self._position.set_epoch(epoch)

    @property
    def plan(self) -> Plan:
        """What an epoch has; ``loader.plan.describe()`` says it in a line."""
        return self._resumable.plan

    @property
    def _resumable(self) -> Position:
        if isinstance(self._position, Position):
            return self._position
        raise ConfigError(f"a loader with {self._position.sampler!r} has no position or plan: leave out the sampler")

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training loop: batches that it received count, prefetched ones do not."""
        return {**self._resumable.state_dict(), "batch_size": self._batching[0]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a state with the next pass, with any number of ranks and workers; the next epoch follows.

        If the state's epoch has no batch left, the next pass is the next epoch.

        Raises
        ------
        ConfigError
            The state is of another store, seed, order or batch size; the message lists the differences.
        """
        if not isinstance(state, Mapping):
            raise ConfigError(
                f"the state of a loader is a mapping, as state_dict() returns it, not {type(state).__name__}"
            )
        state = dict(state)
        if "batch_size" not in state:
            raise ConfigError(
                f"not a state that a loader's state_dict() returned: it has {sorted(map(str, state)) or 'nothing'}"
            )
        saved, (batch_size, drop_last) = state.pop("batch_size"), self._batching
        if saved != batch_size:
            raise ConfigError(f"the state belongs to another loader: batch_size is {saved} there and {batch_size} here")
        self._resumable.load_state_dict(state, least=batch_size or 1 if drop_last else 0)


_FIXED = ("shuffle", "seed", "start_method", "log_every", *PLAN_SETTINGS)
_OF_WORKERS = (
    *("num_workers", "prefetch_factor", "timeout", "pin_memory", "pin_memory_device", "multiprocessing_context"),
    *("generator", "in_order", "worker_init_fn", "collate_fn", "dataset"),
)
_PLAIN = (bool, int, float, str)
_MOST_PARTS, _MOST_ITEMS = 10_000, 1000


def _parts(roots: Sequence[Any]) -> list[Any]:
    """Return some values and what they consist of: attributes, items, theirs and so on; at most `_MOST_PARTS`."""
    parts, pending, seen = list[Any](), [*roots], set[int]()
    while pending and len(parts) < _MOST_PARTS:
        value = pending.pop()
        parts.append(value)
        if id(value) not in seen:
            seen.add(id(value))
            pending += _inside(value)
    return parts


def _inside(value: Any) -> Iterable[Any]:
    """Return what may be assigned in a dataset, a transform or a function: attributes, or the items of a container."""
    if isinstance(value, StoreDataset):  # everything else is how it works
        others = [each for name, each in vars(value).items() if not name.startswith("_")]
        return value.transforms, value.transform, value.target_transform, value.as_dict, value.seed, *others
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        return items if len(items) <= _MOST_ITEMS else (len(items),)
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    return (
        () if isinstance(value, (Backend, torch.Tensor, ModuleType, type)) else getattr(value, "__dict__", {}).values()
    )


def _are_same(before: Sequence[Any], now: Sequence[Any]) -> bool:
    return len(before) == len(now) and all(
        one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)
        for one, other in zip(before, now, strict=True)
    )


def _warn_of_nothing(loader: StoreLoader, dataset: Any) -> None:
    """Log why a loader has no batch, unless the dataset has said so."""
    url = getattr(dataset, "url", "the dataset")
    if len(dataset):
        _LOG.warning(
            "there is no batch to load: %d samples of %s for %d ranks make no whole batch of %d, and drop_last drops a smaller "
            "one; reduce batch_size, or set drop_last = false",
            *(len(dataset), url, loader.sampler.num_replicas, loader.batch_size or 1),
        )
    elif not isinstance(dataset, StoreDataset) or not len(dataset.backend):
        _LOG.warning("there is no batch to load: %s holds no records", url)


class _Requests(Sampler[Request]):
    """The requests of a loader; each iteration is a pass. Owns the slots, which live as long as the workers."""

    def __init__(self, loader: StoreLoader, slots: SlotPool | None, seed: int | None = None) -> None:
        self._position, self._batching = loader._position, loader._batching
        self._slots, self._seed = slots, seed

    def __iter__(self) -> Iterator[Request]:
        for request in self._position.requests(*self._batching, self._seed):
            yield Request(request, None if self._slots is None else self._slots.acquire())


def _unchanged(batch: Any) -> Any:
    return batch


def _pinned(fetch: Callable[[Request], Result], request: Request) -> Result:
    result = fetch(request)
    return result._replace(batch=map_tensors(result.batch, torch.Tensor.pin_memory))


# The messages of torch.utils.data about a dead worker.
_DEATH = re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (is killed by signal|exited unexpectedly)")


def _ended(results: Any) -> list[tuple[int, Any]]:
    """Return the workers behind an iterator over results that have ended, each with its number."""
    poll, workers = select.poll(), dict[int, tuple[int, Any]]()
    for number, worker in enumerate(getattr(results, "_workers", ())):
        poll.register(worker.sentinel, select.POLLIN)
        workers[worker.sentinel] = number, worker
    return [workers[sentinel] for sentinel, _ in poll.poll(0)]


def _check_workers(results: Any) -> None:
    """Raise RuntimeError if a worker has ended.

    PyTorch notices that while it waits for a batch, after 5 seconds; and at once of workers that it forked itself.
    """
    ended = _ended(results)
    if ended:
        pids = ", ".join(str(worker.pid) for _, worker in ended)
        raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly")


def _ends(results: Any) -> str:
    """Return how each worker that has ended did so, in a line each."""
    lines = []
    for number, worker in _ended(results):
        worker.join(5)  # its exit code may come after the end of its pipe
        code = worker.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        lines.append(f"\nWorker {number} (pid {worker.pid}) {how}.")
    return "".join(lines)


def _advice(dataset: Any) -> str:
    """Return the stores that a dead worker read, the probable cause of its end and a remedy."""
    urls = list(dict.fromkeys(leaf.url for leaf in inside(dataset) if isinstance(getattr(leaf, "url", None), str)))
    files = [url for url in urls if url.startswith("lmdb://")]
    read = f"It read {some(urls)}." if urls else ""
    if not files:
        return f"\n{read}" if read else ""
    return (
        f"\n{read} LMDB maps its file: a damaged or truncated one ends the process that reads it, by SIGBUS or SIGSEGV. "
        f"Run `storeds verify {files[0]}` to find damage: it reads in other processes. "
        "If the file is whole, look for the kernel's out-of-memory killer (SIGKILL) and for too little shared memory."
    )
