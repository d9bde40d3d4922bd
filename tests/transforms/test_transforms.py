"""Test the built-in transforms, their configs, and calls with a seed.

Small independent references replace torchvision, which cannot be installed beside CPU torch.

Imports private functions to compare the memory layout of results.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from storeds.errors import ConfigError, MissingDependencyError
from storeds.protocols import Array, SampleContext
from storeds.transforms import (
    BoundTransform,
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
    apply_transform,
    build_transform,
)

edges = st.integers(1, 64)
ALL: list[Any] = [
    Resize(8),
    Resize((5, 9), "bicubic"),
    CenterCrop(12),
    RandomResizedCrop(10),
    RandomHorizontalFlip(0.3),
    ToTensor(),
    Normalize([0.5], [0.25]),
    Compose([Resize(8), RandomHorizontalFlip(), ToTensor()]),
]


def pixels(height: int, width: int, channels: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def pil(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(pixels(height, width, seed=seed))


def chw(image: Image.Image | Array) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def gradient(height: int, width: int) -> Image.Image:
    """An image whose pixels tell their place: red is the row, green the column."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([rows, columns, rows + columns], -1).astype(np.uint8))


def array(value: Any) -> Array:
    return value.numpy().copy() if isinstance(value, torch.Tensor) else np.array(value)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same(one: Any, other: Any) -> bool:
    return np.array_equal(array(one), array(other))


# --- Resize ---


@given(edges, edges, edges)
def test_resize_to_an_int_sets_the_shorter_edge_and_rounds_the_longer_one_down(
    height: int, width: int, size: int
) -> None:
    resized = Resize(size)(pil(height, width))
    longer = size * max(height, width) // min(height, width)
    assert min(resized.size) == size
    assert abs(max(resized.size) - longer) <= (1 if size * max(height, width) % min(height, width) == 0 else 0)
    assert (resized.width <= resized.height) == (width <= height) or resized.width == resized.height


@pytest.mark.parametrize(
    ("height", "width", "size", "expected"),
    [
        (375, 500, 256, (256, 341)),
        (500, 375, 256, (341, 256)),
        (3, 10, 5, (5, 16)),
        (7, 7, 3, (3, 3)),
        (1, 9, 2, (2, 18)),
    ],
)
def test_resize_keeps_the_aspect_ratio(height: int, width: int, size: int, expected: tuple[int, int]) -> None:
    assert Resize(size)(chw(pixels(height, width))).shape[-2:] == expected


@given(edges, edges, edges, edges, st.sampled_from(["bilinear", "bicubic", "nearest", "box", "hamming", "lanczos"]))
def test_resize_of_a_pillow_image_is_pillows(height: int, width: int, to_h: int, to_w: int, name: str) -> None:
    image = pil(height, width)
    expected = image.resize((to_w, to_h), Image.Resampling[name.upper()])
    resized = Resize((to_h, to_w), name)(image)
    assert resized.size == (to_w, to_h)
    assert same(resized, expected)


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


@given(edges, edges, edges, edges)
def test_nearest_exact_of_a_tensor_is_pillows_nearest(height: int, width: int, to_h: int, to_w: int) -> None:
    image = pil(height, width)
    resized = Resize((to_h, to_w), "nearest-exact")(chw(image)).float()
    # Of two pixels equally near, each may take another.
    expected = chw(Resize((to_h, to_w), "nearest-exact")(image)).float()
    ties = any(old * (2 * new + 1) % (2 * to) == 0 for old, to in ((height, to_h), (width, to_w)) for new in range(to))
    assert ties or torch.equal(resized, expected)


def test_bicubic_stays_in_the_range_of_integers() -> None:
    edge = torch.zeros(1, 8, 8, dtype=torch.int16)
    edge[..., 4:] = 32767
    up = Resize((8, 64), "bicubic")(edge)
    assert up.min() >= -4000  # it overshoots downwards, and does not wrap upwards to -32768
    assert (up[0, 0, 40:] > 30000).all()


@pytest.mark.parametrize("transform", [Resize(6), CenterCrop((30, 5)), RandomResizedCrop(7), RandomHorizontalFlip(1)])
def test_leading_dimensions_are_kept(transform: Callable[..., torch.Tensor]) -> None:
    clip = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 4, 3, 20, 16), dtype=np.uint8))
    out = transform(clip, generator()) if "Random" in repr(transform) else transform(clip)
    assert out.shape[:3] == (2, 4, 3)
    one = transform(clip[1, 2], generator()) if "Random" in repr(transform) else transform(clip[1, 2])
    assert torch.equal(out[1, 2], one)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "CMYK", "1", "P", "I", "F", "I;16"])
def test_pillow_modes_are_kept(mode: str) -> None:
    image = Image.new("I;16", (9, 7)) if mode == "I;16" else pil(7, 9).convert(mode)
    for transform in (Resize((4, 5)), CenterCrop(11), CenterCrop(3), RandomHorizontalFlip(1), RandomResizedCrop(4)):
        assert transform(image).mode == mode


