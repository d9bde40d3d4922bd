"""Crops are drawn before decoding, and decode only the part that they need, to the pixels of the whole picture.

The oracle decodes whole pictures with simplejpeg, or hides the crop from the reader. Debian's ``jpegtran`` writes restart
markers. Imports private functions, because samples do not show how much of a picture was decoded.
"""

from __future__ import annotations

import functools
import io
import itertools
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

import storeds
from jpeg_corpus import random_corpus
from jpeg_encodings import ENCODINGS, encode
from photographs import jpeg, photograph, saved
from picture_stores import exif, foreign, hidden, picture_store
from shares import FULL, SEED, examples
from storeds import StoreDataset, readers
from storeds.pictures import JpegCutter, read_header
from storeds.protocols import CropRequest
from storeds.readers import decode_fast, decode_tensor, decode_windows
from storeds.transforms import (
    CenterCrop,
    Compose,
    Crop,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
    Views,
)
from wrapped_reader import WrappedReader

SAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]
INTERVALS = ["1B", "2B", "3B", "4B", "7B", "8B", "13B", "1", "2"]
CROP = RandomResizedCrop(24, scale=(0.05, 0.4))
ANY = RandomResizedCrop(24, scale=(0.05, 1.0))


def with_restarts(blob: bytes, interval: str, *options: str) -> bytes:
    """Put a marker after every ``4B`` MCUs or after every ``1`` row, losslessly."""
    command = ["jpegtran", "-copy", "all", *options, "-restart", interval]
    return subprocess.run(command, input=blob, capture_output=True, check=True).stdout


def encoded(image: Image.Image, sampling: str = "420", quality: int = 85) -> bytes:
    pixels = np.asarray(image.convert("L" if sampling == "Gray" else "RGB"))
    colour = "GRAY" if sampling == "Gray" else "RGB"
    pixels = np.ascontiguousarray(pixels.reshape(image.height, image.width, -1))
    blob: bytes = simplejpeg.encode_jpeg(pixels, quality=quality, colorspace=colour, colorsubsampling=sampling)
    return blob


@functools.cache
def picture(number: int, size: tuple[int, int] = (161, 118), sampling: str = "420", interval: str = "2B") -> bytes:
    return with_restarts(encoded(photograph(number, size), sampling), interval, "-optimize")


