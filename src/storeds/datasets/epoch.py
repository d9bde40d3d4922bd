"""The epoch that samples are made for: shared by a dataset, its workers, and the loaders that read it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from torch.utils.data import get_worker_info

from storeds._utils.shared_values import SharedTable

__all__ = ["MOST", "SharedEpoch", "SharedPasses", "loader_of_worker", "making_for"]

MOST = 2**63 - 1
"""The largest epoch: it fits into an int64."""

_PASSES = 64  # of loaders with workers, that can be under way at once


class Listener(Protocol):
    """Has its next pass be of the epoch that a user sets on its dataset."""

    def _ask(self, epoch: int) -> None: ...


_STREAMED, _WORKERS = 64, 256  # passes that are remembered, and workers of a loader


class _Here(threading.local):
    making_for: tuple[int, int | None] | None = None


_here = _Here()


@contextmanager
def making_for(epoch: int, seed: int | None) -> Iterator[None]:
    """Make samples of this epoch in this thread, and with this seed where their dataset has none."""
    before, _here.making_for = _here.making_for, (epoch, seed)
    try:
        yield
    finally:
        _here.making_for = before


def loader_of_worker() -> int | None:
    """Return what identifies the loader's iterator that this worker process belongs to; None in other processes.

    It is the seed that DataLoader draws for its workers, once for each set of them.
    """
    worker = get_worker_info()
    return None if worker is None else worker.seed - worker.id


class SharedEpoch(SharedTable):
    """The epoch of a dataset, and those of the passes that workers make samples for.

    Notes
    -----
    A sampler enters the epoch when it begins a pass. With workers it also enters which loader's workers the pass is for,
    so that passes that overlap, each in another epoch, do not disturb each other.
    """

    DTYPE = np.dtype(
        [
            ("number", "<i8"),
            ("is_set", "?"),  # whether anything ever set or entered an epoch
            ("passes", "<i8"),  # how many were entered
            ("loader", "<i8", _PASSES),
            ("epoch", "<i8", _PASSES),
        ]
    )
    requested: int | None = None
    """The last epoch that a user set on the dataset, in this process or in that which the dataset came from."""
    _listeners: weakref.WeakSet[Listener] | None = None

    def listen(self, listener: Listener) -> None:
        """Have `listener` hear of each epoch that a user sets from now on, in this process."""
        if self._listeners is None:
            self._listeners = weakref.WeakSet()
        self._listeners.add(listener)

    @property
    def number(self) -> int:
        """The epoch that was set or entered last."""
        return int(self.table["number"])

    @property
    def is_set(self) -> bool:
        """Whether anything ever set or entered an epoch."""
        return bool(self.table["is_set"])

    def set(self, epoch: int) -> None:
        """Set the epoch for every process, and have samplers take it for their next pass."""
        self.enter(epoch)
        self.requested = epoch
        for listener in self._listeners or ():
            listener._ask(epoch)

    def enter(self, epoch: int, loader: int | None = None) -> None:
        """Make samples of this epoch from now on; those for one loader's workers only, if one is given."""
        table = self.table
        table["number"], table["is_set"] = epoch, True
        if loader is None:
            return
        found = np.flatnonzero(table["loader"] == loader)
        at = int(found[0]) if found.size else int(table["passes"]) % _PASSES
        table["epoch"][at], table["loader"][at] = epoch, loader
        table["passes"] += not found.size

    def of_samples(self, seed: int | None) -> tuple[int, int | None]:
        """Return the epoch and the seed of the samples that are made here and now, for a dataset with that seed."""
        if _here.making_for is not None:
            epoch, other = _here.making_for
            return epoch, other if seed is None else seed
        loader, table = loader_of_worker(), self.table
        if loader is not None and table["passes"]:
            found = np.flatnonzero(table["loader"] == loader)
            if found.size:
                return int(table["epoch"][found[0]]), seed
        return int(table["number"]), seed

    def _copy(self) -> tuple[Any, ...]:
        return _copied, (self.number, self.is_set, self.requested)

    def __repr__(self) -> str:
        return f"SharedEpoch({self.number})"


