"""The epoch and the seed of samples; and the batch that a thread makes: its request, its events and its times."""

from __future__ import annotations

import itertools
import mmap
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed
import xxhash
from torch.utils.data import get_worker_info

from storeds.errors import ConfigError
from storeds.protocols import Array

if TYPE_CHECKING:
    from storeds.datasets.counters import BatchEvents

__all__ = [
    "MAX_EPOCH",
    "STAGES",
    "SharedEpoch",
    "SharedTable",
    "Work",
    "add_bytes",
    "add_time",
    "agreed_seed",
    "collect_events",
    "collected_events",
    "draw_seed",
    "no_time",
    "replacements_for",
    "take_work",
    "use_epoch",
    "use_replacements",
    "world_size",
]


class SharedTable:
    """Zeroed values of a structured dtype in memory that a dataset shares with its workers, under every start method.

    When a worker is spawned, pickles pass `_cell`, and torch shares it. Others get values of their own.

    Notes
    -----
    Anonymous memory needs no file descriptor, and a forked worker inherits it. A tensor in torch's shared memory needs a
    descriptor. torch moves the value there when a worker is spawned.
    """

    DTYPE: ClassVar[np.dtype[Any]]
    COUNT: ClassVar[int] = 1

    def __init__(self) -> None:
        self._cell = torch.frombuffer(mmap.mmap(-1, self.DTYPE.itemsize * self.COUNT), dtype=torch.uint8)

    @property
    def table(self) -> Any:
        """The array of values."""
        # A new view each time, because the memory moves when a worker is spawned.
        return self._cell.numpy().view(self.DTYPE)


MAX_EPOCH = 2**63 - 1
"""The largest epoch: it fits into an int64."""

_SEED_KEY = "storeds/seed"
_calls = itertools.count(1)  # of a user's `set_epoch`, over all datasets, so that the last one is known


STAGES = ("read", "decode", "transform", "collate")


def no_time() -> dict[str, float]:
    """Return zero seconds of each stage."""
    return dict.fromkeys(STAGES, 0.0)


class _Context(threading.local):
    """The batch that this thread makes: its request, and what it took so far."""

    request: tuple[int, int | None] | None = None  # epoch and seed
    replacements: Callable[[str, int], Array | None] | None = None
    events: list[BatchEvents] | None = None
    bytes = blocks = 0

    def __init__(self) -> None:
        self.seconds = no_time()


_context = _Context()


@contextmanager
def use_epoch(epoch: int, seed: int | None, events: list[BatchEvents] | None = None) -> Iterator[None]:
    """Make the samples of this thread for `epoch`, and with `seed` where their dataset has none.

    Datasets append what happened to the samples to `events`; by default they count it themselves.
    """
    before = _context.request, _context.events
    _context.request, _context.events = (epoch, seed), events
    try:
        yield
    finally:
        _context.request, _context.events = before


@contextmanager
def collect_events(events: list[BatchEvents]) -> Iterator[None]:
    """Append what happens to the samples of this thread to `events`, whatever their epoch."""
    before, _context.events = _context.events, events
    try:
        yield
    finally:
        _context.events = before


@contextmanager
def use_replacements(rule: Callable[[str, int], Array | None] | None) -> Iterator[None]:
    """Let `rule` say which samples may replace a bad one, by the key of a dataset's counters and its index."""
    before, _context.replacements = _context.replacements, rule
    try:
        yield
    finally:
        _context.replacements = before


def replacements_for(counters: str, index: int) -> Array | None:
    """Return the indices of the samples that may replace a bad one; None if each may."""
    return None if _context.replacements is None else _context.replacements(counters, index)


def collected_events() -> list[BatchEvents] | None:
    """Return the list for the events of the batch that this thread makes; None outside of a request."""
    return _context.events


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
    now, seconds = perf_counter(), _context.seconds
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
    _context.bytes += total


def take_work() -> Work:
    """Return what this thread did since the last call."""
    blocks = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
    work = Work(_context.seconds, _context.bytes, (blocks - _context.blocks) * 512)
    _context.seconds, _context.bytes, _context.blocks = no_time(), 0, blocks
    return work


