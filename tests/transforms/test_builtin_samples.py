"""Test the built-in transforms on whole samples and in data sets, those that torchvision lacks, and their errors.

Pictures of joint tests tell the place of each pixel.
"""

from __future__ import annotations

import io
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from storeds import StoreDataset, open_writer
from storeds.errors import ConfigError, TransformError
from storeds.protocols import Field, SampleContext
from storeds.records.roles import Sample
from storeds.transforms import (
    JointTransform,
    RandomCrop,
    RandomVerticalFlip,
    build_transform,
)


def array(image: Any) -> Any:
    return image.numpy() if isinstance(image, torch.Tensor) else np.array(image)


# --- Whole samples ---

FIELDS = {
    "image": Field("image", role="image"),
    "mask": Field("array", "<i4", (None, None), role="mask"),
    "boxes": Field("array", "<f4", (None, 4), role="boxes", format="xyxy"),
    "points": Field("array", "<f4", (None, 2), role="keypoints"),
}


def sample_of(height: int, width: int, count: int = 6, seed: int = 0, pillow: bool = False) -> Sample:
    """Return a sample whose pixels tell their place: red is the column + 1, green the row + 1, and a mask of 2**24 + place."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    image: Any = torch.stack([columns + 1, rows + 1, torch.full_like(rows, 255)]).to(torch.uint8)
    if pillow:
        image = Image.fromarray(image.permute(1, 2, 0).numpy())
    chance = np.random.default_rng(seed)
    left, top = chance.integers(0, width - 4, count), chance.integers(0, height - 4, count)
    right, bottom = left + chance.integers(3, 12, count), top + chance.integers(3, 12, count)
    boxes = np.stack([left, top, right.clip(max=width), bottom.clip(max=height)], 1).astype(np.float32)
    points = np.stack([chance.integers(0, width, count), chance.integers(0, height, count)], 1).astype(np.float32)
    values = {
        "image": image,
        "mask": ((1 << 24) + rows * width + columns).to(torch.int32),
        "boxes": torch.from_numpy(boxes),
        "points": torch.from_numpy(points),
    }
    return Sample(values, FIELDS, (height, width))


JOINT: list[Any] = [
    RandomCrop(24),
    RandomCrop(30, padding=5),
    RandomCrop((60, 20), pad_if_needed=True),
    RandomVerticalFlip(),
    [RandomCrop(33, pad_if_needed=True), RandomVerticalFlip()],
]


@pytest.mark.share(20)
@pytest.mark.parametrize("transforms", JOINT, ids=repr)
@pytest.mark.parametrize("pillow", [False, True])
def test_images_masks_boxes_and_keypoints_move_together(transforms: Any, pillow: bool) -> None:
    joint = JointTransform(transforms)
    for seed in range(60):
        height, width = 24 + seed % 17, 24 + seed % 23
        sample = sample_of(height, width, seed=seed, pillow=pillow)
        before = {name: array(value).copy() for name, value in sample.values.items()}
        made = joint(sample, SampleContext(seed, seed=3))
        image = np.moveaxis(array(made["image"]), 0, -1) if not pillow else array(made["image"])
        mask = array(made["mask"])
        assert image.shape[:2] == mask.shape == tuple(made["boxes"].canvas_size)
        is_lost = image[..., 2] != 255
        inside = mask >= 1 << 24
        assert set(np.unique(mask)) <= {0} | set(np.unique(before["mask"]))
        places = mask - (1 << 24)
        rows, columns = places // width, places % width
        off = np.maximum(np.abs(image[..., 0] - 1.0 - columns), np.abs(image[..., 1] - 1.0 - rows))
        assert np.array_equal(inside, ~is_lost)
        assert off[inside].max(initial=0) == 0
        for at, (x, y) in enumerate(made["points"].tolist()):
            column, row = round(x), round(y)
            if 1 <= column < mask.shape[1] - 1 and 1 <= row < mask.shape[0] - 1 and inside[row, column]:
                assert abs(columns[row, column] - before["points"][at, 0]) <= 1
                assert abs(rows[row, column] - before["points"][at, 1]) <= 1
        assert array(sample.values["mask"]).tolist() == before["mask"].tolist()
        clipped_once = not isinstance(transforms, list)
        check_boxes(made["boxes"], before["boxes"], columns, rows, inside, clipped_once=clipped_once)


def check_boxes(boxes: Any, before: Any, columns: Any, rows: Any, inside: Any, *, clipped_once: bool) -> None:
    """Check that boxes surround the pixels that show what was in the boxes before, within a pixel.

    A box that was turned and then clipped is larger than these pixels. It lies at an edge, unless a later step moved it.
    """
    height, width = boxes.canvas_size
    found = boxes.tolist()
    for box in found:
        assert 0 <= box[0] < box[2] <= width
        assert 0 <= box[1] < box[3] <= height
    assert len(found) <= len(before)
    for left, top, right, bottom in before:
        ys, xs = np.nonzero(inside & (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom))
        if len(xs):
            hull = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            outward = [(hull - box) * (1, 1, -1, -1) for box in found]
            around = [at for at, each in enumerate(outward) if each.min() >= (-1 if clipped_once else -2)]
            assert around, (hull, found)
            limits = (0, 0, width, height)
            is_exact = [max(outward[at]) <= 1.5 or any(np.equal(found[at], limits)) for at in around]
            assert any(is_exact) or not clipped_once, (hull, found)


@pytest.mark.share(60)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("transforms", JOINT, ids=repr)
def test_masks_of_instances_move_as_single_masks_do(transforms: Any, count: int, dtype: str) -> None:
    fields = {**FIELDS, "instances": Field("array", "<i4", (None, None, None), role="mask", of=None)}
    joint = JointTransform(transforms)
    for seed in range(5):
        sample = sample_of(30, 37, count=count, seed=seed)
        layers = [sample.values["mask"].sub(1 << 24).to(getattr(torch, dtype)) for _ in range(count)]
        stacked = torch.stack(layers) if count else torch.zeros(0, 30, 37, dtype=getattr(torch, dtype))
        sample.values["instances"], sample.fields = stacked, fields
        alone = sample_of(30, 37, count=count, seed=seed)
        alone.values["mask"] = sample.values["mask"].sub(1 << 24).to(getattr(torch, dtype))
        made = joint(sample, SampleContext(seed, seed=1))
        expected = joint(alone, SampleContext(seed, seed=1))["mask"]
        assert made["instances"].dtype == getattr(torch, dtype)
        assert made["instances"].shape[1:] == expected.shape
        for layer in made["instances"]:
            assert torch.equal(layer, expected)


# --- In data sets ---

SIZES = ((120, 160), (97, 131), (50, 160), (200, 90))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a store with photographs, of which the third is too small for a crop of 64 pixels."""
    url = f"lmdb://{tmp_path_factory.mktemp('builtin')}/photographs.lmdb"
    with open_writer(url, {"image": "image", "label": "int"}) as writer:
        for at, (height, width) in enumerate(SIZES):
            file = io.BytesIO()
            image_of_size(height, width, at).save(file, "JPEG", quality=92)
            writer.append([{"image": file.getvalue(), "label": at}])
    return url


