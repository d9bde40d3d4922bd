"""Warns once when a DataLoader of PyTorch's makes the same random samples in each pass.

Such a loader tells a dataset nothing about passes. What a dataset sees: batches of indices and, in a worker, the seed that a
loader draws for each set of workers. So the first indices made are *markers*, and what becomes of them is counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from storeds._utils.shared_values import SharedTable
from storeds.datasets.epoch import loader_of_worker

__all__ = ["Repeats"]

_MARKERS = 8
_TRIALS = 8  # epochs that a sample is made for, to see whether anything in it is random
_DOUBTS = 3  # samples that proved to be the same in all of them, until nothing is looked for any more


class Repeats(SharedTable):
    """Watches the batches of one dataset, in all of its processes.

    Notes
    -----
    A second pass is one by other workers (their loader's seed is another) that makes a marker of a pass that was not broken
    off early; or by the same workers, or none, that makes all markers again before it makes one twice, which samplers with
    replacement do not do. Loaders that differ in workers, in the size of batches, or in whether they shuffle count as different.
    """

    DTYPE = np.dtype(
        [
            ("done", "?"),
            ("mixed", "?"),  # whether one set of workers makes samples more often than others
            ("doubts", "<i8"),
            ("markers", "<i8", _MARKERS),
            ("count", "<i8"),  # of markers; 0 until there are any
            ("hits", "<i8", _MARKERS),
            ("loader", "<i8"),
            ("kind", "<i8", 3),  # workers, samples in a batch, whether they are neighbours
            ("made", "<i8"),
        ]
    )

    def check(self, indices: Sequence[int], total: int) -> bool:
        """Note a batch that is to be made; return whether it belongs to a pass that repeats an earlier one's samples."""
        table = self.table
        if table["done"] or not indices:
            return False
        worker = get_worker_info()
        loader = loader_of_worker() or 0
        neighbours = list(indices) == list(range(indices[0], indices[0] + len(indices)))
        kind = (0 if worker is None else worker.num_workers, len(indices), neighbours)
        if not table["count"]:
            if worker is None or worker.id == 0:
                self._mark(table, indices, loader, kind)
            return False
        same = table["loader"] == loader
        table["made"] += len(indices) * bool(same)
        if not _is_like(kind, table["kind"]):
            return False
        if same:
            return self._again(table, indices, total)
        found = set(table["markers"][: table["count"]].tolist()).intersection(indices)
        if found and 2 * table["made"] < total:  # only looked at: this pass is the one to compare with
            table["count"] = 0
            return False
        return bool(found)

    @staticmethod
    def _mark(table: Any, indices: Sequence[int], loader: int, kind: tuple[int, int, bool]) -> None:
        markers = list(dict.fromkeys(indices))[:_MARKERS]
        table["markers"][: len(markers)] = markers
        table["hits"], table["loader"], table["kind"], table["made"] = 0, loader, kind, len(indices)
        table["mixed"] = False
        table["count"] = len(markers)

    @staticmethod
    def _again(table: Any, indices: Sequence[int], total: int) -> bool:
        """Return whether one loader, or several without workers, are in another pass."""
        count = int(table["count"])
        places = {marker: at for at, marker in enumerate(table["markers"][:count].tolist())}
        for index in indices:
            if index in places:
                table["hits"][places[index]] += 1
        least, most = int(table["hits"][:count].min()), int(table["hits"][:count].max())
        if most > least + 1 or len(set(indices)) < len(indices):  # with replacement, or passes are broken off
            table["mixed"] = True
        if most != least or table["mixed"]:
            return False
        # Passes through a small part of the dataset; but a first batch that is looked at again and again is no pass.
        begins = not places.keys().isdisjoint(indices) and table["made"] > (least + 1) * table["kind"][1]
        return (least > 1 and bool(begins)) or (least == 1 and bool(2 * table["made"] >= 3 * total))

    def settle(self, make: Callable[[int], Any], epoch: int, what: str) -> None:
        """Warn if a sample, which `make` makes for any epoch, would differ in another."""
        table = self.table
        first = make(epoch)
        if all(_is_same(first, make(epoch + at)) for at in range(1, _TRIALS)):
            table["doubts"] += 1
            table["done"] = table["doubts"] >= _DOUBTS
            return
        table["done"] = True
        warnings.warn(
            f"{what} was made again in epoch {epoch}, with the same random numbers as in an earlier pass. PyTorch's "
            "DataLoader does not tell a dataset that a pass begins: call dataset.set_epoch(epoch) before each pass; or use "
            "storeds.StoreLoader, or sampler=storeds.EpochSampler(dataset), which count passes themselves",
            UserWarning,
            stacklevel=2,
        )


def _is_like(kind: tuple[int, int, bool], other: Any) -> bool:
    # The last batch of a pass may be smaller, down to a single sample.
    workers, size, neighbours = other.tolist()
    return kind[0] == workers and (kind[1:] == (size, bool(neighbours)) or kind[1] < size)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, Image.Image) and isinstance(other, Image.Image):
        return one.size == other.size and one.tobytes() == other.tobytes()
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    # What cannot be compared by value is not taken for random.
    return not isinstance(one, (bool, int, float, str, bytes)) or bool(one == other) or one != one
