"""Test the built-in transforms on single images: pixels, types, memory and errors.

torchvision is the oracle: from the same state of the generator, the pixels are the same. Each case draws arguments, an
image and a state.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shares import examples
from storeds.errors import ConfigError
from storeds.protocols import Array, SampleContext
from storeds.transforms import (
    BoundTransform,
    CenterCrop,
    Compose,
    Crop,
    FilterBoxes,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToTensor,
    Views,
)
from storeds.transforms import build_transform as build

v2 = pytest.importorskip("torchvision.transforms.v2")

edges = st.integers(1, 64)


def pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def pil(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(pixels(height, width, seed=seed))


def chw(image: Image.Image | Array) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def array(value: Any) -> Array:
    return value.numpy().copy() if isinstance(value, torch.Tensor) else np.array(value)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_seed(transform: Any, image: Any, seed: int) -> Any:
    return BoundTransform(transform)(image, SampleContext(seed, seed=7))


# --- Equal to torchvision ---


def image_of(chance: random.Random, kind: str, least: int) -> Any:
    """Draw an image: Pillow, or a tensor of a dtype, of odd and even sizes, with smooth and flat parts."""
    height, width, channels = chance.randint(least, 40), chance.randint(least, 40), chance.choice([1, 3])
    image = pixels(height, width, channels, chance.getrandbits(32))
    if chance.random() < 0.3:
        image[: height // 2] = image[:1, :1]
    if chance.random() < 0.3:
        image = image // 3 + 60
    if kind == "pillow":
        return Image.fromarray(image if channels == 3 else image[..., 0])
    tensor = torch.from_numpy(image).permute(2, 0, 1).contiguous()
    if chance.random() < 0.2:
        tensor = torch.stack((tensor, tensor.flip(-1)))
    return tensor if kind == "uint8" else tensor.to(getattr(torch, kind)) / 255


def sides(chance: random.Random, most: int) -> Any:
    # torch resizes to a width of 1 pixel wrongly, see functional.py.
    return chance.choice([chance.randint(2, most), [chance.randint(2, most), chance.randint(2, most)]])


def padding_of(chance: random.Random) -> Any:
    return chance.choice([None, chance.randint(0, 4), *([chance.randint(0, 4) for _ in range(n)] for n in (2, 4))])


INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic")
ARGUMENTS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "Resize": lambda chance: {"size": sides(chance, 30), "interpolation": chance.choice(INTERPOLATIONS)},
    "CenterCrop": lambda chance: {"size": sides(chance, 50)},
    "RandomCrop": lambda chance: {
        "size": sides(chance, 50), "padding": padding_of(chance), "pad_if_needed": chance.random() < 0.7
    },
    "RandomResizedCrop": lambda chance: {
        "size": sides(chance, 30), "scale": (0.05, 1.0), "interpolation": chance.choice(INTERPOLATIONS)
    },
    "RandomHorizontalFlip": lambda chance: {"p": chance.choice([0.0, 0.3, 0.5, 1.0])},
    "RandomVerticalFlip": lambda chance: {"p": chance.choice([0.0, 0.3, 0.5, 1.0])},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["pillow", "uint8", "float32", "float64"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_pixels_and_random_numbers_are_those_of_torchvision(name: str, kind: str) -> None:
    chance = random.Random(kind + name)
    for state in range(examples(100)):
        arguments = ARGUMENTS[name](chance)
        ours: Any = build({"name": name, **arguments})
        if "interpolation" in arguments:
            arguments["interpolation"] = v2.InterpolationMode(arguments["interpolation"])
        theirs = getattr(v2, name)(**arguments)
        image = image_of(chance, kind, least=5)
        try:
            theirs(image)
        except ValueError:
            with pytest.raises(ValueError, match="RandomCrop: a window .* does not fit into an image .* pad_if_needed"):
                ours(image)
        else:
            check_equal(ours, theirs, image, state)


def check_equal(ours: Any, theirs: Any, image: Any, state: int) -> None:
    """Compare a transform with torchvision's from the same state, and check that the global generator is untouched."""
    before = array(image)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(state)
        expected = theirs(image)
        after = torch.get_rng_state()
        torch.manual_seed(state)
        assert np.array_equal(array(ours(image)), array(expected))  # from the global generator
    untouched, source = torch.get_rng_state(), generator(state)
    found = ours(image, source)
    assert torch.equal(torch.get_rng_state(), untouched)
    assert torch.equal(source.get_state(), after), "drew other numbers"
    kind = (lambda made: (made.mode, made.size)) if isinstance(found, Image.Image) else (lambda made: made.dtype)
    assert kind(found) == kind(expected)
    assert np.array_equal(array(found), array(expected)), f"{ours!r} of {image!r} in state {state}"
    assert np.array_equal(array(image), before)


