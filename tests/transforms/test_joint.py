"""Test transforms on whole samples: images, masks, boxes and keypoints that move together.

The pixels of a picture encode their own position: red is x and green is y. So the result shows by itself from where each
pixel came, and where boxes and keypoints belong.
"""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps

from photographs import jpeg
from picture_stores import picture_store
from shares import share
from storeds import StoreDataset
from storeds.errors import ConfigError, RecordError, TransformError
from storeds.protocols import Array, Field, SampleContext
from storeds.records.samples import Sample
from storeds.transforms import (
    BoundTransform,
    CenterCrop,
    Compose,
    Crop,
    FilterBoxes,
    JointTransform,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToTensor,
    Views,
    build_transform,
)
from storeds.transforms.alignment import check_roles

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


# Left, top, right and bottom of a box → its numbers in a format.
FORMATS: dict[str, Array] = {
    "xyxy": np.eye(4),
    "xywh": np.array([[1, 0, 0, 0], [0, 1, 0, 0], [-1, 0, 1, 0], [0, -1, 0, 1]]),
    "cxcywh": np.array([[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [-1, 0, 1, 0], [0, -1, 0, 1]]),
}


def corners_to(boxes: Array, format: str) -> Array:
    """Return boxes of corners in another format."""
    return (boxes.reshape(-1, 4) @ FORMATS[format].T).astype(np.float32)


def corners_of(boxes: Array, format: str) -> Array:
    """Return the corners of boxes in a format."""
    corners: Array = boxes.reshape(-1, 4) @ np.linalg.inv(FORMATS[format]).T
    return corners


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

    def sample(self, *names: str) -> Sample:
        """Return the sample, with these elements or all."""
        values: dict[str, Any] = {
            "image": self.image.clone(),
            "mask": torch.from_numpy(self.ids.copy()),
            "classes": torch.from_numpy((self.ids % 7 * 30).astype(np.uint8)),
            "instances": torch.from_numpy(self.instances.copy()),
            "boxes": torch.from_numpy(corners_to(self.boxes, self.format)),
            "labels": torch.arange(len(self.boxes)),
            "keypoints": torch.from_numpy(self.points.astype(np.float32)),
            "label": 3,
        }
        fields = _fields(self.format)
        if names:
            values = {name: values[name] for name in names}
            fields = {name: fields[name] for name in names}
        return Sample(values, fields, (self.height, self.width))


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


BUILT_IN: list[list[Any]] = [
    [RandomResizedCrop(64), RandomHorizontalFlip()],
    [RandomResizedCrop((48, 80), scale=(0.2, 1)), RandomHorizontalFlip(p=1)],
    [RandomHorizontalFlip(), RandomResizedCrop(50, interpolation="bicubic")],
    [Resize(60), CenterCrop(50), RandomHorizontalFlip()],
    [Resize((90, 70))],
    [Crop(10, 20, 60, 50), RandomHorizontalFlip()],
    [Crop(-10, -20, 90, 90), Resize(64)],
    [CenterCrop(210)],
    [RandomResizedCrop(100), RandomResizedCrop(70, scale=(0.5, 1)), RandomHorizontalFlip()],
    [RandomCrop((40, 60), padding=8, pad_if_needed=True), RandomVerticalFlip()],
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


CHUNKS = [range(start, start + 250) for start in range(0, 10_000, 250)]


@pytest.mark.parametrize("numbers", share(CHUNKS, 1), ids=str)
def test_all_elements_move_as_their_image_does(numbers: range) -> None:
    """10,000 crops, flips and resizes."""
    assert check_all(BUILT_IN, numbers) > 190


V2 = "torchvision.transforms.v2."
TORCHVISION: list[list[Any]] = [
    [{"name": V2 + "RandomResizedCrop", "size": 60, "scale": [0.3, 1]}, V2 + "RandomHorizontalFlip"],
    [{"name": V2 + "Resize", "size": [60, 50]}, {"name": V2 + "RandomHorizontalFlip", "p": 1}],
    [{"name": V2 + "RandomCrop", "size": 25}, V2 + "SanitizeBoundingBoxes"],
    [{"name": V2 + "RandomRotation", "degrees": 20}],
    [
        {"name": V2 + "Compose", "transforms": [V2 + "RandomVerticalFlip", {"name": V2 + "CenterCrop", "size": 40}]},
        RandomHorizontalFlip(),
    ],
]


ALBUMENTATIONS: list[list[Any]] = [
    [{"name": "albumentations.RandomCrop", "height": 25, "width": 28}, {"name": "albumentations.HorizontalFlip"}],
    [{"name": "albumentations.Resize", "height": 60, "width": 55}, {"name": "albumentations.VerticalFlip", "p": 1}],
    [{"name": "albumentations.RandomResizedCrop", "size": [50, 60], "scale": [0.4, 1]}],
    [{"name": "albumentations.Rotate", "limit": 20, "border_mode": 0, "p": 1}],
    [{"name": "albumentations.Affine", "scale": [0.8, 1.2], "translate_percent": 0.1, "p": 1}, RandomHorizontalFlip()],
    [RandomResizedCrop(40), {"name": "albumentations.D4", "p": 1}],
]


@pytest.mark.parametrize(
    ("pipelines", "scale"), [(TORCHVISION, 1), (ALBUMENTATIONS, 255)], ids=["v2", "albumentations"]
)
@pytest.mark.parametrize("numbers", share(CHUNKS, 1), ids=str)
def test_transforms_of_other_libraries_move_all_elements_alike(numbers: range, pipelines: Any, scale: float) -> None:
    assert check_all(pipelines, numbers, exact=False, scale=scale) > 100


def plain_sample(**elements: tuple[Field, Any]) -> Sample:
    """Return a sample of a picture of 40 × 60 pixels and these elements."""
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (3, 40, 60), np.uint8))
    fields = {"image": FIELDS["image"], **{name: field for name, (field, _) in elements.items()}}
    return Sample({"image": image, **{name: value for name, (_, value) in elements.items()}}, fields, (40, 60))


