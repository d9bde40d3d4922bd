"""Test that all decoders agree on images of every kind."""

from __future__ import annotations

import struct
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from jpeg_encodings import ENCODINGS, encode
from photographs import by_pillow, jpeg, photograph, saved
from picture_stores import exif, picture_store
from storeds import StoreDataset
from storeds.errors import DecodeError
from storeds.readers import decode_pil, decode_tensor
from storeds.registry import DECODERS

SIZES = [(1, 1), (1, 17), (17, 1), (7, 9), (8, 8), (15, 33), (16, 16), (31, 63), (33, 15), (64, 48), (99, 7), (101, 67)]


JPEGS = {
    **{f"{width}x{height}": jpeg(1, (width, height)) for width, height in SIZES},
    **{name: encode(name) for name in ENCODINGS},
    "trailing bytes": jpeg(0) + b"\0" * 50,
}


@pytest.mark.parametrize("name", JPEGS)
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_every_decoder_gives_the_pixels_that_pillow_gives(name: str, mode: str) -> None:
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


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["pil", "tensor"])
def test_orient_rotates_the_image(orientation: int, name: str) -> None:
    blob = saved(photograph(0, (40, 24)), "JPEG", exif=exif(orientation))
    decoder = DECODERS.get(name)
    turned = np.asarray(decode_pil(blob, "RGB", orient=True))
    assert turned.shape[:2] == ((40, 24) if orientation >= 5 else (24, 40))
    found = decoder(blob, "RGB", orient=True)
    found = np.asarray(found) if name == "pil" else found.permute(1, 2, 0).numpy()
    assert (found == turned).all()
    assert (np.asarray(decode_pil(blob, "RGB")) == by_pillow(blob, "RGB")).all()


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
            with pytest.raises(Exception, match=r"max_pixels|decompression bomb"):
                decoder(claiming(*size), "RGB")
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    with pytest.raises(DecodeError, match=r"96 x 64 pixels, more than max_pixels=6,143"):
        decoder(jpeg(0), "RGB", max_pixels=96 * 64 - 1)


def test_a_warning_raised_as_an_error_is_a_bad_sample() -> None:
    metadata = b"Exif\x00\x00II*\x00\x08\x00\x00\x00" + struct.pack("<HHHII", 1, 0x0112, 3, 9000, 5000)
    url = picture_store([jpeg(0, exif=metadata)], check=False)
    dataset = StoreDataset(url, decode="tensor", reader_options={"orient": True})
    with pytest.raises(DecodeError, match="cannot be decoded .*UserWarning: "):
        dataset[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("default", module="PIL")
        assert (dataset[0][0] == decode_tensor(jpeg(0), "RGB")).all()
    assert "Skipping tag 274" in str(caught[0].message)