# --- Where torchvision is no oracle ---


@given(edges, edges, edges, edges, st.sampled_from([torch.uint8, torch.float32, torch.float64, torch.int16]))
def test_resize_of_a_tensor_is_pillows_within_two_levels(
    height: int, width: int, to_h: int, to_w: int, dtype: torch.dtype
) -> None:
    # Each direction rounds once. Without antialiasing, a reduction would differ by many levels; at a width of 1,
    # torch's own result does.
    image = pil(height, width)
    resized = Resize((to_h, to_w))(chw(image).to(dtype))
    expected = chw(image.resize((to_w, to_h), Image.Resampling.BILINEAR))
    assert resized.dtype == dtype
    assert (resized.double() - expected.double()).abs().max() <= 2


_CHECKED_HEAP = "/lib/x86_64-linux-gnu/libc_malloc_debug.so.0"
_RESIZES = """
import torch
from storeds.transforms import Resize
for seed in range(40):
    for shape, size in (((1, 17), 1), ((9, 8), 1), ((5, 1), 3), ((30, 20), 7)):
        image = torch.full((3, *shape), seed, dtype=torch.uint8)
        assert (Resize((size, size))(image) == seed).all()
"""


@pytest.mark.skipif(not Path(_CHECKED_HEAP).exists(), reason="needs glibc's checks of the heap")
def test_no_resize_writes_beyond_its_memory() -> None:
    """torch 2.13 does, for a result of one pixel: glibc finds it when the memory is freed."""
    checks = {"LD_PRELOAD": _CHECKED_HEAP, "MALLOC_CHECK_": "3", "PYTHONMALLOC": "malloc"}
    subprocess.run([sys.executable, "-c", _RESIZES], env={**os.environ, **checks}, check=True)


def test_bicubic_stays_in_the_range_of_integers() -> None:
    edge = torch.zeros(1, 8, 8, dtype=torch.int16)
    edge[..., 4:] = 32767
    up = Resize((8, 64), "bicubic")(edge)
    assert up.min() >= -4000  # it overshoots downwards, and does not wrap upwards to -32768
    assert (up[0, 0, 40:] > 30000).all()


@pytest.mark.parametrize("window", [(3, 5, 9, 7), (-4, -2, 30, 30), (12, 0, 20, 4), (-9, 30, 5, 5)])
def test_crop_is_its_window_and_zero_beyond_the_image(window: tuple[int, int, int, int]) -> None:
    top, left, height, width = window
    source = pixels(16, 20)
    padded = np.pad(source, ((40, 40), (40, 40), (0, 0)))
    expected = padded[40 + top : 40 + top + height, 40 + left : 40 + left + width]
    assert np.array_equal(array(Crop(*window)(Image.fromarray(source))), expected)
    assert torch.equal(Crop(*window)(chw(source)), chw(expected))


@pytest.mark.parametrize(
    ("shape", "ratio", "expected"),
    [
        ((100, 10), (3 / 4, 4 / 3), (43, 0, 13, 10)),  # too high: the widest of the greatest allowed height
        ((10, 100), (3 / 4, 4 / 3), (0, 43, 10, 13)),
        ((1, 50), (0.2, 0.4), (0, 24, 1, 1)),  # torchvision makes this window empty
        ((10, 10), (1.0, 1.0), (0, 0, 10, 10)),
    ],
)
def test_without_a_fitting_window_the_middle_is_used(shape: tuple[int, int], ratio: Any, expected: Any) -> None:
    assert RandomResizedCrop(8, (2.0, 2.0), ratio).draw(*shape, generator()).window == expected