def run(transforms: Any, sample: Sample, number: int = 0, **options: Any) -> dict[str, Any]:
    return JointTransform(transforms, **options)(sample, SampleContext(number, 0, 1))


BOXES = FIELDS["boxes"]
LABELS = FIELDS["labels"]


def test_without_a_transform_values_stay_and_are_wrapped() -> None:
    from torchvision import tv_tensors

    boxes = torch.tensor([[-3.5, 2.25, 70.0, 10.0]])
    field = Field("array", "<f4", (None, 4), role="boxes", format="xywh")
    made = run(None, plain_sample(boxes=(field, boxes), keypoints=(FIELDS["keypoints"], torch.zeros(1, 2, 2))))
    assert isinstance(made["image"], tv_tensors.Image)
    assert isinstance(made["keypoints"], tv_tensors.KeyPoints)
    assert isinstance(made["boxes"], tv_tensors.BoundingBoxes)
    assert made["boxes"].format == tv_tensors.BoundingBoxFormat.XYWH
    assert made["boxes"].canvas_size == (40, 60)
    assert made["boxes"].tolist() == boxes.tolist()
    assert run([], plain_sample(boxes=(field, boxes)), box_format="xyxy")["boxes"].tolist() == [
        [-3.5, 2.25, 66.5, 12.25]
    ]
    with pytest.raises(ConfigError, match="box_format must be xyxy, xywh, cxcywh"):
        JointTransform(None, box_format="coco")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_orientation_turns_masks_boxes_and_keypoints_as_pillow_turns_the_image(orientation: int) -> None:
    case = Case(orientation, count=3)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    picture = Image.fromarray(np.moveaxis(case.image.numpy().astype(np.uint8), 0, -1))
    picture.getexif()[ExifTags.Base.Orientation] = orientation
    turned = ImageOps.exif_transpose(picture)
    sample = case.sample()
    sample.values["image"] = torch.from_numpy(np.moveaxis(np.array(turned), -1, 0).astype(np.float32))
    sample.size, sample.orientation = turned.size[::-1], orientation
    assert check(case, run(None, sample))


