"""PyTorch's own DataLoader with workers is reported once where it repeats random samples, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

import storeds
from _jittered import jittered, jittered_dataset, numbered_store
from _processes import end_workers
from storeds import StoreDataset

REPEATED = r"sample \d+ of lmdb://.* was made again in epoch 0, .*call dataset.set_epoch\(epoch\) before each pass"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return numbered_store(tmp_path)


def run(dataset: Any, passes: int, **arguments: Any) -> list[Any]:
    loader = DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **arguments})
    return [list(loader) for _ in range(passes)]


def drawn(value: Any) -> float:
    """Draw from torch's global generator, as transforms of other libraries do."""
    return float(value) + torch.rand(()).item()


@pytest.mark.parametrize("arguments", [{"shuffle": True}, {}, {"batch_size": None}], ids=str)
@pytest.mark.parametrize("transform", [jittered, drawn])
def test_a_second_pass_with_workers_is_reported(url: str, transform: Any, arguments: dict[str, Any]) -> None:
    dataset = StoreDataset(url, reader="array", transform=transform, seed=7)
    run(dataset, 1, **arguments)
    with pytest.raises(UserWarning, match=REPEATED) as raised:  # an error here: the worker inherits pytest's filters
        run(dataset, 1, **arguments)
    end_workers(raised)
    run(dataset, 2, **arguments)  # once


def same_epoch_twice(dataset: StoreDataset) -> None:
    for _ in range(2):
        dataset.set_epoch(3)
        run(dataset, 1)


# Each receives a dataset with a seed and a random transform.
ORDINARY: dict[str, Callable[[StoreDataset], Any]] = {
    "one pass": lambda data: run(data, 1, shuffle=True),
    "an epoch that was set": same_epoch_twice,
    "an EpochSampler": lambda data: run(data, 3, sampler=storeds.EpochSampler(data)),
    "a loader of storeds": lambda data: [list(storeds.StoreLoader(data, batch_size=4, num_workers=1)), run(data, 1)],
    "by hand": lambda data: [(data[0], data[:], data[[1, 1]]) for _ in range(5)],
    "a part": lambda data: run(Subset(data, range(6)), 1),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_use_is_not(url: str, name: str) -> None:
    ORDINARY[name](jittered_dataset(url, 7))


def filled(value: Any) -> torch.Tensor:
    return torch.full((20_000,), float(value))


@pytest.mark.parametrize(("transform", "seed"), [(float, 7), (filled, 7), (None, 7), (jittered, None)])
def test_samples_that_are_not_random_or_differ_are_not(url: str, transform: Any, seed: int | None) -> None:
    run(StoreDataset(url, reader="array", transform=transform, seed=seed), 4)
