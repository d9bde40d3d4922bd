"""`StoreIterable`: the sampler's order, dealt to ranks and workers, resumed at every position, with bad samples."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ChainDataset, DataLoader, Subset

import storeds
from _jittered import jittered
from make_store import make_store
from photographs import jpeg
from picture_stores import picture_store
from shares import examples
from storeds import EpochSampler, StoreDataset, StoreIterable, StoreLoader, errors
from storeds.backends import Store

COUNT, BATCH = 26, 4
ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": True},
    {"shuffle": True, "block_size": 3, "window": 2},
]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three stores, one of them empty, whose records number 0 to 25 in all."""
    folder = tmp_path_factory.mktemp("stream")
    places = [(f"lmdb://{folder}/0.lmdb", 0, 7), (f"memory://{folder.name}", 7, 7), (f"hdf5://{folder}/2.h5", 7, COUNT)]
    return [make_store({"x": "int"}, ({"x": n} for n in range(first, last)), url) for url, first, last in places]


def stream(sources: Any, **arguments: Any) -> StoreIterable:
    return StoreIterable(sources, **{"reader": "array", "seed": 2, "read_batch": BATCH, **arguments})


def numbers(samples: Any) -> list[Any]:
    return [sample[0] for sample in samples]


def load(dataset: Any, workers: int, **arguments: Any) -> DataLoader[Any]:
    context: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
    return DataLoader(dataset, BATCH, num_workers=workers, collate_fn=numbers, **context, **arguments)


def whole(epoch: int = 0, seed: int = 2, shuffle: bool = False, **order: Any) -> list[int]:
    """Return the order of an epoch, by which everything else is judged."""
    sampler = EpochSampler(COUNT, seed=seed, shuffle=shuffle, **order)
    sampler.set_epoch(epoch)
    return list(sampler)


class TestOrder:
    @pytest.mark.parametrize(("order", "workers"), [(ORDERS[0], 0), (ORDERS[1], 1), (ORDERS[2], 2)], ids=str)
    def test_batches_are_those_of_a_store_loader(self, urls: list[str], order: dict[str, Any], workers: int) -> None:
        found = stream(urls, transform=jittered, **order)
        loader = load(found, workers)
        dataset = StoreDataset(urls, reader="array", seed=2, transform=jittered)
        expected = StoreLoader(dataset, batch_size=BATCH, sampler=EpochSampler(dataset, **{"shuffle": False, **order}))
        for epoch in (0, 3):
            found.set_epoch(epoch)
            expected.set_epoch(epoch)
            batches = list(loader)
            assert len(batches) == len(loader)
            assert batches == [batch.tolist() for (batch,) in expected]
            assert [int(x) for batch in batches for x in batch] == whole(epoch, **order)

    def test_an_epoch_reaches_persistent_workers(self, urls: list[str]) -> None:
        found = stream(urls, shuffle=True)
        loader = load(found, 2, persistent_workers=True)
        for epoch in (0, 4, 4, 1):
            found.set_epoch(epoch)
            assert sum(loader, []) == whole(epoch, shuffle=True)
        assert sum(loader, []) == whole(1, shuffle=True)  # without set_epoch, a pass repeats the order

    @settings(max_examples=examples(200))
    @given(
        st.integers(0, 30),
        st.integers(1, 6),
        st.integers(1, 4),
        st.integers(1, 9),
        st.booleans(),
        st.sampled_from(ORDERS),
    )
    def test_ranks_and_workers_share_an_epoch_as_those_of_a_sampler(
        self, count: int, ranks: int, workers: int, read_batch: int, drop_last: bool, order: dict[str, Any]
    ) -> None:
        url = make_store({"x": "int"}, ({"x": number} for number in range(count)))
        with pytest.MonkeyPatch.context() as patch:
            union: list[int] = []
            for rank in range(ranks):
                how: dict[str, Any] = {"read_batch": read_batch, "drop_last": drop_last, **order}
                found = stream(url, num_replicas=ranks, rank=rank, **how)
                own: list[int] = []
                for worker in range(workers):
                    info = type("Info", (), {"id": worker, "num_workers": workers, "seed": worker})
                    patch.setattr("storeds.loaders.iterable.get_worker_info", lambda info=info: info)
                    found.set_epoch(0)
                    own += numbers(found)
                sampler = EpochSampler(
                    count, seed=2, **{"shuffle": False, **order}, num_replicas=ranks, rank=rank, drop_last=drop_last
                )
                assert sorted(own) == sorted(sampler)
                assert len(own) == len(found)
                union += own
        assert len(union) == (count - count % ranks if drop_last else count + -count % ranks)
        assert len(set(union)) == min(count, len(union))

    def test_without_a_seed_runs_differ_and_repeat_after_manual_seed(self, urls: list[str]) -> None:
        runs = []
        for seed in (5, 6, 5):
            torch.manual_seed(seed)
            runs.append(list(load(stream(urls, seed=None, shuffle=True, transform=jittered), 2)))
        assert runs[0] == runs[2] != runs[1]


