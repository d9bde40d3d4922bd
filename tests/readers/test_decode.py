"""Test that all decoders agree on images of every kind."""

from __future__ import annotations

import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from jpeg_encodings import ENCODINGS, chunk, encode, with_segment
from photographs import by_pillow, jpeg, photograph, saved
from picture_stores import exif, picture_store
from storeds import StoreDataset, StoreLoader, verify
from storeds.errors import DecodeError
from storeds.pictures import Verdict, examine
from storeds.readers import decode_pil, decode_tensor
from storeds.registry import DECODERS

SIZES = [(1, 1), (1, 17), (17, 1), (7, 9), (8, 8), (15, 33), (16, 16), (31, 63), (33, 15), (64, 48), (99, 7), (101, 67)]


JPEGS = {
    **{f"{width}x{height}": jpeg(1, (width, height)) for width, height in SIZES},
    **{name: encode(name) for name in ENCODINGS},
    "trailing bytes": jpeg(0) + b"\0" * 50,
}


@pytest.mark.parametrize("name", JPEGS)
def test_every_decoder_gives_the_pixels_that_pillow_gives(name: str) -> None:
    for mode in ("RGB", "L", "RGBA"):
        truth = by_pillow(JPEGS[name], mode)
        assert (np.asarray(decode_pil(JPEGS[name], mode)) == truth).all()
        pixels = decode_tensor(JPEGS[name], mode)
        assert pixels.dtype == torch.uint8
        assert pixels.is_contiguous()
        assert (pixels.permute(1, 2, 0).numpy().reshape(truth.shape) == truth).all()


def test_16_bits_keep_their_upper_8_or_all_if_unchanged() -> None:
    values = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    blob = saved(Image.fromarray(values), "PNG")
    assert (np.asarray(decode_pil(blob, "L")) == values >> 8).all()
    assert (np.asarray(decode_pil(blob, "RGB")) == (values >> 8)[:, :, None]).all()
    unchanged = decode_tensor(blob, "unchanged")
    assert unchanged.dtype == torch.uint16
    assert (unchanged.numpy()[0] == values).all()


def test_a_palette_gives_its_colours_or_if_unchanged_its_indices() -> None:
    image = Image.new("P", (4, 2))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1, 0, 1, 1, 0, 1, 0])
    for options in ({}, {"transparency": bytes([0, 128])}):
        blob = saved(image, "PNG", **options)
        assert decode_pil(blob, "RGB").getpixel((1, 0)) == (40, 50, 60)
        assert decode_tensor(blob, "unchanged").tolist() == [[[0, 1, 0, 1], [1, 0, 1, 0]]]


def claiming(width: int, height: int) -> bytes:
    blob = jpeg(0)
    at = blob.index(b"\xff\xc0") + 5
    return blob[:at] + struct.pack(">HH", height, width) + blob[at + 4 :]


@pytest.mark.parametrize("name", ["pil", "tensor"])
def test_too_large_a_frame_is_rejected_before_allocation(name: str) -> None:
    decoder = DECODERS.get(name)
    tracemalloc.start()
    try:
        for size in ((65500, 65500), (13000, 13000)):
            with pytest.raises(DecodeError, match="more than max_pixels=134,217,728"):
                decoder(claiming(*size), "RGB")
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    with pytest.raises(DecodeError, match=r"96 x 64 pixels, more than max_pixels=6,143"):
        decoder(jpeg(0), "RGB", max_pixels=96 * 64 - 1)


_INFLATED = zlib.compress(b"prompt " * 400_000)  # more than Pillow takes
METADATA = {
    "long zTXt": chunk(b"zTXt", b"parameters\0\0" + _INFLATED),
    "long iTXt": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + _INFLATED),
    "long iCCP": chunk(b"iCCP", b"profile\0\0" + _INFLATED),
    "long tEXt": chunk(b"tEXt", b"prompt\0" + bytes(65 << 20)),
    "many zTXt": b"".join(chunk(b"zTXt", b"%d\0\0" % n + zlib.compress(bytes(1 << 20))) for n in range(70)),
    "unknown method": chunk(b"iCCP", b"profile\0\7" + _INFLATED),
    "empty iCCP": chunk(b"iCCP", b"p"),
    "short pHYs": chunk(b"pHYs", b"1"),
    "no EXIF": chunk(b"eXIf", b"garbage"),
}


