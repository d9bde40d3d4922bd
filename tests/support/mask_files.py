"""Masks of photographs as files: 8 bits, palette, 16 bits, 1 bit; and trees of images and masks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from photographs import jpeg, photograph, saved

__all__ = ["FORMS", "as_grey", "class_ids", "encode_mask", "mask", "write"]

FORMS = ("L", "P", "I;16", "1")
"""Modes of Pillow that hold class ids."""


def class_ids(number: int, size: tuple[int, int] = (96, 64), classes: int = 4) -> np.ndarray[Any, Any]:
    """Return class ids that follow the brightness of a photograph, so that they have its edges."""
    grey = np.asarray(photograph(number, size).convert("L"), np.int64)
    return (grey * classes // 256).astype(np.uint8)


def encode_mask(ids: np.ndarray[Any, Any], form: str = "L", format: str = "PNG", **options: Any) -> bytes:
    """Return class ids as an image file of a mode of `FORMS`."""
    if form == "1":
        image = Image.fromarray(ids > 0)
    elif form == "I;16":
        image = Image.fromarray(ids.astype(np.uint16))
    else:
        image = Image.fromarray(ids.astype(np.uint8))
        if form == "P":
            image = image.convert("P")  # a grey palette, replaced below: index i stays i
            image.putdata(list(map(int, ids.ravel())))
            image.putpalette([value for at in range(256) for value in (at * 37 % 256, at * 91 % 256, at * 13 % 256)])
    return saved(image, format, **options)


def mask(number: int, form: str = "L", size: tuple[int, int] = (96, 64), classes: int = 4) -> bytes:
    """Return a mask of a photograph of `photographs` as a PNG."""
    return encode_mask(class_ids(number, size, classes), form)


def write(root: Path, files: Mapping[str, bytes | int | str]) -> Path:
    """Write files below `root`; a number is a photograph, as JPEG, or its mask, as PNG."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, int):
            content = mask(content) if name.endswith(".png") else jpeg(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def as_grey(blob: bytes, bits: int) -> bytes:
    """Return a PNG with a palette as a grey one of the same samples."""
    assert blob[24] == bits
    header = bytearray(blob[12:29])
    header[13] = 0  # the colour type
    start = blob.index(b"PLTE") - 4
    stop = blob.index(b"IDAT") - 4
    assert start < stop
    return blob[:12] + bytes(header) + zlib.crc32(header).to_bytes(4, "big") + blob[33:start] + blob[stop:]
