"""`EpochSampler`: what each rank draws, what a position counts, and that a resumed epoch has every sample once."""

from __future__ import annotations

import gc
import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from make_store import make_store
from shares import examples
from storeds import EpochSampler, StoreDataset, StoreLoader
from storeds.errors import ConfigError


def seeded(data: Any, **arguments: Any) -> EpochSampler:
    return EpochSampler(data, **{"seed": 0, **arguments})


class Numbers(Dataset[int]):
    """The numbers from 0, of which one cannot be read."""

    def __init__(self, count: int, bad: int | None = None) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise LookupError(f"{index} is bad")
        return index


def numbers(batch: Any) -> list[int]:
    return [int(number) for number in batch]


def flat(batches: Iterable[Any]) -> list[int]:
    return [number for batch in batches for number in numbers(batch)]


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "no-workers": (StoreLoader, {}),
    "workers": (StoreLoader, {"num_workers": 2}),
    "persistent": (StoreLoader, {"num_workers": 2, "persistent_workers": True}),
    "threads": (StoreLoader, {"num_workers": 2, "start_method": "thread"}),
    "plain": (DataLoader, {}),
    "plain-workers": (DataLoader, {"num_workers": 2}),
}


def load(sampler: EpochSampler, kind: str, *, bad: int | None = None, **arguments: Any) -> Any:
    """Return a loader over the sampler's indices themselves."""
    make, given = KINDS[kind]
    if given.get("num_workers") and "start_method" not in given:
        given = {"multiprocessing_context": "fork", **given}
    return make(Numbers(sampler.count, bad), sampler=sampler, **{"batch_size": 4, **given, **arguments})


def stores(*counts: int) -> list[StoreDataset]:
    """Return a dataset of so many numbers for each count."""
    urls = [make_store({"x": "int", "label": "int"}, ({"x": n, "label": n % 2} for n in range(c))) for c in counts]
    return [StoreDataset(url, reader="array", fields=("x",)) for url in urls]


def whole(count: int, epoch: int = 0, **arguments: Any) -> list[int]:
    """Return the order of an epoch, by which everything else is judged."""
    sampler = seeded(count, **arguments)
    sampler.set_epoch(epoch)
    return list(sampler)