def test_all_images_of_a_sample_get_the_same_random_numbers() -> None:
    sample = plain_sample(second=(Field("image", role="image"), torch.zeros(1, 40, 60, dtype=torch.uint8)))
    sample.values["second"] = sample.values["image"][:1].clone()
    sample.values["third"] = Image.fromarray(np.moveaxis(sample.values["image"].numpy(), 0, -1))
    sample.fields = {**sample.fields, "third": Field("image", role="image")}
    for number, pipeline in enumerate([BUILT_IN[0], ALBUMENTATIONS[0], TORCHVISION[2][:1]]):
        made = run(pipeline, sample, number)
        assert torch.equal(torch.Tensor(made["image"][:1]), torch.Tensor(made["second"]))
        third = np.moveaxis(np.asarray(made["third"]), -1, 0).astype(int)
        assert np.abs(third - np.asarray(made["image"])).max() <= (2 if number == 0 else 0)


@pytest.mark.parametrize("pipeline", [BUILT_IN[0], TORCHVISION[0], ALBUMENTATIONS[3]])
def test_masks_get_no_new_ids_and_ids_that_a_library_would_change_are_refused(pipeline: Any) -> None:
    ids = [0, 3, 70_000, 2**24]
    values = torch.tensor(ids)[torch.from_numpy(np.random.default_rng(1).integers(0, 4, (40, 60)))]
    for number in range(10):
        made = run(pipeline, plain_sample(mask=(FIELDS["mask"], values)), number)
        assert made["mask"].dtype == torch.int64
        assert set(made["mask"].unique().tolist()) <= set(ids)
    larger = plain_sample(mask=(FIELDS["mask"], torch.full((40, 60), 2**24 + 1)))
    if pipeline is BUILT_IN[0]:
        assert run(pipeline, larger)["mask"].unique().tolist() == [2**24 + 1]
    else:
        with pytest.raises(ValueError, match="class ids"):
            run(pipeline, larger)


def test_a_flip_swaps_pairs_of_keypoints_and_lost_ones_lose_their_visibility() -> None:
    field = Field("array", "<f4", (None, 3, 3), role="keypoints")
    points = torch.tensor([[[10.0, 5.0, 2.0], [20.0, 5.0, 1.0], [50.0, 30.0, 2.0]]])
    flip = RandomHorizontalFlip(p=1, keypoint_pairs=[[0, 1]])
    made = run([flip], plain_sample(keypoints=(field, points)))
    assert made["keypoints"].tolist() == [[[39, 5, 1], [49, 5, 2], [9, 30, 2]]]
    made = run([flip, Crop(0, 20, 40, 40)], plain_sample(keypoints=(field, points)))
    assert made["keypoints"].tolist() == [[[19, 5, 1], [29, 5, 2], [0, 0, 0]]]
    for step in (TORCHVISION[1][1], {"name": "albumentations.HorizontalFlip", "p": 1}):
        made = run([step, Crop(0, 20, 40, 40)], plain_sample(keypoints=(field, points)))
        assert made["keypoints"].tolist() == [[[29, 5, 2], [19, 5, 1], [0, 0, 0]]]
    with pytest.raises(ValueError, match="names keypoint 9, but 'keypoints' has 3"):
        run(RandomHorizontalFlip(p=1, keypoint_pairs=[[0, 9]]), plain_sample(keypoints=(field, points)))
    of_json = Field("json", role="keypoints")  # whose empty list tells no number of points
    assert run(flip, plain_sample(keypoints=(of_json, torch.zeros(0, 2))))["keypoints"].shape == (0, 2)


def test_keypoints_that_albumentations_loses_become_invisible() -> None:
    """Its distortions lose points beyond the edges, some inside, and all but one of those at one place."""
    points = torch.tensor([[[10.0, 5.0, 2], [0, 0, 0], [0, 0, 0]], [[70, 5, 2], [30, 20, 1], [0, 0, 0]]])
    field = Field("array", "<f4", (None, 3, 3), role="keypoints")
    small = {"name": "albumentations.GridDistortion", "distort_limit": [0.05, 0.05], "p": 1}
    made = run([small], plain_sample(keypoints=(field, points)))["keypoints"]
    is_left = made[..., 2] > 0
    assert is_left.any()
    assert (made - points)[is_left].abs().max() < 5
    assert not is_left[1, 0]
    assert not made[~is_left].any()
    flat = points[..., :2].clone()
    with pytest.raises(ValueError, match="lost [2-5] of 6 'keypoints': store a visibility"):
        run([small], plain_sample(keypoints=(FIELDS["keypoints"], flat)))
    direct = run(
        [{**small, "keypoint_remapping_method": "direct"}], plain_sample(keypoints=(FIELDS["keypoints"], flat))
    )
    assert direct["keypoints"].shape == flat.shape


