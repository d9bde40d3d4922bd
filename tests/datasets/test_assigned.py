"""Transforms and `as_dict` may be assigned to a dataset, which then works as one that was made with them."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import storeds
from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, StoreLoader, errors
from storeds.transforms import CenterCrop, Compose, Normalize, RandomResizedCrop, Resize, ToTensor

COUNT = 6
TRAIN: list[Any] = [RandomResizedCrop(32), ToTensor(), Normalize([0.5], [0.25])]
VAL: list[Any] = [Resize(40), CenterCrop(32), ToTensor()]


def negative(label: Any) -> int:
    return -1 - int(label)


def inverted(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": 255 - sample["image"]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    fields = {"image": "image", "label": "int", "vector": {"kind": "array", "dtype": "float32", "shape": [2]}}
    records = [{"image": jpeg(n), "label": n, "vector": np.array([n, 1], np.float32)} for n in range(COUNT)]
    return make_store(fields, records, f"lmdb://{tmp_path_factory.mktemp('assigned')}/a.lmdb")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and same(list(one.values()), list(other.values()))
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


CASES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "other pixels": ({"transform": TRAIN}, "transform", VAL),
    "no transform": ({"transform": TRAIN, "decode": "tensor"}, "transform", None),
    "a first transform": ({"decode": "tensor"}, "transform", Compose(VAL)),
    "a label": ({"transform": VAL}, "target_transform", negative),
    "dicts": ({"transform": VAL}, "as_dict", True),
    "columns as dicts": ({"reader": "array", "fields": ["vector", "label"]}, "as_dict", True),
    "samples": ({"reader": "sample", "fields": ["image", "label"], "transforms": [Resize(9)]}, "transforms", inverted),
    "samples as stored": ({"reader": "sample", "fields": ["image"], "transforms": inverted}, "transforms", None),
}
LOADERS: dict[str, Callable[[Any], Any]] = {
    "StoreLoader": lambda dataset: StoreLoader(dataset, batch_size=1),
    "workers": lambda dataset: StoreLoader(dataset, batch_size=1, num_workers=1),
    "threads": lambda dataset: StoreLoader(dataset, start_method="thread", batch_size=1, num_workers=2),
    "DataLoader": lambda dataset: DataLoader(dataset, batch_size=1, collate_fn=storeds.collate),
    "Subset": lambda dataset: StoreLoader(Subset(dataset, range(COUNT)), batch_size=1),
}


@pytest.mark.parametrize("case", CASES)
def test_an_assigned_setting_holds_from_the_next_sample_on(url: str, case: str) -> None:
    arguments, name, value = CASES[case]
    changed, loaders = StoreDataset(url, seed=3, **arguments), {}
    before = copy.copy(changed)
    old = changed[0]
    for way, make in LOADERS.items():
        loaders[way] = make(changed)
        next(iter(loaders[way]))
    setattr(changed, name, value)
    expected = StoreDataset(url, seed=3, **{**arguments, name: value})
    for dataset in (changed, expected, before):
        dataset.set_epoch(0)
    assert repr(getattr(changed, name)) == repr(getattr(expected, name))
    assert same(changed[:], expected[:])
    assert same(pickle.loads(pickle.dumps(changed))[:], expected[:])
    assert same(before[0], old)
    assert not same(old, expected[0])
    for way, loader in loaders.items():
        for dataset in (changed, expected):
            dataset.set_epoch(5)
        assert same(list(loader), list(LOADERS[way](expected))), way


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("transform", "NoSuch", "unknown transform 'NoSuch'"),
        ("transform", {"mask": VAL}, "transform names 'mask'"),
        ("target_transform", 5, "target_transform"),
        ("transforms", inverted, "transforms is for whole samples"),
    ],
)
def test_a_wrong_value_changes_nothing(url: str, name: str, value: Any, message: str) -> None:
    dataset = StoreDataset(url, transform=VAL)
    expected, setting = dataset[:], getattr(dataset, name)
    with pytest.raises(errors.ConfigError, match=message):
        setattr(dataset, name, value)
    assert getattr(dataset, name) is setting
    assert same(dataset[:], expected)


def test_the_report_goes_on_counting(url: str) -> None:
    dataset = StoreDataset(url, transform=VAL)
    before = dataset.report().seen
    dataset[:]
    dataset.transform = None
    dataset[:]
    assert dataset.report().seen == before + 2 * COUNT


# --- Workers that have copies ---


class Scaled:
    """A transform of labels with an attribute."""

    factor = 1

    def __call__(self, label: int) -> int:
        return label * self.factor


class Nested(Dataset[Any]):
    """Somebody else's dataset over ours."""

    def __init__(self, inner: StoreDataset) -> None:
        self.inner, self.more = inner, 0

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return (self.inner[index][0] + self.more,)


def with_process(samples: list[Any]) -> tuple[int, list[int]]:
    """Return the process that made a batch, and its labels."""
    labels = [tuple(sample.values()) if isinstance(sample, dict) else sample for sample in samples]
    return os.getpid(), [label for (label,) in labels]


