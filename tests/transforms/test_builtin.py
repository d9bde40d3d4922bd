"""Compare the built-in transforms with torchvision's: from the same state of the generator, the same pixels.

Each test draws arguments, images and states at random. Joint tests use pictures whose pixels tell their place.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shares import examples
from storeds.protocols import SampleContext
from storeds.transforms import (
    CenterCrop,
    ColorJitter,
    Grayscale,
    LetterBox,
    Pad,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    TrivialAugmentWide,
    apply_transform,
    build_transform,
)

v2 = pytest.importorskip("torchvision.transforms.v2")

TIMES = examples(100)


def image_of(chance: random.Random, kind: str, least: int = 1, most: int = 40) -> Any:
    """Draw an image: Pillow, or a tensor of a dtype, of odd and even sizes, with smooth and flat parts."""
    height, width, channels = chance.randint(least, most), chance.randint(least, most), chance.choice([1, 3])
    pixels = np.random.default_rng(chance.getrandbits(32)).integers(0, 256, (height, width, channels), dtype=np.uint8)
    if chance.random() < 0.3:
        pixels[: height // 2] = pixels[:1, :1]
    if chance.random() < 0.3:
        pixels = pixels // 3 + 60
    if kind == "pillow":
        return Image.fromarray(pixels if channels == 3 else pixels[..., 0])
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    if chance.random() < 0.2:
        tensor = torch.stack((tensor, tensor.flip(-1)))
    return tensor if kind == "uint8" else tensor.to(getattr(torch, kind)) / 255


def array(image: Any) -> Any:
    return image.numpy() if isinstance(image, torch.Tensor) else np.array(image)


def check_equal(ours: Any, theirs: Any, image: Any, state: int) -> None:
    """Compare a transform with torchvision's from the same state, and check that the global generator is untouched."""
    before = array(image).copy()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(state)
        expected = theirs(image)
        after = torch.get_rng_state()
    untouched = torch.get_rng_state()
    generator = torch.Generator().manual_seed(state)
    found = (
        ours(image, generator) if ours.__class__.__name__.startswith(("Random", "Color", "Trivial")) else ours(image)
    )
    assert torch.equal(torch.get_rng_state(), untouched)
    assert torch.equal(generator.get_state(), after), "drew other numbers"
    assert type(found) is type(expected) or isinstance(found, Image.Image)
    if isinstance(found, Image.Image):
        assert (found.mode, found.size) == (expected.mode, expected.size)
    else:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(array(found), array(expected)), f"{ours!r} of {image!r} in state {state}"
    assert np.array_equal(array(image), before)


def color_of(chance: random.Random, image: Any) -> Any:
    channels = image.shape[-3] if isinstance(image, torch.Tensor) else len(image.getbands())
    top = 1.0 if isinstance(image, torch.Tensor) and image.is_floating_point() else 255

    def number() -> Any:
        return chance.uniform(0, 1) if top == 1.0 else chance.randint(0, 255)

    return chance.choice([0, number(), [number() for _ in range(channels)]])


def padding_of(chance: random.Random, most: int) -> Any:
    return chance.choice(
        [
            chance.randint(0, most),
            [chance.randint(0, most) for _ in range(2)],
            [chance.randint(0, most) for _ in range(4)],
        ]
    )


KINDS = ("pillow", "uint8", "float32", "float64")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_pad(kind: str, mode: str) -> None:
    chance = random.Random(f"{kind} {mode}")
    for state in range(TIMES):
        image = image_of(chance, kind, least=5)
        padding = padding_of(chance, 4)
        arguments = {
            "padding": padding,
            "fill": color_of(chance, image) if mode == "constant" else 0,
            "padding_mode": mode,
        }
        check_equal(Pad(**arguments), v2.Pad(**arguments), image, state)


