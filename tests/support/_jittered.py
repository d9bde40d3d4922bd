"""A store of numbers and a random transform. Each value shows the index, the epoch and the run that made it.

A module of its own, with few imports, because spawned workers and the programs of `_frameworks.py` import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import storeds
from make_store import make_store

__all__ = ["COUNT", "Wrapper", "jittered", "jittered_dataset", "numbered_store", "one_pass"]

COUNT = 12


def jittered(value: Any, generator: torch.Generator | None = None) -> float:
    """Stand for an augmentation: what it draws shows behind the decimal point."""
    return int(value) + float(torch.rand((), generator=generator)) / 2


def numbered_store(folder: Path, count: int = COUNT) -> str:
    url = f"lmdb://{folder}/numbered.lmdb"
    make_store({"x": "int"}, ({"x": number} for number in range(count)), url, overwrite=True)
    return url


def jittered_dataset(url: str, seed: int | None) -> storeds.StoreDataset:
    return storeds.StoreDataset(url, reader="array", transform=jittered, seed=seed)


def one_pass(loader: Iterable[Any]) -> list[float]:
    return [float(value) for (values,) in loader for value in values]


class Wrapper(torch.utils.data.Dataset[Any]):
    """A dataset of a user, which takes its samples from others and knows nothing of epochs."""

    def __init__(self, datasets: Sequence[storeds.StoreDataset]) -> None:
        self.names: list[str] = []
        self.parts = {"all": list(datasets)}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any]:
        (value,) = self.parts["all"][index % len(self.parts["all"])][index]
        return (value,)
