"""Which store has which sample below Subset, ConcatDataset and mixtures, however they are nested."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import storeds
from make_store import make_store
from shares import examples
from storeds import StoreDataset, StoreLoader
from storeds.datasets.batch import Ask
from storeds.datasets.reading import read
from storeds.datasets.tree import column_of, inside, leaves

SIZES = (5, 1, 9)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[StoreDataset]:
    """Each sample is its own number: 100 times that of the store, and its index there."""
    folder = tmp_path_factory.mktemp("tree")
    urls = [f"lmdb://{folder}/{number}.lmdb" for number in range(len(SIZES))]
    for number, (url, size) in enumerate(zip(urls, SIZES, strict=True)):
        make_store({"x": "int"}, ({"x": 100 * number + at} for at in range(size)), url)
    return [StoreDataset(url, reader="array", seed=0) for url in urls]


def nested(stores: list[StoreDataset], draw: random.Random, depth: int) -> Any:
    """Draw a tree of datasets."""
    kind = draw.choice(["store", "subset", "joined"]) if depth else "store"
    if kind == "store":
        return draw.choice(stores)
    if kind == "joined":
        return ConcatDataset([nested(stores, draw, depth - 1) for _ in range(draw.randint(1, 3))])
    inner = nested(stores, draw, depth - 1)
    return Subset(inner, draw.choices(range(len(inner)), k=draw.randint(1, 6)))


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32))
def test_batches_of_any_tree_are_those_that_pytorch_reads_one_by_one(stores: list[StoreDataset], seed: int) -> None:
    draw = random.Random(seed)
    dataset = nested(stores, draw, 3)
    truth = [dataset[at][0] for at in range(len(dataset))]
    indices = draw.choices(range(len(dataset)), k=8)
    assert [x for (x,) in read(dataset, Ask(indices)).result()] == [truth[at] for at in indices]
    assert column_of(dataset, lambda leaf: leaf.column("x")).tolist() == truth
    numbers = iter(range(len(leaves(dataset))))
    located = column_of(dataset, lambda leaf: np.full(len(leaf), next(numbers))).tolist()
    assert [leaves(dataset)[leaf].column("x")[0] // 100 for leaf in located] == [x // 100 for x in truth]


def test_a_sampler_of_batches_in_place_of_one_of_indices_is_a_type_error(stores: list[StoreDataset]) -> None:
    sampler = storeds.EpochSampler(stores[0], balance="x", per_batch=True, batch_size=2)
    with pytest.raises(TypeError, match=r"a sampler that makes batches goes into batch_sampler="):
        list(DataLoader(stores[0], sampler=sampler, batch_size=2))


class Wrapped(Dataset[Any]):
    """A dataset of a user, which makes samples of its own from those of others."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, index: int) -> Any:
        return sum(part[index][0] for part in self.parts)


class Doubled(StoreDataset):
    """A subclass that makes other samples."""

    def __getitem__(self, index: Any) -> Any:
        (x,) = super().__getitem__(index)
        return (2 * x,)


class Unchanged(StoreDataset):
    """A subclass that changes nothing."""


def test_what_a_users_dataset_makes_is_made_by_it(stores: list[StoreDataset], tmp_path: Path) -> None:
    wrapped, doubled = Wrapped(stores[0], stores[2]), Doubled(stores[0].url, reader="array")
    assert leaves(Subset(wrapped, [1])) == [wrapped]
    assert inside(Subset(wrapped, [1])) == [stores[0], stores[2]]
    for kind in (DataLoader, StoreLoader):
        assert [x.tolist() for x in kind(wrapped, batch_size=5, collate_fn=storeds.collate)] == [
            [200, 202, 204, 206, 208]
        ]
        joined: Any = ConcatDataset([doubled, Unchanged(stores[1].url, reader="array")])
        (((x,)),) = kind(joined, batch_size=6, collate_fn=storeds.collate)
        assert x.tolist() == [0, 2, 4, 6, 8, 100]


def test_a_dataset_that_stands_in_a_tree_twice_is_counted_each_time(stores: list[StoreDataset]) -> None:
    dataset = StoreDataset(stores[0].url, reader="array")
    list(StoreLoader(ConcatDataset([dataset, Subset(dataset, [1, 2])]), batch_size=3, num_workers=1))
    assert dataset.report().seen == 7
