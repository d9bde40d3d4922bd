"""Transforms and `as_dict` may be assigned to a dataset, which then works as one that was made with them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import storeds
from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, StoreLoader, ThreadLoader, errors
from storeds.transforms import CenterCrop, Compose, Normalize, RandomResizedCrop, Resize, ToTensor

COUNT = 6
TRAIN: list[Any] = [RandomResizedCrop(32), ToTensor(), Normalize([0.5], [0.25])]
VAL: list[Any] = [Resize(40), CenterCrop(32), ToTensor()]


def negative(label: Any) -> int:
    return -1 - int(label)


def inverted(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": 255 - sample["image"]}


@pytest.fixture
def url(tmp_path: Path) -> str:
    fields = {"image": "image", "label": "int", "vector": {"kind": "array", "dtype": "float32", "shape": [2]}}
    records = [{"image": jpeg(n), "label": n, "vector": np.array([n, 1], np.float32)} for n in range(COUNT)]
    return make_store(fields, records, f"lmdb://{tmp_path}/a.lmdb")


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
    "by element": ({"transform": TRAIN}, "transform", {"image": VAL}),
    "no transform": ({"transform": TRAIN, "decode": "tensor"}, "transform", None),
    "a first transform": ({"decode": "tensor"}, "transform", Compose(VAL)),
    "as a config": ({"decode": "tensor"}, "transform", [{"name": "CenterCrop", "size": 8}]),
    "a label": ({"transform": VAL}, "target_transform", negative),
    "no change of the label": ({"transform": VAL, "target_transform": negative}, "target_transform", None),
    "dicts": ({"transform": VAL}, "as_dict", True),
    "tuples": ({"transform": VAL, "as_dict": True}, "as_dict", False),
    "columns as dicts": ({"reader": "array", "fields": ["vector", "label"]}, "as_dict", True),
    "a label of columns": ({"reader": "array", "fields": ["vector", "label"]}, "target_transform", negative),
    "samples": ({"reader": "sample", "fields": ["image", "label"], "transforms": [Resize(9)]}, "transforms", inverted),
    "samples as stored": ({"reader": "sample", "fields": ["image"], "transforms": inverted}, "transforms", None),
}
LOADERS: dict[str, Callable[[Any], Any]] = {
    "StoreLoader": lambda dataset: StoreLoader(dataset, batch_size=1),
    "workers": lambda dataset: StoreLoader(dataset, batch_size=1, num_workers=1),
    "ThreadLoader": lambda dataset: ThreadLoader(dataset, batch_size=1, num_workers=2),
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


def test_training_and_validation_take_turns_on_one_dataset(url: str) -> None:
    dataset = StoreDataset(url, transform=TRAIN, seed=1)
    loader = StoreLoader(dataset, batch_size=COUNT, num_workers=1)
    expected = {repr(each): torch.stack([image for image, _ in StoreDataset(url, transform=each)[:]]) for each in [VAL]}
    for _ in range(2):
        dataset.transform = Compose(TRAIN)
        ((first, _),) = loader
        dataset.transform = Compose(VAL)
        ((second, _),) = loader
        assert not torch.equal(first, second)
        assert torch.equal(second, expected[repr(VAL)])


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
