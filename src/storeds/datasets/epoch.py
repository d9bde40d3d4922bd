"""The epoch of a dataset, in memory that its workers share; and the seeds of runs without one."""

from __future__ import annotations

import itertools
import mmap
import os
from multiprocessing.context import get_spawning_popen
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed
import xxhash
from torch.utils.data import get_worker_info

from storeds.errors import ConfigError

__all__ = [
    "MAX_EPOCH",
    "SharedChange",
    "SharedEpoch",
    "SharedTable",
    "agreed_seed",
    "draw_seed",
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


class SharedEpoch(SharedTable):
    """The epoch of a dataset, in memory that its workers share.

    What a loader of ours asks for has its own epoch. This one is for everybody else: plain DataLoaders, samples that are read
    directly, and datasets of users that read from this one.
    """

    DTYPE = np.dtype([("number", "<i8"), ("is_set", "?"), ("turn", "<i8")])
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

    @property
    def number(self) -> int:
        """The epoch of the samples that this process makes."""
        return int(self.table["number"][0])

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return _restored, (self._cell,)
        (table,) = self.table
        called, requested = self.request
        return _copied, (int(table["number"]) if table["is_set"] else None, requested if called else None)


class SharedChange(SharedTable):
    """Whether settings were assigned to the dataset of the training process since its workers got their copies."""

    DTYPE = np.dtype([("turn", "<i8")])

    def __init__(self) -> None:
        super().__init__()
        self._process: int | None = os.getpid()

    def report(self, epoch: SharedEpoch) -> SharedChange:
        """Tell the workers that a setting is assigned; return the cell of those that begin from now on. In a worker, do nothing."""
        if self._process != os.getpid():
            return self
        self.table["turn"] = epoch.turn + 1
        return SharedChange()

    def is_due(self, epoch: SharedEpoch) -> bool:
        """Return whether a setting was assigned, and the epoch was set since, as it is before a pass."""
        turn = int(self.table["turn"][0])
        return 0 < turn <= epoch.turn

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored_change, (self._cell,)) if get_spawning_popen() is not None else (SharedChange, ())


def _restored_change(cell: torch.Tensor) -> SharedChange:
    shared = SharedChange()
    shared._cell, shared._process = cell, None
    return shared


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
