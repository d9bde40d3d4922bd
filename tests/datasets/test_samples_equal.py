"""Samples with many parts, from every engine and in every kind of loader: bit-equal, before and after conversion."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import storeds
from storeds import StoreDataset, StoreIterable, StoreLoader, ThreadLoader, errors

ENGINES = ["lmdb", "hdf5", "mongodb"]
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


def encoded(pixels: np.ndarray[Any, Any], form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, quality=90)
    return file.getvalue()


def record(number: int) -> dict[str, Any]:
    """Return a record with `number` % 5 boxes; its mask is a palette PNG or one of 16 bits."""
    rng = np.random.default_rng(number)
    height, width, count = 60 + number, 80 + 3 * number, number % 5
    ids = rng.integers(0, 20, (height, width))
    corners = rng.uniform(0, 0.5, (count, 2)) * (width, height)
    boxes = np.hstack([corners, rng.uniform(0.1, 0.5, (count, 2)) * (width, height)])
    points = rng.uniform(0, 60, (count, 3, 3)).astype(np.float32)
    points[..., 2] = 2
    return {
        "image": encoded(rng.integers(0, 255, (height, width, 3)).astype(np.uint8), "JPEG" if number % 3 else "PNG"),
        "mask": encoded(ids.astype(np.uint8 if number % 2 else np.uint16), "PNG"),
        "boxes": boxes,
        "labels": rng.integers(0, 3, count),
        "points": points,
        "areas": (boxes[:, 2] * boxes[:, 3]).astype(np.float32),
        "caption": f"picture {number} mit Umlaut ü",
        "key": f"sample-{number}",
    }


RECORDS = [record(number) for number in range(COUNT)]


def written(url: str, records: Iterable[Mapping[str, Any]] = RECORDS, fields: Mapping[str, Any] = FIELDS) -> str:
    with storeds.open_writer(url, fields, overwrite=True) as writer:
        writer.append(dict(each) for each in records)
        writer.publish(attrs={"classes": ["cat", "dog", "bird"]})
    return url


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
        loader: StoreLoader = ThreadLoader(dataset, **arguments)
    else:
        loader = StoreLoader(dataset, **arguments, multiprocessing_context=how)
    return [sorted(pair for batch in loader for pair in batch) for _ in range(2)]


@pytest.fixture(scope="module")
def truth() -> list[list[tuple[int, str]]]:
    """Two epochs from memory, in one process, sample by sample."""
    dataset = opened(written("memory://samples-truth"))
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append([(index, digest(dataset[index])) for index in range(COUNT)])
    return epochs


@pytest.mark.parametrize("converted", [False, True], ids=["written", "converted"])
@pytest.mark.parametrize("engine", ENGINES)
def test_samples_are_equal_to_the_last_bit(
    engine: str, converted: bool, truth: Any, make_engine_url: Callable[[str], str]
) -> None:
    """Fork and threads; processes that spawn have a test of their own, because they import torch."""
    url = written(make_engine_url("lmdb" if converted and engine != "lmdb" else engine))
    if converted:
        source, url = url, make_engine_url(engine)
        storeds.convert(source, url)
    assert truth[0] != truth[1]
    for how in ("fork", "threads"):
        assert loaded(opened(url), how) == truth


@pytest.mark.parametrize(("how", "engine"), [("spawn", engine) for engine in ENGINES])
def test_samples_are_equal_in_workers_that_spawn(
    how: str, engine: str, truth: Any, make_engine_url: Callable[[str], str]
) -> None:
    assert loaded(opened(written(make_engine_url(engine))), how) == truth


def test_values_are_the_stored_ones_without_transforms(make_engine_url: Callable[[str], str]) -> None:
    dataset = opened(written(make_engine_url("lmdb")), transforms=None)
    for stored, sample in zip(RECORDS, dataset[:], strict=True):
        with Image.open(io.BytesIO(stored["mask"])) as mask:
            assert np.array_equal(sample["mask"], np.asarray(mask).astype(np.int32))
        assert np.array_equal(sample["boxes"], stored["boxes"].astype(np.float32))
        for name in ("labels", "points", "areas"):
            assert np.array_equal(sample[name], stored[name])
        assert (sample["caption"], sample["key"]) == (stored["caption"], stored["key"])


def test_streams_and_batches_give_the_same_samples(truth: Any, make_engine_url: Callable[[str], str]) -> None:
    url = written(make_engine_url("lmdb"))
    settings: dict[str, Any] = {"as_dict": True, "fields": ELEMENTS, "transforms": TRANSFORMS}
    stream = StoreIterable(url, seed=5, **settings)
    assert sorted(digests(list(stream))) == truth[0]
    first = next(iter(StoreLoader(opened(url), batch_size=4, shuffle=False)))
    for at in range(4):
        assert torch.equal(first["image"][at], opened(url)[at]["image"].as_subclass(torch.Tensor))


def test_a_config_builds_the_same(truth: Any, make_engine_url: Callable[[str], str]) -> None:
    config = {
        "dataset": {
            "url": written(make_engine_url("hdf5")),
            "fields": {name: name for name in ELEMENTS},
            "transforms": TRANSFORMS,
            "as_dict": True,
            "seed": 5,
        },
        "splits": {"val": {"dataset": {"transforms": None, "where": {"key": "sample-1"}}}},
    }
    dataset = storeds.build_dataset({**config, "splits": {}})
    assert digests(dataset[:]) == truth[0]
    val: Any = storeds.build_dataset(config, "val")
    assert val.transforms is None
    schema = storeds.config.config_schema()["$defs"]["Source"]["properties"]
    assert {"transforms", "roles", "fields"} <= set(schema)


def test_transform_and_target_transform_follow_transforms(make_engine_url: Callable[[str], str]) -> None:
    url = written(make_engine_url("lmdb"))
    dataset = StoreDataset(
        url,
        fields=["image", "boxes", "labels"],
        transforms=[{"name": "CenterCrop", "size": 32}],
        transform=["ToTensor"],
        target_transform=negated,
    )
    image, _, labels = dataset[4]
    assert image.dtype == torch.float32
    assert image.shape == (3, 32, 32)
    settings: dict[str, Any] = {
        "fields": ["image", "boxes", "labels"],
        "transforms": [{"name": "CenterCrop", "size": 32}],
    }
    assert torch.equal(labels, -StoreDataset(url, **settings)[4][2])


def negated(labels: torch.Tensor) -> torch.Tensor:
    return -labels


def test_a_crop_of_the_image_alone_names_transforms(make_engine_url: Callable[[str], str]) -> None:
    url = written(make_engine_url("lmdb"))
    with pytest.raises(errors.ConfigError, match="'boxes'.* would stay as stored.*Pass it as transforms="):
        StoreDataset(url, transform={"name": "RandomResizedCrop", "size": 32})


def broken(**changes: Any) -> dict[str, Any]:
    return {**record(3), **changes}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"boxes": np.array([[1, 2, np.nan, 4]] * 3)}, "field 'boxes', row 0: .*is not finite"),
    "negative": (
        {"boxes": np.array([[1, 2, 3, 4], [5, 5, -1, 4], [1, 2, 3, 4]], float)},
        "field 'boxes', row 1: .*negative width",
    ),
    "outside": ({"boxes": np.array([[1, 2, 3, 4], [900, 5, 1, 4], [1, 2, 3, 4]], float)}, "row 1: .*outside the image"),
    "rows": ({"labels": np.array([0, 1])}, "field 'labels' has 2 rows, and field 'boxes' has 3 boxes"),
    "class": ({"labels": np.array([0, 1, 7])}, "field 'labels': class 7 has no name"),
    "mask": ({"mask": encoded(np.zeros((9, 9), np.uint8), "PNG")}, "field 'mask': the mask has 9 × 9 pixels"),
    "colours": ({"mask": encoded(np.zeros((63, 89, 3), np.uint8), "PNG")}, "field 'mask': a mask has one channel"),
    "points": ({"points": np.full((3, 3, 3), np.inf, np.float32)}, "field 'points', row 0: .*is not finite"),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_values_name_record_key_field_and_reason(engine: str, make_engine_url: Callable[[str], str]) -> None:
    """The store declares no roles, so its writer accepts all values; roles= says what they mean."""
    plain = {name: {key: each[key] for key in ("kind", "dtype", "shape") if key in each} if isinstance(each, dict) else each
             for name, each in FIELDS.items()}  # fmt: skip
    roles = {name: {key: each[key] for key in ("role", "format", "of") if key in each}
             for name, each in FIELDS.items() if isinstance(each, dict)}  # fmt: skip
    url = written(make_engine_url(engine), [*RECORDS[:2], *(broken(**changes) for changes, _ in BAD.values())], plain)
    dataset = opened(url, roles=roles, transforms=None)
    assert digests(dataset[:2]) == digests(opened(written("memory://declared", RECORDS[:2]), transforms=None)[:2])
    for position, (_, says) in enumerate(BAD.values(), 2):
        with pytest.raises(
            errors.RecordError, match=rf"^record {position} \(key 'sample-3'\) of .*: .*{says}"
        ) as caught:
            dataset[position]
        assert (caught.value.position, caught.value.key) == (position, "sample-3")
    skipping = opened(url, roles=roles, transforms=None, on_error="skip")
    assert sum(isinstance(sample, storeds.Skipped) for sample in skipping[:]) == len(BAD)


@pytest.mark.parametrize("engine", ENGINES)
def test_none_and_a_thousand_boxes(engine: str, make_engine_url: Callable[[str], str]) -> None:
    count = 1000
    rng = np.random.default_rng(1)
    boxes = np.hstack([rng.uniform(0, 40, (count, 2)), rng.uniform(1, 20, (count, 2))])
    many = broken(
        boxes=boxes,
        labels=np.zeros(count, np.int64),
        points=np.zeros((count, 3, 3), np.float32),
        areas=np.arange(count).astype(np.float32),
    )
    none = broken(
        boxes=boxes[:0],
        labels=np.zeros(0, np.int64),
        points=np.zeros((0, 3, 3), np.float32),
        areas=np.zeros(0, np.float32),
    )
    dataset = opened(written(make_engine_url(engine), [many, none]))
    full, empty = dataset[:]
    assert len(full["boxes"]) == len(full["labels"]) == len(full["areas"]) == len(full["points"])
    assert empty["boxes"].shape == (0, 4)
    assert empty["points"].shape == (0, 3, 3)


def test_a_failing_transform_names_the_record(make_engine_url: Callable[[str], str]) -> None:
    dataset = opened(written(make_engine_url("lmdb")), transforms=[fail])
    with pytest.raises(errors.TransformError, match=r"^record 2 \(key 'sample-2'\) of .*transforms .*failed: KeyError"):
        dataset[2]


def fail(sample: dict[str, Any]) -> Any:
    return sample["no such element"]
