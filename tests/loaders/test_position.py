"""The rules of `Position`, one by one, through samplers and loaders; `test_epoch_programs` mixes them at random."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, SequentialSampler, Subset

import storeds
from make_store import make_store
from storeds import EpochSampler, StoreDataset, StoreLoader
from storeds.errors import ConfigError
from threaded import threaded

COUNT, SIZE = 22, 4
URL = "memory://position"
OURS = pytest.mark.parametrize("kind", [StoreLoader, threaded])
EVERY = pytest.mark.parametrize("kind", [StoreLoader, threaded, DataLoader])


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


def position(loader: Any) -> Any:
    """Return what has the state: our loaders, and the sampler of others."""
    return loader if isinstance(loader, StoreLoader) else loader.sampler


class TestPasses:
    @EVERY
    def test_1_and_3_passes_are_the_epochs_from_0_also_after_a_break(self, kind: Any) -> None:
        loader = load(kind)
        assert given(loader) == order(0)
        assert given(islice(loader, 2)) == order(1)[: 2 * SIZE]
        assert given(loader) == order(2)

    @EVERY
    def test_2_a_pass_begins_with_its_first_index(self, kind: Any) -> None:
        loader = load(kind)
        waiting = [iter(loader) for _ in range(3)]
        assert given(loader) == order(0)
        assert given(waiting[1]) == order(1)
        assert given(waiting[0]) == order(2)

    @EVERY
    @pytest.mark.parametrize("on", ["sampler", "dataset", "loader"])
    def test_4_and_5_whoever_sets_the_epoch_sets_that_of_the_next_pass(self, kind: Any, on: str) -> None:
        data = dataset()
        loader = load(kind, data)
        target = {"sampler": loader.sampler, "dataset": data, "loader": loader}[on]
        if not hasattr(target, "set_epoch"):
            return
        next(iter(loader))
        target.set_epoch(7)
        assert (position(loader).state_dict()["epoch"], position(loader).state_dict()["position"]) == (7, 0)
        assert [given(loader), given(loader)] == [order(7), order(8)]
        target.set_epoch(8)  # again
        assert [given(loader), given(loader)] == [order(8), order(9)]
        assert data.epoch == 9

    def test_4_the_last_call_counts(self) -> None:
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

    def test_5_each_loader_over_a_dataset_notices_a_call_once(self) -> None:
        data = dataset()
        early = [load(StoreLoader, data), load(threaded, data), load(DataLoader, data)]
        data.set_epoch(5)
        late = load(StoreLoader, data)
        for loader in [*early, late]:
            assert [given(loader), given(loader)] == [order(5), order(6)]

    def test_5_a_dataset_of_another_class_may_pass_the_call_on(self) -> None:
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

    @OURS
    def test_5_with_a_sampler_of_pytorch_too(self, kind: Any) -> None:
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


class TestPlaces:
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("start", [0, 5, 8])
    def test_6_ranks_take_turns_from_a_place_on(self, start: int, drop_last: bool) -> None:
        whole, parts = order(), []
        for rank in range(3):
            sampler = EpochSampler(dataset(), num_replicas=3, rank=rank, drop_last=drop_last)
            sampler.load_state_dict({**sampler.state_dict(), "position": start})
            parts.append(list(sampler))
        rest = whole[start:]
        steps = len(rest) // 3 if drop_last else -(-len(rest) // 3)
        assert [index for turn in zip(*parts, strict=True) for index in turn] == (rest + whole)[: 3 * steps]
        assert {len(part) for part in parts} == {steps}

    @OURS
    def test_7_the_place_is_what_the_loop_received(self, kind: Any) -> None:
        loader = load(kind, num_workers=2)
        batches = iter(loader)
        for count in range(1, 4):
            next(batches)
            assert loader.state_dict()["position"] == count * SIZE == loader.sampler.position

    @OURS
    def test_8_a_pass_that_leaves_out_a_short_batch_is_at_the_end(self, kind: Any) -> None:
        loader = load(kind, drop_last=True)
        assert len(given(loader)) == COUNT // SIZE * SIZE
        assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, COUNT)
        assert (loader.sampler.epoch, loader.sampler.position) == (1, COUNT)


class TestStates:
    @OURS
    def test_9_the_rest_then_the_next_epoch(self, kind: Any) -> None:
        loader = load(kind)
        seen = given(islice(loader, 2))
        resumed = load(kind)
        resumed.load_state_dict(loader.state_dict())
        assert seen + given(resumed) == order(0)
        assert given(resumed) == order(1)
        at_end = load(kind)
        at_end.load_state_dict(resumed.state_dict())
        assert given(at_end) == order(2)

    @OURS
    def test_9_less_than_a_batch_is_no_rest_for_a_loader_that_leaves_it_out(self, kind: Any) -> None:
        loader = load(kind, drop_last=True)
        loader.load_state_dict({**loader.state_dict(), "position": COUNT - SIZE + 1})
        assert given(loader) == order(1)[: COUNT // SIZE * SIZE]

    @EVERY
    def test_10_setting_the_loaded_epoch_keeps_its_place(self, kind: Any) -> None:
        loader = load(kind)
        state = {**position(loader).state_dict(), "epoch": 3, "position": 8}
        position(loader).load_state_dict(state)
        for _ in range(2):  # also after the pass was broken off
            position(loader).set_epoch(3)
            assert given(islice(loader, 1)) == order(3)[8 : 8 + SIZE]
        position(loader).set_epoch(3)
        assert given(loader) == order(3)[8:]
        position(loader).set_epoch(3)
        assert given(loader) == order(3)  # that pass had ended
        position(loader).load_state_dict(state)
        position(loader).set_epoch(2)
        assert [given(loader), given(loader)] == [order(2), order(3)]

    @EVERY
    def test_10_the_rest_of_an_epoch_that_was_over_is_empty(self, kind: Any) -> None:
        loader = load(kind)
        position(loader).load_state_dict({**position(loader).state_dict(), "position": COUNT})
        position(loader).set_epoch(0)
        assert [given(loader), given(loader)] == [[], order(1)]

    @pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
    def test_11_a_copy_begins_where_the_next_pass_would(self, way: Any) -> None:
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

    def test_11_a_copied_loader_has_one_position(self) -> None:
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

    @OURS
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("world", [1, 2])
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

    @OURS
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


class TestSeeds:
    """Without a seed, torch's generators decide, as in a DataLoader."""

    @pytest.mark.parametrize("kind", [DataLoader, StoreLoader, threaded])
    def test_equal_generators_give_equal_orders_and_others_others(self, kind: Any) -> None:
        def run(seed: int) -> list[int]:
            generator = torch.Generator().manual_seed(seed)
            loader = kind(dataset(), batch_size=4, shuffle=True, generator=generator, collate_fn=storeds.collate)
            return given(loader) + given(loader)

        assert run(1) == run(1) != run(2)

    @pytest.mark.parametrize("arguments", [{}, *BATCHED], ids=str)
    def test_the_length_before_the_first_pass_is_that_of_the_pass(self, arguments: dict[str, Any]) -> None:
        for seed in range(10):
            torch.manual_seed(seed)
            loader = StoreLoader(dataset(None), **{"batch_size": 4, "shuffle": True, **arguments})
            assert len(loader) == len(list(loader))


def test_a_number_is_enough() -> None:
    sampler = EpochSampler(COUNT, seed=1)
    assert list(sampler) == order(0)
    assert sorted(sampler) == list(range(COUNT))
    sampler.set_epoch(8)
    resumed = EpochSampler(COUNT, seed=1)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == list(sampler) == order(8)
    subset: Any = Subset(dataset(), np.arange(COUNT).tolist())
    assert list(EpochSampler(subset)) == order(0)