def _copied(number: int, is_set: bool, requested: int | None) -> SharedEpoch:
    copy = SharedEpoch()
    copy.requested = requested
    if is_set:
        copy.enter(number)
    return copy


class SharedPasses(SharedTable):
    """Counts the passes through a stream, which only its workers see begin.

    Notes
    -----
    All workers of a loader must count alike, whichever begins first: the first enters the pass, and the others find it by
    the loader and by how many passes they have begun themselves. No lock is needed: a worker reads the next epoch before it
    looks for the pass, and a pass is entered before the next epoch is changed.
    """

    DTYPE = np.dtype(
        [
            ("number", "<i8"),
            ("next", "<i8"),
            ("is_asked", "?"),  # whether the next epoch was set, and no pass has begun since
            ("passes", "<i8"),
            ("loader", "<i8", _STREAMED),
            ("turn", "<i8", _STREAMED),  # of the loader's workers; 0 is an empty row
            ("epoch", "<i8", _STREAMED),
            ("joined", "?", (_STREAMED, _WORKERS)),
        ]
    )

    @property
    def number(self) -> int:
        """The epoch of the pass that began last, or the one that was set or loaded since."""
        return int(self.table["number"])

    @property
    def is_asked(self) -> bool:
        """Whether an epoch was set for the next pass."""
        return bool(self.table["is_asked"])

    def set(self, epoch: int) -> None:
        """Let the next pass be of this epoch."""
        table = self.table
        table["number"], table["next"], table["is_asked"] = epoch, epoch, True

    def load(self, epoch: int) -> None:
        """Count on after a loaded state: the pass after the loaded one is `epoch` + 1."""
        table = self.table
        table["number"], table["next"], table["is_asked"] = epoch, epoch + 1, False

    def peek(self, turn: int) -> int:
        """Return the epoch that `begin` would."""
        table, worker = self.table, get_worker_info()
        following = int(table["next"])
        at = self._find(table, worker, turn)
        return following if at is None else int(table["epoch"][at])

    def begin(self, turn: int, epoch: int | None = None) -> int:
        """Begin a pass, this process's `turn`-th of the stream, and return its epoch: the given one, or the next."""
        table, worker = self.table, get_worker_info()
        following = int(table["next"])
        if epoch is None:
            at = self._find(table, worker, turn)
            if at is not None and worker is not None:
                table["joined"][at, worker.id % _WORKERS] = True
                return int(table["epoch"][at])
            epoch = following
        if worker is not None:
            at = int(table["passes"]) % _STREAMED
            table["turn"][at] = 0
            table["joined"][at] = False
            table["joined"][at, worker.id % _WORKERS] = True
            table["epoch"][at], table["loader"][at], table["turn"][at] = epoch, loader_of_worker(), turn
            table["passes"] += 1
        table["number"], table["next"], table["is_asked"] = epoch, min(epoch + 1, MOST), False
        return epoch

    def _find(self, table: Any, worker: Any, turn: int) -> int | None:
        """Return the row of the pass that another worker of the same loader has begun."""
        if worker is None:
            return None
        same = (table["turn"] == turn) & (table["loader"] == loader_of_worker())
        # With the same loader's seed, a worker that has joined is one of a later set of workers.
        found = np.flatnonzero(same & ~table["joined"][:, worker.id % _WORKERS])
        return int(found[0]) if found.size else None

    def _copy(self) -> tuple[Any, ...]:
        return _copied_passes, (self.number, int(self.table["next"]), self.is_asked)


def _copied_passes(number: int, following: int, is_asked: bool) -> SharedPasses:
    copy = SharedPasses()
    copy.table["number"], copy.table["next"], copy.table["is_asked"] = number, following, is_asked
    return copy