@pytest.mark.parametrize(("name", "is_last"), [(name, at % 2 == 1) for at, name in enumerate([*METADATA, "no EXIF"])])
def test_metadata_make_no_png_bad(name: str, is_last: bool) -> None:
    whole = saved(photograph(1), "PNG", exif=exif(6))
    at = len(whole) - 12 if is_last else whole.index(b"eXIf") - 4
    blob = whole[:at] + METADATA[name] + whole[at:]
    assert examine(blob) == Verdict("intact", 1.0)
    url = picture_store([blob])
    options = {"decode": "tensor", "reader_options": {"orient": True}}
    tracemalloc.start()
    pixels, _ = StoreDataset(url, **options)[0]  # type: ignore[arg-type]
    assert tracemalloc.get_traced_memory()[1] < 8 * len(blob) + (80 << 20)
    tracemalloc.stop()
    turned = by_pillow(whole, "RGB") if name == "no EXIF" and is_last else np.rot90(by_pillow(whole, "RGB"), -1)
    assert (pixels.permute(1, 2, 0).numpy() == turned).all()


SEGMENTS = {
    **{"ICC": (0xE2, b"ICC_PROFILE\0"), "JFIF": (0xE0, b"JFIF\0"), "Adobe": (0xEE, b"Adobe")},
    **{"Photoshop": (0xED, b"Photoshop 3.0\x008BIM\x03\xed"), "MPF": (0xE2, b"MPF\0")},
}


@pytest.mark.parametrize("name", SEGMENTS)
@pytest.mark.filterwarnings("ignore:Image appears to be a malformed MPO")
def test_metadata_make_no_jpeg_bad(name: str) -> None:
    whole = jpeg(1, exif=exif(6))
    blob = with_segment(whole, *SEGMENTS[name])
    assert examine(blob) == Verdict("intact", 1.0)
    url = picture_store([blob])
    for decode in ("pil", "tensor"):
        image, _ = StoreDataset(url, decode=decode, reader_options={"orient": True})[0]
        pixels = np.asarray(image) if decode == "pil" else image.permute(1, 2, 0).numpy()
        assert (pixels == np.rot90(by_pillow(whole, "RGB"), -1)).all()


@pytest.mark.parametrize(
    "blob",
    [
        *(jpeg(1), jpeg(1, progressive=True), saved(photograph(1), "PNG"), saved(photograph(1), "BMP")),
        *(saved(photograph(1).convert("CMYK"), "TIFF"), saved(photograph(1), "TIFF", compression="tiff_lzw")),
        *(saved(photograph(1).convert("CMYK"), "JPEG", subsampling=2), saved(photograph(1), "JPEG2000")),
        *(saved(photograph(1), "WEBP"), saved(photograph(1), "WEBP", lossless=True)),
        saved(photograph(1), "WEBP", exif=exif(6)),
    ],
)
def test_the_limit_of_pillow_does_not_apply(blob: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = by_pillow(blob, "RGB")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    url = picture_store([blob] * 4)
    dataset = StoreDataset(url, decode="pil", transform=np.array)
    for images, _ in StoreLoader(dataset, batch_size=2):
        assert all((image.numpy() == truth).all() for image in images)
    assert not verify(url).findings
    assert Image.MAX_IMAGE_PIXELS == 10


def test_a_warning_about_metadata_raised_as_an_error_makes_no_picture_bad() -> None:
    metadata = b"Exif\x00\x00II*\x00\x08\x00\x00\x00" + struct.pack("<HHHII", 1, 0x0112, 3, 9000, 5000)
    url = picture_store([jpeg(0, exif=metadata)], check=False)
    dataset = StoreDataset(url, decode="tensor", reader_options={"orient": True})
    assert (dataset[0][0] == decode_tensor(jpeg(0), "RGB")).all()
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("default", module="PIL")
        assert (dataset[0][0] == decode_tensor(jpeg(0), "RGB")).all()
    assert "Skipping tag 274" in str(caught[0].message)
