"""Test crops drawn before decoding: they give the same samples as whole pictures.

Imports private functions, because samples do not show how much of a picture was decoded.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import storeds
from jpeg_corpus import cases, groups
from jpeg_encodings import ENCODINGS, encode
from photographs import jpeg, photograph
from shares import examples
from storeds import StoreDataset, open_backend, open_writer
from storeds.jpeg import read_header
from storeds.protocols import CropRequest
from storeds.readers import ImageReader, decode_fast, decode_tensor, decode_windows
from storeds.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

SIZE = 24
CROP = RandomResizedCrop(SIZE, scale=(0.05, 1.0))


def unseen(transform: Any) -> Any:
    """Hide that a transform begins with a crop, so that whole pictures are decoded."""

    def whole(image: Any, generator: Any = None) -> Any:
        return transform(image, generator)

    return whole


def store(name: str, blobs: Sequence[bytes]) -> str:
    url = f"memory://test_window/{name}"
    with open_writer(url, {"image": "image", "label": "int"}, overwrite=True) as writer:
        writer.append({"image": blob, "label": at} for at, blob in enumerate(blobs))
    return url


def samples(url: str, transform: Any, **options: Any) -> tuple[list[Any], Any]:
    dataset = StoreDataset(url, transform=transform, **{"decode": "tensor", "seed": 1, "on_error": "skip", **options})
    with dataset.backend:
        return dataset[:], dataset.report()


def assert_same(url: str, transform: Any, **options: Any) -> None:
    (found, report), (expected, truth) = samples(url, transform, **options), samples(url, unseen(transform), **options)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, tuple):
            assert torch.equal(one[0], other[0])
            assert one[0].stride() == other[0].stride()
            assert one[1:] == other[1:]
        else:  # a bad one
            assert one == other
    assert (report.bad, report.repaired) == (truth.bad, truth.repaired)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_encoding_gives_the_samples_that_whole_pictures_give(encoding: str, mode: str) -> None:
    url = store("encodings", [encode(encoding)] * 12)  # each with a window of its own
    assert_same(url, Compose([CROP, RandomHorizontalFlip()]), mode=mode)


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
@settings(max_examples=examples(30))
@given(height=st.integers(1, 90), width=st.integers(1, 60), rows=st.integers(1, 90), number=st.integers(0, 3))
def test_the_upper_rows_are_those_of_the_whole_picture(
    subsampling: str, height: int, width: int, rows: int, number: int
) -> None:
    image = np.asarray(photograph(number, (width, height)).convert("L" if subsampling == "Gray" else "RGB"))
    colour = (
        {"colorspace": "GRAY", "colorsubsampling": "Gray"}
        if subsampling == "Gray"
        else {"colorsubsampling": subsampling}
    )
    blob = simplejpeg.encode_jpeg(np.ascontiguousarray(image.reshape(height, width, -1)), quality=90, **colour)
    mode, rows = "L" if subsampling == "Gray" else "RGB", min(rows, height)
    whole = decode_tensor(blob, mode).permute(1, 2, 0).numpy()
    header = read_header(blob)
    assert header is not None
    assert (header.height, header.width) == (height, width)
    found = decode_windows(decode_tensor, blob, mode, header, [CropRequest((0, 0, rows, width), (1, 1))])
    if found is not None:  # None: all of it is needed
        assert (found[0].permute(1, 2, 0).numpy() == whole[:rows]).all()
    else:
        assert rows + 12 > height


@pytest.mark.share(60)
@pytest.mark.parametrize(("encoding", "damage"), groups())
def test_damaged_pictures_are_repaired_or_rejected_as_before(encoding: str, damage: str) -> None:
    blobs = [case.blob for case in cases(encoding, damage)][:40]
    assert_same(store("damaged", [*blobs, jpeg(0)]), CROP)  # with a good one, as a batch of bad ones is an error


def test_a_frame_header_in_a_thumbnail_is_ignored() -> None:
    blob = jpeg(0, (64, 96))
    at = blob.index(b"\xff\xc0")
    frame = blob[at : at + 2 + int.from_bytes(blob[at + 2 : at + 4])]
    hidden = b"\xff\xfe" + (2 + len(frame)).to_bytes(2) + frame
    assert_same(store("thumbnail", [blob[:2] + hidden + blob[2:]] * 8), CROP)


def test_what_comes_after_the_crop_may_be_anything() -> None:
    url = store("foreign", [jpeg(number, (80, 120)) for number in range(4)])
    every: list[list[Any]] = [[CROP, torch.clone], [CROP, lambda image: image.permute(0, 2, 1), ToTensor()]]
    for steps in every:
        found, _ = samples(url, Compose(steps))
        expected, _ = samples(url, unseen(Compose(steps)))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one[0], other[0])
            assert one[0].stride() == other[0].stride()


def test_a_transform_that_sees_the_picture_first_sees_all_of_it() -> None:
    url = store("first", [jpeg(0, (64, 96))])
    seen = []

    def look(image: torch.Tensor) -> torch.Tensor:
        seen.append(image.shape)
        return image

    samples(url, Compose([look, RandomResizedCrop(8, scale=(0.05, 0.1))]))
    assert seen == [(3, 96, 64)]


def test_a_third_party_crop_gets_the_whole_picture() -> None:
    class Mine(RandomResizedCrop):
        def __call__(self, image: Any, generator: torch.Generator | None = None) -> Any:
            return image[:, -1:]

    assert_same(store("mine", [jpeg(0, (64, 96))]), Mine(8))


class Halved(ImageReader):
    """A reader that looks at its images."""

    def _value(self, name: str, field: Any, value: Any, context: Any) -> Any:
        made = super()._value(name, field, value, context)
        return made[:, ::2] if isinstance(made, torch.Tensor) else made


class Backwards(Compose):
    """A composition that does something else with its transforms."""

    def __call__(self, value: Any, generator: Any = None) -> Any:
        assert isinstance(value, torch.Tensor)
        return super().__call__(value.flip(-1), generator)


def test_custom_readers_and_compositions_get_whole_images() -> None:
    url = store("own", [jpeg(number, (64, 96)) for number in range(4)])
    assert_same(url, CROP, reader=Halved(decode="tensor"), decode=None)
    assert_same(url, Backwards([CROP]))


def test_a_custom_decoder_decides_the_size() -> None:
    def half(blob: bytes, mode: str) -> torch.Tensor:
        return decode_tensor(blob, mode)[:, ::2, ::2].contiguous()

    url = store("decoder", [jpeg(number, (64, 96)) for number in range(4)])
    assert_same(url, CROP, decode=half)
    storeds.register_decoder("half_of_test_window", half)
    assert_same(url, CROP, decode="half_of_test_window")


def test_draws_work_after_a_first_draw_in_inference_mode() -> None:
    code = """