# --- Kinds of images and their memory ---

SPATIAL: list[Any] = [
    Resize(8),
    Resize((5, 9), "bicubic"),
    CenterCrop(12),
    CenterCrop((30, 5)),
    Crop(-2, 3, 9, 12),
    RandomCrop(9, padding=4, pad_if_needed=True),
    RandomCrop((7, 30), pad_if_needed=True),
    RandomResizedCrop(10),
    RandomHorizontalFlip(0.3),
    RandomVerticalFlip(),
]
ALL = [*SPATIAL, ToTensor(), Normalize([0.5], [0.25]), Compose([Resize(8), RandomHorizontalFlip(), ToTensor()])]


@pytest.mark.parametrize("transform", SPATIAL, ids=repr)
def test_pillow_modes_are_kept(transform: Any) -> None:
    for mode in ("L", "RGB", "RGBA", "1", "P", "F", "I;16"):
        image = Image.new("I;16", (9, 7)) if mode == "I;16" else pil(7, 9).convert(mode)
        assert transform(image).mode == mode


@pytest.mark.parametrize("transform", [*SPATIAL, Compose([*SPATIAL, ToTensor()])], ids=repr)
def test_results_do_not_depend_on_the_memory_layout(transform: Any) -> None:
    chance = random.Random(0)
    for seed, dtype in enumerate([torch.uint8, torch.float32] * 10):
        strided = torch.from_numpy(pixels(chance.randint(8, 40), chance.randint(8, 40), seed=seed)).permute(2, 0, 1)
        image, plain = strided.to(dtype), strided.contiguous().to(dtype)
        assert torch.equal(by_seed(transform, image, seed), by_seed(transform, plain, seed))


@pytest.mark.parametrize("transform", [Resize(6), Resize((6, 8)), CenterCrop((6, 8)), RandomHorizontalFlip(0)])
def test_an_image_with_nothing_to_do_comes_back_as_it_is(transform: Any) -> None:
    for image in (pil(6, 8), chw(pixels(6, 8))):
        assert transform(image) is image


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_the_image_given_is_not_changed_and_a_changed_one_shares_no_memory(transform: Any) -> None:
    for image in (pil(9, 13), chw(pixels(9, 13)), torch.rand(3, 9, 13)):
        given = ToTensor()(image) if isinstance(transform, Normalize) else image
        before = array(given)
        for index in range(5):
            made = by_seed(transform, given, index)
            if isinstance(made, torch.Tensor) and made is not given:
                made.zero_()
                assert made.untyped_storage().nbytes() == made.numel() * made.element_size()
        assert np.array_equal(array(given), before)


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_pickles_texts_and_configs_keep_a_transform(transform: Any) -> None:
    twin = pickle.loads(pickle.dumps(transform))
    assert twin == transform == eval(repr(transform))
    assert (hash(twin), repr(twin)) == (hash(transform), repr(transform))
    image = torch.rand(3, 9, 13)
    bound = pickle.loads(pickle.dumps(BoundTransform(transform)))
    assert torch.equal(bound(image, SampleContext(4, seed=7)), by_seed(transform, image, 4))
    if not isinstance(transform, Compose):
        arguments = {each.name: getattr(transform, each.name) for each in dataclasses.fields(transform)}
        assert build(json.loads(json.dumps({"name": type(transform).__name__, **arguments}))) == transform


# --- ToTensor and Normalize ---


MEANS = [([0.5], [0.5]), ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), ([0.1307], [0.3081]), ([-3.7, 0, 1e4], [1e-3])]