def reversed_labels(samples: list[Any]) -> tuple[int, list[int]]:
    process, labels = with_process(samples)
    return process, labels[::-1]


def ten_more(label: int) -> int:
    return label + 10


SCALED = Scaled()


def scaled(dataset: StoreDataset) -> StoreDataset:
    dataset.transform = Compose([SCALED])
    return dataset


def ours(data: StoreDataset) -> Any:
    return data


def of(place: int, name: str, value: Any) -> Callable[..., None]:
    """Return a function that assigns to the dataset (0), to what is around it (1), or to the loader (2)."""
    return lambda *parts: setattr(parts[place], name, value)


COPIES: dict[str, tuple[Callable[[StoreDataset], Any], Callable[..., None], list[int]]] = {
    "dataset": (ours, of(0, "transform", ten_more), [10, 11, 12]),
    "as_dict": (ours, of(0, "as_dict", True), [0, 1, 2]),
    "seed": (ours, of(0, "seed", 5), [0, 1, 2]),
    "below a subset": (lambda data: Subset(data, range(3)), of(0, "transform", ten_more), [10, 11, 12]),
    "of a subset": (lambda data: Subset(data, [0, 1, 2]), of(1, "indices", [2, 0, 0]), [2, 0, 0]),
    "in a list of a subset": (
        lambda data: Subset(data, [0, 1, 2]),
        lambda _data, outer, _loader: outer.indices.__setitem__(0, 2),
        [2, 1, 2],
    ),
    "below a concatenation": (lambda data: ConcatDataset([data]), of(0, "transform", ten_more), [10, 11, 12]),
    "below another dataset": (Nested, of(0, "transform", ten_more), [10, 11, 12]),
    "of another dataset": (Nested, of(1, "more", 5), [5, 6, 7]),
    "attribute of a transform": (scaled, lambda *_: setattr(SCALED, "factor", 2), [0, 2, 4]),
    "collate_fn": (ours, of(2, "collate_fn", reversed_labels), [2, 1, 0]),
    "timeout": (ours, of(2, "timeout", 60), [0, 1, 2]),
}


@pytest.mark.parametrize("case", COPIES)
def test_persistent_workers_get_what_is_assigned_with_the_next_pass(url: str, case: str) -> None:
    make, assign, expected = COPIES[case]
    SCALED.factor = 1
    dataset = StoreDataset(url, fields=["label"], reader="array", seed=1)
    outer = make(dataset)
    loader = StoreLoader(outer, batch_size=3, num_workers=1, persistent_workers=True, collate_fn=with_process)
    (first, labels), (again, _) = [next(iter(loader)) for _ in range(2)]
    assert (labels, again) == ([0, 1, 2], first)
    assign(dataset, outer, loader)
    (other, labels), (later, _) = [next(iter(loader)) for _ in range(2)]
    assert labels == expected
    assert (other == first, later) == (False, other)


def test_what_changes_nothing_keeps_persistent_workers(url: str) -> None:
    dataset = StoreDataset(url, fields=["label"], reader="array", seed=1)
    loader = StoreLoader(dataset, num_workers=1, persistent_workers=True, collate_fn=with_process)
    (first, _) = next(iter(loader))
    for use in (
        lambda: dataset[0],
        lambda: dataset.column("label"),
        dataset.report,
        lambda: dataset.set_epoch(4),
        loader.stats,
    ):
        use()
        assert next(iter(loader))[0] == first


def assign_in_worker(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    dataset.target_transform = ten_more
    dataset.as_dict = True


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [(StoreLoader, ours), (StoreLoader, lambda data: Subset(data, range(3))), (DataLoader, ours)],
    ids=["ours", "ours-subset", "plain"],
)
def test_what_a_worker_init_fn_assigns_holds_in_its_worker(url: str, kind: Any, wrap: Any) -> None:
    dataset = StoreDataset(url, fields=["vector", "label"], reader="array")
    loader = kind(
        wrap(dataset), batch_size=3, num_workers=1, worker_init_fn=assign_in_worker, collate_fn=storeds.collate
    )
    batch = next(iter(loader))
    assert batch["label"].tolist() == [10, 11, 12]
    assert dataset[0][1] == 0


def test_an_argument_that_may_not_be_assigned_says_so(url: str) -> None:
    dataset = StoreDataset(url)
    for name in inspect.signature(StoreDataset).parameters:
        if name in ("transforms", "transform", "target_transform", "as_dict", "seed"):
            setattr(dataset, name, getattr(dataset, name))
        else:
            with pytest.raises(errors.ConfigError, match=f"{name} cannot be assigned"):
                setattr(dataset, name, None)
    loader = StoreLoader(dataset)
    for name in ("shuffle", "seed", "balance", "samples_per_epoch", "log_every"):
        with pytest.raises(errors.ConfigError, match=f"{name} cannot be assigned"):
            setattr(loader, name, 1)


def test_a_subclass_may_have_attributes_of_these_names(url: str) -> None:
    class Own(StoreDataset):
        def __init__(self) -> None:
            self.mode = "train"
            super().__init__(url)

    assert Own().mode == "train"