def oracle(blob: bytes, mode: str, by: int = 1, *, fast: bool = False) -> np.ndarray[Any, Any]:
    """Return the pixels of the whole picture, decoded `by` times smaller."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(blob)
    pixels: np.ndarray[Any, Any] = simplejpeg.decode_jpeg(
        blob,
        colorspace="GRAY" if mode == "L" else "RGB",
        fastdct=fast,
        fastupsample=fast,
        min_height=-(-height // by),
        min_width=-(-width // by),
        min_factor=by,
        strict=True,
    )
    return pixels


def pixels_of(image: torch.Tensor) -> np.ndarray[Any, Any]:
    return image.permute(1, 2, 0).numpy()


def header_of(blob: bytes) -> Any:
    header = read_header(blob)
    assert header is not None
    return header


def random_window(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    rows, columns = rng.randint(1, height), rng.randint(1, width)
    return rng.randint(0, height - rows), rng.randint(0, width - columns), rows, columns


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("largest", [120, 600, 4000])
def test_every_pixel_of_a_random_window_is_that_of_the_whole_picture(sampling: str, largest: int) -> None:
    pictures = {120: 100, 600: 40, 4000: 3} if FULL else {120: 10, 600: 4, 4000: 1}
    windows = 20 if largest < 4000 else 8
    rng = random.Random(f"{SEED} {sampling} {largest}")
    mode, cut = "L" if sampling == "Gray" else "RGB", 0
    for number in range(pictures[largest]):
        least = 1 if number else largest // 4  # the first has places to cut
        width, height = rng.randint(least, largest), rng.randint(least, largest)
        source = photograph(number).resize((width, height), Image.Resampling.BICUBIC)
        plain = encoded(source, sampling, rng.randint(40, 97))
        has_markers = number % 2 == 0
        blob = with_restarts(plain, rng.choice(INTERVALS), "-optimize") if has_markers else plain
        whole, header = oracle(blob, mode), header_of(blob)
        cutter = JpegCutter(blob, header)
        for _ in range(windows):
            top, left, rows, columns = window = random_window(rng, height, width)
            part = cutter.part(top, left, top + rows, left + columns)
            cut += part is not None and not part.ends_early
            images = decode_windows(decode_tensor, blob, mode, header, [CropRequest(window, (rows, columns))])
            assert (images is None) == (part is None)
            if images is not None:
                expected = whole[top : top + rows, left : left + columns]
                assert (pixels_of(images[0]) == expected).all(), (sampling, width, height, header.interval, window)
    assert cut > 0 or largest == 120  # small pictures may have no place to cut


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("by", [1, 2, 4, 8])
def test_fast_windows_are_those_of_the_whole_picture_at_the_same_scale(sampling: str, by: int) -> None:
    rng, mode = random.Random(f"{SEED} {sampling} {by}"), "L" if sampling == "Gray" else "RGB"
    for number in range(12 if FULL else 3):
        blob = picture(number, (8 * rng.randint(30, 60), 8 * rng.randint(30, 60)), sampling, rng.choice(INTERVALS))
        header, whole = header_of(blob), oracle(blob, mode, by, fast=True)
        for _ in range(10):
            small = (rng.randint(8, header.height // 8), rng.randint(8, header.width // 8))
            rows, columns = 8 * small[0], 8 * small[1]
            top, left = (
                8 * rng.randint(0, header.height // 8 - small[0]),
                8 * rng.randint(0, header.width // 8 - small[1]),
            )
            crop = CropRequest((top, left, rows, columns), (rows // by, columns // by))
            images = decode_windows(decode_fast, blob, mode, header, [crop])
            if images is not None:
                expected = whole[top // by : (top + rows) // by, left // by : (left + columns) // by]
                assert (pixels_of(images[0]) == expected).all()


@settings(max_examples=examples(200))
@given(st.data())
def test_a_smaller_window_still_has_the_pixels_that_the_crop_needs(data: st.DataObject) -> None:
    height, width = 300, 400
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    window = (data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w)
    size = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 200))
    blob = jpeg(0, (width, height))
    images = decode_windows(decode_fast, blob, "RGB", header_of(blob), [CropRequest(window, size)])
    if images is None:  # all of it is needed
        return
    rows, columns = images[0].shape[1:]
    # A window at the lower or right edge may lose a row or column to rounding.
    assert min(h, size[0]) - 1 <= rows <= h
    assert min(w, size[1]) - 1 <= columns <= w
    by = max(1, round(max(h / rows, w / columns)))
    assert by == 1 or (h >= by * size[0] - by and w >= by * size[1] - by)


# --- Whole samples ---


def samples(url: str, transform: Any, **options: Any) -> tuple[list[Any], Any]:
    given = {"decode": "tensor", "seed": 1, "on_error": "skip", "min_recovered": 0.0, **options}
    dataset = StoreDataset(url, transform=transform, **given)
    with dataset.backend:
        torch.manual_seed(5)
        twice = [*dataset[:], *dataset[:]]
        return twice, dataset.report()


def assert_same(url: str, transform: Any, **options: Any) -> None:
    """Compare samples and report with those of whole pictures."""
    (found, report), (expected, truth) = (samples(url, each, **options) for each in (transform, hidden(transform)))
    assert any(isinstance(other, tuple) for other in expected)
    for one, other in zip(found, expected, strict=True):
        if not isinstance(other, tuple):  # a bad one
            assert one == other
            continue
        assert one[1:] == other[1:]
        mine, truths = (each[0] if isinstance(each[0], tuple) else (each[0],) for each in (one, other))
        for image, truth_of_it in zip(mine, truths, strict=True):
            assert np.array_equal(image, truth_of_it)
            if isinstance(image, torch.Tensor):
                assert image.stride() == truth_of_it.stride()
                # No view shares memory with another one, or keeps more than its pixels.
                assert image.untyped_storage().nbytes() == image.nbytes
        if isinstance(mine[0], torch.Tensor):
            assert len({image.untyped_storage().data_ptr() for image in mine}) == len(mine)
    assert (report.bad, report.repaired) == (truth.bad, truth.repaired)


BLOBS = [picture(number, (120 + 9 * number, 90 + 7 * number), "420", INTERVALS[number]) for number in range(8)]
TRANSFORMS: dict[str, Any] = {
    "random": CROP,
    "center": CenterCrop(40),
    "center, larger than some": CenterCrop(110),
    "fixed": Crop(10, 20, 33, 47),
    "fixed, beyond the edge": Crop(70, 90, 60, 60),
    "composition": Compose([CROP, RandomHorizontalFlip(), ToTensor(), Normalize([0.5], [0.25])]),
    "views": Views([[CROP, RandomHorizontalFlip()], [CROP, RandomHorizontalFlip()]]),
    "multi-crop": Views([CROP, RandomResizedCrop(12, scale=(0.05, 0.2)), CenterCrop(30), [Crop(0, 0, 9, 9)]]),
    "views that begin with something else": Views([Resize(20), [RandomHorizontalFlip(), CROP]]),
    "views, of which one is larger than some": Views([CROP, CenterCrop(110), Crop(-5, 70, 30, 90), Crop(500, 0, 9, 9)]),
    "views after a flip": Compose([RandomHorizontalFlip(), Views([CROP, CROP])]),
}


@pytest.mark.parametrize(
    ("name", "decode"), [*((name, "tensor") for name in TRANSFORMS), ("random", "pil"), ("multi-crop", "pil")]
)
def test_samples_are_those_of_whole_pictures(name: str, decode: str) -> None:
    assert_same(picture_store(BLOBS), TRANSFORMS[name], decode=decode)


@pytest.mark.parametrize(("encoding", "mode"), list(zip(ENCODINGS, itertools.cycle(["RGB", "L"]), strict=False)))
def test_every_encoding_gives_the_samples_that_whole_pictures_give(encoding: str, mode: str) -> None:
    blobs = [encode(encoding)] * 12  # each with a window of its own
    assert_same(picture_store(blobs), Compose([ANY, RandomHorizontalFlip()]), mode=mode)


def test_damaged_pictures_are_repaired_or_rejected_as_whole_ones() -> None:
    samples = random_corpus(SEED, 12_000 if FULL else 1_000)
    blobs = [sample.blob for sample in samples if sample.is_jpeg and sample.damage]
    for start in range(0, len(blobs), 40):  # a batch of bad ones only is an error
        assert_same(picture_store([*blobs[start : start + 40], jpeg(0)]), ANY, min_recovered=0.5)


@pytest.mark.parametrize(
    ("transform", "seed"), [(Compose([CROP]), 1), (Views([CROP, CenterCrop(110), CROP]), None)], ids=["crop", "views"]
)
def test_a_foreign_store_gives_the_same_samples_in_every_epoch(
    tmp_path: Path, transform: Any, seed: int | None
) -> None:
    assert_same(foreign(tmp_path, BLOBS), transform, fields=["image"], seed=seed)


@pytest.mark.share(3)
@pytest.mark.parametrize(("orientation", "decode"), list(zip(range(1, 9), ["tensor", "fast"] * 4, strict=True)))
def test_crops_of_rotated_pictures(orientation: int, decode: str) -> None:
    blob = saved(photograph(1, (143, 98)), "JPEG", quality=90, exif=exif(orientation))
    url = picture_store([with_restarts(blob, interval) for interval in INTERVALS])
    # No window is twice as large as its result, so that "fast" does not decode it at a smaller scale.
    large = RandomResizedCrop(80, scale=(0.05, 0.4))
    views = Views([large, large]), Views([large, CenterCrop(130)])
    for transform in (large, CenterCrop(40), Crop(3, 5, 40, 60), *views):
        assert_same(url, transform, decode=decode, reader_options={"orient": True})
    whole = StoreDataset(url, decode="tensor", reader_options={"orient": True})[0][0]
    with Image.open(io.BytesIO(blob)) as image:
        assert (pixels_of(whole) == np.asarray(ImageOps.exif_transpose(image))).all()


@pytest.mark.parametrize("orient", [False, True])
def test_a_dataset_decodes_only_the_part_that_a_crop_needs(monkeypatch: pytest.MonkeyPatch, orient: bool) -> None:
    blob = with_restarts(saved(photograph(1, (480, 368)), "JPEG", quality=90, exif=exif(6)), "2B")
    options: Any = {"decode": "tensor", "reader_options": {"orient": orient}}
    dataset = StoreDataset(picture_store([blob]), transform=Crop(100, 100, 60, 60), **options)
    sizes, decode = [], simplejpeg.decode_jpeg

    def record_size(data: bytes, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(data))
        return decode(data, *args, **kwargs)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", record_size)
    dataset[0]
    assert len(sizes) == 1
    assert sizes[0] < 0.4 * len(blob)


# --- What else sees the image ---


class Halved(WrappedReader):
    """A reader of a plug-in's that looks at its images."""

    def build(self, records: Any, context: Any) -> Any:
        sample = super().build(records, context)
        return {name: value[:, ::2] if isinstance(value, torch.Tensor) else value for name, value in sample.items()}


