"""Test transforms on whole samples: images, masks, boxes and keypoints that move together.

The pixels of a picture encode their own position: red is x and green is y. So the result shows by itself from where each
pixel came, and where boxes and keypoints belong.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shares import share
from storeds.protocols import Array, Field, SampleContext
from storeds.records.roles import Sample
from storeds.transforms import (
    CenterCrop,
    Crop,
    JointTransform,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)

FIELDS = {
    "image": Field("image", role="image"),
    "mask": Field("array", "<i4", (None, None), role="mask"),
    "classes": Field("image", role="mask"),
    "instances": Field("array", "|u1", (None, None, None), role="mask"),
    "boxes": Field("array", "<f4", (None, 4), role="boxes", format="xyxy"),
    "labels": Field("array", "<i8", (None,), role="labels"),
    "keypoints": Field("array", "<f4", (None, None, 2), role="keypoints"),
    "label": Field("int", role="label"),
}


def corners_to(boxes: Array, format: str) -> Array:
    """Return boxes of corners in another format, one by one."""
    out = []
    for left, top, right, bottom in boxes.tolist():
        width, height = right - left, bottom - top
        rest = {
            "xyxy": (left, top, right, bottom),
            "xywh": (left, top, width, height),
            "cxcywh": (left + width / 2, top + height / 2, width, height),
        }
        out.append(rest[format])
    return np.array(out, np.float32).reshape(-1, 4)


def corners_of(boxes: Array, format: str) -> Array:
    """Return the corners of boxes in a format, one by one."""
    out = []
    for first, second, third, fourth in boxes.tolist():
        rest = {
            "xyxy": (first, second, third, fourth),
            "xywh": (first, second, first + third, second + fourth),
            "cxcywh": (first - third / 2, second - fourth / 2, first + third / 2, second + fourth / 2),
        }
        out.append(rest[format])
    return np.array(out, np.float64).reshape(-1, 4)


class Case:
    """A sample whose pixels encode their position, and what it must become."""

    def __init__(self, number: int, *, count: int | None = None, whole: bool = False, format: str = "xyxy") -> None:
        rng = np.random.default_rng(number)
        self.height, self.width = (int(edge) for edge in rng.integers(30, 110, 2))
        height, width = self.height, self.width
        count = int(rng.integers(0, 6)) if count is None else count
        x, y = np.meshgrid(np.arange(width), np.arange(height))
        self.image = torch.from_numpy(np.stack([x, y, np.full_like(x, 255)]).astype(np.float32))
        self.ids = (y * width + x + 1).astype(np.int32)  # each pixel its own
        left, top = rng.uniform(0, width - 8, count), rng.uniform(0, height - 8, count)
        self.boxes = np.stack([left, top, rng.uniform(left + 4, width), rng.uniform(top + 4, height)], axis=1)
        if whole:
            self.boxes = self.boxes.round()
        self.points = np.stack([rng.integers(0, width, (count, 3)), rng.integers(0, height, (count, 3))], axis=-1)
        inside = [(x + 0.5 > a) & (x + 0.5 < c) & (y + 0.5 > b) & (y + 0.5 < d) for a, b, c, d in self.boxes]
        self.instances = np.array(inside, np.uint8).reshape(count, height, width)
        self.format = format

    def sample(self, *names: str, **changed: Field) -> Sample:
        """Return the sample, with these elements or all."""
        values = {
            "image": self.image.clone(),
            "mask": torch.from_numpy(self.ids.copy()),
            "classes": torch.from_numpy((self.ids % 7 * 30).astype(np.uint8)),
            "instances": torch.from_numpy(self.instances.copy()),
            "boxes": torch.from_numpy(corners_to(self.boxes, self.format)),
            "labels": torch.arange(len(self.boxes)),
            "keypoints": torch.from_numpy(self.points.astype(np.float32)),
            "label": 3,
        }
        fields = dict(_fields(self.format) if not changed else {**_fields(self.format), **changed})
        chosen = names or tuple(values)
        return Sample(
            {name: values[name] for name in chosen},
            _fields(self.format) if not names and not changed else {name: fields[name] for name in chosen},
            (self.height, self.width),
        )


@functools.cache
def _fields(format: str) -> dict[str, Field]:
    return {**FIELDS, "boxes": Field("array", "<f4", (None, 4), role="boxes", format=format)}


def where_from(image: Array) -> Array | None:
    """Return the matrix from (column, row, 1) of a pixel to the position in the source; None if too little is left."""
    _, height, width = image.shape
    margin_y, margin_x = height // 5, width // 5
    rows, columns = np.mgrid[margin_y : height - margin_y, margin_x : width - margin_x].reshape(2, -1)
    is_inside = image[2, rows, columns] > 254.5
    rows, columns = rows[is_inside], columns[is_inside]
    if len(rows) < 60:
        return None
    step = max(1, len(rows) // 400)
    rows, columns = rows[::step], columns[::step]
    at = np.stack([columns, rows, np.ones_like(rows)], axis=1).astype(float)
    found, _, rank, _ = np.linalg.lstsq(at, image[:2, rows, columns].T.astype(float), rcond=None)
    return found.T if rank == 3 else None


def check(case: Case, made: dict[str, Any], *, exact: bool = True) -> bool:
    """Assert that all elements moved as the image did; return whether enough of the image was left to tell."""
    image = np.asarray(made["image"])
    image = np.moveaxis(image, -1, 0) if isinstance(made["image"], Image.Image) else image
    height, width = image.shape[1:]
    for name in ("mask", "classes", "instances"):
        assert made[name].shape[-2:] == (height, width), name
    ids = np.asarray(made["mask"])
    assert made["mask"].dtype == torch.int32
    known = ids > 0
    assert ids.max(initial=0) <= case.ids.max()
    # The three masks show the same pixels.
    assert np.array_equal(np.asarray(made["classes"])[known], (ids % 7 * 30)[known])
    labels = np.asarray(made["labels"])
    assert len(labels) == len(made["boxes"]) == len(made["instances"]) == len(made["keypoints"])
    for label, instance in zip(labels, np.asarray(made["instances"]), strict=True):
        assert np.array_equal(instance[known], case.instances[label].reshape(-1)[ids[known] - 1])
    matrix = where_from(image)
    if matrix is None:
        return False
    steps = np.abs(matrix[:, :2]).max()  # pixels of the source for one of the result
    if exact:
        _check_mask(case, ids, matrix, max(1.0, steps))
    onto = np.linalg.inv(matrix[:, :2])

    def moved(points: Array) -> Array:
        return (points - matrix[:, 2]) @ onto.T

    # torchvision and albumentations scale keypoints without regard to the centre of the first pixel.
    allowed = 1.0 if exact else max(1.0, 0.5 / np.linalg.norm(matrix[:, :2], axis=0).min() + 0.6)
    kept = dict(zip(labels.tolist(), corners_of(np.asarray(made["boxes"]), case.format), strict=True))
    for label, (left, top, right, bottom) in enumerate(case.boxes):
        around = moved(np.array([[left, top], [right, top], [right, bottom], [left, bottom]]) - 0.5) + 0.5
        low, high = (np.clip(each, 0, (width, height)) for each in (around.min(0), around.max(0)))
        if label in kept:
            assert np.abs(kept[label] - (*low, *high)).max() <= allowed
            assert (kept[label] >= -1e-3).all()
            assert (kept[label] <= np.array([width, height, width, height]) + 1e-3).all()
        else:
            assert (high - low).min() < 1, f"box {label} is lost"
    for label, points in zip(labels.tolist(), np.asarray(made["keypoints"]), strict=True):
        assert np.abs(points - moved(case.points[label])).max() <= allowed
    return True


def _check_mask(case: Case, ids: Array, matrix: Array, allowed: float) -> None:
    rows, columns = np.nonzero(ids)
    source = ids[rows, columns] - 1
    truth = matrix @ np.stack([columns, rows, np.ones_like(rows)])
    assert np.abs(truth[0] - source % case.width).max(initial=0) <= allowed
    assert np.abs(truth[1] - source // case.width).max(initial=0) <= allowed


BUILT_IN = [
    [RandomResizedCrop(64), RandomHorizontalFlip()],
    [RandomResizedCrop((48, 80), scale=(0.2, 1)), RandomHorizontalFlip(p=1)],
    [RandomHorizontalFlip(), RandomResizedCrop(50, interpolation="bicubic")],
    [Resize(60), CenterCrop(50), RandomHorizontalFlip()],
    [Resize((90, 70))],
    [Crop(10, 20, 60, 50), RandomHorizontalFlip()],
    [Crop(-10, -20, 90, 90), Resize(64)],
    [CenterCrop(210)],
    [RandomResizedCrop(100), RandomResizedCrop(70, scale=(0.5, 1)), RandomHorizontalFlip()],
]


def check_all(pipelines: list[Any], numbers: range, *, exact: bool = True, scale: float = 1) -> int:
    """Check each case with one of the pipelines in turn; return how many were enough to tell where pixels went."""
    transforms = [JointTransform(each) for each in pipelines]
    judged = 0
    for number in numbers:
        case = Case(number, format=("xyxy", "xywh", "cxcywh")[number % 3], whole=number % 2 == 0)
        sample = case.sample()
        sample.values["image"] /= scale
        made = transforms[number % len(transforms)](sample, SampleContext(number, 0, 7))
        made["image"] = made["image"] * scale
        judged += check(case, made, exact=exact)
    return judged


CHUNKS = [range(start, start + 500) for start in range(0, 10_000, 500)]


@pytest.mark.parametrize("chunk", range(4))
def test_all_elements_move_as_their_image_does(chunk: int) -> None:
    """10,000 crops, flips and resizes."""
    assert check_all(BUILT_IN, range(chunk * 2500, (chunk + 1) * 2500)) > 2200


V2 = "torchvision.transforms.v2."
TORCHVISION = [
    [{"name": V2 + "RandomResizedCrop", "size": 60, "scale": [0.3, 1]}, V2 + "RandomHorizontalFlip"],
    [{"name": V2 + "Resize", "size": [60, 50]}, {"name": V2 + "RandomHorizontalFlip", "p": 1}],
    [{"name": V2 + "RandomCrop", "size": 25}, V2 + "SanitizeBoundingBoxes"],
    [{"name": V2 + "RandomRotation", "degrees": 20}],
    [
        {"name": V2 + "Compose", "transforms": [V2 + "RandomVerticalFlip", {"name": V2 + "CenterCrop", "size": 40}]},
        RandomHorizontalFlip(),
    ],
]


@pytest.mark.parametrize("numbers", share(CHUNKS, 2), ids=str)
def test_transforms_of_torchvision_move_all_elements_alike(numbers: range) -> None:
    assert check_all(TORCHVISION, numbers, exact=False) > 350


ALBUMENTATIONS = [
    [{"name": "albumentations.RandomCrop", "height": 25, "width": 28}, {"name": "albumentations.HorizontalFlip"}],
    [{"name": "albumentations.Resize", "height": 60, "width": 55}, {"name": "albumentations.VerticalFlip", "p": 1}],
    [{"name": "albumentations.RandomResizedCrop", "size": [50, 60], "scale": [0.4, 1]}],
    [{"name": "albumentations.Rotate", "limit": 20, "border_mode": 0, "p": 1}],
    [{"name": "albumentations.Affine", "scale": [0.8, 1.2], "translate_percent": 0.1, "p": 1}, RandomHorizontalFlip()],
    [RandomResizedCrop(40), {"name": "albumentations.D4", "p": 1}],
]


@pytest.mark.parametrize("numbers", share(CHUNKS, 2), ids=str)
def test_transforms_of_albumentations_move_all_elements_alike(numbers: range) -> None:
    assert check_all(ALBUMENTATIONS, numbers, exact=False, scale=255) > 350
