"""The epoch that samples are made for: shared by a dataset, its workers, and the loaders that read it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from storeds._shared import SharedTable

__all__ = ["MOST", "Request", "SharedEpoch", "loader_of_worker", "making_for"]

MOST = 2**63 - 1
"""The largest epoch: it fits into an int64."""

_PASSES = 64  # of loaders with workers, that can be under way at once


class Request(NamedTuple):
    """An epoch that `StoreDataset.set_epoch` asked for; a later request has a higher number."""

    number: int
    epoch: int


_numbers = itertools.count(1)


class _Here(threading.local):
    making_for: tuple[int, int] | None = None


_here = _Here()


@contextmanager
def making_for(epoch: int, seed: int) -> Iterator[None]:
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
    request: Request | None = None
    """The last epoch that a user set on the dataset; in the process that set it."""

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
        self.request = Request(next(_numbers), epoch)

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
        return _copied, (self.number, self.is_set)

    def __repr__(self) -> str:
        return f"SharedEpoch({self.number})"


def _copied(number: int, is_set: bool) -> SharedEpoch:
    copy = SharedEpoch()
    if is_set:
        copy.enter(number)
    return copy