def test_an_image_of_that_size_comes_back_as_it_is() -> None:
    image, tensor = pil(6, 8), chw(pixels(6, 8))
    for transform in (Resize(6), Resize((6, 8)), CenterCrop((6, 8)), RandomHorizontalFlip(0)):
        assert transform(image) is image
        assert transform(tensor) is tensor


def test_a_line_of_pixels_is_not_enlarged_beyond_the_limit() -> None:
    with pytest.raises(
        ValueError, match=r"Resize: an image 1 high and 65500 wide.* shorter edge of 224; give both edges"
    ):
        Resize(224)(Image.new("L", (65500, 1)))
    assert Resize((224, 300))(Image.new("L", (65500, 1))).size == (300, 224)


# --- CenterCrop ---


def centered(length: int, wanted: int) -> list[int | None]:
    """Which of `length` pixels a centered window of `wanted` shows; None for padding."""
    if wanted <= length:
        start = round((length - wanted) / 2.0)
        return list(range(start, start + wanted))
    before = (wanted - length) // 2
    return [None] * before + list(range(length)) + [None] * (wanted - length - before)


@given(edges, edges, edges, edges)
def test_center_crop_shows_the_middle_and_zeros_around(height: int, width: int, to_h: int, to_w: int) -> None:
    source = pixels(height, width) // 2 + 1  # no zeros
    expected = np.zeros((to_h, to_w, 3), np.uint8)
    for (i, row), (j, column) in itertools.product(enumerate(centered(height, to_h)), enumerate(centered(width, to_w))):
        if row is not None and column is not None:
            expected[i, j] = source[row, column]
    crop = CenterCrop((to_h, to_w))
    assert same(crop(Image.fromarray(source)), expected)
    assert torch.equal(crop(chw(source)), chw(expected))


def test_a_cropped_tensor_shares_no_memory_with_its_image() -> None:
    tensor = torch.ones(3, 8, 8)
    cropped = CenterCrop(4)(tensor)
    cropped.zero_()
    assert tensor.sum() == 3 * 64
    assert cropped.untyped_storage().nbytes() == 3 * 16 * 4


# --- RandomResizedCrop ---


def window_by_the_book(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], seed: int
) -> tuple[int, int, int, int]:
    """The published algorithm, in double precision, drawing the same numbers."""
    source = generator(seed)

    def uniform(low: float, high: float) -> float:
        return float(torch.empty(1).uniform_(low, high, generator=source))

    for _ in range(10):
        area = uniform(*scale) * height * width
        aspect = math.exp(uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, (1,), generator=source))
            return top, int(torch.randint(0, width - w + 1, (1,), generator=source)), h, w
    h, w = height, width
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    return (height - h) // 2, (width - w) // 2, h, w


INTERVALS = [
    ((0.08, 1.0), (3 / 4, 4 / 3)),
    ((0.3, 0.3), (1.0, 1.0)),
    ((0.9, 1.0), (3.0, 4.0)),
    ((1.0, 1.0), (0.2, 0.4)),
]


@given(edges, edges, st.sampled_from(INTERVALS), st.integers(0, 2**40))
def test_windows_lie_inside_and_follow_torchvision(height: int, width: int, intervals: Any, seed: int) -> None:
    scale, ratio = intervals
    top, left, h, w = RandomResizedCrop(8, scale, ratio).window(height, width, generator(seed))
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h > 0
    assert w > 0
    # float32 and double may round half a pixel to different sides, after which other places are drawn.
    by_the_book = window_by_the_book(height, width, scale, ratio, seed)
    assert (top, left, h, w) == by_the_book or abs(h - by_the_book[2]) + abs(w - by_the_book[3]) == 1


@given(edges, edges, edges, edges, st.integers(0, 2**40))
def test_random_resized_crop_cuts_its_window_and_resizes_it(
    height: int, width: int, to_h: int, to_w: int, seed: int
) -> None:
    transform, image = RandomResizedCrop((to_h, to_w)), pil(height, width)
    top, left, h, w = transform.window(height, width, generator(seed))
    expected = image.crop((left, top, left + w, top + h)).resize((to_w, to_h), Image.Resampling.BILINEAR)
    assert same(transform(image, generator(seed)), expected)
    tensor = transform(chw(image), generator(seed))
    assert tensor.shape == (3, to_h, to_w)
    assert (tensor.float() - chw(expected).float()).abs().max() <= 2


