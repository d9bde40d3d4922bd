"""What loaders and configs make of samples with boxes: settings by role, and lists for detectors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from make_store import make_store
from photographs import saved
from storeds import (
    StoreDataset,
    StoreLoader,
    build_loader,
    collate,
    collate_detection,
    errors,
)
from storeds.batching import Padded

COUNT, BATCH = 24, 4
ROWS: Any = {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"}
BOXES: Any = {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xywh"}
FIELDS: Any = {
    "image": {"kind": "array", "dtype": "uint8", "shape": [3, None, None], "role": "image"},
    "boxes": BOXES,
    "labels": ROWS,
    "area": {"kind": "array", "dtype": "float32", "shape": [None], "of": "boxes"},
    "id": "int",
}
PARTS: Any = {
    "image": {"kind": "image", "role": "image"},
    "mask": {"kind": "image", "role": "mask"},
    "boxes": {**BOXES, "dtype": "float64", "format": "cxcywh", "relative": True},
    "labels": ROWS,
    "keypoints": {"kind": "array", "dtype": "float32", "shape": [None, 3, 2], "role": "keypoints"},
    "captions": {"kind": "json", "role": "text"},
    "key": "str",
}


def record(at: int) -> dict[str, Any]:
    draw = np.random.default_rng(at)
    boxes = (0, 2, 5, 1)[at % 4] if at >= BATCH else 2  # the first batch has as many in each sample
    corner, size = draw.integers(0, 7, (boxes, 2)), draw.integers(1, 9, (boxes, 2))
    return {
        "image": draw.integers(0, 255, (3, 9 + at % 3, 11 - at % 4), np.uint8),
        "boxes": np.concatenate([corner, size], 1).astype("f4"),
        "labels": draw.integers(0, 5, boxes),
        "area": size.prod(1).astype("f4"),
        "id": at,
    }


def parts(at: int) -> dict[str, Any]:
    draw = np.random.default_rng(at)
    boxes, width, height = at % 3, 40 + at % 5, 30 + at % 2
    return {
        "image": saved(Image.fromarray(draw.integers(0, 255, (height, width, 3), np.uint8))),
        "mask": saved(Image.fromarray(draw.integers(0, 9, (height, width), np.uint8))),
        "boxes": np.tile([0.5, 0.5, 0.25, 0.5], (boxes, 1)),
        "labels": draw.integers(0, 5, boxes),
        "keypoints": draw.uniform(1, 9, (boxes, 3, 2)).astype("f4"),
        "captions": ["one", "two"][: 1 + at % 2],
        "key": str(at),
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a store of arrays."""
    return make_store(FIELDS, map(record, range(COUNT)), f"hdf5://{tmp_path_factory.mktemp('samples')}/boxes.h5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoreDataset:
    """Samples with all kinds of parts, through transforms."""
    url = make_store(PARTS, map(parts, range(COUNT)), f"lmdb://{tmp_path_factory.mktemp('parts')}/parts.lmdb")
    transforms = ["RandomHorizontalFlip", "ToTensor", {"name": "Normalize", "mean": [0.5], "std": [0.25]}]
    return StoreDataset(url, fields=list(PARTS), as_dict=True, transforms=transforms, seed=3)


def dataset(url: str, **options: Any) -> StoreDataset:
    fields = options.pop("fields", ["boxes", "labels", "area", "id"])
    return StoreDataset(url, reader="array", fields=fields, **options)


def tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value).as_subclass(torch.Tensor)


def check_targets(batches: Any, expected: Sequence[Mapping[str, Any]], *, offset: int = 0) -> None:
    """Compare batches for detectors with samples in their order: records, or what their dataset gives."""
    found = [pair for images, targets in batches for pair in zip(images, targets, strict=True)]
    for (image, target), each in zip(found, expected, strict=True):
        pixels = tensor(each["image"])
        assert torch.equal(image, pixels if pixels.is_floating_point() else pixels.float() / 255)
        if "area" in each:  # a record, whose boxes are corners and sizes
            corners = np.concatenate([each["boxes"][:, :2], each["boxes"][:, :2] + each["boxes"][:, 2:]], 1)
        else:
            sides = np.array(image.shape[:0:-1] * 2, "f4")
            corners = np.tile(np.array([0.375, 0.25, 0.625, 0.75], "f4") * sides, (len(each["labels"]), 1))
            assert torch.equal(target["keypoints"][..., :2], tensor(each["keypoints"]))
        assert np.allclose(target["boxes"], corners)
        assert torch.equal(target["labels"], tensor(each["labels"]) + offset)
        for name in each.keys() & {"area", "id", "key", "captions"}:
            assert np.array_equal(target[name], each[name])