def test_albumentations_finds_the_first_mask_by_its_name() -> None:
    ids, instances = torch.zeros(40, 60, dtype=torch.int32), torch.zeros(2, 40, 60, dtype=torch.uint8)
    ids[30:, 50:] = 7
    sample = plain_sample(instances=(FIELDS["instances"], instances), mask=(FIELDS["mask"], ids))
    crop = {"name": "albumentations.CropNonEmptyMaskIfExists", "height": 5, "width": 5, "p": 1}
    for number in range(5):
        assert run([crop], sample, number)["mask"].unique().tolist()[-1] == 7


def test_a_box_that_albumentations_cuts_into_several_is_refused() -> None:
    shuffle = {"name": "albumentations.RandomGridShuffle", "grid": [2, 2], "p": 1}
    with pytest.raises(
        ValueError, match="albumentations cut a box into several: leave out the transform.*RandomGridShuffle"
    ):
        for number in range(5):
            run([shuffle], boxes_sample(), number)


def boxes_sample() -> Sample:
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 0, 60, 40], [50, 30, 53, 33], [8, 8, 30, 30]])
    return plain_sample(
        boxes=(BOXES, boxes),
        labels=(LABELS, torch.tensor([5, 6, 7, 8])),
        crowd=(Field("array", "|b1", (None,), of="boxes"), torch.tensor([True, False, True, False])),
        names=(Field("json", of="boxes"), ["a", "b", "c", "d"]),
    )


@pytest.mark.parametrize(
    ("step", "left"),
    [
        (FilterBoxes(min_area=50), "abd"),
        (FilterBoxes(min_size=4), "abd"),
        (FilterBoxes(min_size=20), "bd"),
        ([Crop(0, 0, 40, 25), FilterBoxes(min_visibility=0.5)], "ad"),
        ([Crop(0, 0, 40, 25)], "abd"),
        ({"name": "FilterBoxes", "min_area": 1e6}, ""),
        ({"name": V2 + "SanitizeBoundingBoxes", "min_size": 15}, "bd"),
        ({"name": V2 + "SanitizeBoundingBoxes", "min_area": 50, "labels_getter": None}, "abd"),
        ({"name": V2 + "Compose", "transforms": [{"name": V2 + "SanitizeBoundingBoxes", "min_size": 4}]}, "abd"),
    ],
)
def test_the_rows_that_describe_a_box_are_dropped_with_it(step: Any, left: str) -> None:
    made = run(step, boxes_sample())
    assert "".join(made["names"]) == left
    assert made["labels"].tolist() == [5 + "abcd".index(name) for name in left]
    assert made["crowd"].tolist() == [name in "ac" for name in left]
    assert made["boxes"].shape == (len(left), 4)