class TestOrder:
    def test_the_largest_count_takes_no_time(self) -> None:
        assert len(list(islice(seeded(2**62, block_size=1000), 10))) == 10

    @given(
        st.integers(0, 100),
        st.integers(1, 12),
        st.booleans(),
        st.sampled_from([{}, {"block_size": 3, "window": 2}, {"shuffle": False}]),
    )
    def test_ranks_take_turns_and_equally_many_steps(
        self, count: int, world: int, drop_last: bool, how: dict[str, Any]
    ) -> None:
        samplers = [seeded(count, num_replicas=world, rank=r, drop_last=drop_last, **how) for r in range(world)]
        drawn = [list(sampler) for sampler in samplers]
        order = whole(count, **how)
        assert all(type(index) is int for index in order)
        assert order == list(range(count)) or how != {"shuffle": False}
        steps = count // world if drop_last else -(-count // world)
        padded = (order * world)[: steps * world]  # the order, and again from its beginning
        assert drawn == [padded[rank::world] for rank in range(world)]
        assert {len(sampler) for sampler in samplers} == {steps}

    def test_ranks_are_those_of_torch_distributed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert (seeded(3).num_replicas, seeded(3).rank) == (1, 0)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
        assert (seeded(3).num_replicas, seeded(3).rank) == (4, 2)
        assert seeded(3, rank=1).rank == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"data": object()}, "must have a length or be a number"),
            ({"data": -1}, "data must be from 0 to"),
            ({"data": 2**62 + 1}, "data must be from 0 to"),
            ({"seed": 1.0}, "seed must be an int, got 1.0"),
            ({"num_replicas": 0}, "num_replicas must be at least 1, got 0"),
            ({"num_replicas": 2, "rank": 2}, "rank must be from 0 to 1, got 2"),
            ({"rank": -1}, "rank must be from 0 to 0, got -1"),
            ({"block_size": 0}, "block_size must be at least 1"),
            ({"block_size": 2, "window": 0}, "window must be at least 1"),
            ({"window": 2}, "none without block_size"),
            ({"block_size": 2, "shuffle": False}, "shuffle is False"),
        ],
    )
    def test_wrong_arguments_are_refused(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            seeded(**{"data": 10, **arguments})

    def test_a_wrong_epoch_is_refused(self) -> None:
        wrong: list[Any] = [-1, True, "1", 2**70]
        for epoch in wrong:
            with pytest.raises(ConfigError, match="epoch must be"):
                seeded(10).set_epoch(epoch)


class TestEpochs:
    def test_a_drawn_seed_is_part_of_the_state(self) -> None:
        sampler = EpochSampler(50)
        begun = list(islice(sampler, 20))
        state = sampler.state_dict()
        again = EpochSampler(50)
        again.load_state_dict(state)
        assert sorted(begun + list(again)) == list(range(50))
        assert list(again) == whole(50, 1, seed=state["seed"])
        with pytest.raises(ConfigError, match=r"seed was \d+ and is 3"):
            EpochSampler(50, seed=3).load_state_dict(state)

    def test_ranks_that_could_not_agree_on_a_seed_are_an_error(self) -> None:
        with pytest.raises(ConfigError, match=r"the ranks would shuffle differently: .*Pass the same seed="):
            next(iter(EpochSampler(5, num_replicas=2, rank=0)))
        assert list(EpochSampler(4, shuffle=False, num_replicas=2, rank=1)) == [1, 3]

    def test_the_seed_of_the_order_is_that_of_the_datasets(self) -> None:
        url = make_store({"x": "int"}, ({"x": number} for number in range(20)))

        def order(*seeds: int | None) -> list[int]:
            parts = [StoreDataset(url, reader="array", seed=seed) for seed in seeds]
            return list(EpochSampler(ConcatDataset(parts) if len(parts) > 1 else Subset(parts[0], range(20))))

        assert order(4) == whole(20, seed=4)
        assert order(4, 4) == whole(40, seed=4)
        assert order(1, 2) == order(1, 2) != order(2, 1)  # different seeds have an order of their own
        assert order(1, None) != order(1, None)

    def test_the_length_is_that_of_a_whole_epoch_wherever_it_is(self) -> None:
        """Schedules are planned with it, and a resumed run's must be the plan of the run before."""
        for rank, drop_last, steps in ((0, False, 4), (2, False, 4), (0, True, 3)):
            sampler = seeded(10, num_replicas=3, rank=rank, drop_last=drop_last)
            sampler.load_state_dict({**sampler.state_dict(), "position": 6})
            loader = load(sampler, "plain", batch_size=2)
            assert (len(sampler), len(loader)) == (steps, 2)
            assert len(list(loader)) == 1
            assert (len(sampler), len(loader)) == (steps, 2)


class TestState:
    def test_is_small_json_and_says_what_it_is_of(self) -> None:
        (dataset,) = stores(5)
        sampler = seeded(dataset, seed=2**63, block_size=3)
        list(islice(sampler, 2))
        assert sampler.state_dict() == {
            "version": 1,
            "count": 5,
            "store": dataset.backend.meta.id,
            "where": None,
            "seed": 2**63,
            "shuffle": True,
            "block_size": 3,
            "window": 8,
            "drop_last": False,
            "epoch": 0,
            "position": 2,
        }
        assert len(json.dumps(seeded(2**62, seed=2**63).state_dict())) < 1024

    def test_of_another_sampler_is_refused_with_both_values(self) -> None:
        five, six = stores(5, 6)
        state = seeded(five, seed=1, block_size=2, window=3, drop_last=True).state_dict()
        with pytest.raises(ConfigError) as caught:
            seeded(six, shuffle=False).load_state_dict(state)
        assert str(caught.value) == (
            "the state belongs to another sampler: count was 5 and is 6; "
            f"store was {five.backend.meta.id!r} and is {six.backend.meta.id!r}; seed was 1 and is 0; shuffle was True "
            "and is False; block_size was 2 and is None; window was 3 and is None; drop_last was True and is False"
        )
        seeded(5).load_state_dict(seeded(five).state_dict())  # the store is compared where both know it

    def test_of_other_records_of_the_same_store_is_refused(self) -> None:
        (dataset,) = stores(10)

        def sampler(label: Any) -> EpochSampler:
            where = None if label is None else {"label": label}
            return seeded(StoreDataset(dataset.url, reader="array", where=where))

        state = sampler(0).state_dict()
        with pytest.raises(ConfigError, match="another where=, fold or keys_file selected the records"):
            sampler(1).load_state_dict(state)
        sampler([0]).load_state_dict(state)
        sampler([1, 0]).load_state_dict(sampler(None).state_dict())  # which are all

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "not a sampler's state of version 1: version is 2"),
            ({"epoch": -1}, "epoch must be from 0 to"),
            ({"position": 11}, "position must be from 0 to 10, got 11"),
            ({"position": None}, "position must be an int"),
            (None, "version is None"),
            ([1], r"version is \[1\]"),
            ({"version": 1, "count": ...}, "lacks"),
        ],
        ids=str,
    )
    def test_a_malformed_one_is_refused_and_changes_nothing(self, change: Any, message: str) -> None:
        sampler = seeded(10)
        state = {**sampler.state_dict(), "epoch": 1, **change} if isinstance(change, dict) else change
        if isinstance(change, dict) and change.get("count") is ...:
            del state["count"]
        with pytest.raises(ConfigError, match=message):
            sampler.load_state_dict(state)
        assert (sampler.epoch, sampler.position) == (0, 0)


