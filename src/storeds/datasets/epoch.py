"""The epoch of a dataset, in memory that its workers share."""

from __future__ import annotations

import itertools
import mmap
import os
from multiprocessing.context import get_spawning_popen
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed

__all__ = [
    "MAX_EPOCH",
    "SharedChange",
    "SharedEpoch",
    "SharedTable",
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