class TestEpochs:
    def test_set_epoch_on_stream_or_dataset(self, urls: list[str]) -> None:
        found = stream(urls, shuffle=True)
        for epoch in (0, 0, 1):
            found.set_epoch(epoch)
            assert numbers(found) == whole(epoch, shuffle=True)
        found.dataset.set_epoch(7)
        assert (numbers(found), found.epoch) == (whole(7, shuffle=True), 7)


class TestSources:
    def test_what_a_dataset_takes_and_joined_datasets(self, urls: list[str]) -> None:
        first, last = (StoreDataset(url, reader="array", seed=2) for url in (urls[0], urls[2]))
        for sources in ([urls[0], urls[2]], storeds.DatasetSettings(url=urls), storeds.open_backend(urls)):
            assert numbers(stream(sources)) == list(range(COUNT))
        assert numbers(StoreIterable(first + last, shuffle=True)) == whole(shuffle=True)
        assert numbers(StoreIterable(Subset(last, [3, 1]))) == [10, 8]
        chained = stream(urls[0]) + stream(urls[2])
        assert isinstance(chained, ChainDataset)
        assert numbers(chained) == list(range(COUNT))

    def test_a_read_is_one_storage_call_a_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        get_many = Store.get_many

        def counted(self: Any, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> Any:
            calls.append(len(positions))
            return get_many(self, positions, fields)

        rows = [{"x": str(number)} for number in range(10)]
        one, other = (StoreDataset(make_store({"x": "str"}, rows), reader="array") for _ in range(2))
        monkeypatch.setattr(Store, "get_many", counted)
        assert len(list(StoreIterable(one + other, read_batch=8))) == 20
        assert calls == [8, 2, 6, 4]

    def test_a_pickle_is_small_and_equal(self, urls: list[str]) -> None:
        found = stream(urls, shuffle=True)
        next(iter(found))
        found.set_epoch(0)
        blob = pickle.dumps(found)
        assert len(blob) < 40_000
        assert numbers(pickle.loads(blob)) == whole(shuffle=True)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sources": []}, "empty"),
            ({"sources": [StoreDataset]}, "."),
            ({"sources": torch.utils.data.TensorDataset(), "as_dict": True}, "as_dict when you make the dataset"),
            ({"shuffle": True, "window": 2}, "none without block_size"),
            ({"read_batch": 0}, "read_batch must be at least 1"),
            ({"remainder": "pad"}, "remainder is now drop_last"),
        ],
    )
    def test_wrong_arguments(self, urls: list[str], arguments: dict[str, Any], message: str) -> None:
        sources = arguments.pop("sources", urls)
        settings = {} if isinstance(sources, torch.utils.data.Dataset) else {"reader": "array"}
        with pytest.raises(errors.ConfigError, match=message):
            StoreIterable(sources, **{**settings, **arguments})