def test_a_compose_of_albumentations_keeps_its_limits_and_colours_leave_coordinates_without_a_warning() -> None:
    import albumentations

    params = albumentations.BboxParams("coco", label_fields=["mine"], min_area=50)
    made = run(albumentations.Compose([albumentations.HorizontalFlip(p=1)], bbox_params=params), boxes_sample())
    assert "".join(made["names"]) == "abd"
    case = Case(5, count=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = run([albumentations.InvertImg(p=1)], case.sample("image", "boxes", "keypoints", "labels"))
    assert not torch.equal(made["image"], case.image)
    assert np.allclose(made["boxes"], case.boxes, atol=1e-4)
    assert np.array_equal(made["keypoints"], case.points)


MASKS: dict[str, tuple[Any, torch.dtype, Any, int]] = {  # dtype stored, dtype made, transform, orientation of the image
    "of 16 bits": (np.uint16, torch.int32, {"name": V2 + "RandomVerticalFlip", "p": 1}, 1),
    "of 64 bits": (np.uint64, torch.int64, {"name": V2 + "RandomVerticalFlip", "p": 1}, 1),
    "flipped": (np.int64, torch.int64, RandomVerticalFlip(1), 1),
    "turned": (np.int64, torch.int64, RandomHorizontalFlip(1), 3),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks_of_every_integer_and_of_one_row_flip(case: str) -> None:
    dtype, made_dtype, transform, orientation = MASKS[case]
    for rows in (1, 3):
        stored = np.arange(4 * rows, dtype=dtype).reshape(rows, 4) * 1000
        fields = {"image": FIELDS["image"], "mask": Field("array", stored.dtype.str, (None, None), role="mask")}
        values = {"image": torch.zeros(3, rows, 4, dtype=torch.uint8), "mask": torch.from_numpy(stored)}
        made = run(transform, Sample(values, fields, (rows, 4), orientation=orientation))
        assert made["mask"].dtype == made_dtype
        assert made["mask"].tolist() == stored[::-1].tolist()


def recolour(sample: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    sample["image"] = sample["image"] + torch.randint(0, 50, (1,), generator=generator).to(torch.uint8)
    return sample


def test_a_function_takes_and_returns_the_elements() -> None:
    sample = boxes_sample()
    made = run(recolour, sample)
    again = run(recolour, sample)
    assert not torch.equal(made["image"], sample.values["image"])
    assert torch.equal(made["image"], again["image"])
    assert made["names"] == ["a", "b", "c", "d"]


def test_transforms_that_take_one_image_are_refused() -> None:
    from torchvision import transforms

    with pytest.raises(ConfigError, match="Views makes several images of one: pass it as transform="):
        JointTransform([Views([Resize(8), Resize(9)])])
    with pytest.raises(ConfigError, match=r"use torchvision.transforms.v2.RandomCrop"):
        JointTransform(transforms.RandomCrop(8))
    JointTransform(transforms.v2.RandomCrop(8))


def test_masks_and_images_of_another_size_are_refused() -> None:
    mask = torch.zeros(40, 61, dtype=torch.uint8)
    with pytest.raises(RecordError, match="'mask' has 61 × 40 pixels and the sample 60 × 40"):
        run(None, plain_sample(mask=(FIELDS["mask"], mask)))
    other = torch.zeros(3, 41, 60, dtype=torch.uint8)
    with pytest.raises(RecordError, match="'other' has 60 × 41 pixels"):
        run(RandomHorizontalFlip(), plain_sample(other=(FIELDS["image"], other)))
    made = run(None, plain_sample(other=(FIELDS["image"], other)))  # a pair of a small and a large picture
    assert made["other"].shape == other.shape


@pytest.mark.parametrize("pipeline", [BUILT_IN[0], TORCHVISION[0], ALBUMENTATIONS[2]])
def test_results_depend_on_seed_epoch_and_index_alone(pipeline: Any) -> None:
    transform = JointTransform([*pipeline, ToTensor() if pipeline is BUILT_IN[0] else RandomHorizontalFlip()])
    count = 10
    cases = [Case(number) for number in range(count)]

    def make(number: int, epoch: int = 0) -> dict[str, Any]:
        return transform(cases[number].sample(), SampleContext(number, epoch, 5))

    alone = [make(number) for number in range(count)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(make, range(count)))
    copy = pickle.loads(pickle.dumps(transform))
    copied = [copy(cases[number].sample(), SampleContext(number, 0, 5)) for number in range(count)]
    for made in (together, copied):
        for first, second in zip(alone, made, strict=True):
            for name in first:
                assert name == "label" or torch.equal(first[name], second[name]), name
    changed = [not torch.equal(make(number, 1)["image"], alone[number]["image"]) for number in range(count)]
    assert sum(changed) > 4


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "CMYK", "1", "F"])
def test_pillow_images_wait_for_the_batch_too(mode: str) -> None:
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8) * 5).convert(mode)
    bound = BoundTransform(Compose([ToTensor(), Normalize([0.5], [0.25])]))
    waiting = bound(image, SampleContext(0, 0, 1), whole=False)
    assert bound.tail is not None
    assert bound.tail.is_waiting(waiting) == (mode != "F")
    expected = (ToTensor()(image) - 0.5) / 0.25
    assert torch.equal(bound.tail(waiting, torch.empty(expected.shape)) if mode != "F" else waiting, expected)


NO_ROLE = {"image": FIELDS["image"], "mask": Field("image")}
TWO_BOXES = {"image": FIELDS["image"], "faces": BOXES, "cars": BOXES}
ALONE = {name: FIELDS[name] for name in ("boxes", "labels")}


