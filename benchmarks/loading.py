"""Epochs of small arrays through loaders and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks._common import Result, Run, entry
from storeds import EpochSampler, StoreDataset, StoreLoader, ThreadLoader


class Plain(Dataset[tuple[torch.Tensor, int]]):
    """The Dataset of many training scripts: opens the file in each worker, and reads one item at a time."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        self.file: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            self.file = h5py.File(self.path)
        return torch.from_numpy(self.file["data"][index]), int(self.file["label"][index])


def check_epoch(name: str, loader: Any, count: int) -> None:
    """Raise unless a loader gives every array once, with its label."""
    labels: list[int] = []
    for data, numbers in loader:
        if not bool((data.flatten(1)[:, 0] == numbers % 251).all()):
            raise AssertionError(f"{name} gives arrays that are not those of their labels")
        labels += numbers.tolist()
    if sorted(labels) != list(range(count)):
        raise AssertionError(f"{name} gives other labels")


def epoch(loader: Any) -> Callable[[], int]:
    return lambda: sum(int(labels.sum()) for _, labels in loader)


@entry(
    "loaders",
    "A shuffled epoch of small arrays of a contiguous HDF5 dataset, two workers: every loader against an h5py Dataset",
)
def loaders(run: Run) -> Iterator[Result]:
    for shape, dtype, batch, full in (
        ((128,), "f4", 256, 60_000),
        ((1024,), "f4", 256, 30_000),
        ((64, 64, 3), "u1", 64, 10_000),
    ):
        count, path = run.count(full, 500), run.folder / f"{len(shape)}-{shape[0]}.h5"
        with h5py.File(path, "w") as file:
            numbers = (np.arange(count) % 251).reshape(-1, *[1] * len(shape))
            file["data"] = np.broadcast_to(numbers, (count, *shape)).astype(dtype)
            file["label"] = np.arange(count)
        dataset: Any = StoreDataset(path, reader="array", fields=["data", "label"])
        kept: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
        sampler = EpochSampler(dataset, shuffle=True, seed=0)
        ways: dict[str, Any] = {
            "h5py Dataset": DataLoader(Plain(path, count), batch, shuffle=True, **kept),
            "DataLoader": DataLoader(dataset, batch, shuffle=True, **kept),
            "StoreLoader": StoreLoader(dataset, batch_size=batch, sampler=sampler, **kept),
            "ThreadLoader": ThreadLoader(dataset, batch_size=batch, shuffle=True, num_workers=2),
        }
        for name, loader in ways.items():
            check_epoch(name, loader, count)
        pairs = [(name, "h5py Dataset", 1.0) for name in list(ways)[1:]]
        for name, other, least in (*pairs, ("ThreadLoader", "StoreLoader", None)):
            title = f"{' × '.join(map(str, shape))} {dtype}, batches of {batch}: {name} ÷ {other}"
            yield run.compare(title, epoch(ways[name]), epoch(ways[other]), least=least, count=count, seconds=0)