def drawn(state: dict[str, Any] | None, count: int, world: int, batch: int, stop: int | None, **how: Any) -> Any:
    """Let all ranks train for `stop` steps; return what they saw, rank by rank, and the state of the last one."""
    seen, after = [], {}
    for rank in range(world):
        sampler = seeded(count, num_replicas=world, rank=rank, **how)
        if state is not None:
            sampler.load_state_dict(state)
            sampler.set_epoch(state["epoch"])  # its rest, which may be nothing
        seen.append(flat(islice(load(sampler, "plain", batch_size=batch), stop)))
        after = sampler.state_dict()
    return seen, after


class TestResume:
    @settings(max_examples=examples(60))
    @given(
        st.integers(0, 60),
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=3),
        st.integers(1, 5),
        st.sampled_from([{}, {"block_size": 4, "window": 2}, {"shuffle": False}]),
    )
    def test_every_sample_is_seen_once_whatever_the_worlds(
        self, count: int, runs: list[tuple[int, int, int]], last: int, how: dict[str, Any]
    ) -> None:
        """Runs of (world, batch size, steps), each going on from the one before, and a last one to the end."""
        state: Any = None
        seen: list[int] = []
        for world, batch, stop in runs:
            found, state = drawn(state, count, world, batch, stop, **how)
            seen += flat(found)
        done = state["position"]
        found, state = drawn(state, count, last, 3, None, **how)
        rest = flat(found)
        assert state["position"] == count
        expected = Counter(range(count))
        # Repeats are what makes the last step of a run even, from the beginning of the order.
        padding = len(seen) - done + len(rest) - (count - done)
        assert 0 <= padding < max(last, *(world for world, _, _ in runs))
        order = whole(count, **how)
        expected.update(order[at % count] for at in range(padding))
        assert Counter(seen + rest) == expected


class TestPosition:
    """A state of our loaders counts what the training loop received, however far ahead the workers are."""

    @pytest.mark.parametrize("kind", ["no-workers", "workers", "persistent", "threads"])
    def test_a_batch_that_raised_was_not_received_and_workers_end(self, kind: str) -> None:
        before = set(multiprocessing.active_children())  # an earlier test's workers may still be ending
        loader = load(seeded(12), kind, bad=whole(12)[5], batch_size=3)
        gc.disable()  # reference counts must do, as with any sampler; PyTorch's error refers to itself
        try:
            batches = iter(loader)
            next(batches)
            with pytest.raises(LookupError):
                next(batches)
            assert loader.sampler.position == 3
            del batches, loader
            assert not any(worker.is_alive() for worker in set(multiprocessing.active_children()) - before)
        finally:
            gc.enable()

    def test_batches_that_overtake_others_leave_no_gap(self) -> None:
        sampler = seeded(12)
        seen: set[int] = set()
        for batch in load(sampler, "workers", batch_size=2, in_order=False):
            seen.update(numbers(batch))
            assert set(whole(12)[: sampler.position]) <= seen
        assert sampler.position == 12

    @pytest.mark.parametrize(("kind", "position"), [("plain", 4), ("plain-workers", 20)])  # two are two batches ahead
    def test_a_sampler_in_a_plain_loader_counts_what_it_yielded(self, kind: str, position: int) -> None:
        sampler = seeded(30)
        batches = iter(load(sampler, kind))
        next(batches)
        assert sampler.position == position
        assert len(list(batches)) == 7
        assert (sampler.position, sampler.epoch) == (30, 1)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 under torch 2.13
class TestStatefulDataLoader:
    """torchdata's loader keeps the sampler's place in its own state."""

    @staticmethod
    def load(sampler: EpochSampler, **arguments: Any) -> Any:
        stateful = pytest.importorskip("torchdata.stateful_dataloader")
        if arguments.get("num_workers"):
            arguments["multiprocessing_context"] = "fork"
        return stateful.StatefulDataLoader(Numbers(sampler.count), sampler=sampler, **{"batch_size": 4, **arguments})

    @pytest.mark.share(6)
    @pytest.mark.parametrize("arguments", [{}, {"drop_last": True}, {"snapshot_every_n_steps": 3}], ids=str)
    @pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
    @pytest.mark.parametrize("stop", [0, 2, 7, 99])  # 7 are all, with drop_last
    def test_resumes_to_the_sample(self, stop: int, workers: int, persistent: bool, arguments: dict[str, Any]) -> None:
        arguments = {**arguments, "num_workers": workers, "persistent_workers": persistent}
        end = 28 if "drop_last" in arguments else 30
        sampler = seeded(30)
        sampler.set_epoch(2)
        loader = self.load(sampler, **arguments)
        seen = flat(islice(loader, stop))
        state = loader.state_dict()
        del loader
        for chosen in (None, 5):  # counted, and set
            again = seeded(30)
            loader = self.load(again, **arguments)
            loader.load_state_dict(state)
            following = 3
            if stop < 99:
                assert seen + flat(loader) == whole(30, 2)[:end]
                assert again.epoch == 3
            if chosen is not None:
                again.set_epoch(chosen)
                following = chosen
            assert flat(loader) == whole(30, following)[:end]
            assert flat(loader) == whole(30, following + 1)[:end]
