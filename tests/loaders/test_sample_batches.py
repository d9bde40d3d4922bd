"""What loaders and configs make of samples with boxes: settings by role, and lists for detectors."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

import storeds
from storeds import (
    StoreDataset,
    StoreIterable,
    StoreLoader,
    ThreadLoader,
    build_loader,
    collate,
    collate_detection,
    errors,
    to_device,
)
from storeds.batching import Padded

COUNT, BATCH = 24, 4
FIELDS: Any = {
    "image": {"kind": "array", "dtype": "uint8", "shape": [3, None, None], "role": "image"},
    "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xywh"},
    "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"},
    "area": {"kind": "array", "dtype": "float32", "shape": [None], "of": "boxes"},
    "id": "int",
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


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("samples") / "boxes.h5"
    with storeds.open_writer(f"hdf5://{path}", FIELDS) as writer:
        writer.append(map(record, range(COUNT)))
    return f"hdf5://{path}"


def dataset(url: str, **options: Any) -> StoreDataset:
    fields = options.pop("fields", ["boxes", "labels", "area", "id"])
    return StoreDataset(url, reader="array", fields=fields, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", [StoreLoader, ThreadLoader])
def test_rows_of_boxes_get_a_mask_in_every_batch(url: str, loader: Any, workers: int) -> None:
    for number, batch in enumerate(loader(dataset(url, as_dict=True), batch_size=BATCH, num_workers=workers)):
        assert batch.keys() == {"boxes", "boxes_mask", "labels", "labels_mask", "area", "area_mask", "id"}
        for row, at in enumerate(batch["id"].tolist()):
            assert at == number * BATCH + row
            for name in ("boxes", "labels", "area"):
                assert np.array_equal(batch[name][row][batch[f"{name}_mask"][row]], record(at)[name])
    for batch in loader(Subset(dataset(url), range(COUNT)), batch_size=BATCH, num_workers=workers):
        assert [type(element) for element in batch] == [Padded, Padded, Padded, torch.Tensor]


@pytest.mark.parametrize("loader", [StoreLoader, ThreadLoader])
def test_joined_datasets_are_batched_as_one(url: str, loader: Any) -> None:
    joined = dataset(url, as_dict=True) + Subset(dataset(url, as_dict=True), range(BATCH))
    batches = list(loader(joined, batch_size=BATCH))
    expected = list(loader(dataset(url, as_dict=True), batch_size=BATCH))
    for batch, alone in zip(batches, [*expected, expected[0]], strict=True):
        assert batch.keys() == alone.keys()
        assert all(torch.equal(batch[name], alone[name]) for name in batch)
    both = functools.partial(collate, ragged={"boxes": "list"})
    assert isinstance(next(iter(loader(joined, batch_size=BATCH, collate_fn=both)))["boxes"], list)


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


def assert_detection(batches: Any, offset: int = 0) -> None:
    seen = 0
    for images, targets in batches:
        for image, target in zip(images, targets, strict=True):
            each = record(target["id"])
            assert torch.equal(image, torch.from_numpy(each["image"]).float() / 255)
            corners = np.concatenate([each["boxes"][:, :2], each["boxes"][:, :2] + each["boxes"][:, 2:]], 1)
            assert np.array_equal(target["boxes"], corners)
            assert np.array_equal(target["labels"], each["labels"] + offset)
            assert np.array_equal(target["area"], each["area"])
            seen += 1
    assert seen == COUNT


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("loader", [StoreLoader, ThreadLoader])
def test_detection_needs_no_names(url: str, loader: Any, as_dict: bool) -> None:
    samples = dataset(url, fields=list(FIELDS), as_dict=as_dict)
    for workers in (0, 2):
        assert_detection(loader(samples, batch_size=BATCH, num_workers=workers, collate_fn=collate_detection))


def test_detection_finds_what_describes_the_boxes_that_it_takes() -> None:
    """A sample has masks of faces, and its people have none."""
    rows: Any = {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"}
    masks: Any = {"kind": "array", "dtype": "uint8", "shape": [None, None, None], "role": "mask", "of": "faces"}
    fields = {"image": FIELDS["image"], "people": FIELDS["boxes"], "faces": FIELDS["boxes"], "outlines": masks}
    with storeds.open_writer(
        "memory://people", {**fields, "p": {**rows, "of": "people"}, "f": {**rows, "of": "faces"}}
    ) as writer:
        people, face = np.array([[0, 0, 2, 5], [3, 1, 4, 4]], "f4"), np.array([[1, 1, 2, 2]], "f4")
        parts = {"image": np.zeros((3, 9, 9), "u1"), "outlines": np.ones((1, 9, 9), "u1")}
        writer.append([{**parts, "people": people, "faces": face, "p": np.array([3, 4]), "f": np.array([5])}])
    samples = StoreDataset("memory://people", reader="sample")
    for boxes, labels in (("people", [3, 4]), ("faces", [5])):
        (target,) = next(iter(StoreLoader(samples, collate_fn=functools.partial(collate_detection, boxes=boxes))))[1]
        assert target["labels"].tolist() == labels
        assert ("masks" in target) == (boxes == "faces")


@pytest.mark.parametrize("start_method", ["fork", "spawn", "thread"])
def test_a_config_makes_batches_for_detectors(url: str, start_method: str) -> None:
    source = {"url": url, "reader": "array", "fields": list(FIELDS)}
    made = {"collate": "detection", "label_offset": 1, "batch_size": BATCH, "num_workers": 2}
    assert_detection(build_loader({"dataset": source, "loader": {**made, "start_method": start_method}}), offset=1)


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


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_make_the_same_batches(url: str, workers: int) -> None:
    stream = StoreIterable(url, reader="array", fields=list(FIELDS), as_dict=True)
    collate_fn = functools.partial(collate_detection, box_format="xywh")
    assert_detection(DataLoader(stream, batch_size=BATCH, collate_fn=collate_fn, num_workers=workers))
    ragged: Any = {"boxes": "list", "labels": "list", "area": "mask"}
    padded = functools.partial(collate, ragged=ragged, pad_images=["image"])
    for batch in DataLoader(stream, batch_size=BATCH, collate_fn=padded, num_workers=workers):
        for row, at in enumerate(batch["id"].tolist()):
            assert np.array_equal(batch["boxes"][row], record(at)["boxes"])
            assert np.array_equal(batch["area"][row][batch["area_mask"][row]], record(at)["area"])


def tiny_detector(name: str) -> torch.nn.Module:
    """Return a detector of torchvision with random weights, for 6 classes and the background."""
    from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    from _torchvision import enable_detectors

    enable_detectors()
    backbone: Any = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, stride=4, padding=1), torch.nn.ReLU())
    backbone.out_channels = 32
    size = {"num_classes": 7, "min_size": 24, "max_size": 48}
    if name == "FCOS":
        return FCOS(backbone, anchor_generator=AnchorGenerator(((8,),), ((1.0,),)), **size)  # type: ignore[no-any-return]
    anchors = AnchorGenerator(((4, 8, 16),), ((1.0,),))
    if name == "RetinaNet":
        return RetinaNet(backbone, anchor_generator=anchors, **size)  # type: ignore[no-any-return]
    few = {"rpn_pre_nms_top_n_train": 60, "rpn_post_nms_top_n_train": 20, "box_batch_size_per_image": 16}
    return FasterRCNN(backbone, rpn_anchor_generator=anchors, **few, **size)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["FasterRCNN", "RetinaNet", "FCOS"])
def test_detectors_of_torchvision_learn_from_the_batches(url: str, name: str) -> None:
    torch.manual_seed(1)
    detector = tiny_detector(name).train()
    optimizer = torch.optim.SGD(detector.parameters(), lr=0.01)
    collate_fn = functools.partial(collate_detection, label_offset=1)
    losses = []
    for images, targets in StoreLoader(dataset(url, fields=list(FIELDS)), batch_size=8, collate_fn=collate_fn):
        loss = sum(detector(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == 3
    assert np.isfinite(losses).all()


def test_all_tensors_of_nested_batches_reach_the_device(url: str) -> None:
    samples = dataset(url, fields=list(FIELDS))
    for images, targets in to_device(StoreLoader(samples, batch_size=BATCH, collate_fn=collate_detection), "meta"):
        assert all(image.is_meta for image in images)
        assert all(target[name].is_meta for target in targets for name in ("boxes", "labels", "area"))
        assert all(type(target["id"]) is int for target in targets)
    for boxes, *_ in to_device(StoreLoader(dataset(url), batch_size=BATCH), "meta"):
        assert type(boxes) is Padded
        assert boxes.values.is_meta
        assert boxes.mask.is_meta


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("collate_fn", [collate, collate_detection])
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


# --- Samples with all kinds of parts, through transforms ---

PARTS: Any = {
    "image": {"kind": "image", "role": "image"},
    "mask": {"kind": "image", "role": "mask"},
    "boxes": {
        "kind": "array",
        "dtype": "float64",
        "shape": [None, 4],
        "role": "boxes",
        "format": "cxcywh",
        "relative": True,
    },
    "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"},
    "keypoints": {"kind": "array", "dtype": "float32", "shape": [None, 3, 2], "role": "keypoints"},
    "captions": {"kind": "json", "role": "text"},
    "key": "str",
}
TRANSFORMS = ["RandomHorizontalFlip", "ToTensor", {"name": "Normalize", "mean": [0.5], "std": [0.25]}]


def parts(at: int) -> dict[str, Any]:
    draw = np.random.default_rng(at)
    boxes, width, height = at % 3, 40 + at % 5, 30 + at % 2
    return {
        "image": png(draw.integers(0, 255, (height, width, 3), np.uint8)),
        "mask": png(draw.integers(0, 9, (height, width), np.uint8)),
        "boxes": np.tile([0.5, 0.5, 0.25, 0.5], (boxes, 1)),
        "labels": draw.integers(0, 5, boxes),
        "keypoints": draw.uniform(1, 9, (boxes, 3, 2)).astype("f4"),
        "captions": ["one", "two"][: 1 + at % 2],
        "key": str(at),
    }


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module", params=["hdf5", "lmdb"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoreDataset:
    url = f"{request.param}://{tmp_path_factory.mktemp('parts')}/parts.{'h5' if request.param == 'hdf5' else 'lmdb'}"
    with storeds.open_writer(url, PARTS) as writer:
        writer.append(map(parts, range(COUNT)))
    return StoreDataset(url, fields=list(PARTS), as_dict=True, transforms=TRANSFORMS, seed=3)


LOADERS: Any = {
    "alone": (StoreLoader, {}),
    "fork": (StoreLoader, {"num_workers": 2, "multiprocessing_context": "fork"}),
    "spawn": (StoreLoader, {"num_workers": 1, "multiprocessing_context": "spawn"}),
    "threads": (ThreadLoader, {"num_workers": 2}),
    "torch's": (DataLoader, {"num_workers": 2}),
}


@pytest.mark.parametrize("name", LOADERS)
def test_lists_of_whole_samples_are_those_of_the_dataset(whole: StoreDataset, name: str) -> None:
    loader, arguments = LOADERS[name]
    for number, (images, targets) in enumerate(
        loader(whole, batch_size=BATCH, collate_fn=collate_detection, **arguments)
    ):
        for row, (image, target) in enumerate(zip(images, targets, strict=True)):
            each = whole[number * BATCH + row]
            assert torch.equal(image, each["image"].as_subclass(torch.Tensor))
            assert target["key"] == each["key"]
            assert target["captions"] == each["captions"]
            assert torch.equal(target["labels"], each["labels"])
            assert torch.equal(target["keypoints"][..., :2], each["keypoints"].as_subclass(torch.Tensor))
            height, width = image.shape[1:]
            corners = torch.tensor([[0.375 * width, 0.25 * height, 0.625 * width, 0.75 * height]])
            assert torch.allclose(target["boxes"], corners.expand(len(each["labels"]), 4))


@pytest.mark.parametrize("name", [name for name in LOADERS if name != "torch's"])
def test_padded_whole_samples_are_those_of_the_dataset(whole: StoreDataset, name: str) -> None:
    loader, arguments = LOADERS[name]
    collate_fn = functools.partial(collate, pad_images={"image": 1, "mask": 255})
    for number, batch in enumerate(loader(whole, batch_size=BATCH, collate_fn=collate_fn, **arguments)):
        masks = {f"{name}_mask" for name in ("image", "mask", "boxes", "labels", "keypoints")}
        assert batch.keys() == PARTS.keys() | masks
        for row in range(BATCH):
            each = whole[number * BATCH + row]
            image, mask = (each[name].as_subclass(torch.Tensor) for name in ("image", "mask"))
            padding = (0, batch["image"].shape[-1] - image.shape[-1], 0, batch["image"].shape[-2] - image.shape[-2])
            assert torch.equal(batch["image"][row], torch.nn.functional.pad(image, padding, value=1))
            assert torch.equal(batch["mask"][row], torch.nn.functional.pad(mask, padding, value=255))
            for name in ("boxes", "labels", "keypoints"):
                assert torch.equal(batch[name][row][batch[f"{name}_mask"][row]], each[name].as_subclass(torch.Tensor))
            assert batch["captions"][row] == each["captions"]


def test_boxes_that_are_fractions_make_no_targets() -> None:
    with storeds.open_writer("memory://fractions", PARTS) as writer:
        writer.append(map(parts, range(2)))
    raw = StoreDataset("memory://fractions", reader="array", fields=["boxes", "labels"])
    with pytest.raises(errors.ConfigError, match="read samples with reader='sample'"):
        StoreLoader(raw, batch_size=2, collate_fn=collate_detection)


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_declarations_decide_about_the_structure_of_batches(as_dict: bool, workers: int, tmp_path: Path) -> None:
    """Whether lengths happen to agree or not."""
    url = f"lmdb://{tmp_path}/structure.lmdb"
    clip: Any = {"kind": "array", "dtype": "float32", "shape": [None, 2]}
    with storeds.open_writer(url, {"clip": clip, "words": "json", "about": "json", "n": "int"}) as writer:
        writer.append(
            {"clip": np.ones((size, 2), "f4"), "words": ["a"] * size, "about": {"k": size}, "n": size}
            for size in (2, 2, 1, 3)
        )
    samples = StoreDataset(url, reader="array", as_dict=as_dict)
    for batch in StoreLoader(samples, batch_size=2, num_workers=workers):
        clips, words, about = [batch[name] for name in ("clip", "words", "about")] if as_dict else batch[:3]
        values, mask = (clips, batch["clip_mask"]) if as_dict else clips
        sizes = batch["n" if as_dict else 3].tolist()
        assert mask.sum(1).tolist() == sizes
        assert values.shape == (2, max(sizes), 2)
        assert words == [["a"] * size for size in sizes]
        assert about == [{"k": size} for size in sizes]
