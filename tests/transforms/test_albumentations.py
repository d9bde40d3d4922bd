"""Test albumentations transforms with all kinds of images."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from storeds.errors import ConfigError
from storeds.protocols import SampleContext
from storeds.transforms import BoundTransform, Compose, build_transform

albumentations = pytest.importorskip("albumentations")

CROP = albumentations.RandomCrop(8, 12)
MIRROR = albumentations.HorizontalFlip(p=1)


def pixels(*shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(0).integers(0, 200, shape).astype(dtype)


def apply(transform: Any, value: Any, context: SampleContext) -> Any:
    return BoundTransform(transform)(value, context)


def context(index: int = 3) -> SampleContext:
    return SampleContext(index, 0, 5)


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_a_pillow_image_keeps_its_mode(mode: str) -> None:
    image = Image.fromarray(pixels(20, 30, 3)).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 200)
    made = apply(MIRROR, image, context())
    assert made.mode == mode
    assert np.array_equal(np.asarray(made), np.asarray(image)[:, ::-1])
    assert made.getpalette() == image.getpalette()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("shape", [(3, 20, 30), (1, 20, 30), (5, 3, 20, 30), (2, 5, 3, 20, 30), (4, 1, 20, 30)])
def test_a_tensor_keeps_its_channels_first_and_its_dtype(shape: tuple[int, ...], dtype: Any) -> None:
    image = torch.from_numpy(pixels(*shape, dtype=dtype))
    made = apply(MIRROR, image, context())
    assert made.dtype == image.dtype
    assert np.array_equal(made.numpy(), image.numpy()[..., ::-1])
    assert made.is_contiguous()


def test_frames_of_a_clip_are_cropped_alike_be_they_tensors_or_pillow_images() -> None:
    frames = [Image.fromarray(pixels(20, 30, 3)) for _ in range(4)]
    clip = torch.from_numpy(np.stack([np.asarray(frame) for frame in frames])).permute(0, 3, 1, 2)
    made = apply(CROP, clip, context())
    listed = apply(CROP, frames, context())
    assert made.shape == (4, 3, 8, 12)
    assert all(torch.equal(frame, made[0]) for frame in made)
    assert np.array_equal(np.stack([np.asarray(frame) for frame in listed]), made.permute(0, 2, 3, 1).numpy())


def test_values_that_pillow_cannot_hold_become_a_tensor() -> None:
    image = Image.fromarray(pixels(20, 30, 3))
    for transform in (albumentations.Normalize(), [albumentations.Normalize(), albumentations.ToTensorV2()]):
        made = apply(build_transform(transform), image, context())
        assert (made.dtype, made.shape) == (torch.float32, (3, 20, 30))
    clip = torch.zeros(4, 3, 20, 30, dtype=torch.uint8)
    assert apply(albumentations.ToTensorV2(), clip, context()).shape == (4, 3, 20, 30)


def test_a_tensor_made_of_a_pillow_image_can_be_written_to() -> None:
    made = apply(albumentations.ToTensorV2(), Image.fromarray(pixels(20, 30, 3)), context())
    made.zero_()
    assert made.shape == (3, 20, 30)


def test_an_array_that_looks_channels_first_is_rejected() -> None:
    assert np.array_equal(apply(MIRROR, pixels(20, 30, 3), context()), pixels(20, 30, 3)[:, ::-1])
    with pytest.raises(ValueError, match=r"takes arrays of shape \(height, width, channels\).*\(3, 20, 30\)"):
        apply(MIRROR, pixels(3, 20, 30), context())
    with pytest.raises(TypeError, match="not str"):
        apply(MIRROR, "image", context())


def test_pickling_keeps_what_a_transform_draws() -> None:
    composed = Compose([CROP, MIRROR, albumentations.Compose([MIRROR])])
    image = torch.from_numpy(pixels(3, 20, 30))
    copy = pickle.loads(pickle.dumps(composed))
    assert torch.equal(apply(composed, image, context()), apply(copy, image, context()))
    assert not torch.equal(apply(composed, image, context()), apply(copy, image, context(9)))


def test_a_transform_that_fails_leaves_the_next_call_as_it_would_be() -> None:
    crop = BoundTransform(albumentations.RandomCrop(8, 12))
    expected = crop(torch.from_numpy(pixels(3, 20, 30)), context())
    with pytest.raises(Exception, match="crop|Crop|smaller"):
        crop(torch.zeros(3, 4, 4, dtype=torch.uint8), context())
    assert torch.equal(crop(torch.from_numpy(pixels(3, 20, 30)), context()), expected)


def test_threads_draw_each_for_their_own_sample() -> None:
    bound = BoundTransform(albumentations.Compose([CROP, albumentations.ColorJitter(p=1)]))
    image = torch.from_numpy(pixels(3, 20, 30))
    expected = [bound(image, context(at)) for at in range(40)]
    made: dict[int, torch.Tensor] = {}
    barrier = threading.Barrier(4)

    def work(first: int) -> None:
        barrier.wait()
        for at in range(first, 40, 4):
            made[at] = bound(image, context(at))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(made[at], expected[at]) for at in range(40))
    pool: Any = bound.transform
    assert 1 <= len(pool._idle) <= 4  # a copy for each thread at most


def test_configs_nest_transforms_of_other_libraries() -> None:
    inner = ["albumentations.HorizontalFlip", {"name": "albumentations.RandomCrop", "height": 8, "width": 8}]
    built: Any = build_transform({"name": "albumentations.Compose", "transforms": inner})
    assert [type(each).__name__ for each in built.transforms] == ["HorizontalFlip", "RandomCrop"]
    with pytest.raises(
        ConfigError, match=r"transform\.transforms\[0\]: 'albumentations.RandomCrop' has no argument 'hight'"
    ):
        build_transform(
            {"name": "albumentations.Compose", "transforms": [{"name": "albumentations.RandomCrop", "hight": 8}]}
        )