import sys, torch
from storeds.transforms import Normalize, RandomResizedCrop, ToTensor
image = torch.zeros(3, 8, 8, dtype=torch.uint8)
with torch.inference_mode():
    Normalize([0.5], [0.5])(ToTensor()(RandomResizedCrop(4)(image)))
made = Normalize([0.5], [0.5])(ToTensor()(RandomResizedCrop(4)(image)).requires_grad_())
made.sum().backward()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_without_a_seed_the_global_generator_is_drawn_from_as_before() -> None:
    url = store("unseeded", [jpeg(number, (64, 96)) for number in range(6)])
    drawn = []
    for transform in (CROP, unseen(CROP)):
        torch.manual_seed(5)
        drawn.append((samples(url, transform, seed=None)[0], torch.rand(1)))
    for one, other in zip(drawn[0][0], drawn[1][0], strict=True):
        assert torch.equal(one[0], other[0])
    assert drawn[0][1] == drawn[1][1]


def test_a_dataset_with_a_window_pickles_as_before() -> None:
    url = store("pickled", [jpeg(0, (64, 96))])
    dataset = StoreDataset(url, decode="tensor", transform=CROP, seed=1)
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[0][0], dataset[0][0])


# --- Shortcuts ---


@settings(max_examples=examples(200))
@given(st.data())
def test_a_smaller_window_still_has_the_pixels_that_the_crop_needs(data: st.DataObject) -> None:
    height, width = 300, 400
    h, w = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    window = (data.draw(st.integers(0, height - h)), data.draw(st.integers(0, width - w)), h, w)
    size = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 200))
    blob = jpeg(0, (width, height))
    header = read_header(blob)
    assert header is not None
    images = decode_windows(decode_fast, blob, "RGB", header, [CropRequest(window, size)])
    if images is None:  # all of it is needed
        return
    rows, columns = images[0].shape[1:]
    # A window at the lower or right edge may lose a row or column to rounding.
    assert min(h, size[0]) - 1 <= rows <= h
    assert min(w, size[1]) - 1 <= columns <= w
    by = max(1, round(max(h / rows, w / columns)))
    assert by == 1 or (h >= by * size[0] - by and w >= by * size[1] - by)


def test_decode_fast_reads_large_pictures_at_a_smaller_size() -> None:
    with Image.open(io.BytesIO(encode("of a camera"))) as image:
        blob = io.BytesIO()
        image.convert("RGB").resize((1600, 1200)).save(blob, "JPEG", quality=90)
    url = store("large", [blob.getvalue()] * 8)
    crop = RandomResizedCrop(64, scale=(0.3, 1.0))
    exact, _ = samples(url, crop)
    fast, _ = samples(url, crop, decode="fast")
    for one, other in zip(fast, exact, strict=True):
        assert one[0].shape == other[0].shape
        assert (
            one[0].int() - other[0].int()
        ).abs().float().mean() < 8  # where it lies is rounded to the pixels of the smaller one
    with open_backend(url) as backend:
        (record,) = backend.get_many([0])
        assert not isinstance(record, Exception)
        header = read_header(record["image"])
        assert header is not None
        whole = CropRequest((0, 0, 1200, 1600), (300, 400))
        images = decode_windows(decode_fast, record["image"], "RGB", header, [whole])
    assert images is not None
    assert images[0].shape == (3, 300, 400)