def test_windows_have_the_requested_areas_ratios_and_positions() -> None:
    transform, source = RandomResizedCrop(8, (0.1, 0.5), (0.5, 2.0)), generator(1)
    windows = np.array([transform.window(1000, 1000, source) for _ in range(3000)])
    area, ratio = windows[:, 2] * windows[:, 3] / 1e6, np.log(windows[:, 3] / windows[:, 2])
    assert area.min() > 0.099
    assert area.max() < 0.501
    assert abs(area.mean() - 0.3) < 0.01  # uniform
    assert abs(ratio.mean()) < 0.03  # uniform in the logarithm: as often wide as high
    assert abs(ratio.std() - math.log(4) / math.sqrt(12)) < 0.02
    place = windows[:, 0] / (1000 - windows[:, 2])
    assert abs(place.mean() - 0.5) < 0.02
    assert abs(place.std() - 1 / math.sqrt(12)) < 0.02


@pytest.mark.parametrize(
    ("shape", "ratio", "expected"),
    [
        ((100, 10), (3 / 4, 4 / 3), (43, 0, 13, 10)),  # too high: the widest of the greatest allowed height
        ((10, 100), (3 / 4, 4 / 3), (0, 43, 10, 13)),
        ((1, 50), (0.2, 0.4), (0, 24, 1, 1)),  # torchvision makes this window empty
    ],
)
def test_without_a_fitting_window_the_middle_is_used(shape: tuple[int, int], ratio: Any, expected: Any) -> None:
    assert RandomResizedCrop(8, (1.0, 1.0), ratio).window(*shape, generator()) == expected
    assert RandomResizedCrop(8, (2.0, 2.0)).window(10, 10, generator()) == (0, 0, 10, 10)


# --- RandomHorizontalFlip ---


def test_flip_mirrors_left_and_right() -> None:
    source = pixels(5, 7)
    assert same(RandomHorizontalFlip(1)(Image.fromarray(source)), source[:, ::-1])
    assert torch.equal(RandomHorizontalFlip(1)(chw(source)), chw(source[:, ::-1].copy()))


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_flip_happens_with_its_probability(p: float) -> None:
    image, source, flip = gradient(1, 2), generator(3), RandomHorizontalFlip(p)
    flipped = sum(flip(image, source) is not image for _ in range(2000))
    assert abs(flipped / 2000 - p) < 0.03 if 0 < p < 1 else flipped == 2000 * p


def test_flip_draws_once_whatever_its_probability() -> None:
    left = []
    for p in (0, 0.5, 1):
        source = generator(5)
        RandomHorizontalFlip(p)(pil(2, 2), source)
        left.append(torch.rand(1, generator=source).item())
    assert len(set(left)) == 1


# --- ToTensor ---


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4), ("CMYK", 4), ("YCbCr", 3)]
)
def test_eight_bit_modes_become_float32_in_the_unit_interval(mode: str, channels: int) -> None:
    image = pil(5, 7).convert("L").convert(mode) if mode == "LA" else pil(5, 7).convert(mode)
    tensor = ToTensor()(image)
    assert tensor.shape == (channels, 5, 7)
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    expected = np.array(image).reshape(5, 7, channels).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    assert same(tensor, expected)


def test_one_bit_becomes_zero_or_one() -> None:
    tensor = ToTensor()(Image.fromarray(np.array([[True, False]])))
    assert tensor.tolist() == [[[1.0, 0.0]]]
    assert tensor.dtype == torch.float32


@pytest.mark.parametrize(
    ("mode", "dtype", "value"),
    [("I;16", torch.int16, 32767), ("I;16B", torch.int16, 515), ("I", torch.int32, -70000), ("F", torch.float32, -0.5)],
)
def test_wider_modes_keep_their_values(mode: str, dtype: torch.dtype, value: float) -> None:
    tensor = ToTensor()(Image.new(mode, (2, 3), value))
    assert tensor.dtype == dtype
    assert tensor.shape == (1, 3, 2)
    assert (tensor == value).all()


def test_values_beyond_int16_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"ToTensor: .* over 32767.* mode 'I'"):
        ToTensor()(Image.new("I;16", (2, 2), 40000))


def test_arrays_and_tensors_become_tensors_too() -> None:
    source = pixels(4, 6)
    expected = torch.from_numpy(source.transpose(2, 0, 1) / np.float32(255))
    for form in (
        source,
        chw(source),
        torch.from_numpy(source).permute(2, 0, 1),
        source[::-1][::-1],
        np.asfortranarray(source),
    ):
        assert torch.equal(ToTensor()(form), expected)
    assert ToTensor()(source[:, :, 0]).shape == (1, 4, 6)
    assert torch.equal(ToTensor()(expected.double()), expected)


def test_other_arrays_keep_their_dtype_and_share_no_memory() -> None:
    source = np.ones((3, 4, 1), np.float32)
    tensor = ToTensor()(source)
    tensor.zero_()
    assert tensor.dtype == torch.float32
    assert source.all()
    assert ToTensor()(np.ones((2, 2, 3), ">i4")).dtype == torch.int32


# --- Normalize ---