def image_of_size(height: int, width: int, seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("arguments", [{"size": 64, "pad_if_needed": True}, {"size": [40, 64], "padding": 7}])
def test_a_random_crop_drawn_before_decoding_cuts_the_same_pixels(store: str, arguments: dict[str, Any]) -> None:
    crop = {"name": "RandomCrop", **arguments}
    early = StoreDataset(store, decode="tensor", transform=crop, seed=5)
    whole = StoreDataset(store, decode="tensor", seed=5)
    for at in range(len(whole)):
        image, cut = whole[at][0], early[at][0]
        assert cut.is_contiguous()
        assert torch.equal(cut, RandomCrop(**arguments)(image, SampleContext(at, seed=5).generator))


@pytest.mark.parametrize("is_views", [False, True])
def test_an_image_that_is_too_small_for_a_crop_is_a_bad_sample(store: str, is_views: bool) -> None:
    crop: Any = {"name": "RandomCrop", "size": 64}
    transform = {"name": "Views", "transforms": [{"name": "CenterCrop", "size": 32}, crop]} if is_views else crop
    strict = StoreDataset(store, decode="tensor", transform=transform, seed=5)
    assert strict[1]
    with pytest.raises(TransformError, match="64 high and 64 wide does not fit into an image 50 high and 160 wide"):
        strict[2]
    replacing = StoreDataset(store, decode="tensor", transform=transform, seed=5, on_error="replace")
    assert replacing[2]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a store with photographs, masks and boxes, of which the third is too small for a crop of 64 pixels."""
    url = f"lmdb://{tmp_path_factory.mktemp('builtin')}/samples.lmdb"
    fields = {
        "image": {"kind": "image", "role": "image"},
        "mask": {"kind": "image", "role": "mask"},
        "boxes": FIELDS["boxes"],
    }
    with open_writer(url, fields) as writer:
        for at, (height, width) in enumerate(SIZES):
            photograph, mask = io.BytesIO(), io.BytesIO()
            image_of_size(height, width, at).save(photograph, "JPEG", quality=92)
            Image.fromarray(np.arange(height * width, dtype=np.uint16).reshape(height, width)).save(mask, "PNG")
            boxes = np.array([[3, 4, 40, 30], [20, 10, 80, 50]], np.float32)
            writer.append([{"image": photograph.getvalue(), "mask": mask.getvalue(), "boxes": boxes}])
    return url


def test_a_random_crop_of_samples_drawn_before_decoding_cuts_the_same(samples: str) -> None:
    crop = RandomCrop((40, 64), padding=3)
    early = StoreDataset(samples, transforms=[crop, "RandomVerticalFlip"], seed=5, as_dict=True)
    whole = StoreDataset(samples, transforms="torch.nn.Identity", seed=5, as_dict=True)
    for at in range(len(whole)):
        context = SampleContext(at, seed=5)
        stored = {name: torch.Tensor.as_subclass(value, torch.Tensor) for name, value in whole[at].items()}
        fields = {name: FIELDS[name] for name in stored}
        late = JointTransform([crop, RandomVerticalFlip()])(Sample(stored, fields, SIZES[at]), context)
        for name, value in early[at].items():
            assert torch.equal(value, late[name]), (name, at)


def test_a_sample_that_is_too_small_for_a_crop_is_a_bad_sample(samples: str) -> None:
    dataset = StoreDataset(samples, transforms={"name": "RandomCrop", "size": 64}, seed=5, as_dict=True)
    assert dataset[1]["image"].shape == (3, 64, 64)
    with pytest.raises(TransformError, match="64 high and 64 wide does not fit into an image 50 high and 160 wide"):
        dataset[2]


# --- Errors ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(0), "RandomCrop: size must be a positive int"),
        (lambda: RandomCrop(1, -1), "RandomCrop: padding must be an int of at least 0, a pair .* not -1"),
        (lambda: RandomCrop(1, pad_if_needed=cast("Any", 1)), "RandomCrop: pad_if_needed must be true or false, not 1"),
        (lambda: RandomVerticalFlip(2), r"RandomVerticalFlip: p must be a number in \[0, 1\], not 2"),
        (lambda: build_transform({"name": "RandomCrop", "size": 1, "fill": 3}), "'RandomCrop' has no argument 'fill'"),
    ],
)  # fmt: skip
def test_arguments_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