class TestState:
    @pytest.mark.parametrize("order", ORDERS, ids=str)
    def test_resumes_at_every_position_on_any_number_of_ranks(self, urls: list[str], order: dict[str, Any]) -> None:
        found = stream(urls, **order)
        found.set_epoch(2)
        expected, samples = whole(2, **order), iter(found)
        for position in range(COUNT + 1):
            state = json.loads(json.dumps(found.state_dict()))
            assert state["position"] == position
            for ranks in (1, 3):
                rest = []
                for rank in range(ranks):
                    again = stream(urls, num_replicas=ranks, rank=rank, read_batch=3, **order)
                    again.load_state_dict(state)
                    assert again.epoch == 2
                    rest.append(numbers(again) if position != 9 else sum(load(again, 2), []))
                    again.set_epoch(3)
                    assert len(numbers(again)) == len(again)
                padded = (
                    expected[position:] + expected[: -(COUNT - position) % ranks]
                )  # the order, and again from its beginning
                assert sorted(sum(rest, [])) == sorted(padded)
            if position < COUNT:
                assert next(samples) == (expected[position],)

    def test_a_drawn_seed_is_part_of_the_state(self, urls: list[str]) -> None:
        found = stream(urls, seed=None, shuffle=True)
        begun = numbers(islice(found, 9))
        again = stream(urls, seed=None, shuffle=True)
        again.load_state_dict(found.state_dict())
        assert sorted(begun + numbers(again)) == list(range(COUNT))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": 5}, "seed was 5 and is 2"),
            ({"position": COUNT + 1}, "position"),
            ({"taken": -1}, "taken"),
            ({"part": {"worker": 1}}, "belongs to another worker"),
        ],
        ids=str,
    )
    def test_other_states_are_refused_and_change_nothing(
        self, urls: list[str], change: dict[str, Any], message: str
    ) -> None:
        found = stream(urls, shuffle=True)
        with pytest.raises(errors.ConfigError, match=message):
            found.load_state_dict({**found.state_dict(), "position": 3, **change})
        assert numbers(found) == whole(shuffle=True)

    @pytest.mark.parametrize("state", [None, {}, [1], EpochSampler(3).state_dict()], ids=str)
    def test_what_is_no_state_is_refused(self, urls: list[str], state: Any) -> None:
        with pytest.raises(errors.ConfigError, match="not a state"):
            stream(urls).load_state_dict(state)

    @pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
    @pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
    def test_stateful_dataloader_resumes_after_every_batch(
        self, urls: list[str], workers: int, persistent: bool
    ) -> None:
        module = pytest.importorskip("torchdata.stateful_dataloader")

        def make() -> tuple[StoreIterable, Any]:
            found = stream(urls, shuffle=True, block_size=3)
            options = {"multiprocessing_context": "fork", "persistent_workers": persistent} if workers else {}
            return found, module.StatefulDataLoader(found, 3, num_workers=workers, collate_fn=numbers, **options)

        found, loader = make()
        found.set_epoch(1)
        batches, states = [], []
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
        assert sorted(sum(batches, [])) == list(range(COUNT))
        for at in range(0, len(states), 3 if workers else 1):
            other, again = make()
            other.set_epoch(1)
            again.load_state_dict(states[at])
            assert list(again) == batches[at + 1 :]
            other.set_epoch(0)
            assert sorted(sum(again, [])) == list(range(COUNT))


class TestBadSamples:
    BAD = (2, 3, 9)

    @pytest.fixture
    def photos(self) -> str:
        return picture_store([b"no" if at in self.BAD else jpeg(at) for at in range(10)])

    def test_an_error_ends_the_stream_before_the_samples_of_its_read(self, photos: str) -> None:
        found = StoreIterable(photos, read_batch=2)
        samples = iter(found)
        assert [next(samples)[1] for _ in range(2)] == [0, 1]
        with pytest.raises(errors.DecodeError, match="record 2 of memory://"):
            next(samples)
        assert list(samples) == []
        assert found.state_dict()["position"] == 2

    def test_skipped_samples_are_left_out_and_counted_in_the_position(self, photos: str) -> None:
        expected = [0, 1, 4, 5, 6, 7, 8]
        found = StoreIterable(photos, on_error="skip", read_batch=4)
        assert len(found) == 10
        samples = iter(found)
        for taken in range(len(expected) + 1):
            rest = StoreIterable(photos, on_error="skip", read_batch=10)
            rest.load_state_dict(found.state_dict())
            labels = [label for _, label in rest]
            assert labels == expected[taken:]
            next(samples, None)
        report = found.dataset.report()
        assert (report.seen, sum(report.bad.values())) == (10, 3)

    @pytest.mark.parametrize("workers", [2])
    def test_batches_have_every_good_sample_once_and_no_other(self, photos: str, workers: int) -> None:
        for size in (1, 2, 3):  # storage calls in which all samples are bad
            found = StoreIterable([photos, photos], on_error="skip", read_batch=size)
            labels = [label for _, label in DataLoader(found, batch_size=None, num_workers=workers)]
            assert sorted(labels) == sorted([0, 1, 4, 5, 6, 7, 8] * 2)

    def test_a_long_pass_without_a_good_sample_is_an_error(self) -> None:
        with pytest.raises(errors.BadSamplesError, match="all 100 samples of this pass were skipped"):
            list(StoreIterable(picture_store([b"no"] * 100), on_error="skip"))
        assert list(StoreIterable(picture_store([b"no"] * 99), on_error="skip")) == []

    def test_errors_of_policies_and_engines_are_raised(self, photos: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(errors.BadSamplesError, match="max_bad=2"):
            list(StoreIterable(photos, on_error="skip", max_bad=2))
        found = StoreIterable(photos, on_error="skip")
        found.dataset.close()
        with pytest.raises(errors.ClosedError):
            list(found)