def check_padded(batches: Any, expected: Sequence[Mapping[str, Any]], fills: Mapping[str, int]) -> None:
    """Compare batches of dicts with samples in their order; each image is padded with its fill."""
    padded = {*fills, "boxes", "labels", "area", "keypoints"} & expected[0].keys()
    at = 0
    for batch in batches:
        assert batch.keys() == expected[0].keys() | {f"{name}_mask" for name in padded}
        for row in range(len(batch["boxes"])):
            for name, value in expected[at].items():
                if name in fills:
                    height, width = value.shape[-2:]
                    padding = (0, batch[name].shape[-1] - width, 0, batch[name].shape[-2] - height)
                    filled = torch.nn.functional.pad(tensor(value), padding, value=fills[name])
                    assert torch.equal(batch[name][row], filled)
                    assert batch[f"{name}_mask"][row].sum() == height * width
                elif name in padded:
                    assert torch.equal(batch[name][row][batch[f"{name}_mask"][row]], tensor(value))
                else:
                    assert batch[name][row] == value
            at += 1
    assert at == len(expected)


LOADERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "alone": (StoreLoader, {}),
    "fork": (StoreLoader, {"num_workers": 2, "multiprocessing_context": "fork"}),
    "threads": (StoreLoader, {"num_workers": 2, "start_method": "thread"}),
    "torch's": (DataLoader, {"num_workers": 2}),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_detection_needs_no_names(url: str, whole: StoreDataset, kind: str) -> None:
    loader, arguments = LOADERS[kind]
    arguments = {"batch_size": BATCH, "collate_fn": collate_detection, **arguments}
    check_targets(loader(whole, **arguments), whole[:])
    for as_dict in (False, True) if kind in ("alone", "fork", "threads") else ():  # torch's knows no roles of columns
        samples = dataset(url, fields=list(FIELDS), as_dict=as_dict)
        check_targets(loader(samples, **arguments), list(map(record, range(COUNT))))


@pytest.mark.parametrize("kind", ["alone", "fork", "threads"])
def test_values_that_differ_get_a_mask_in_every_batch(url: str, whole: StoreDataset, kind: str) -> None:
    loader, arguments = LOADERS[kind]
    fills = {"image": 1, "mask": 255}
    collate_fn = functools.partial(collate, pad_images=fills)
    check_padded(loader(whole, batch_size=BATCH, collate_fn=collate_fn, **arguments), whole[:], fills)
    columns = dataset(url, fields=list(FIELDS), as_dict=True)
    fills = {"image": 7}
    batches = loader(columns, batch_size=BATCH, collate_fn=functools.partial(collate, pad_images=fills), **arguments)
    check_padded(batches, list(map(record, range(COUNT))), fills)
    for batch in loader(Subset(dataset(url), range(COUNT)), batch_size=BATCH, **arguments):
        assert [type(element) for element in batch] == [Padded, Padded, Padded, torch.Tensor]


def test_joined_datasets_are_batched_as_one(url: str) -> None:
    joined = dataset(url, as_dict=True) + Subset(dataset(url, as_dict=True), range(BATCH))
    batches = list(StoreLoader(joined, batch_size=BATCH))
    expected = list(StoreLoader(dataset(url, as_dict=True), batch_size=BATCH))
    for batch, alone in zip(batches, [*expected, expected[0]], strict=True):
        assert batch.keys() == alone.keys()
        assert all(torch.equal(batch[name], alone[name]) for name in batch)
    both = functools.partial(collate, ragged={"boxes": "list"})
    assert isinstance(next(iter(StoreLoader(joined, batch_size=BATCH, collate_fn=both)))["boxes"], list)


class Named(StoreDataset):
    """Has a method more, and the samples of a StoreDataset."""

    def name(self) -> str:
        return "named"


class Part(Subset[Any]):
    pass


class Joined(ConcatDataset[Any]):
    pass


def test_a_subclass_that_changes_no_sample_has_the_same_batches(url: str) -> None:
    wraps: list[Any] = [lambda data: data, lambda data: Part(data, range(COUNT)), lambda data: Joined([data])]
    for wrap in [*wraps, lambda data: data + data]:
        own = wrap(Named(url, reader="array", fields=["boxes", "id"], as_dict=True))
        expected = StoreLoader(wrap(dataset(url, fields=["boxes", "id"], as_dict=True)), batch_size=BATCH)
        for batch, same in zip(StoreLoader(own, batch_size=BATCH), expected, strict=True):
            assert list(batch) == list(same) == ["boxes", "boxes_mask", "id"]
            assert all(torch.equal(batch[name], same[name]) for name in batch)


