"""Test albumentations transforms with all kinds of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from storeds.protocols import SampleContext
from storeds.transforms import BoundTransform, build_transform

albumentations = pytest.importorskip("albumentations")

CROP = albumentations.RandomCrop(8, 12)
MIRROR = albumentations.HorizontalFlip(p=1)


def pixels(*shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(0).integers(0, 200, shape).astype(dtype)


def apply(transform: Any, value: Any, context: SampleContext) -> Any:
    return BoundTransform(transform)(value, context)


def context(index: int = 3) -> SampleContext:
    return SampleContext(index, 0, 5)


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA", "I;16", "F"])
def test_a_pillow_image_keeps_its_mode(mode: str) -> None:
    image = Image.fromarray(pixels(20, 30, 3)).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 200)
    made = apply(MIRROR, image, context())
    assert made.mode == mode
    assert np.array_equal(np.asarray(made), np.asarray(image)[:, ::-1])
    assert made.getpalette() == image.getpalette()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(3, 20, 30), (1, 20, 30), (2, 5, 3, 20, 30), (4, 1, 20, 30)])
def test_a_tensor_keeps_its_channels_first_and_its_dtype(shape: tuple[int, ...], dtype: Any) -> None:
    image = torch.from_numpy(pixels(*shape, dtype=dtype))
    made = apply(MIRROR, image, context())
    assert made.dtype == image.dtype
    assert np.array_equal(made.numpy(), image.numpy()[..., ::-1])
    assert made.is_contiguous()


def test_frames_of_a_clip_are_cropped_alike() -> None:
    frame = torch.from_numpy(pixels(3, 20, 30))
    made = apply(CROP, torch.stack([frame] * 4), context())
    assert made.shape == (4, 3, 8, 12)
    assert all(torch.equal(each, apply(CROP, frame, context())) for each in made)


def test_values_that_pillow_cannot_hold_become_a_tensor_of_their_own_memory() -> None:
    image = Image.fromarray(pixels(20, 30, 3))
    for transform in (albumentations.Normalize(), [albumentations.Normalize(), albumentations.ToTensorV2()]):
        made = apply(build_transform(transform), image, context())
        assert (made.dtype, made.shape) == (torch.float32, (3, 20, 30))
    apply(albumentations.ToTensorV2(), image, context()).zero_()
    assert np.array_equal(np.asarray(image), pixels(20, 30, 3))
    assert apply(albumentations.ToGray(1, p=1), image, context()).shape == (1, 20, 30)
    with pytest.raises(TypeError, match="not str"):
        apply(MIRROR, "image", context())


def test_a_transform_that_fails_leaves_the_next_call_as_it_would_be() -> None:
    crop = BoundTransform(albumentations.RandomCrop(8, 12))
    expected = crop(torch.from_numpy(pixels(3, 20, 30)), context())
    with pytest.raises(Exception, match="crop|Crop|smaller"):
        crop(torch.zeros(3, 4, 4, dtype=torch.uint8), context())
    assert torch.equal(crop(torch.from_numpy(pixels(3, 20, 30)), context()), expected)
