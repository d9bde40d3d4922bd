"""The rules of `Position` about joined, wrapped and copied datasets and batch samplers; `test_epoch_programs` has the others."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, SequentialSampler

import storeds
from make_store import make_store
from storeds import EpochSampler, StoreDataset, StoreLoader
from storeds.errors import ConfigError
from threaded import threaded

COUNT, SIZE = 22, 4
URL = "memory://position"


@pytest.fixture(scope="module", autouse=True)
def _store() -> None:
    records = ({"label": at % 3, "length": at % 7} for at in range(COUNT))
    make_store({"label": "int", "length": "int"}, records, URL, overwrite=True)


def dataset(seed: int | None = 1) -> StoreDataset:
    return StoreDataset(URL, reader="array", fields=["index"], seed=seed)


def order(epoch: int = 0, **arguments: Any) -> list[Any]:
    """Return the order of an epoch, by which everything else is judged."""
    sampler = EpochSampler(dataset(), num_replicas=1, rank=0, **arguments)
    sampler.set_epoch(epoch)
    return list(sampler)


def load(kind: Any, data: Any = None, **arguments: Any) -> Any:
    data = dataset() if data is None else data
    if kind is DataLoader:
        arguments["sampler"], arguments["collate_fn"] = EpochSampler(data), storeds.collate
    else:
        arguments["shuffle"] = "batch_sampler" not in arguments and "sampler" not in arguments
    return kind(data, **({} if "batch_sampler" in arguments else {"batch_size": SIZE}), **arguments)


def given(batches: Any) -> list[int]:
    return [int(index) for (indices,) in batches for index in torch.as_tensor(indices).ravel()]


class TestCalls:
    """`set_epoch` on a dataset is for the next pass of each sampler over it."""

    def test_the_last_call_counts(self) -> None:
        parts = [dataset(), dataset()]
        joined = ConcatDataset[Any](parts)
        sampler = EpochSampler(joined)
        calls = {"first": parts[0].set_epoch, "second": parts[1].set_epoch, "sampler": sampler.set_epoch}
        for names in (["first", "second"], ["second", "first"], ["sampler", "first"], ["second", "sampler"]):
            for epoch, name in enumerate(names, 3):
                calls[name](epoch)
            assert sampler.epoch == 4
            next(iter(sampler))
            assert [part.epoch for part in parts] == [4, 4]
            sampler.set_epoch(9)

    def test_each_loader_over_a_dataset_notices_a_call_once(self) -> None:
        data = dataset()
        early = [load(StoreLoader, data), load(threaded, data), load(DataLoader, data)]
        data.set_epoch(5)
        late = load(StoreLoader, data)
        for loader in [*early, late]:
            assert [given(loader), given(loader)] == [order(5), order(6)]

    def test_a_dataset_of_another_class_may_pass_the_call_on(self) -> None:
        class Wrapped(torch.utils.data.Dataset[Any]):
            """Calls the ``set_epoch`` of the dataset inside, as a user does."""

            def __init__(self) -> None:
                self.inner = dataset()

            def __len__(self) -> int:
                return len(self.inner)

            def __getitem__(self, index: int) -> Any:
                return self.inner[index]

            def set_epoch(self, epoch: int) -> None:
                self.inner.set_epoch(epoch)

        data = Wrapped()
        sampler = EpochSampler(ConcatDataset([data, data.inner]), shuffle=False)
        assert [list(sampler) and sampler.epoch for _ in range(3)] == [1, 2, 3]
        assert data.inner.epoch == 2

    @pytest.mark.parametrize("kind", [StoreLoader, threaded])
    def test_with_a_sampler_of_pytorch_too(self, kind: Any) -> None:
        data = dataset()
        loader = kind(data, sampler=SequentialSampler(data), batch_size=SIZE)
        for _ in range(2):
            list(loader)
        assert data.epoch == 1
        data.set_epoch(6)
        list(loader)
        assert data.epoch == 6
        list(loader)
        assert data.epoch == 7
        data.set_epoch(3)
        loader.set_epoch(4)  # the last call counts
        list(loader)
        assert data.epoch == 4


class TestCopies:
    @pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
    def test_a_copy_begins_where_the_next_pass_would(self, way: Any) -> None:
        data = dataset()
        sampler = EpochSampler(data)
        next(iter(sampler))
        copied = way(sampler)
        assert (copied.epoch, copied.position) == (1, 0)
        assert list(copied) == order(1) == list(sampler)  # neither moves the other
        data.set_epoch(6)
        other, (same, another) = way(sampler), (data, way(sampler)) if way is copy.copy else way((data, sampler))
        assert [list(each) for each in (other, another, sampler)] == [order(6)] * 3
        same.set_epoch(2)
        assert list(another) == order(2)
        assert list(sampler) == order(2 if way is copy.copy else 7)  # over the same dataset

    def test_a_copied_loader_has_one_position(self) -> None:
        loader = load(StoreLoader)
        next(iter(loader))
        for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            next(iter(copied))
            assert copied.state_dict()["position"] == copied.sampler.position == SIZE
            copied.sampler.set_epoch(5)
            assert given(copied) == order(5)


BATCHED: list[dict[str, Any]] = [
    {"balance": "label", "per_batch": True},
    {"group_by": "label", "batch_size": 9},
    {"bucket_by": "length"},
]


class TestBatchSamplers:
    """An `EpochSampler` keeps its position in a BatchSampler of PyTorch, and as one."""

    @pytest.mark.parametrize(
        ("kind", "world", "drop_last"), [(StoreLoader, 1, True), (StoreLoader, 2, False), (threaded, 2, True)]
    )
    def test_a_batch_sampler_over_one_is_a_sampler_with_a_batch_size(
        self, kind: Any, world: int, drop_last: bool
    ) -> None:
        def sampler() -> EpochSampler:
            return EpochSampler(dataset(), num_replicas=world, rank=world - 1)

        batches = BatchSampler(sampler(), 4, drop_last)
        loader = kind(dataset(), batch_sampler=batches, num_workers=1)
        usual = kind(dataset(), sampler=sampler(), batch_size=4, drop_last=drop_last)
        assert len(loader) == len(usual)
        first = next(iter(loader))[0].tolist()
        assert first == next(iter(usual))[0].tolist()
        state = loader.state_dict()
        assert state == usual.state_dict()
        resumed = kind(dataset(), batch_sampler=BatchSampler(sampler(), 4, drop_last))
        resumed.load_state_dict(state)
        usual.load_state_dict(state)
        assert [given(resumed), given(resumed)] == [given(usual), given(usual)]

    @pytest.mark.parametrize("kind", [StoreLoader, threaded])
    @pytest.mark.parametrize("arguments", BATCHED, ids=str)
    def test_one_that_makes_batches_is_a_batch_sampler(self, kind: Any, arguments: dict[str, Any]) -> None:
        arguments = {"batch_size": 4, "shuffle": True, **arguments}
        usual = kind(dataset(), **arguments)
        made = [EpochSampler(dataset(), **arguments) for _ in range(2)]
        expected = [index.tolist() for (index,) in usual]
        loader = kind(dataset(), batch_sampler=made[0])
        assert len(loader) == len(expected)
        assert [index.tolist() for (index,) in loader] == expected
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (1, 1)
        usual.load_state_dict(state)
        assert given(usual) == given(batches)
        plain = DataLoader(dataset(), batch_sampler=made[1], collate_fn=storeds.collate)
        assert [index.tolist() for (index,) in plain] == expected

    def test_one_that_makes_none_is_refused_as_a_batch_sampler(self) -> None:
        with pytest.raises(ConfigError, match="yields lists of indices, and EpochSampler.* pass it as sampler"):
            StoreLoader(dataset(), batch_sampler=EpochSampler(dataset()))

    @pytest.mark.parametrize("arguments", [{"shuffle": True}, *BATCHED], ids=str)
    def test_the_batch_sampler_of_a_loader_makes_its_batches(self, arguments: dict[str, Any]) -> None:
        """Frameworks read it to make another loader."""
        loader = StoreLoader(dataset(), **{"batch_size": 4, **arguments})
        expected = [index.tolist() for (index,) in loader]
        batches: Any = loader.batch_sampler
        assert len(batches) == len(expected) == len(loader)
        loader.set_epoch(0)
        assert list(batches) == expected
        for kind in (DataLoader, StoreLoader):
            loader.set_epoch(0)
            again = kind(dataset(), batch_sampler=batches, collate_fn=storeds.collate)
            assert [index.tolist() for (index,) in again] == expected

    def test_what_divides_the_batches_again_is_refused(self) -> None:
        class Shard(BatchSampler):
            """Takes every other batch, as Accelerate's BatchSamplerShard does."""

            def __init__(self, inner: Any) -> None:
                self.inner = inner

            def __iter__(self) -> Iterator[list[int]]:
                return islice(self.inner, 0, None, 2)

        sampler = EpochSampler(dataset())
        for inner in (BatchSampler(sampler, 4, False), StoreLoader(dataset(), batch_size=4).batch_sampler):
            with pytest.raises(ConfigError, match="already divided among the ranks"):
                StoreLoader(dataset(), batch_sampler=Shard(inner))