def test_datasets_that_need_other_batches_are_joined_by_what_the_samples_hold(url: str) -> None:
    joined: Any = ConcatDataset([dataset(url), dataset(url, fields=["labels", "boxes", "id", "area"])])
    assert type(next(iter(StoreLoader(joined, batch_size=BATCH)))[0]) is torch.Tensor  # as many boxes in each sample


@pytest.mark.parametrize("as_dict", [False, True])
def test_settings_name_elements_or_roles(url: str, as_dict: bool) -> None:
    ragged: Any = {"boxes": "list", "labels": "pad"}
    fitted = functools.partial(collate, ragged=ragged, pad=["area"], pad_images=True)
    fields = ["id", "image", "labels", "boxes", "area"]
    loader = StoreLoader(dataset(url, fields=fields, as_dict=as_dict), batch_size=BATCH, collate_fn=fitted)
    for number, batch in enumerate(loader):
        records = [record(at) for at in range(number * BATCH, (number + 1) * BATCH)]
        if as_dict:
            assert list(batch) == ["id", "image", "image_mask", "labels", "boxes", "area", "area_mask"]
            _, images, pixels, labels, boxes, area, _ = batch.values()
        else:
            _, (images, pixels), labels, boxes, (area, _) = batch
        for row, each in enumerate(records):
            assert np.array_equal(images[row][:, pixels[row]].reshape(each["image"].shape), each["image"])
            assert np.array_equal(labels[row][: len(each["labels"])], each["labels"])
            assert np.array_equal(boxes[row], each["boxes"])
            assert area[row].sum() == each["area"].sum()
    with pytest.raises(errors.ConfigError, match="ragged: there is no element 'box'; did you mean 'boxes'"):
        StoreLoader(dataset(url), collate_fn=functools.partial(collate, ragged={"box": "list"}))


def test_an_element_with_a_transform_of_its_own_is_stacked(url: str) -> None:
    counted = dataset(url, fields=["boxes", "labels"], target_transform=_count, as_dict=True)
    batch = next(iter(StoreLoader(counted, batch_size=COUNT)))
    assert batch.keys() == {"boxes", "boxes_mask", "labels"}
    assert batch["labels"].tolist() == [np.bincount(record(at)["labels"], minlength=5).tolist() for at in range(COUNT)]


def _count(labels: torch.Tensor) -> torch.Tensor:
    return labels.bincount(minlength=5)


def test_detection_finds_what_describes_the_boxes_that_it_takes() -> None:
    """A sample has masks of faces, and its people have none."""
    masks: Any = {"kind": "array", "dtype": "uint8", "shape": [None, None, None], "role": "mask", "of": "faces"}
    fields = {"image": FIELDS["image"], "people": FIELDS["boxes"], "faces": FIELDS["boxes"], "outlines": masks}
    fields |= {"p": {**ROWS, "of": "people"}, "f": {**ROWS, "of": "faces"}}
    people, face = np.array([[0, 0, 2, 5], [3, 1, 4, 4]], "f4"), np.array([[1, 1, 2, 2]], "f4")
    pixels = {"image": np.zeros((3, 9, 9), "u1"), "outlines": np.ones((1, 9, 9), "u1")}
    labels = {"p": np.array([3, 4]), "f": np.array([5])}
    samples = StoreDataset(make_store(fields, [{**pixels, "people": people, "faces": face, **labels}]), reader="sample")
    for boxes, found in (("people", [3, 4]), ("faces", [5])):
        (target,) = next(iter(StoreLoader(samples, collate_fn=functools.partial(collate_detection, boxes=boxes))))[1]
        assert target["labels"].tolist() == found
        assert ("masks" in target) == (boxes == "faces")


def test_a_config_makes_batches_for_detectors(url: str) -> None:
    source = {"url": url, "reader": "array", "fields": list(FIELDS)}
    made = {"collate": "detection", "label_offset": 1, "batch_size": BATCH, "num_workers": 1}
    loader = build_loader({"dataset": source, "loader": made})
    check_targets(loader, list(map(record, range(COUNT))), offset=1)