@given(edges, edges, st.sampled_from([torch.float32, torch.float64, torch.float16]), st.booleans())
def test_normalize_is_its_formula(height: int, width: int, dtype: torch.dtype, inplace: bool) -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    image = torch.rand(3, height, width, generator=generator()).to(dtype)
    before = image.clone()
    out = Normalize(mean, std, inplace)(image)
    assert out.dtype == dtype
    expected = (before.double() - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(out.double(), expected, atol=2e-2 if dtype == torch.float16 else 1e-6)
    assert (out is image) == inplace
    assert inplace or torch.equal(image, before)


def test_normalize_takes_one_number_for_all_channels() -> None:
    assert torch.equal(Normalize([0.5], [0.25])(torch.ones(5, 2, 2)), torch.full((5, 2, 2), 2.0))
    assert torch.equal(Normalize([0.5, 1], [0.5])(torch.ones(2, 1, 1)), torch.tensor([1.0, 0])[:, None, None])


# --- all of them ---


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_pickling_keeps_what_a_transform_is_and_does(transform: Any) -> None:
    twin = pickle.loads(pickle.dumps(transform))
    assert twin == transform
    assert repr(twin) == repr(transform)
    assert hash(twin) == hash(transform)
    assert eval(repr(transform)) == transform
    image = chw(pixels(9, 13)).float()
    bound = pickle.loads(pickle.dumps(BoundTransform(transform)))
    context = SampleContext(4, seed=1)
    assert same(bound(image, context), apply_transform(transform, image, SampleContext(4, seed=1)))


@pytest.mark.parametrize("transform", ALL, ids=repr)
@pytest.mark.parametrize("make", [lambda: pil(9, 13), lambda: chw(pixels(9, 13)), lambda: torch.rand(3, 9, 13)])
def test_the_image_given_is_not_changed(transform: Any, make: Callable[[], Any]) -> None:
    image = make()
    before = array(image)
    if isinstance(transform, Normalize):
        image = ToTensor()(image)
        before = array(image)
    for index in range(5):
        apply_transform(transform, image, SampleContext(index, seed=0))
    assert same(image, before)


@pytest.mark.parametrize("transform", [RandomResizedCrop(6), Compose([RandomHorizontalFlip(), RandomResizedCrop(6)])])
def test_randomness_comes_from_the_generator_alone(transform: Any) -> None:
    image = pil(30, 30)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    first = transform(image, generator(1))
    torch.rand(7)
    random.random()
    assert same(transform(image, generator(1)), first)
    assert not same(transform(image, generator(2)), first)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    transform(image, generator(3))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


@pytest.mark.parametrize("transform", [RandomResizedCrop(6), Compose([RandomHorizontalFlip(), RandomResizedCrop(6)])])
def test_none_stands_for_torchs_global_generator(transform: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        through_global = transform(pil(30, 30))
    assert same(through_global, transform(pil(30, 30), generator(11)))


@pytest.mark.parametrize(
    ("transform", "value", "error", "message"),
    [
        (Resize(3), np.zeros((2, 2, 3), np.uint8), TypeError, "Resize takes a Pillow image or a torch tensor, not ndarray"),
        (CenterCrop(3), "a.jpg", TypeError, "CenterCrop takes .* not str"),
        (RandomHorizontalFlip(), None, TypeError, "RandomHorizontalFlip takes .* not NoneType"),
        (RandomResizedCrop(3), torch.zeros(2, 2), ValueError, r"RandomResizedCrop: .*\(channels, height, width\), not \(2, 2\)"),
        (Resize(3), torch.zeros(3, 0, 2), ValueError, "Resize: the image has no pixels: it is 0 high and 2 wide"),
        (Resize((3, 3), "lanczos"), torch.zeros(3, 2, 2), TypeError, "Resize: interpolation 'lanczos' .* nearest, nearest-exact, bil"),
        (Resize((3, 3)), torch.zeros(3, 2, 2, dtype=torch.bool), TypeError, "Resize takes tensors of integers or floats, not torch.bool"),
        (ToTensor(), [1], TypeError, "ToTensor takes .* not list"),
        (ToTensor(), torch.zeros(3, 2, 2, dtype=torch.int32), TypeError, "ToTensor takes a uint8 or floating tensor, not torch.int32"),
        (ToTensor(), np.zeros(3), ValueError, r"ToTensor: an array image has shape .*, not \(3,\)"),
        (ToTensor(), np.array([["a"]]), TypeError, "ToTensor: torch has no dtype for .* <U1"),
        (Normalize([0], [1]), torch.zeros(3, 2, 2, dtype=torch.uint8), TypeError, "Normalize takes .* not torch.uint8; put ToTensor before"),
        (Normalize([0], [1]), pil(2, 2), TypeError, "Normalize takes a floating tensor, not Image"),
        (Normalize([0, 0, 0], [1, 1, 1]), torch.zeros(1, 2, 2), ValueError, "Normalize has numbers for 3 channels, but the image has 1"),
        (Normalize([0], [1e-30]), torch.zeros(1, 2, 2).half(), ValueError, "Normalize: a deviation of 1e-30 is zero in torch.float16"),
    ],
)  # fmt: skip
def test_other_values_are_rejected(transform: Any, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        transform(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *[
            (functools.partial(cast(Any, owner), size), f"{owner.__name__}: size must be a positive int or a pair")
            for owner in (Resize, CenterCrop, RandomResizedCrop)
            for size in (0, -1, 2.5, "224", True, None, (), (1, 2, 3), (3, 0))
        ],
        (lambda: Resize(3, "bilinaer"), "Resize: unknown interpolation 'bilinaer'; did you mean 'bilinear'"),
        (lambda: RandomResizedCrop(3, interpolation=["x"]), r"RandomResizedCrop: unknown interpolation \['x'\]; the interp"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(3, scale=(1.0, 0.1)), r"RandomResizedCrop: scale must be .* not \(1.0, 0.1\)"),
        (lambda: RandomResizedCrop(3, scale=0.5), "RandomResizedCrop: scale must be .* not 0.5"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(3, ratio=(0, 1)), "RandomResizedCrop: ratio must be"),
        (lambda: RandomResizedCrop(3, ratio=(1, math.inf)), "RandomResizedCrop: ratio must be"),
        (lambda: RandomHorizontalFlip(1.5), r"RandomHorizontalFlip: p must be a number in \[0, 1\], not 1.5"),
        (lambda: RandomHorizontalFlip("0.5"), "RandomHorizontalFlip: p must be"),  # type: ignore[arg-type]
        (lambda: RandomHorizontalFlip(math.nan), "RandomHorizontalFlip: p must be"),
        (lambda: Normalize([], [1]), "Normalize: mean must be a list of finite numbers"),
        (lambda: Normalize([math.nan], [1]), "Normalize: mean must be"),
        (lambda: Normalize([0.5], 0.5), "Normalize: std must be a list"),  # type: ignore[arg-type]
        (lambda: Normalize([0.5], [0.0]), "Normalize: std must be above zero"),
        (lambda: Normalize([1, 2, 3], [1, 2]), "Normalize: mean has 3 channels and std 2"),
        (lambda: Normalize([1], [2], "no"), "Normalize: inplace must be true or false"),  # type: ignore[arg-type]
        (lambda: Compose([ToTensor(), 3]), r"Compose: transforms\[1\] is not callable: it is 3"),  # type: ignore[list-item]
        (lambda: Compose(ToTensor()), "Compose: transforms must be a list"),  # type: ignore[arg-type]
        (lambda: Compose("ToTensor"), "Compose: transforms must be a list"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_arguments_are_checked_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# --- configs ---


def brighten(value: float, amount: float = 1.0) -> float:
    return value + amount


def need(value: float, amount: float, *, generator: torch.Generator | None) -> float:
    return value + amount


class Scale:
    def __init__(self, factor: float, *, offset: float = 0) -> None:
        if factor < 0:
            raise ValueError("factor is negative")
        self.factor, self.offset = factor, offset

    def __call__(self, value: float) -> float:
        return value * self.factor + self.offset

    @classmethod
    def double(cls) -> Scale:
        return cls(2)


class Inert:
    pass


class Hungry:
    def __init__(self) -> None:
        raise ImportError("no module named scipy")


answer = 42
HERE = __name__


def test_none_and_callables_pass_through() -> None:
    assert build_transform(None) is None
    for transform in (brighten, ToTensor(), int):
        assert build_transform(transform) is transform


def test_names_mappings_and_lists_build_transforms() -> None:
    assert build_transform("ToTensor") == ToTensor()
    assert build_transform({"name": "Resize", "size": [4, 5]}) == Resize((4, 5))
    built = build_transform(
        [{"name": "RandomResizedCrop", "size": 224, "scale": [0.5, 1]}, RandomHorizontalFlip(), "ToTensor"]
    )
    assert built == Compose([RandomResizedCrop(224, (0.5, 1.0)), RandomHorizontalFlip(), ToTensor()])
    assert build_transform([]) == Compose([])
    assert build_transform({"name": "Compose", "transforms": ["ToTensor"]}) == Compose([ToTensor()])
    assert build_transform([["ToTensor"], "ToTensor"]) == Compose([Compose([ToTensor()]), ToTensor()])


def test_dotted_paths_reach_any_class_or_function() -> None:
    for path in (f"{HERE}:Scale", f"{HERE}.Scale"):
        scale = build_transform({"name": path, "factor": 3, "offset": 1})
        assert isinstance(scale, Scale)
        assert scale(2) == 7
    assert build_transform(f"{HERE}.brighten") is brighten
    partial = build_transform({"name": f"{HERE}:brighten", "amount": 5})
    assert isinstance(partial, functools.partial)
    assert partial(1) == 6
    assert build_transform("numpy.linalg.norm") is np.linalg.norm
    assert build_transform({"name": f"{HERE}:catch_all", "generator": 3})(1) == 3  # type: ignore[misc]
    module = build_transform({"name": "torch.nn.Threshold", "threshold": 0.5, "value": 0.0})
    assert isinstance(module, torch.nn.Threshold)
    assert build_transform(f"{HERE}:Scale.double") == Scale.double
    assert build_transform({"name": f"{HERE}:need", "amount": 2})(1, generator=None) == 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (3, "transform: expected a callable, a name, a mapping .* not 3"),
        (b"ToTensor", "transform: expected a callable"),
        ([None], r"transform\[0\]: expected a callable"),
        ("Resise", "transform: unknown transform 'Resise'; did you mean 'Resize'. The transforms are AugMix, AutoAugment, .*dotted path"),
        (["ToTensor", {"name": "qqq"}], r"transform\[1\]: unknown transform 'qqq'; the transforms are"),
        ([["ToTensor"], ["Resise"]], r"transform\[1\]\[0\]: unknown transform"),
        ({"size": 3}, "transform: a mapping needs the transform's 'name', a string; it is {'size': 3}"),
        ({"name": Resize}, "needs the transform's 'name', a string"),
        ({"name": "Resize", 3: 4}, "the arguments of 'Resize' must be named by strings, not 3"),
        ({"name": "Resize", "sise": 3}, "transform: 'Resize' has no argument 'sise'; did you mean 'size'. The arguments are size, interpolation"),
        ("Resize", "transform: 'Resize' needs the argument 'size'; the arguments are size, interpolation"),
        ({"name": "ToTensor", "x": 1}, "'ToTensor' has no argument 'x'; there are no arguments"),
        ([{"name": "Resize", "size": -3}], r"transform\[0\]: Resize: size must be"),
        ({"name": "Compose", "transforms": "ToTensor"}, "transform: Compose: transforms must be a list"),
        ({"name": f"{HERE}:brighten", "amuont": 5}, ":brighten' has no argument 'amuont'; did you mean 'amount'. The arguments are amount"),
        (f"{HERE}:need", ":need' needs the argument 'amount'; the arguments are amount, generator"),
        ({"name": f"{HERE}:Scale", "factor": -1}, r":Scale' refuses the arguments {'factor': -1}: ValueError: factor is negative"),
        (f"{HERE}:Inert", "an instance of .*:Inert' is not callable"),
        ("builtins.int", "an instance of 'builtins.int' is not callable"),
        (f"{HERE}:answer", ":answer' is not callable: it is 42"),
        (f"{HERE}:Scael", f"'{HERE}:Scael' cannot be imported: '{HERE}' has no 'Scael'; did you mean 'Scale'"),
        (f"{HERE}.Scale.tripel", f"'{HERE}.Scale' has no 'tripel'; the names there are double"),
        ("torch.nn.Thresold", "cannot be imported: 'torch.nn' has no 'Thresold'; did you mean 'Threshold'"),
        ("torch.no_such:Thing", "'torch.no_such:Thing' cannot be imported: there is no module 'torch.no_such'"),
        ("a..b", "'a..b' must have the form package.module.Name or package.module:Name"),
        (":b", "':b' must have the form"),
        ("../evil.py", "must have the form"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_built_says_why(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_transform(spec)


def test_a_missing_package_has_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "storeds_test_lacking.py").write_text("import no_such_package_here\n")
    (tmp_path / "storeds_test_refusing.py").write_text("from math import no_such_name\n")
    (tmp_path / "storeds_test_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingDependencyError, match=r"no package 'nosuch' is installed; tried nosuch.v2.x, nosuch.v2, nosuch$"
    ):
        build_transform("nosuch.v2.x.Name")
    with pytest.raises(
        MissingDependencyError, match=r"'storeds_test_lacking' needs a package that is missing: .*no_such_package_here"
    ):
        build_transform("storeds_test_lacking.Name")
    with pytest.raises(MissingDependencyError, match=r"importing 'storeds_test_refusing': .*no_such_name"):
        build_transform("storeds_test_refusing:Name")
    with pytest.raises(ConfigError, match="importing 'storeds_test_broken' raised ZeroDivisionError"):
        build_transform("storeds_test_broken:Name")
    with pytest.raises(
        MissingDependencyError, match=r"transform\[0\]: .*:Hungry' needs a package that is missing: .*scipy"
    ):
        build_transform([f"{HERE}:Hungry"])


# --- randomness of foreign transforms ---


def draw_all(value: Any) -> list[float]:
    """What a foreign transform sees: one number of each global generator."""
    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def keep(value: Any) -> Any:
    return value


def draw_more(value: Any) -> Any:
    return [*value, *draw_all(value)]


def fail(value: Any) -> Any:
    draw_all(value)
    np.random.randn()  # leaves half a pair behind, which belongs to the state
    raise RuntimeError("no")


def global_states() -> tuple[Any, ...]:
    legacy: Any = np.random.get_state(legacy=False)
    return torch.get_rng_state().tolist(), legacy["state"]["key"].tolist(), legacy["gauss"], random.getstate()


@pytest.fixture
def states() -> Any:
    np.random.randn()
    before = global_states()
    yield before
    assert global_states() == before


@pytest.mark.parametrize("transform", [draw_all, Compose([draw_all]), functools.partial(draw_all)])
def test_foreign_transforms_are_reproducible_under_a_seed(transform: Any, states: Any) -> None:
    bound = BoundTransform(transform)
    first = bound(0, SampleContext(3, epoch=1, seed=7))
    assert first == pickle.loads(pickle.dumps(bound))(0, SampleContext(3, epoch=1, seed=7))
    assert first == apply_transform(transform, 0, SampleContext(3, epoch=1, seed=7))
    others = [SampleContext(4, 1, 7), SampleContext(3, 2, 7), SampleContext(3, 1, 8)]
    for number in range(3):
        assert len({first[number], *(bound(0, other)[number] for other in others)}) == 4


def test_foreign_siblings_get_different_numbers(states: Any) -> None:
    drawn = apply_transform(Compose([draw_all, draw_more, Compose([draw_more])]), 0, SampleContext(1, seed=0))
    assert len(set(drawn)) == 9


def test_two_transforms_of_one_sample_get_different_numbers(states: Any) -> None:
    context = SampleContext(1, seed=0)
    assert not {*apply_transform(draw_all, 0, context)} & {*apply_transform(draw_all, 0, context)}


@pytest.mark.parametrize("transform", [fail, Compose([draw_all, fail])])
def test_global_states_come_back_when_a_transform_raises(transform: Any, states: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^no$"):
        apply_transform(transform, 0, SampleContext(1, seed=0))


class Drawing(torch.utils.data.Dataset[list[float]]):
    """Draws by a foreign transform; in a worker, nothing gives the global generators back."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> list[float]:
        return [*BoundTransform(draw_all)(0, SampleContext(index, epoch=1, seed=7)), *draw_all(0)]


def test_workers_draw_the_numbers_of_the_training_process() -> None:
    inside = [BoundTransform(draw_all)(0, SampleContext(index, epoch=1, seed=7)) for index in range(6)]
    loader = torch.utils.data.DataLoader(Drawing(), batch_size=None, num_workers=2)
    assert [drawn[:3] for drawn in loader] == inside


def test_a_default_device_does_not_matter() -> None:
    transform = Compose(
        [RandomResizedCrop(6, ratio=(0.7, 1.3)), RandomHorizontalFlip(), keep, ToTensor(), Normalize([0.5], [0.5])]
    )

    def transformed(device: str | None) -> torch.Tensor:
        torch.set_default_device(device)
        made: torch.Tensor = apply_transform(transform, pil(9, 13), SampleContext(1, seed=0))
        torch.set_default_device(None)
        return made

    # "meta" has no values, so a number that is drawn there raises. Each thread has tensors of its own to draw into.
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(transformed, "meta").result()
    assert torch.equal(found, transformed(None))


def test_without_a_seed_foreign_transforms_are_just_called() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        expected = draw_all(0)
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        assert apply_transform(draw_all, 0, SampleContext(9)) == expected
        assert apply_transform(Compose([draw_more]), [], SampleContext(9)) not in ([], expected)
    assert apply_transform(None, 3, SampleContext(1)) == 3


@pytest.mark.parametrize("own", ["Resize", "CenterCrop", "ToTensor"])
def test_transforms_that_draw_nothing_change_no_numbers(own: str, states: Any) -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    steps = [own if own == "ToTensor" else {"name": own, "size": 4}]
    context = SampleContext(1, seed=0)
    apply_transform(build_transform(steps), image, context)
    assert apply_transform(draw_all, 0, context) == apply_transform(draw_all, 0, SampleContext(1, seed=0))


def test_steps_done_together_or_later_leave_what_follows_the_same_numbers(states: Any) -> None:
    image = torch.arange(192, dtype=torch.uint8).reshape(3, 8, 8)
    scaling: list[Any] = ["ToTensor", {"name": "Normalize", "mean": [0.5], "std": [0.5]}]
    flip = {"name": "RandomHorizontalFlip"}
    for index in range(20):
        together, apart = SampleContext(index, seed=2), SampleContext(index, seed=2)
        joined = apply_transform(build_transform([*scaling, flip]), image, together)
        value: Any = image
        for step in [*scaling, flip]:
            value = apply_transform(build_transform(step), value, apart)
        assert torch.equal(joined, value)
        later = SampleContext(index, seed=2)
        BoundTransform(cast("Any", build_transform([flip, *scaling])), may_wait=True)(image, later)
        at_once = SampleContext(index, seed=2)
        apply_transform(build_transform([flip, *scaling]), image, at_once)
        assert apply_transform(draw_all, 0, later) == apply_transform(draw_all, 0, at_once)


class Torchlike(torch.nn.Module):
    def forward(self, value: Any, generator: torch.Generator | None = None) -> Any:
        return generator


def keyword_only(value: Any, *, generator: Any) -> Any:
    return generator


def positional_only(value: Any, generator: Any, /) -> Any:
    return generator


def named_generator(generator: Any) -> Any:
    return generator


def catch_all(*values: Any, **names: Any) -> Any:
    return names.get("generator")


@pytest.mark.parametrize("transform", [Torchlike(), keyword_only, positional_only, lambda v, generator=3: generator])
def test_a_parameter_named_generator_gets_the_samples(transform: Any) -> None:
    context = SampleContext(1, seed=0)
    assert apply_transform(transform, 0, context) is context.generator
    assert apply_transform(Compose([Compose([transform])]), 0, context) is context.generator
    assert apply_transform(transform, 0, SampleContext(1)) is None


def test_similar_parameters_get_no_generator() -> None:
    context = SampleContext(1, seed=0)
    assert apply_transform(named_generator, "value", context) == "value"
    assert apply_transform(catch_all, 0, context) is None
    assert apply_transform(functools.partial(keyword_only, generator="mine"), 0, context) == "mine"
    assert apply_transform(functools.partial(keyword_only), 0, context) is context.generator
    assert apply_transform(int, "3", context) == 3  # has no signature


def test_a_foreign_transform_may_hold_ours(states: Any) -> None:
    inner = Compose([RandomHorizontalFlip(), draw_all])
    results = [apply_transform(lambda value: inner(value), pil(2, 2), SampleContext(1, seed=0)) for _ in range(2)]
    assert results[0] == results[1]
    nested = BoundTransform(draw_all)
    apply_transform(lambda value: nested(value, SampleContext(2, seed=0)), 0, SampleContext(1, seed=0))


def test_threads_do_not_mix_their_foreign_randomness(states: Any) -> None:
    bound = BoundTransform(Compose([draw_all, draw_more]))
    expected = [bound(0, SampleContext(index, seed=0)) for index in range(40)]
    found: dict[int, Any] = {}

    def work(start: int) -> None:
        for index in range(start, 40, 4):
            found[index] = bound(0, SampleContext(index, seed=0))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert [found[index] for index in range(40)] == expected


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_a_thread_transforms_leaves_no_lock_behind() -> None:
    inside, done = threading.Event(), threading.Event()

    def slow(value: Any) -> None:
        inside.set()
        done.wait(30)

    thread = threading.Thread(target=apply_transform, args=(slow, 0, SampleContext(0, seed=0)))
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # kills a child that waits for the lock
        good = len(apply_transform(draw_all, 0, SampleContext(1, seed=0))) == 3
        os._exit(0 if good else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert status == 0


def test_a_bound_transform_shows_what_it_binds() -> None:
    assert repr(BoundTransform(Resize(3))) == "Resize(size=3, interpolation='bilinear')"
    assert (
        repr(Compose([Resize((3, 4)), ToTensor()]))
        == "Compose([Resize(size=(3, 4), interpolation='bilinear'), ToTensor()])"
    )


# --- Pixels whose channels lie last in memory ---


@given(edges, edges, edges, st.integers(0, 9))
def test_results_do_not_depend_on_the_memory_layout(height: int, width: int, size: int, seed: int) -> None:
    strided = torch.from_numpy(pixels(height, width, seed=seed)).permute(2, 0, 1)
    steps: list[Any] = [RandomResizedCrop(size), RandomHorizontalFlip(), Resize(size), CenterCrop(size), ToTensor()]
    for steps_so_far in (steps[:1], steps[1:2], steps[2:3], steps[3:4], steps):
        transform = Compose(steps_so_far)
        found = transform(strided, generator(seed))
        assert same(found.contiguous(), transform(strided.contiguous(), generator(seed)))


IMAGES = [
    pil(5, 4),
    pixels(5, 4),
    chw(pixels(5, 4)),
    torch.rand(3, 5, 4),
    pil(5, 4).convert("F"),
    pixels(5, 4, 1).astype(np.float32),
]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: f"{type(image).__name__}-{getattr(image, 'dtype', '')}")
def test_merged_scaling_and_normalising_give_the_same_result(image: Any) -> None:
    scale, normalize = ToTensor(), Normalize([0.4], [0.3])
    before = array(image)
    assert torch.equal(Compose([scale, normalize])(image), normalize(scale(image)))
    assert np.array_equal(array(image), before)