@pytest.mark.parametrize("mean_and_std", [None, *MEANS])
@pytest.mark.parametrize("layout", ["channels first", "channels last", "mirrored"])
def test_the_tail_of_a_batch_gives_the_bits_of_both_transforms(mean_and_std: Any, layout: str) -> None:
    """Of all 256 values in each channel; the oracle is torch's arithmetic, one step after the other."""
    values = torch.arange(256, dtype=torch.uint8).reshape(16, 16).expand(3, 16, 16).contiguous()
    image = values.permute(1, 2, 0).contiguous().permute(2, 0, 1) if layout == "channels last" else values
    image = image.mT if layout == "mirrored" else image
    expected = image.to(torch.float32) / 255
    transforms: list[Any] = [Resize(16), ToTensor()]
    if mean_and_std is not None:
        mean, std = (torch.tensor(each, dtype=torch.float32)[:, None, None] for each in mean_and_std)
        expected = (expected - mean) / std
        transforms.append(Normalize(*mean_and_std))
    bound = BoundTransform(Compose([Compose(transforms[:1]), Compose(transforms[1:])]))
    waiting = bound(image, SampleContext(0), whole=False)
    assert bound.tail is not None
    assert bound.tail.is_waiting(waiting)
    batch = torch.full((2, 3, 20, 20), math.nan)
    for out in (batch[1, :, :16, :16], torch.empty(3, 16, 16)):
        assert torch.equal(bound.tail(waiting, out), expected)
        assert torch.equal(out, expected)
    assert torch.equal(bound(image, SampleContext(0)), expected)


@pytest.mark.parametrize(
    ("mode", "dtype", "scale"),
    [
        *((mode, torch.float32, np.float32(255)) for mode in ("L", "LA", "RGB", "RGBA", "CMYK", "YCbCr")),
        ("1", torch.float32, np.float32(1)),
        ("I", torch.int32, np.int32(1)),
        ("F", torch.float32, np.float32(1)),
        ("I;16", torch.int16, np.int16(1)),
    ],
)
def test_eight_bit_modes_are_scaled_and_other_modes_keep_their_values(mode: str, dtype: Any, scale: Any) -> None:
    image = pil(5, 7).convert("L" if mode in ("LA", "I;16") else mode).convert(mode)
    tensor = ToTensor()(image)
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    expected = np.array(image).reshape(5, 7, -1).transpose(2, 0, 1).astype(scale.dtype)
    assert np.array_equal(tensor.numpy(), expected / scale)


def test_arrays_and_tensors_become_tensors_too() -> None:
    source = pixels(4, 6)
    expected = torch.from_numpy(source.transpose(2, 0, 1) / np.float32(255))
    strided = torch.from_numpy(source).permute(2, 0, 1)
    for form in (source, chw(source), strided, source[::-1][::-1], np.asfortranarray(source), expected.double()):
        assert torch.equal(ToTensor()(form), expected)
    assert ToTensor()(source[:, :, 0]).shape == (1, 4, 6)
    assert ToTensor()(np.ones((2, 2, 3), ">i4")).dtype == torch.int32


