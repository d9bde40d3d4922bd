"""What PyTorch's own DataLoader repeats in pass after pass is warned of, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

import storeds
from _processes import end_workers
from _traps_epochs import COUNT, jittered, jittered_dataset, numbered_store
from storeds import StoreDataset

REPEATED = r"sample \d+ of lmdb://.* was made again in epoch 0, .*call dataset.set_epoch\(epoch\) before each pass"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return numbered_store(tmp_path)


def run(dataset: Any, passes: int, **arguments: Any) -> list[Any]:
    loader = DataLoader(dataset, **{"batch_size": 4, **arguments})
    return [list(loader) for _ in range(passes)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_second_pass_without_workers(url: str, shuffle: bool, foreign: bool) -> None:
    transform = (lambda value: float(value) + torch.rand(()).item()) if foreign else jittered
    dataset = StoreDataset(url, reader="array", transform=transform, seed=7)
    run(dataset, 1, shuffle=shuffle)
    with pytest.warns(UserWarning, match=REPEATED):
        run(dataset, 1, shuffle=shuffle)
    run(dataset, 2, shuffle=shuffle)  # once


@pytest.mark.parametrize("shuffle", [False, True])
def test_passes_through_a_small_part_without_workers(url: str, shuffle: bool) -> None:
    part = Subset(jittered_dataset(url, 7), range(5))
    with pytest.warns(UserWarning, match=REPEATED):
        run(part, 4, shuffle=shuffle)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_second_pass_with_workers(url: str, persistent: bool) -> None:
    loader = DataLoader(jittered_dataset(url, 7), 4, shuffle=True, num_workers=2, persistent_workers=persistent)
    list(loader)
    with pytest.raises(UserWarning, match=REPEATED) as raised:  # an error here, as the worker inherits pytest's filters
        list(loader)
    del loader  # which holds persistent workers
    end_workers(raised)


def test_a_second_pass_of_a_weighted_sampler_with_workers(url: str) -> None:
    loader = DataLoader(
        jittered_dataset(url, 7), 4, sampler=WeightedRandomSampler([1.0] * COUNT, 5 * COUNT), num_workers=1
    )
    list(loader)
    with pytest.raises(UserWarning, match=REPEATED) as raised:
        list(loader)
    end_workers(raised)


def same_epoch_twice(dataset: StoreDataset) -> None:
    for _ in range(2):
        dataset.set_epoch(3)
        run(dataset, 1)


def looked_at(dataset: StoreDataset) -> None:
    loader = DataLoader(dataset, 2)
    for _ in range(5):
        next(iter(loader))
    list(loader)


def read_by_hand(dataset: StoreDataset) -> None:
    for _ in range(5):
        dataset[0], dataset[:], dataset[[1, 1]]


# Each is given a dataset with a seed and a random transform.
ORDINARY: dict[str, Callable[[StoreDataset], Any]] = {
    "one pass": lambda data: run(data, 1, shuffle=True),
    "two loaders": lambda data: [run(data, 1, shuffle=True), run(data, 1)],
    "two loaders with workers": lambda data: [run(data, 1, shuffle=True, num_workers=1), run(data, 1, num_workers=1)],
    "two parts": lambda data: [run(Subset(data, range(6)), 1), run(Subset(data, range(6, 12)), 1)],
    "a look first": lambda data: [next(iter(DataLoader(data, 2))), run(data, 1, batch_size=2)],
    "the first batch again and again": looked_at,
    "with replacement": lambda data: run(data, 1, sampler=WeightedRandomSampler([1.0] * COUNT, 20 * COUNT)),
    "an epoch that was set": same_epoch_twice,
    "by hand": read_by_hand,
    "a loader of storeds": lambda data: [list(storeds.StoreLoader(data, batch_size=4)) for _ in range(3)],
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_use_is_not_warned_of(url: str, name: str) -> None:
    ORDINARY[name](jittered_dataset(url, 7))


@pytest.mark.parametrize(("transform", "seed"), [(float, 7), (None, 7), (jittered, None)])
def test_what_is_not_random_or_differs_is_not_warned_of(url: str, transform: Any, seed: int | None) -> None:
    run(StoreDataset(url, reader="array", transform=transform, seed=seed), 4)


@pytest.fixture(autouse=True)
def _order() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