@pytest.mark.parametrize("kind", KINDS)
def test_random_crop(kind: str) -> None:
    chance = random.Random(kind)
    for state in range(3 * TIMES):
        image = image_of(chance, kind, least=5)
        mode = chance.choice(["constant", "constant", "edge", "reflect", "symmetric"])
        arguments = {
            "size": chance.choice([chance.randint(1, 50), [chance.randint(1, 50), chance.randint(1, 50)]]),
            "padding": chance.choice([None, padding_of(chance, 4)]),
            "pad_if_needed": mode == "constant" and chance.random() < 0.7,
            "fill": color_of(chance, image) if mode == "constant" else 0,
            "padding_mode": mode,
        }
        ours, theirs = RandomCrop(**arguments), v2.RandomCrop(**arguments)
        try:
            theirs(image)
        except ValueError:
            with pytest.raises(
                ValueError, match="RandomCrop: a window .* does not fit into an image .* set pad_if_needed"
            ):
                ours(image)
        else:
            check_equal(ours, theirs, image, state)


@pytest.mark.parametrize("kind", KINDS)
def test_random_vertical_flip(kind: str) -> None:
    chance = random.Random(kind)
    for state in range(TIMES):
        p = chance.choice([0.0, 0.3, 0.5, 1.0])
        check_equal(RandomVerticalFlip(p), v2.RandomVerticalFlip(p), image_of(chance, kind), state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_random_rotation(kind: str, interpolation: str) -> None:
    if interpolation == "bicubic" and kind != "pillow":
        pytest.skip("torchvision supports nearest and bilinear for tensors")
    chance = random.Random(kind + interpolation)
    for state in range(3 * TIMES):
        image = image_of(chance, kind)
        turn = chance.choice([0, 90, 180, 270, -90, 450])
        arguments = {
            "degrees": chance.choice([chance.uniform(0, 180), [-30, 77.5], [turn, turn]]),
            "interpolation": interpolation,
            "expand": chance.random() < 0.4,
            "center": chance.choice([None, [chance.randint(-5, 30), chance.uniform(0, 40)]]),
            "fill": color_of(chance, image),
        }
        check_equal(RandomRotation(**arguments), v2.RandomRotation(**arguments), image, state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_grayscale(kind: str, channels: int) -> None:
    chance = random.Random(kind)
    for state in range(TIMES):
        check_equal(Grayscale(channels), v2.Grayscale(channels), image_of(chance, kind), state)


@pytest.mark.parametrize("kind", KINDS)
def test_color_jitter(kind: str) -> None:
    chance = random.Random(kind)
    for state in range(3 * TIMES):
        arguments = {
            name: chance.choice([None, 0, chance.uniform(0, 1.5), [0.5, chance.uniform(0.5, 2)]])
            for name in ("brightness", "contrast", "saturation")
        }
        arguments["hue"] = chance.choice([None, 0, chance.uniform(0, 0.5), [-0.5, chance.uniform(-0.5, 0.5)]])
        check_equal(ColorJitter(**arguments), v2.ColorJitter(**arguments), image_of(chance, kind), state)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_random_erasing(kind: str) -> None:
    chance = random.Random(kind)
    for state in range(3 * TIMES):
        image = image_of(chance, kind)
        low, ratio = chance.uniform(0, 0.4), chance.uniform(0.2, 1)
        value = chance.choice([0, color_of(chance, image), "random" if kind != "uint8" else 7])
        arguments = {
            "p": chance.choice([0.3, 1.0]),
            "scale": [low, chance.uniform(low, 1)],
            "ratio": [ratio, chance.uniform(ratio, 4)],
            "value": value,
        }
        check_equal(RandomErasing(**arguments), v2.RandomErasing(**arguments), image, state)


@pytest.mark.parametrize("kind", KINDS)
def test_trivial_augment(kind: str) -> None:
    chance = random.Random(kind)
    for state in range(10 * TIMES):
        image = image_of(chance, kind)
        arguments = {
            "num_magnitude_bins": chance.choice([31, 31, 2, 7]),
            "interpolation": chance.choice(["nearest", "bilinear"]),
            "fill": chance.choice([None, color_of(chance, image)]),
        }
        check_equal(TrivialAugmentWide(**arguments), v2.TrivialAugmentWide(**arguments), image, state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_resize_and_crops_of_fixed_size(kind: str, interpolation: str) -> None:
    chance = random.Random(kind + interpolation)
    mode = getattr(v2.InterpolationMode, interpolation.upper())
    for state in range(TIMES):
        image = image_of(chance, kind, least=2)
        # torch resizes to a width of 1 pixel wrongly, see functional.py.
        size: Any = chance.choice([chance.randint(2, 30), [chance.randint(2, 30), chance.randint(2, 30)]])
        check_equal(Resize(size, interpolation), v2.Resize(size, mode), image, state)
        check_equal(CenterCrop(size), v2.CenterCrop(size), image, state)
        crop: Any = {"size": size, "scale": (0.05, 1.0)}
        check_equal(
            RandomResizedCrop(**crop, interpolation=interpolation),
            v2.RandomResizedCrop(**crop, interpolation=mode),
            image,
            state,
        )
        check_equal(RandomHorizontalFlip(0.4), v2.RandomHorizontalFlip(0.4), image, state)


ALL: list[Any] = [
    Pad(3, fill=(1, 2, 3)),
    Pad((1, 2), padding_mode="symmetric"),
    RandomCrop(9, padding=4),
    RandomCrop((7, 30), pad_if_needed=True, fill=0.5),
    RandomVerticalFlip(),
    RandomRotation(40),
    RandomRotation(90, "bilinear", expand=True, fill=(1.0, 0.0, 0.0)),
    LetterBox((20, 11)),
    Grayscale(3),
    ColorJitter(0.4, 0.4, 0.4, 0.2),
    ColorJitter(hue=(-0.1, 0.3)),
    RandomErasing(1.0, value=(0.0, 0.5, 1.0)),
    TrivialAugmentWide(),
    TrivialAugmentWide(interpolation="bilinear", fill=0.5),
    ToDtype("float16", scale=True),
]


def by_seed(transform: Any, image: Any, seed: int) -> Any:
    return apply_transform(transform, image, SampleContext(seed, seed=7))


@pytest.mark.parametrize("transform", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_results_do_not_depend_on_the_memory_layout(transform: Any, dtype: torch.dtype) -> None:
    chance = random.Random(0)
    for seed in range(40):
        image = (torch.rand(chance.randint(12, 40), chance.randint(12, 40), 3) * 255).to(dtype).permute(2, 0, 1)
        plain = image.contiguous()
        if dtype == torch.float32:
            image, plain = image / 255, plain / 255
        assert torch.equal(by_seed(transform, image, seed), by_seed(transform, plain, seed))


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_pickling_and_its_text_keep_a_transform(transform: Any) -> None:
    twin = pickle.loads(pickle.dumps(transform))
    assert twin == transform == eval(repr(transform))
    assert hash(twin) == hash(transform)
    name = type(transform).__name__
    config = {"name": name, **{each.name: getattr(transform, each.name) for each in dataclasses.fields(transform)}}
    assert build_transform(json.loads(json.dumps(config))) == transform


@pytest.mark.parametrize("source", ["uint8", "int16", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("scale", [False, True])
def test_to_dtype(source: str, dtype: str, scale: bool) -> None:
    image = torch.rand(3, 9, 7, dtype=torch.float64)
    source_dtype = getattr(torch, source)
    image = image.to(source_dtype) if source_dtype.is_floating_point else (image * 200).to(source_dtype)
    ours, theirs = ToDtype(dtype, scale), v2.ToDtype(getattr(torch, dtype), scale)
    try:
        expected = theirs(image)
    except RuntimeError:
        with pytest.raises(TypeError, match="ToDtype cannot scale torch.float.* holds more digits"):
            ours(image)
        return
    found = ours(image)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("mode", ["P", "1", "I;16"])
def test_a_mode_that_pillow_cannot_recolour_is_named(mode: str) -> None:
    picture = Image.new(mode, (8, 8))
    with pytest.raises(
        ValueError, match=f"ColorJitter: Pillow cannot change colours of mode '{mode}'.*mode 'RGB' or 'L'"
    ):
        ColorJitter(contrast=(0.5, 0.5))(picture)
    with pytest.raises(ValueError, match=f"TrivialAugmentWide: Pillow cannot change colours of mode '{mode}'"):
        for number in range(60):
            TrivialAugmentWide()(picture, generator=torch.Generator().manual_seed(number))