@given(edges, edges, st.sampled_from([torch.float32, torch.float64, torch.float16]), st.booleans())
def test_normalize_is_its_formula(height: int, width: int, dtype: torch.dtype, inplace: bool) -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    image = torch.rand(3, height, width, generator=generator()).to(dtype)
    before = image.clone()
    out = Normalize(mean, std, inplace)(image)
    expected = (before.double() - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert out.dtype == dtype
    assert torch.allclose(out.double(), expected, atol=2e-2 if dtype == torch.float16 else 1e-6)
    assert (out is image) == inplace
    assert inplace or torch.equal(image, before)


@pytest.mark.parametrize(
    "image",
    [pil(5, 4), pixels(5, 4), chw(pixels(5, 4)), torch.rand(3, 5, 4), pil(5, 4).convert("F"), np.ones((5, 4, 1), "f4")],
    ids=lambda image: f"{type(image).__name__}-{getattr(image, 'dtype', '')}",
)
def test_scaling_and_normalising_together_give_the_same_result(image: Any) -> None:
    scale, normalize, before = ToTensor(), Normalize([0.4], [0.3]), array(image)
    assert torch.equal(Compose([scale, normalize])(image), normalize(scale(image)))
    assert np.array_equal(array(image), before)


# --- Errors ---


@pytest.mark.parametrize(
    ("transform", "value", "error", "message"),
    [
        (Resize(3), np.zeros((2, 2, 3), np.uint8), TypeError, "Resize takes a Pillow image or a torch tensor, not ndarray"),
        (RandomHorizontalFlip(), None, TypeError, "RandomHorizontalFlip takes .* not NoneType"),
        (RandomResizedCrop(3), torch.zeros(2, 2), ValueError, r"RandomResizedCrop: .*\(channels, height, width\), not \(2, 2\)"),
        (RandomResizedCrop(3), torch.zeros(9, 9, 3), ValueError, r"looks like \(height, width, channels\)"),
        (Resize(224), Image.new("L", (65500, 1)), ValueError, "Resize: an image 1 high and 65500 wide.* 224; give both edges"),
        (Resize(3), torch.zeros(3, 0, 2), ValueError, "Resize: the image has no pixels: it is 0 high and 2 wide"),
        (Resize((3, 3), "lanczos"), torch.zeros(3, 2, 2), TypeError, "'lanczos' is for Pillow .* nearest, nearest-exact, bil"),
        (Resize((3, 3)), torch.zeros(3, 2, 2, dtype=torch.bool), TypeError, "torch.bool"),
        (ToTensor(), [1], TypeError, "ToTensor takes .* not list"),
        (ToTensor(), torch.zeros(3, 2, 2, dtype=torch.int32), TypeError, "ToTensor takes a uint8 or floating tensor"),
        (ToTensor(), Image.new("I;16", (2, 2), 40000), ValueError, "over 32767.* mode 'I'"),
        (ToTensor(), Image.new("P", (2, 2)), TypeError, "a palette image holds numbers of colours"),
        (Normalize([0], [1]), torch.zeros(3, 2, 2, dtype=torch.uint8), TypeError, "not torch.uint8; put ToTensor before"),
        (Normalize([0, 0, 0], [1, 1, 1]), torch.zeros(1, 2, 2), ValueError, "for 3 channels, but the image has 1"),
        (FilterBoxes(), torch.zeros(3, 4, 4), TypeError, "put it into transforms="),
    ],
)  # fmt: skip
def test_other_values_are_rejected(transform: Any, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        transform(value)


@pytest.mark.parametrize(
    ("kind", "argument", "values"),
    [
        (Resize, "size", (0, 2.5, "224", True, None, (), (3,), (1, 2, 3), (3, 0))),
        (RandomCrop, "size", (-1,)),
        (Resize, "interpolation", ("bilinaer", ["x"], None)),
        (RandomResizedCrop, "scale", ((1.0, 0.1), 0.5, (1,))),
        (RandomResizedCrop, "ratio", ((0, 1), (1, math.inf))),
        (RandomCrop, "padding", (-1, [1, 2, 3], [1, 2, 3, 4, 5], "1")),
        (RandomCrop, "pad_if_needed", (1, "yes")),
        (Crop, "height", (0, True, 1.5)),
        (Crop, "top", (0.5, "1")),
        (RandomHorizontalFlip, "p", (1.5, "0.5", math.nan)),
        (RandomVerticalFlip, "keypoint_pairs", ([[0, 1], [1, 2]], [[0]], [[0, -1]], 3)),
        (Normalize, "mean", ([], [math.nan], 0.5)),
        (Normalize, "std", ([0.0], [1.0, 2.0], 0.5)),
        (FilterBoxes, "min_area", (-1, math.inf)),
        (Compose, "transforms", (ToTensor(), [ToTensor(), 3])),
        (Views, "transforms", ("ToTensor", [], [[ToTensor(), 3]])),
    ],
)  # fmt: skip
def test_arguments_are_checked_by_name(kind: type, argument: str, values: tuple[Any, ...]) -> None:
    valid: dict[str, Any] = {
        "size": 3,
        "top": 1,
        "left": 1,
        "height": 2,
        "width": 2,
        "mean": [0.1] * 3,
        "std": [1.0] * 3,
    }
    names = [each.name for each in dataclasses.fields(kind) if each.init]
    arguments = {name: valid[name] for name in names if name in valid}
    for value in values:
        with pytest.raises(ConfigError, match=rf"(Compose|{kind.__name__}): {argument}"):
            kind(**{**arguments, argument: value})


def test_numbers_of_numpy_are_numbers() -> None:
    three: Any = np.int64(3)
    numbers: Any = list(np.array([0.5, 0.25], np.float32))
    assert Resize(three) == Resize(3)
    assert Normalize(numbers, [0.5]) == Normalize([0.5, 0.25], [0.5])
