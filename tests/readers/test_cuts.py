"""Crops of JPEGs with restart markers decode only the intervals that they touch, to the pixels of the whole picture.

The oracle decodes the whole picture with simplejpeg, and Debian's ``jpegtran`` writes the markers.
"""

from __future__ import annotations

import functools
import io
import pickle
import random
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import ExifTags, Image, ImageOps

from photographs import photograph
from shares import FULL, SEED
from storeds import StoreDataset, StoreLoader, open_writer
from storeds.errors import ConfigError
from storeds.jpeg import JpegCutter, examine, is_ready, read_header
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
    build_transform,
)

SAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]
INTERVALS = ["1B", "2B", "3B", "4B", "7B", "8B", "13B", "1", "2"]
CROP = RandomResizedCrop(24, scale=(0.05, 0.4))


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
        width, height = rng.randint(17, largest), rng.randint(17, largest)
        source = photograph(number).resize((width, height), Image.Resampling.BICUBIC)
        plain = encoded(source, sampling, rng.randint(40, 97))
        blob = with_restarts(plain, rng.choice(INTERVALS), *rng.choice([[], ["-optimize"]]))
        whole, header = oracle(blob, mode), read_header(blob)
        assert header is not None
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
    assert cut > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("by", [1, 2, 4, 8])
def test_fast_windows_are_those_of_the_whole_picture_at_the_same_scale(sampling: str, by: int) -> None:
    rng, mode = random.Random(f"{SEED} {sampling} {by}"), "L" if sampling == "Gray" else "RGB"
    for number in range(12 if FULL else 3):
        blob = picture(number, (8 * rng.randint(30, 60), 8 * rng.randint(30, 60)), sampling, rng.choice(INTERVALS))
        header = read_header(blob)
        assert header is not None
        whole = oracle(blob, mode, by, fast=True)
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


def test_a_small_window_decodes_a_small_part() -> None:
    blob = picture(0, (480, 368), "420", "2B")
    header = read_header(blob)
    assert header is not None
    part = JpegCutter(blob, header).part(100, 200, 140, 260)
    assert part is not None
    assert part.height * part.width < 0.05 * header.height * header.width
    assert len(part.blob) < 0.3 * len(blob)
    assert examine(part.blob).finding == "intact"
    with Image.open(io.BytesIO(part.blob)) as small:
        assert small.size == (part.width, part.height)


@pytest.mark.parametrize(
    ("interval", "ready"), [("1B", True), ("2B", True), ("4B", False), ("1", True), ("2", False), ("3B", False)]
)
def test_a_picture_is_ready_if_the_interval_divides_its_rows(interval: str, ready: bool) -> None:
    assert is_ready(picture(0, (16 * 10, 96), "420", interval)) == ready


# --- Whole samples ---


def native(tmp_path: Any, blobs: Sequence[bytes]) -> str:
    url = f"{tmp_path}/native.lmdb"
    with open_writer(url, {"image": "image", "label": "int"}, overwrite=True) as writer:
        writer.append({"image": blob, "label": at} for at, blob in enumerate(blobs))
    return url


def whole_first(transform: Any) -> Any:
    """Hide that a transform begins with a crop, so that the reader decodes whole pictures."""
    inner = Compose([transform])

    def call(image: Any, generator: Any = None) -> Any:
        return inner(image, generator)

    return call


def assert_same_samples(url: str, transform: Any, **options: Any) -> None:
    options = {"decode": "tensor", "seed": 1, **options}
    found = StoreDataset(url, transform=transform, **options)
    expected = StoreDataset(url, transform=whole_first(transform), **options)
    for _ in range(2):  # in a foreign store, only the second pass knows that the pictures are whole
        torch.manual_seed(5)
        samples = found[:]
        torch.manual_seed(5)
        for one, other in zip(samples, expected[:], strict=True):
            ones, others = (each if isinstance(each, tuple) else (each,) for each in (one[0], other[0]))
            assert len(ones) == len(others)
            for mine, truth in zip(ones, others, strict=True):
                assert torch.equal(mine, truth)
                assert mine.is_contiguous()
            # No view shares memory with another one, or keeps more than its pixels.
            memory = [(each.untyped_storage().data_ptr(), each.untyped_storage().nbytes()) for each in ones]
            assert len(dict(memory)) == len(ones)
            assert [size for _, size in memory] == [each.nbytes for each in ones]


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


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("decode", ["tensor", "pil"])
def test_samples_are_those_of_whole_pictures(tmp_path: Any, name: str, decode: str) -> None:
    transform = TRANSFORMS[name]
    if decode == "pil":
        url = native(tmp_path, BLOBS)
        options: dict[str, Any] = {"decode": "pil", "seed": 3}
        found = StoreDataset(url, transform=Compose([transform, _to_arrays]), **options)[:]
        expected = StoreDataset(url, transform=whole_first(Compose([transform, _to_arrays])), **options)[:]
        for one, other in zip(found, expected, strict=True):
            assert [each.tolist() for each in one[0]] == [each.tolist() for each in other[0]]
    else:
        assert_same_samples(native(tmp_path, BLOBS), transform)


