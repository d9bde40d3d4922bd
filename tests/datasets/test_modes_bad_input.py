"""What can go wrong between a dataset and a DataLoader: hardly any samples, unusual indices, transforms."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from test_processes import failure
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, SequentialSampler, Subset

import storeds
from _modes import plain, raise_awkwardly
from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, errors
from storeds.backends import select
from threaded import threaded

# What PyTorch says of three workers on a machine with two processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

COUNT = 8
FIELDS = ("label", "index")
Url = Callable[[int], str]


@pytest.fixture
def store(make_engine_url: Callable[[str], str]) -> Url:
    """Return a function that writes a store of so many records and returns its URL."""

    def write(count: int = COUNT, engine: str = "lmdb") -> str:
        url = make_engine_url(engine)
        records = ({"key": f"p/{n}", "image": jpeg(n, (24, 16)), "label": n} for n in range(count))
        return make_store({"key": "str", "image": "image", "label": "int"}, records, url)

    return write


def in_place(dataset: Any, method: str | None, *, workers: int = 1, **arguments: Any) -> DataLoader[Any]:
    """Return a loader in the main process (None), or with workers of a start method."""
    started = {} if method is None else {"num_workers": workers, "multiprocessing_context": method}
    return DataLoader(dataset, **{"collate_fn": plain, **started, **arguments})


def indices(batches: Any) -> list[list[int]]:
    return [[index for *_, index in batch] for batch in batches]


class TestHardlyAnySamples:
    """Few samples, or none, are no error in any mode."""

    @pytest.mark.parametrize(
        ("count", "engine", "place"),
        [(0, "memory", None), (0, "mongodb", "fork"), (1, "hdf5", "fork"), (1, "mongodb", None), (2, "lmdb", "fork")],
    )
    def test_fewer_samples_than_workers_or_than_a_batch_holds(
        self, store: Callable[..., str], count: int, engine: str, place: str | None
    ) -> None:
        dataset = StoreDataset(store(count, engine), fields=FIELDS)
        everything = [(number, number) for number in range(count)]
        assert len(dataset) == count
        assert dataset[:] == dataset.__getitems__(range(count)) == everything
        load = partial(in_place, dataset, place, workers=3)
        in_one_batch = [everything] if count else []
        assert list(load(batch_size=1)) == [[each] for each in everything]
        assert list(load(batch_size=COUNT)) == in_one_batch
        assert list(load(batch_size=COUNT, drop_last=True)) == []
        assert list(load(batch_size=None)) == everything
        bulk = BatchSampler(SequentialSampler(dataset), COUNT, drop_last=False)
        assert list(load(batch_size=None, sampler=bulk)) == in_one_batch
        sampler = storeds.EpochSampler(dataset)
        assert list(load(batch_size=COUNT, sampler=sampler, collate_fn=sorted)) == in_one_batch
        if count:  # PyTorch's own shuffling refuses to shuffle nothing
            assert list(load(batch_size=COUNT, shuffle=True, collate_fn=sorted)) == in_one_batch


class Given(list[Any]):
    """A sampler, or a batch sampler, that yields what it was given."""


class TestOddIndices:
    """A sampler may yield any integer there is; one that is out of range is an error, and never becomes another."""

    @pytest.mark.parametrize("place", [None, "fork"])
    def test_integers_arrays_and_tensors(self, store: Url, place: str | None) -> None:
        dataset = StoreDataset(store(COUNT), fields=FIELDS)
        sampler = Given([5, np.int64(0), torch.tensor(5), np.uint8(7), np.array(3)])
        assert indices(in_place(dataset, place, sampler=sampler, batch_size=3)) == [[5, 0, 5], [7, 3]]
        assert indices([list(in_place(dataset, place, sampler=sampler, batch_size=None))]) == [[5, 0, 5, 7, 3]]
        bulk = BatchSampler(sampler, 3, drop_last=False)
        assert indices(in_place(dataset, place, sampler=bulk, batch_size=None)) == [[5, 0, 5], [7, 3]]
        # Subset looks them up in lists of its own.
        nested = Subset(Subset(dataset, cast("Sequence[int]", sampler)), [np.int64(4), torch.tensor(0), 0])  # type: ignore[list-item]
        assert indices(in_place(nested, place, batch_size=3)) == [[3, 5, 5]]
        batches = Given([np.array([3, 1]), torch.tensor([6, -1]), (2, 2), range(4, 6)])
        expected = [[3, 1], [6, 7], [2, 2], [4, 5]]
        assert indices(in_place(dataset, place, batch_sampler=batches)) == expected
        assert indices(in_place(dataset, place, sampler=batches, batch_size=None)) == expected

    @pytest.mark.parametrize(
        ("wrong", "place"),
        [
            *((COUNT, place) for place in (None, "forkserver")),
            *((wrong, "fork") for wrong in (-COUNT - 1, np.int64(2**62), torch.tensor(COUNT))),
        ],
        ids=str,
    )
    def test_an_index_out_of_range_names_the_range_and_the_store(
        self, store: Url, wrong: Any, place: str | None
    ) -> None:
        url = store(COUNT)
        dataset = StoreDataset(url, fields=FIELDS)
        reported = failure(lambda: list(in_place(dataset, place, sampler=Given([0, wrong]), batch_size=2)))
        assert reported[0] is IndexError
        assert f"index {int(wrong)} is outside [0, {COUNT}) of {url}" in reported[1]

    @pytest.mark.parametrize(
        ("joined", "wrong"),
        [
            *itertools.product(["concatenated", "mixed", "part"], [COUNT, -COUNT - 1, True]),
            ("mixed", np.int64(2**62)),
            ("part", torch.tensor(COUNT)),
            ("part of mixed", 1.0),
            ("part of mixed", -COUNT - 1),
            ("part of concatenated", np.bool_(True)),
            ("part of concatenated", COUNT),
            ("parts", -COUNT - 1),
        ],
        ids=repr,
    )
    def test_no_index_wraps_around_the_end_of_joined_datasets(self, store: Url, joined: str, wrong: Any) -> None:
        url = store(COUNT // 2)

        def dataset() -> StoreDataset:
            return StoreDataset(url, fields=FIELDS)

        whole: dict[str, Any] = {
            "concatenated": ConcatDataset([dataset(), dataset()]),
            "mixed": storeds.StoreMixture({"a": dataset(), "b": dataset()}),
            "part": Subset(StoreDataset([url, url], fields=FIELDS), range(COUNT)),
        }
        whole |= {
            "part of mixed": Subset(whole["mixed"], [*range(COUNT)]),
            "part of concatenated": Subset(whole["concatenated"], np.arange(COUNT)),  # type: ignore[arg-type]  # works
            "parts": ConcatDataset([Subset(whole["part"], range(COUNT))]),
        }
        data = whole[joined]
        asks: list[Callable[[], Any]] = [
            partial(list, kind(data, sampler=Given([0, wrong]), batch_size=size, num_workers=workers))
            for kind, size, workers in (
                (storeds.StoreLoader, 2, 0),
                (storeds.StoreLoader, None, 1),
                (threaded, 2, 1),
                (threaded, None, 0),
            )
        ]
        asks += [partial(list, storeds.StoreLoader(data, batch_sampler=Given([[0], [wrong, 0]])))]
        if joined == "mixed":
            asks += [partial(data.__getitem__, wrong), partial(data.__getitems__, [0, wrong])]
            asks += [partial(Subset(data, [0, wrong]).__getitems__, [0, 1])]
        for ask in asks:
            kind, text = failure(ask)
            if isinstance(wrong, (float, bool, np.bool_)):
                assert kind is TypeError
            else:
                assert kind is IndexError
                assert f"index {int(wrong)} is outside [0, {COUNT})" in text

    @pytest.mark.parametrize("wrong", [COUNT, -COUNT - 1, 1.0, True], ids=repr)
    def test_no_plan_takes_the_column_of_a_part_that_reaches_beyond(self, store: Url, wrong: Any) -> None:
        part: Any = Subset(StoreDataset(store(COUNT), fields=FIELDS), [0, wrong])
        with pytest.raises(TypeError if isinstance(wrong, (float, bool)) else IndexError):
            storeds.EpochSampler(part, balance="label")

    @pytest.mark.parametrize("asked", [[1.7], [True], [0, True], np.array([True]), [[0, 1]]], ids=repr)
    def test_positions_of_backends_and_selections_are_integers(self, store: Url, asked: Any) -> None:
        backend = storeds.open_backend(store(COUNT))
        for each in (backend, select(backend, {"label": list(range(COUNT))})):
            with pytest.raises(TypeError, match="positions must be a sequence of integers"):
                each.get_many(asked)
            with pytest.raises(IndexError, match=rf"position {COUNT} is outside \[0, {COUNT}\)"):
                each.get_many([COUNT])


def unpicklable() -> dict[str, Any]:
    """Return transforms that no other process can import, by the name that an error is to call each."""

    def local_function(image: Any) -> Any:
        return image

    class LocalTransform:
        def __call__(self, image: Any) -> Any:
            return image

    return {
        "<lambda>": lambda image: image,
        "local_function": local_function,
        "LocalTransform": LocalTransform(),
        "partial": partial(lambda amount, image: image, 3),
    }


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("transform", "<lambda>"),
        ("target_transform", "local_function"),
        ("among others", "LocalTransform"),
        ("transform", "partial"),
    ],
)
class TestTransformsThatCannotBePickled:
    """Under fork they work; where workers must import them, the error names the transform and says what to do."""

    def dataset(self, url: str, where: str, name: str) -> StoreDataset:
        transform = unpicklable()[name]
        if where == "among others":
            return StoreDataset(url, transform=["RandomHorizontalFlip", transform, "ToTensor"])
        return StoreDataset(url, **{where: transform})

    def test_they_work_under_fork_and_in_copies(self, store: Url, where: str, name: str) -> None:
        dataset = self.dataset(store(COUNT), where, name)
        for each in (dataset, copy.deepcopy(dataset)):
            (batch,) = in_place(each, "fork", batch_size=COUNT)
            assert [label for _, label in batch] == list(range(COUNT))

    def test_other_workers_cannot_have_them(self, store: Url, where: str, name: str) -> None:
        dataset = Subset(self.dataset(store(COUNT), where, name), range(COUNT))
        kind, message = failure(lambda: list(in_place(dataset, "spawn")))
        assert kind is errors.ConfigError
        assert message.startswith("target_transform" if where == "target_transform" else "transform")
        assert name in message.partition(":")[0]
        assert "define it at the top level of a module" in message


class TestTransformsThatFail:
    """What a transform raises says where and in which, and comes out of a worker as the same error."""

    @pytest.mark.parametrize("place", [None, "fork", "forkserver"])
    def test_the_message_names_store_position_key_and_transform(self, store: Url, place: str | None) -> None:
        url = store(COUNT)
        dataset = StoreDataset(url, fields=FIELDS, target_transform=raise_awkwardly)
        reasons = (
            "ZeroDivisionError: no such colour",
            "StopIteration: 3",
            "KeyError: 'size'",
            "TwoArgumentsError: (7, 'lens')",
        )
        batches = iter(in_place(dataset, place, batch_size=1))
        for number, reason in enumerate(reasons):
            reported = failure(partial(next, batches))
            assert reported[0] is errors.TransformError
            assert f"record {number} (key 'p/{number}') of {url}: transform <function raise_awkwardly" in reported[1]
            assert f"failed on 'label': {reason}" in reported[1]

    @pytest.mark.parametrize("place", [None, "fork"])
    def test_of_the_others_in_the_batch_none_is_given_out(self, store: Url, place: str | None) -> None:
        dataset = StoreDataset(store(COUNT), fields=FIELDS, target_transform=only_even)
        batches = iter(in_place(dataset, place, batch_sampler=Given([[0, 1, 2], [2, 4]])))
        kind, message = failure(partial(next, batches))
        assert kind is errors.TransformError
        assert "record 1 " in message
        assert indices([next(batches)]) == [[2, 4]]


def only_even(number: int) -> int:
    return operator.index(number) if number % 2 == 0 else number // 0


class TestSkippedSamples:
    """PyTorch's default_collate cannot leave out what was skipped; it says what can, wherever in the batch that is."""

    @pytest.mark.parametrize(
        ("as_dict", "order", "place"),
        [(False, [1, 0, 2], None), (False, [0, 3, 1], "fork"), (True, [0, 2, 1], None), (True, [1, 0, 2], "fork")],
    )
    def test_default_collate_says_what_to_do(
        self, store: Url, as_dict: bool, order: list[int], place: str | None
    ) -> None:
        url = store(COUNT)
        dataset = StoreDataset(url, fields=FIELDS, target_transform=only_even, on_error="skip", as_dict=as_dict)
        reported = failure(lambda: list(in_place(dataset, place, batch_sampler=Given([order]), collate_fn=None)))
        assert reported[0] is errors.ConfigError
        skipped = next(index for index in order if index % 2)
        assert f"sample {skipped} of {url} was skipped (transform <function only_even" in reported[1]
        assert "pass collate_fn=storeds.collate, or use on_error='replace'" in reported[1]
        (batch,) = in_place(dataset, place, batch_sampler=Given([order]), collate_fn=storeds.collate)
        kept = batch["index"] if as_dict else batch[1]
        assert kept.tolist() == [index for index in order if not index % 2]
