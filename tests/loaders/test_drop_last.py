"""`drop_last` leaves out what is left over, in every place that says it: among ranks, of batches, in a config."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import storeds
from make_store import make_store
from storeds import EpochSampler, StoreDataset, StoreLoader

COUNT, SIZE = 95, 9
URL = "memory://drop-last"
DATASET: dict[str, Any] = {"reader": "array", "fields": ["index"], "seed": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "blocks": {"shuffle": True, "block_size": 5},
    "balanced": {"balance": "label"},
    "balanced batches": {"balance": "label", "per_batch": True},
    "weighted": {"weights": "weight", "samples_per_epoch": 30},
    "groups": {"group_by": "patient", "shuffle": True},
    "buckets": {"bucket_by": "length", "num_buckets": 3, "shuffle": True},
    "samples": {"shuffle": True, "batch_size": None},
}


@pytest.fixture(scope="module", autouse=True)
def _store() -> None:
    fields = {"label": "int", "weight": "float", "patient": "int", "length": "int"}
    records = (
        {"label": at % 3, "weight": at % 5, "patient": at // (at % 3 + 1), "length": at % 17} for at in range(COUNT)
    )
    make_store(fields, records, URL, overwrite=True)


def dataset() -> StoreDataset:
    return StoreDataset(URL, **DATASET)


def listed(loader: Any) -> list[Any]:
    return [torch.as_tensor(batch[0]).tolist() for batch in loader]


def sizes(batches: list[Any]) -> set[int]:
    return {len(batch) for batch in batches}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_config_and_python_make_the_same_batches_and_load_each_others_state(
    monkeypatch: pytest.MonkeyPatch, name: str, drop_last: bool
) -> None:
    world = 3
    settings = {"batch_size": SIZE, "drop_last": drop_last, **SETTINGS[name]}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)
    lengths = set()
    for rank in range(world):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        config = {"dataset": {"url": URL, **DATASET}, "loader": {"num_workers": 0, **settings}}
        built, made = storeds.build_loader(config), StoreLoader(dataset(), **settings)
        assert len(built) == len(made)
        batches = listed(built)
        assert batches == listed(made)
        assert len(batches) == len(made)
        lengths.add(len(batches))
        if drop_last and settings["batch_size"]:
            assert sizes(batches) <= {SIZE}
        for one, other in ((built, made), (made, built)):
            next(iter(one))
            other.load_state_dict(one.state_dict())
            assert other.state_dict() == one.state_dict()
    assert len(lengths) == 1


@pytest.mark.parametrize("data", ["dataset", "subset", "joined", "mixture"])
@pytest.mark.parametrize("name", ["balanced batches", "groups", "buckets"])
def test_every_plan_that_makes_batches_leaves_out_short_ones(name: str, data: str) -> None:
    whole = dataset()
    kinds: dict[str, Any] = {
        "dataset": whole,
        "subset": Subset(whole, range(3, COUNT)),
        "joined": ConcatDataset([whole, dataset()]),
        "mixture": storeds.StoreMixture({"a": whole, "b": dataset()}),
    }
    settings = {"per_batch": True} if data == "mixture" else SETTINGS[name]
    every = list(EpochSampler(kinds[data], batch_size=SIZE, seed=4, **settings))
    some = list(EpochSampler(kinds[data], batch_size=SIZE, seed=4, drop_last=True, **settings))
    assert sorted(some) == sorted(batch for batch in every if len(batch) == SIZE)
    assert len(some) < len(every)
