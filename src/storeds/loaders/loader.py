"""`StoreLoader`: a DataLoader that counts the batches it yields, so that it can resume within an epoch."""

from __future__ import annotations

import functools
import logging
import re
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
)

from storeds._utils.prefetch import ReadAhead
from storeds._utils.text import html_table, some
from storeds.batching.buffers import BufferPool
from storeds.batching.memory import SlotPool
from storeds.datasets.map_dataset import StoreDataset
from storeds.datasets.mixture import StoreMixture
from storeds.datasets.reading import count, is_of_storeds
from storeds.datasets.tree import inside, leaves
from storeds.errors import ConfigError
from storeds.loaders.advice import explain
from storeds.loaders.copies import are_same, parts_of
from storeds.loaders.device import map_tensors
from storeds.loaders.plan import Plan
from storeds.loaders.planning import PLAN_SETTINGS
from storeds.loaders.position import Position
from storeds.loaders.sampler import EpochBatches, EpochSampler, OtherSampler, divides_again, is_plain_batches
from storeds.loaders.seeds import draw_seed
from storeds.loaders.settings import LoaderSettings
from storeds.loaders.stats import LoaderStats
from storeds.loaders.threads import in_threads
from storeds.loaders.worker import BatchFetcher, Error, Failure, Request, Result, begin_worker, fitted_collate

_LOG = logging.getLogger("storeds")

__all__ = ["StoreLoader"]


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
            return in_threads(fetch, requests, self.num_workers, self.prefetch_factor or 1, _has_failed)
        batches: DataLoader[Any] = DataLoader(
            fetcher,
            batch_size=None,  # a request is one item of the fetcher
            sampler=_Requests(self, SlotPool() if self.num_workers else None),
            collate_fn=_unchanged,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=functools.partial(begin_worker, self.worker_init_fn),
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
            if results is not None and not are_same(self._copied, self._copies()):
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
        return parts_of([getattr(self, name) for name in _OF_WORKERS])

    def _received(self, results: Iterator[Result]) -> Iterator[Any]:
        """Yield the batches of results, after counting what these say."""
        is_first, this_pass = True, object()
        began = time.perf_counter()
        for result in results:
            now, stats = time.perf_counter(), self._stats
            stats.wait(now - began, is_first=is_first)
            stats.add(result.worker, result.size, result.work, result.counted)
            is_first = False
            # A function of the user may have given a worker other datasets.
            known = [each for each in result.counted if each.leaf < len(self._leaves)]
            count((each._replace(leaf=self._leaves[each.leaf]) for each in known), this_pass)
            batch = result.batch
            if _has_failed(result):
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


def _warn_of_nothing(loader: StoreLoader, dataset: Any) -> None:
    """Log why a loader has no batch, unless the dataset has said so."""
    url = getattr(dataset, "url", "the dataset")
    if len(dataset):
        _LOG.warning(
            "there is no batch to load: %d samples of %s for %d ranks make no whole batch of %d, and drop_last drops a smaller "
            "one; reduce batch_size, or set drop_last = false",
            *(len(dataset), url, loader.sampler.num_replicas, loader.batch_size or 1),
        )
    elif not isinstance(dataset, StoreDataset):
        _LOG.warning("there is no batch to load: %s holds no records", url)


class _Requests(Sampler[Request]):
    """The requests of a loader; each iteration is a pass. Owns the slots, which live as long as the workers."""

    def __init__(self, loader: StoreLoader, slots: SlotPool | None, seed: int | None = None) -> None:
        self._position, self._batching = loader._position, loader._batching
        self._slots, self._seed = slots, seed

    def __iter__(self) -> Iterator[Request]:
        for request in self._position.requests(*self._batching, self._seed):
            yield Request(request, None if self._slots is None else self._slots.acquire())


def _has_failed(result: Result) -> bool:
    return isinstance(result.batch, (Failure, Error))


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