@pytest.mark.parametrize(
    ("fields", "spec", "refusal"),
    [
        (NO_ROLE, [ToTensor(), {"name": "Resize", "size": 8}], r"'mask' has no role.*roles=\{'mask': 'mask'\}"),
        (NO_ROLE | {"mask": Field("array", "<f4", (None, None))}, Resize(8), "roles=.'mask': 'image'"),
        (NO_ROLE | {"mask": Field("array", "<f4", (None, 4))}, Resize(8), "roles=.'mask': 'boxes'"),
        (NO_ROLE, ToTensor(), None),
        (NO_ROLE | {"mask": Field("image", role="mask")}, Resize(8), None),
        (TWO_BOXES, V2 + "SanitizeBoundingBoxes", None),
        (ALONE, RandomHorizontalFlip(1), "needs the size of the image, and samples have no image and no mask"),
        (ALONE, dict, "needs the size of the image"),
        (ALONE, FilterBoxes(min_area=4), None),
    ],
)  # fmt: skip
def test_transforms_that_would_not_move_all_elements_are_refused(fields: Any, spec: Any, refusal: str | None) -> None:
    if refusal is None:
        check_roles(build_transform(spec), fields)
        return
    with pytest.raises(ConfigError, match=refusal):
        check_roles(build_transform(spec), fields)


@pytest.mark.parametrize("is_views", [False, True])
def test_an_image_that_is_too_small_for_a_crop_is_a_bad_sample(is_views: bool) -> None:
    url = picture_store([jpeg(0, (80, 120)), jpeg(1, (125, 20))])
    crop: Any = {"name": "RandomCrop", "size": 40}
    transform = {"name": "Views", "transforms": [{"name": "CenterCrop", "size": 32}, crop]} if is_views else crop
    options: dict[str, Any] = {"reader": "image", "fields": ["image"], "decode": "tensor", "transform": transform}
    for dataset in (StoreDataset(url, seed=5, **options), StoreDataset(url, transforms=crop, seed=5)):
        assert dataset[0]
        with pytest.raises(TransformError, match="40 high and 40 wide does not fit into an image 20 high and 125 wide"):
            dataset[1]
    assert StoreDataset(url, seed=5, on_error="replace", **options)[1]


_WITHOUT_TORCHVISION = """
import sys
sys.modules["torchvision"] = None
import torch
from storeds.protocols import Field, SampleContext
from storeds.records.samples import Sample
from storeds.transforms import JointTransform
fields = {"image": Field("image", role="image"), "boxes": Field("array", "<f4", (None, 4), role="boxes", format="xywh")}
values = {"image": torch.zeros(3, 8, 8, dtype=torch.uint8), "boxes": torch.tensor([[1.0, 1.0, 2.0, 2.0]])}
flip = {"name": "RandomHorizontalFlip", "p": 1}
made = JointTransform([flip, lambda sample: dict(sample)])(Sample(values, fields, (8, 8)), SampleContext(0, 0, 1))
assert {type(value) for value in made.values()} == {torch.Tensor}
assert made["boxes"].tolist() == [[5, 1, 2, 2]]
"""


def test_without_torchvision_elements_are_plain_tensors() -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT_TORCHVISION], check=True)


