"""Loaders by config: what they pick, how they resume, and the way of their batches to a device."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import default_collate

import storeds
from make_store import make_store
from storeds import (
    EpochSampler,
    StoreDataset,
    build_dataset,
    build_loader,
    errors,
    load_config,
    to_device,
)
from storeds.loaders import StoreLoader
from threaded import threaded

COUNT = 50


@pytest.fixture
def url(tmp_path: Path) -> str:
    records = ({"x": number, "half": number // (COUNT // 2)} for number in range(COUNT))
    return make_store({"x": "int", "half": "int"}, records, f"lmdb://{tmp_path}/x.lmdb")


def loader(url: str, seed: int | None = 5, **settings: Any) -> StoreLoader:
    dataset = {"url": url, "reader": "array", "fields": ["x"], "seed": seed}
    settings = {"num_workers": 0, "batch_size": 4, "shuffle": True, **settings}
    return build_loader(load_config({"dataset": dataset, "loader": settings}))


def ids(batches: Iterable[Any]) -> list[int]:
    return [int(number) for (batch,) in batches for number in batch]


def test_a_silent_config_gets_what_a_loader_of_pytorch_has(url: str) -> None:
    made = build_loader(load_config({"dataset": {"url": url, "reader": "array"}}))
    assert isinstance(made.sampler, EpochSampler)
    assert (made.num_workers, made.batch_size, made.pin_memory, made.persistent_workers) == (0, 1, False, False)
    assert made.collate_fn is storeds.collate


def test_a_collate_function_is_named_by_its_path(url: str) -> None:
    assert loader(url, collate="default").collate_fn is default_collate
    for path in ("torch.utils.data.default_collate", "torch.utils.data:default_collate"):
        assert loader(url, collate=path).collate_fn is default_collate
    for path, reason in (("nowhere.at_all", "No module"), ("torch.no_such", "no_such"), ("torch.pi", "not a function")):
        with pytest.raises(errors.ConfigError, match=reason):
            loader(url, collate=path)


class Batch(NamedTuple):
    x: torch.Tensor
    names: list[str]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_in_any_nesting_come_to_the_device(device: str) -> None:
    batches = [{"a": (torch.ones(2), [torch.zeros(1), "x"]), "b": Batch(torch.ones(3), ["n"])} for _ in range(3)]
    moved = to_device(batches, device)
    assert len(moved) == 3
    for _ in range(2):  # as often as the loader
        for batch in moved:
            tensors = [batch["a"][0], batch["a"][1][0], batch["b"].x]
            assert {tensor.device.type for tensor in tensors} == {device}
            assert batch["a"][1][1] == "x"
            assert batch["b"].names == ["n"]


@pytest.mark.parametrize(("kind", "workers"), [(StoreLoader, 0), (threaded, 2)])
def test_a_loader_made_by_hand_needs_no_sampler(url: str, kind: type[StoreLoader], workers: int) -> None:
    dataset = StoreDataset(url, reader="array", fields=["x"])
    by_hand = kind(dataset, batch_size=4, shuffle=True, seed=3, num_workers=workers)
    sampler = EpochSampler(dataset, shuffle=True, seed=3)
    assert ids(by_hand) == ids(StoreLoader(dataset, batch_size=4, sampler=sampler))
    assert ids(by_hand) == list(sampler)  # each in its second epoch
    assert ids(kind(dataset, batch_size=4)) == list(range(COUNT))


def test_an_error_lists_the_values_that_exist_for_one_that_no_record_has(url: str) -> None:
    config = load_config({"dataset": {"url": url, "reader": "array", "where": {"x": [-1, -2]}}})
    with pytest.raises(
        errors.ConfigError, match=r"no record of .*x.lmdb has the x -1, -2; .*he values of x are 0, 1, 2"
    ):
        build_dataset(config)


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_a_loader_that_gives_nothing_says_why(
    url: str, tmp_path: Path, start_method: str, caplog: pytest.LogCaptureFixture
) -> None:
    empty = make_store({"x": "int"}, [], f"lmdb://{tmp_path}/empty.lmdb")
    nothing, large = {"url": url, "where": {"x": 1, "half": 1}}, {"drop_last": True, "batch_size": COUNT + 1}
    given: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"url": empty}, {}, ".*empty.lmdb holds no records"),
        (nothing, {}, f"where=.*half.* selects none of the {COUNT} records of .*x.lmdb"),
        (
            {"url": url},
            large,
            f"there is no batch to load: {COUNT} samples .* no whole batch of {COUNT + 1}, .*drop_last",
        ),
    ]
    for dataset, settings, says in given:
        config = {"dataset": {"reader": "array", **dataset}, "loader": {"start_method": start_method, **settings}}
        caplog.clear()
        assert list(build_loader(load_config(config))) == []
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert re.match(says, line)


def test_a_stream_goes_into_pytorchs_own_loader(url: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"StoreLoader is for datasets with indices; .*DataLoader"):
        StoreLoader(storeds.StoreIterable([url], reader="array"), batch_size=4)


def test_a_state_of_another_batch_size_and_what_is_no_state_are_refused(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="batch_size"):
        loader(url, batch_size=5).load_state_dict(loader(url).state_dict())
    for state in ({}, {"position": 3}):
        with pytest.raises(errors.ConfigError, match="not a state that a loader's state_dict"):
            loader(url).load_state_dict(state)


def tracked(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float32).requires_grad_()


def sparse(value: Any) -> torch.Tensor:
    return torch.eye(2).to_sparse()


def test_tensors_that_are_more_than_their_values_are_stacked_as_pytorch_does(url: str) -> None:
    with_gradients, without_layout = (
        StoreDataset(url, reader="array", fields=["x"], transform=transform) for transform in (tracked, sparse)
    )
    for kind in (StoreLoader, functools.partial(threaded, num_workers=1)):
        (batch,) = next(iter(kind(with_gradients, batch_size=4)))
        assert batch.requires_grad
        assert batch.tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="Batches of sparse tensors are not currently supported"):
            next(iter(kind(without_layout, batch_size=4)))
