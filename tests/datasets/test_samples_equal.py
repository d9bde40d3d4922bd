"""Samples with many parts, from every engine and in every kind of loader: bit-equal, before and after conversion."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import storeds
from make_store import make_store
from photographs import saved
from storeds import StoreDataset, StoreLoader

ENGINES = ["lmdb", "hdf5", "mongodb"]
CLASSES = {"classes": ["cat", "dog", "bird"]}
COUNT = 12
FIELDS: dict[str, Any] = {
    "image": {"kind": "image", "role": "image"},
    "mask": {"kind": "image", "role": "mask"},
    "boxes": {"kind": "array", "dtype": "float64", "shape": [None, 4], "role": "boxes", "format": "xywh"},
    "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"},
    "points": {"kind": "array", "dtype": "float32", "shape": [None, 3, 3], "role": "keypoints"},
    "areas": {"kind": "array", "dtype": "float32", "shape": [None], "of": "boxes"},
    "caption": {"kind": "str", "role": "text"},
    "key": "str",
}
TRANSFORMS = [
    {"name": "RandomResizedCrop", "size": [48, 64], "scale": [0.3, 1.0]},
    "RandomHorizontalFlip",
    {"name": "FilterBoxes", "min_size": 2},
    "ToTensor",
    {"name": "Normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]},
]
ELEMENTS = [*FIELDS, "index"]


def record(number: int) -> dict[str, Any]:
    """Return a record with `number` % 5 boxes; its mask is a palette PNG or one of 16 bits."""
    rng = np.random.default_rng(number)
    height, width, count = 60 + number, 80 + 3 * number, number % 5
    ids = rng.integers(0, 20, (height, width)).astype(np.uint8 if number % 2 else np.uint16)
    pixels = rng.integers(0, 255, (height, width, 3)).astype(np.uint8)
    corners = rng.uniform(0, 0.5, (count, 2)) * (width, height)
    boxes = np.hstack([corners, rng.uniform(0.1, 0.5, (count, 2)) * (width, height)])
    points = rng.uniform(0, 60, (count, 3, 3)).astype(np.float32)
    points[..., 2] = 2
    return {
        "image": saved(Image.fromarray(pixels), "JPEG" if number % 3 else "PNG", quality=90),
        "mask": saved(Image.fromarray(ids)),
        "boxes": boxes,
        "labels": rng.integers(0, 3, count),
        "points": points,
        "areas": (boxes[:, 2] * boxes[:, 3]).astype(np.float32),
        "caption": f"picture {number} mit Umlaut ü",
        "key": f"sample-{number}",
    }


RECORDS = [record(number) for number in range(COUNT)]


def written(url: str) -> str:
    return make_store(FIELDS, RECORDS, url, attrs=CLASSES)


def opened(url: str, **settings: Any) -> StoreDataset:
    return StoreDataset(url, **{"as_dict": True, "fields": ELEMENTS, "transforms": TRANSFORMS, "seed": 5, **settings})


def digest(sample: Mapping[str, Any]) -> str:
    """Return a hash of the names, dtypes, shapes and bits of a sample.

    Not of the types: processes of the tests that spawn cannot import torchvision, so they have plain tensors.
    """
    found = hashlib.sha256()
    for name, value in sample.items():
        found.update(f"{name} ".encode())
        if isinstance(value, torch.Tensor):
            plain = value.as_subclass(torch.Tensor).numpy()
            found.update(f"{plain.dtype} {plain.shape} ".encode() + np.ascontiguousarray(plain).tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


def digests(samples: list[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Collate samples to their indices and hashes. Spawned workers import this function."""
    return [(sample["index"], digest(sample)) for sample in samples]


def loaded(dataset: StoreDataset, how: str) -> list[list[tuple[int, str]]]:
    """Return the sorted hashes of two epochs."""
    arguments: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 9, "num_workers": 2, "collate_fn": digests}
    if how == "threads":
        loader: StoreLoader = StoreLoader(dataset, start_method="thread", **arguments)
    else:
        if how == "spawn":  # where each worker imports torch
            arguments |= {"num_workers": 1, "persistent_workers": True}
        loader = StoreLoader(dataset, **arguments, multiprocessing_context=how)
    return [sorted(pair for batch in loader for pair in batch) for _ in range(2)]


@pytest.fixture(scope="module")
def truth() -> list[list[tuple[int, str]]]:
    """Two epochs from memory, in one process, sample by sample."""
    dataset = opened(make_store(FIELDS, RECORDS, attrs=CLASSES))
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append([(index, digest(dataset[index])) for index in range(COUNT)])
    return epochs


@pytest.mark.parametrize(
    ("engine", "how", "converted"),
    [
        (engine, how, (row + column) % 2 == 1)
        for row, engine in enumerate(ENGINES)
        for column, how in enumerate(["fork", "threads", "spawn"])
    ],
)
def test_samples_are_equal_to_the_last_bit(
    engine: str, how: str, converted: bool, truth: Any, make_engine_url: Callable[[str], str]
) -> None:
    url = written(make_engine_url("lmdb" if converted and engine != "lmdb" else engine))
    if converted:
        source, url = url, make_engine_url(engine)
        storeds.convert(source, url)
    assert truth[0] != truth[1]
    assert loaded(opened(url), how) == truth
    described = {"url": url, "fields": ELEMENTS, "transforms": TRANSFORMS, "as_dict": True, "seed": 5}
    assert digests(storeds.build_dataset({"dataset": described})[:]) == truth[0]


def test_roles_of_a_dataset_are_as_good_as_those_of_its_store(truth: Any) -> None:
    fields, roles = dict[str, Any](), dict[str, Any]()
    for name, field in FIELDS.items():
        parts = {"kind": field} if isinstance(field, str) else field
        fields[name] = {key: value for key, value in parts.items() if key in ("kind", "dtype", "shape")}
        roles[name] = {key: value for key, value in parts.items() if key in ("role", "format", "of")}
    url = make_store(fields, RECORDS, attrs=CLASSES)
    assert digests(opened(url, roles={name: role for name, role in roles.items() if role})[:]) == truth[0]


def test_transform_and_target_transform_follow_transforms(make_engine_url: Callable[[str], str]) -> None:
    crop = [{"name": "CenterCrop", "size": 32}]
    settings: dict[str, Any] = {"transforms": crop, "fields": ["image", "boxes", "labels"], "as_dict": False}
    plain = opened(written(make_engine_url("lmdb")), **settings)
    image, _, labels = opened(plain.url, **settings, transform=["ToTensor"], target_transform=negated)[4]
    assert image.dtype == torch.float32
    assert image.shape == (3, 32, 32)
    assert torch.equal(labels, -plain[4][2])


def negated(labels: torch.Tensor) -> torch.Tensor:
    return -labels