def test_compositions_of_torchvision_move_keypoints_with_a_visibility() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    fields = {"image": FIELDS["image"], "keypoints": Field("array", "<f4", (None, None, 3), role="keypoints")}
    values = {"image": torch.zeros(3, 4, 6, dtype=torch.uint8), "keypoints": torch.tensor([[[1.0, 2.0, 2.0]]])}
    steps = [v2.RandomHorizontalFlip(1), dict]
    for transform in (v2.Compose(steps), v2.RandomApply(steps, p=1), torch.nn.Sequential(*steps[:1])):
        moved = JointTransform(transform)(Sample(values, fields, (4, 6)), SampleContext(0, 0, 1))["keypoints"]
        assert moved.tolist() == [[[4.0, 2.0, 2.0]]]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda each: each["image"], "must return a dict with the elements image, boxes, .* not Image"),
        (lambda each: each.pop("names") and each, "must return a dict with the elements"),
        (lambda each: each | {"boxes": torch.zeros(4, 5)}, "must return 'boxes' as finite boxes of shape .n, 4."),
        (lambda each: each | {"boxes": torch.full((4, 4), torch.nan)}, "must return 'boxes' as finite boxes"),
        (lambda each: each | {"boxes": each["boxes"][1:]}, "returned 3 'boxes', but 4 rows of 'labels'.*FilterBoxes"),
        (lambda each: each | {"mask": each["mask"][..., :20]}, "after .*lambda.*'mask' has 20 × 40 pixels and the sample 60"),
    ],
)  # fmt: skip
def test_what_a_function_returns_is_checked(function: Any, words: str) -> None:
    sample = boxes_sample()
    sample.values["mask"] = torch.zeros(40, 60, dtype=torch.int32)
    sample.fields = {**sample.fields, "mask": FIELDS["mask"]}
    with pytest.raises((TypeError, ValueError), match=words):
        run([function, RandomHorizontalFlip()], sample)


def test_boxes_are_clipped_and_empty_ones_dropped_whether_or_not_a_flip_is_drawn() -> None:
    fields = {name: FIELDS[name] for name in ("image", "boxes", "labels")}
    values = {
        "image": torch.zeros(3, 4, 6, dtype=torch.uint8),
        "boxes": torch.tensor([[2.0, 1.0, 2.0, 3.0], [-1.0, 0.0, 3.0, 2.0], [2.0, 1.0, 2.0004, 3.0]]),
        "labels": torch.tensor([7, 8, 9]),
    }
    for p, left in ((0, [0.0, 0.0, 3.0, 2.0]), (1, [3.0, 0.0, 6.0, 2.0])):
        made = JointTransform(RandomHorizontalFlip(p))(Sample(dict(values), fields, (4, 6)), SampleContext(0, 0, 1))
        assert made["boxes"].tolist() == [left]
        assert made["labels"].tolist() == [8]


ENGINES: dict[str, list[Any]] = {
    "built in": [RandomResizedCrop((40, 60), scale=(0.05, 0.4))],
    "torchvision": [{"name": V2 + "RandomCrop", "size": [20, 31]}, {"name": V2 + "Resize", "size": [33, 57]}],
    "albumentations": [{"name": "albumentations.RandomSizedCrop", "min_max_height": [9, 31], "size": [37, 59], "p": 1}],
}


@pytest.mark.parametrize(("engine", "format"), list(zip(ENGINES, FORMATS, strict=True)))
def test_no_crop_leaves_a_box_without_a_width_or_height(engine: str, format: str) -> None:
    """Of integer boxes, crops leave slivers, which float32 rounds to boxes that detectors refuse."""
    joint = JointTransform(ENGINES[engine])
    for number in range(60):
        rng = np.random.default_rng(number)
        left_top = rng.integers(0, (57, 37), (40, 2))
        corners = np.concatenate([left_top, (left_top + rng.integers(1, 20, (40, 2))).clip(max=(60, 40))], axis=1)
        field = Field("array", "<f4", (None, 4), role="boxes", format=format)
        boxes = torch.from_numpy(corners_to(corners, format))
        made = joint(plain_sample(boxes=(field, boxes), labels=(LABELS, torch.arange(40))), SampleContext(number, 0, 1))
        left = made["boxes"].as_subclass(torch.Tensor)
        sides = left[:, 2:] - left[:, :2] if format == "xyxy" else left[:, 2:]
        assert (sides > 0).all()
        assert len(made["labels"]) == len(left) < 40


@pytest.mark.parametrize("engine", ["built in", "albumentations"])
def test_a_default_device_does_not_matter_for_samples(engine: str) -> None:
    steps = [*ENGINES[engine], RandomHorizontalFlip(), dict, ToTensor(), Normalize([0.5], [0.5])]
    expected = run(steps, boxes_sample())

    def transformed() -> dict[str, Any]:
        torch.set_default_device("meta")  # without values: a number that is drawn there raises
        try:
            return run(steps, sample)
        finally:
            torch.set_default_device(None)

    sample = boxes_sample()
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(transformed).result()
    assert torch.equal(made["image"], expected["image"])
    assert torch.equal(made["boxes"], expected["boxes"])