def half(blob: bytes, mode: str) -> torch.Tensor:
    return decode_tensor(blob, mode)[:, ::2, ::2].contiguous()


@pytest.mark.parametrize(
    ("transform", "options"),
    [
        (Compose([ANY, torch.clone]), {}),
        (Compose([ANY, lambda image: image.permute(0, 2, 1), ToTensor()]), {}),
        (
            ANY,
            {"reader": Halved(readers.image(decode="tensor", min_recovered=0.0)), "decode": None, "min_recovered": 0.5},
        ),
        (ANY, {"decode": half}),
        (ANY, {"decode": "half_of_test_crops"}),
    ],
)
def test_what_else_sees_the_image_sees_all_of_it(transform: Any, options: dict[str, Any]) -> None:
    storeds.register_decoder("half_of_test_crops", half, clobber=True)
    assert_same(picture_store([jpeg(number, (64, 96)) for number in range(4)]), transform, **options)


def test_without_a_seed_the_global_generator_is_drawn_from_alike() -> None:
    url = picture_store([jpeg(number, (64, 96)) for number in range(6)])
    drawn = []
    for transform in (ANY, hidden(ANY)):
        images = [sample[0].tolist() for sample in samples(url, transform, seed=None)[0]]
        drawn.append((images, torch.rand(1).item()))
    assert drawn[0] == drawn[1]