def _to_arrays(value: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(each) for each in (value if isinstance(value, tuple) else (value,))]


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize("transform", [Compose([CROP]), Views([CROP, CenterCrop(110), CROP])], ids=["crop", "views"])
def test_a_foreign_store_gives_the_same_samples_in_every_epoch(tmp_path: Any, transform: Any, seed: int | None) -> None:
    import lmdb

    with lmdb.open(f"{tmp_path}/foreign", map_size=1 << 24) as env, env.begin(write=True) as transaction:
        for number, blob in enumerate(BLOBS):
            transaction.put(b"%04d.jpg" % number, blob)
    assert_same_samples(f"lmdb://{tmp_path}/foreign", transform, fields=["image"], as_dict=False, seed=seed)


@pytest.mark.share(3)
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("decode", ["tensor", "fast"])
def test_crops_of_rotated_pictures(tmp_path: Any, orientation: int, decode: str) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    photograph(1, (143, 98)).save(buffer, "JPEG", quality=90, exif=exif)
    url = native(tmp_path, [with_restarts(buffer.getvalue(), interval) for interval in INTERVALS])
    # No window is twice as large as its result, so that "fast" does not decode it at a smaller scale.
    large = RandomResizedCrop(80, scale=(0.05, 0.4))
    views = Views([large, large]), Views([large, CenterCrop(130)])
    for transform in (large, CenterCrop(40), Crop(3, 5, 40, 60), *views):
        assert_same_samples(url, transform, decode=decode, reader_options={"orient": True})
    whole = StoreDataset(url, decode="tensor", reader_options={"orient": True})[0][0]
    with Image.open(buffer) as image:
        assert (pixels_of(whole) == np.asarray(ImageOps.exif_transpose(image))).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_fast_crops_of_rotated_pictures_at_a_smaller_scale(tmp_path: Any, orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    photograph(1, (400, 304)).save(buffer, "JPEG", quality=90, exif=exif)
    url = native(tmp_path, [with_restarts(buffer.getvalue(), "1B")])
    options: Any = {"seed": 2, "transform": RandomResizedCrop(24, scale=(0.1, 0.4)), "reader_options": {"orient": True}}
    exact, fast = (StoreDataset(url, decode=decode, **options) for decode in ("tensor", "fast"))
    for epoch in range(10):
        exact.set_epoch(epoch)
        fast.set_epoch(epoch)
        assert (exact[0][0].float() - fast[0][0].float()).abs().mean() < 12


@pytest.mark.parametrize("orient", [False, True])
def test_a_dataset_decodes_only_the_part_that_a_crop_needs(tmp_path: Any, monkeypatch: Any, orient: bool) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    buffer = io.BytesIO()
    photograph(1, (480, 368)).save(buffer, "JPEG", quality=90, exif=exif)
    blob = with_restarts(buffer.getvalue(), "2B")
    options: Any = {"decode": "tensor", "reader_options": {"orient": orient}}
    dataset = StoreDataset(native(tmp_path, [blob]), transform=Crop(100, 100, 60, 60), **options)
    sizes, decode = [], simplejpeg.decode_jpeg

    def record_size(data: bytes, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(data))
        return decode(data, *args, **kwargs)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", record_size)
    dataset[0]
    assert len(sizes) == 1
    assert sizes[0] < 0.4 * len(blob)


def test_views_of_whole_gray_pictures_share_no_memory(tmp_path: Any) -> None:
    url = native(tmp_path, [picture(number, (160, 120), "Gray") for number in range(2)])
    whole = Crop(0, 0, 120, 160)
    same_size = RandomResizedCrop((120, 160), scale=(1, 1), ratio=(1.33, 1.34))
    for transform in (
        Crop(10, 0, 30, 160),
        Views([whole, whole, CenterCrop((50, 160))]),
        Views([same_size, same_size]),
    ):
        assert_same_samples(url, transform, reader_options={"mode": "L"})


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


def with_a_flipped_bit(blob: bytes, number: int) -> bytes:
    rng = random.Random(f"{SEED} {number}")
    at, bit = rng.randrange(blob.index(b"\xff\xda") + 14, len(blob) - 2), rng.randrange(8)
    return blob[:at] + bytes((blob[at] ^ 1 << bit,)) + blob[at + 1 :]


@pytest.mark.parametrize(
    "lie", [renumbered, without_a_marker, with_one_too_many, with_another_interval, with_swapped_intervals]
)
@pytest.mark.parametrize("stored", ["verdict", "none"])
def test_lying_markers_give_the_pixels_of_the_whole_picture(tmp_path: Any, lie: Any, stored: str) -> None:
    blobs = [lie(picture(number, (160, 120), "420", "2B")) for number in range(4)]
    assert_damaged_as_whole(tmp_path, [*blobs, *BLOBS], stored)


@pytest.mark.parametrize("stored", ["verdict", "none"])
def test_flipped_bits_give_the_pixels_of_the_whole_picture(tmp_path: Any, stored: str) -> None:
    whole = picture(0, (160, 120), "420", "2B")
    flipped = [with_a_flipped_bit(whole, number) for number in range(300 if FULL else 40)]
    assert_damaged_as_whole(tmp_path, [*flipped, *BLOBS], stored)


def assert_damaged_as_whole(tmp_path: Any, blobs: Sequence[bytes], stored: str) -> None:
    """Compare samples and report with those of whole pictures, in a native store or in a foreign one."""
    import lmdb

    if stored == "verdict":
        url = native(tmp_path, blobs)
    else:
        url = f"lmdb://{tmp_path}/foreign"
        with lmdb.open(f"{tmp_path}/foreign", map_size=1 << 26) as env, env.begin(write=True) as transaction:
            for number, blob in enumerate(blobs):
                transaction.put(b"%04d.jpg" % number, blob)
    options: dict[str, Any] = {"decode": "tensor", "seed": 1, "on_error": "skip", "min_recovered": 0.0}
    found = StoreDataset(url, transform=CROP, fields=["image"], **options)
    expected = StoreDataset(url, transform=whole_first(CROP), fields=["image"], **options)
    for _ in range(2):
        for one, other in zip(found[:], expected[:], strict=True):
            mine, truth = (each[0] if isinstance(each, tuple) else each for each in (one, other))
            assert torch.equal(mine, truth) if isinstance(truth, torch.Tensor) else mine == truth
    assert found.report().repaired == expected.report().repaired
    assert found.report().bad == expected.report().bad


# --- Views ---


def test_views_collate_into_one_batch_for_each(tmp_path: Any) -> None:
    steps: list[Any] = [CROP, ToTensor()]
    dataset = StoreDataset(native(tmp_path, BLOBS), decode="tensor", transform=Views([steps, steps]), seed=0)
    (first, second), labels = next(iter(StoreLoader(dataset, batch_size=4)))
    assert first.shape == second.shape == (4, 3, 24, 24)
    assert not torch.equal(first, second)
    assert labels.tolist() == [0, 1, 2, 3]


def test_views_and_crops_are_built_from_a_config() -> None:
    spec = {
        "name": "Views",
        "transforms": [
            [{"name": "RandomResizedCrop", "size": 24}, "RandomHorizontalFlip"],
            {"name": "CenterCrop", "size": 9},
        ],
    }
    built = build_transform(spec)
    assert isinstance(built, Views)
    assert repr(pickle.loads(pickle.dumps(built))) == repr(built)
    image = torch.arange(3 * 40 * 50, dtype=torch.uint8).reshape(3, 40, 50)
    assert [tuple(each.shape) for each in built(image)] == [(3, 24, 24), (3, 9, 9)]
    fixed = build_transform({"name": "Crop", "top": 1, "left": 2, "height": 3, "width": 4})
    assert fixed is not None
    assert torch.equal(fixed(image), image[:, 1:4, 2:6])


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Views([]), "a list with a transform for each view"),
        (lambda: Views([3]), r"transforms\[0\] is not callable"),
        (lambda: Crop(0, 0, 0, 5), "height must be a positive int, not 0"),
        (lambda: Crop(0.5, 0, 1, 5), "top must be an int, not 0.5"),  # type: ignore[arg-type]
    ],
)
def test_invalid_views_and_crops_are_refused(build: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        build()