class SharedEpoch(SharedTable):
    """The epoch of a dataset, in memory that its workers share.

    A request of our loaders carries its own epoch to the workers (`use_epoch`). This one is for everybody else: plain
    DataLoaders, and samples that are read directly.
    """

    DTYPE = np.dtype([("number", "<i8"), ("is_set", "?"), ("loader", "<i8"), ("is_reported", "?"), ("turn", "<i8")])
    request: tuple[int, int] = (0, 0)
    """The number of the last call of a user's `set` in this process, and the epoch: each position compares the number."""

    def set(self, epoch: int) -> None:
        """Set the epoch in every process, and for the next pass of every loader."""
        self.enter(epoch)
        self.request = next(_calls), epoch

    def enter(self, epoch: int) -> None:
        """Set the epoch in every process; samplers keep theirs."""
        (table,) = self.table
        table["number"], table["is_set"] = epoch, True
        table["turn"] += 1

    @property
    def turn(self) -> int:
        """How often the epoch was set."""
        return int(self.table["turn"][0])

    def of_samples(self, seed: int | None) -> tuple[int, int | None]:
        """Return the epoch and the seed of the samples that this thread makes, for a dataset with `seed`."""
        if _context.request is not None:
            epoch, other = _context.request
            return epoch, other if seed is None else seed
        return int(self.table["number"][0]), seed

    @property
    def is_repeated(self) -> bool:
        """Whether this worker of a plain DataLoader makes the epoch of an earlier pass again, which nobody set.

        The first worker of each loader answers for all of them. Workers that start for another pass have another seed.
        Persistent workers keep theirs.
        """
        worker = get_worker_info()
        if worker is None or worker.id or _context.request is not None:
            return False
        (table,) = self.table
        if table["is_set"] or table["is_reported"]:
            return False
        if not table["loader"]:
            table["loader"] = worker.seed
        return bool(table["loader"] != worker.seed)

    def report_repeated(self) -> None:
        """Let `is_repeated` be false from now on."""
        self.table["is_reported"] = True

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return _restored, (self._cell,)
        (table,) = self.table
        called, requested = self.request
        return _copied, (int(table["number"]) if table["is_set"] else None, requested if called else None)


def _restored(cell: torch.Tensor) -> SharedEpoch:
    shared = SharedEpoch()
    shared._cell = cell
    return shared


def _copied(epoch: int | None, requested: int | None) -> SharedEpoch:
    copy = SharedEpoch()
    if requested is not None:
        copy.request = next(_calls), requested
    if epoch is not None:
        copy.enter(epoch)
    return copy


# --- Seeds for runs without seed= ---


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Draw a seed of 63 bits from a generator, by default torch's, as `torch.utils.data.RandomSampler` does."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


def world_size() -> int:
    """Return the number of torch.distributed's processes; 1 where it is not initialised."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if running else 1


def agreed_seed(what: str) -> int:
    """Draw a seed and return the one that all ranks share for `what`: it derives from rank 0's first draw.

    Rank 0 puts its draw into the store of torch.distributed's process group once, and the others wait for it there.
    Unlike a broadcast, this cannot be matched with another collective, whichever ranks draw, how often and when.

    Raises
    ------
    ConfigError
        torch.distributed is not initialised, this is a worker, or rank 0 draws nothing within the timeout of the process
        group.
    """
    drawn = draw_seed()
    if get_worker_info() is not None:
        raise ConfigError(
            "without seed= the ranks would shuffle differently: this stream drew its seed before torch.distributed was "
            "initialised, and a worker cannot agree with other ranks. Call set_epoch on the stream before each pass, or pass "
            "the same seed= on every rank"
        )
    if world_size() == 1:
        raise ConfigError(
            "without seed= the ranks would shuffle differently: torch.distributed is not initialised, so they cannot agree "
            "on a seed. Pass the same seed= on every rank"
        )
    store = torch.distributed.distributed_c10d._get_default_store()
    try:
        if torch.distributed.get_rank() == 0 and not store.check([_SEED_KEY]):
            store.set(_SEED_KEY, str(drawn))
        first = store.get(_SEED_KEY).decode()
    except (RuntimeError, AttributeError) as error:  # a timeout; a process group without a store
        raise ConfigError(
            f"the ranks cannot agree on a seed: rank 0 did not shuffle anything without a seed in time ({error}). Pass the "
            "same seed= on every rank; or num_replicas=1 and rank=0 for a loader that the ranks do not share"
        ) from error
    return xxhash.xxh3_64_intdigest(f"{first}/{what}".encode()) >> 1