# --- Markers that lie ---


def marker_places(blob: bytes) -> list[int]:
    start = blob.index(b"\xff\xda")
    return [at for at in range(start, len(blob) - 1) if blob[at] == 0xFF and 0xD0 <= blob[at + 1] <= 0xD7]


def renumbered(blob: bytes) -> bytes:
    changed = bytearray(blob)
    first, second = marker_places(blob)[3:5]
    changed[first + 1], changed[second + 1] = changed[second + 1], changed[first + 1]
    return bytes(changed)


def without_a_marker(blob: bytes) -> bytes:
    at = marker_places(blob)[4]
    return blob[:at] + blob[at + 2 :]


def with_one_too_many(blob: bytes) -> bytes:
    places = marker_places(blob)
    return blob[: places[-1]] + blob[places[-1] : places[-1] + 2] + blob[places[-1] :]


def with_another_interval(blob: bytes) -> bytes:
    at = blob.index(b"\xff\xdd") + 4
    return blob[:at] + (2 * int.from_bytes(blob[at : at + 2])).to_bytes(2) + blob[at + 2 :]


def with_swapped_intervals(blob: bytes) -> bytes:
    """Exchange the data of two intervals; the markers keep their order, and only a checksum could notice."""
    places = marker_places(blob)
    a, b, c = places[2] + 2, places[3], places[3] + 2
    return blob[:a] + blob[c : places[4]] + blob[b : b + 2] + blob[a:b] + blob[places[4] :]


LIES = [renumbered, without_a_marker, with_one_too_many, with_another_interval, with_swapped_intervals]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("judged", [True, False])
def test_lying_markers_give_the_pixels_of_the_whole_picture(tmp_path: Path, lie: Any, judged: bool) -> None:
    blobs = [*(lie(picture(number, (160, 120), "420", "2B")) for number in range(4)), *BLOBS]
    assert_same(picture_store(blobs) if judged else foreign(tmp_path, blobs), CROP, fields=["image"])