def test_a_config_says_what_becomes_of_values_that_differ(url: str) -> None:
    source = {"url": url, "reader": "array", "fields": ["image", "boxes", "labels"], "as_dict": True}
    settings = {"ragged": {"boxes": "list"}, "pad_images": {"image": 7}, "batch_size": BATCH, "num_workers": 0}
    for number, batch in enumerate(build_loader({"dataset": source, "loader": settings})):
        assert batch.keys() == {"image", "image_mask", "boxes", "labels", "labels_mask"}
        assert all(len(boxes) == len(record(number * BATCH + at)["boxes"]) for at, boxes in enumerate(batch["boxes"]))
        assert batch["image"].movedim(1, -1)[~batch["image_mask"]].eq(7).all()


def test_errors_about_tuples_name_the_elements(url: str) -> None:
    loader = StoreLoader(dataset(url, fields=["id", "image"]), batch_size=BATCH)
    with pytest.raises(
        errors.ConfigError, match="^element 1: values of shapes .*elements of these samples are 0 'id', 1 'image'"
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ragged": {"boxes": "lists"}}, "ragged"),
        ({"ragged": {"boxes": "list"}, "collate": "detection"}, "ragged is for batches that storeds.collate makes"),
        ({"pad_images": True, "collate": "default"}, "pad_images is for batches that storeds.collate makes"),
        ({"label_offset": 1}, "label_offset is for batches that storeds.collate_detection makes"),
        ({"collate": "detection", "batch_size": None}, "batch_size = null"),
        ({"collate": "detecton"}, "unknown collate 'detecton'; did you mean 'detection'"),
        ({"ragged": {"box": "list"}}, "did you mean 'boxes'.* elements and roles are boxes, labels$"),
    ],
)
def test_settings_that_do_not_fit_are_refused(url: str, settings: dict[str, Any], words: str) -> None:
    source = {"url": url, "reader": "array", "fields": ["boxes", "labels"]}
    with pytest.raises(errors.ConfigError, match=words):
        build_loader({"dataset": source, "loader": {"num_workers": 0, **settings}})


@pytest.mark.parametrize(("collate_fn", "as_dict"), [(collate, False), (collate, True), (collate_detection, True)])
def test_a_loader_made_of_the_parts_of_another_makes_the_same_batches(url: str, collate_fn: Any, as_dict: bool) -> None:
    """As frameworks do."""
    samples = dataset(
        url, fields=["boxes", "id", "labels", "image"][: 4 if collate_fn is collate_detection else 3], as_dict=as_dict
    )
    first = StoreLoader(samples, batch_size=BATCH, collate_fn=collate_fn)
    again = StoreLoader(samples, batch_size=BATCH, collate_fn=first.collate_fn)
    assert [str(batch) for batch in again] == [str(batch) for batch in first]
    if collate_fn is collate:
        other = StoreLoader(dataset(url, fields=["id"]), batch_size=COUNT, collate_fn=first.collate_fn)
        assert next(iter(other))[0].tolist() == list(range(COUNT))


def test_boxes_that_are_fractions_make_no_targets() -> None:
    raw = StoreDataset(make_store(PARTS, map(parts, range(2))), reader="array", fields=["boxes", "labels"])
    with pytest.raises(errors.ConfigError, match="read samples with reader='sample'"):
        StoreLoader(raw, batch_size=2, collate_fn=collate_detection)


@pytest.mark.parametrize(("as_dict", "workers"), [(False, 0), (True, 1)])
def test_declarations_decide_about_the_structure_of_batches(as_dict: bool, workers: int, tmp_path: Path) -> None:
    """Whether lengths happen to agree or not."""
    clip: Any = {"kind": "array", "dtype": "float32", "shape": [None, 2]}
    records = (
        {"clip": np.ones((size, 2), "f4"), "words": ["a"] * size, "about": {"k": size}, "n": size}
        for size in (2, 2, 1, 3)
    )
    fields = {"clip": clip, "words": "json", "about": "json", "n": "int"}
    url = make_store(fields, records, f"lmdb://{tmp_path}/structure.lmdb")
    samples = StoreDataset(url, reader="array", as_dict=as_dict)
    for batch in StoreLoader(samples, batch_size=2, num_workers=workers):
        clips, words, about = [batch[name] for name in ("clip", "words", "about")] if as_dict else batch[:3]
        values, mask = (clips, batch["clip_mask"]) if as_dict else clips
        sizes = batch["n" if as_dict else 3].tolist()
        assert mask.sum(1).tolist() == sizes
        assert values.shape == (2, max(sizes), 2)
        assert words == [["a"] * size for size in sizes]
        assert about == [{"k": size} for size in sizes]
