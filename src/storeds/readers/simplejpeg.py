"""Decodes JPEGs by libjpeg-turbo, which warns of damage, where that gives the pixels that Pillow gives.

simplejpeg makes an error of a warning, and keeps no pixels. It never decodes here with ``strict=False``: that may return
memory which nothing was written to, such as an earlier picture.
"""

from __future__ import annotations

import re

import numpy as np
import simplejpeg

from storeds.jpeg.markers import Header
from storeds.protocols import Array

__all__ = ["check_jpeg", "jpeg_pixels", "jpeg_upper_pixels"]

_MODES = {"Gray": ("L", "GRAY"), "YCbCr": ("RGB", "RGB")}
# Colours are smoothed over two lines beyond a line; and whole rows of blocks are decoded anyway.
_MARGIN, _ROW = 4, 8
_REST = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd(9|[0-7])")


def jpeg_pixels(blob: bytes, mode: str, max_pixels: int, *, shortcuts: bool = False) -> Array | None:
    """Return the pixels, uint8 of shape (height, width, channels), or None if Pillow is to decode them.

    None is for what is no JPEG, and for one whose colours are not those of `mode`, or are no YCbCr.

    Parameters
    ----------
    shortcuts : bool
        Use libjpeg-turbo's fast DCT and its fast upsampling of colours, which give slightly other pixels.

    Raises
    ------
    ValueError
        libjpeg-turbo fails on the file, or warns of damage.
    """
    if not blob.startswith(b"\xff\xd8"):
        return None
    height, width, colour = _header(blob)
    own_mode, name = _MODES.get(colour, ("", ""))
    if own_mode != mode or height * width > max_pixels:
        return None
    pixels: Array = simplejpeg.decode_jpeg(
        blob, colorspace=name, fastdct=shortcuts, fastupsample=shortcuts, strict=True
    )
    return pixels


def _header(blob: bytes) -> tuple[int, int, str]:
    """Return height, width and colour space; the last is empty for a subsampling that simplejpeg has no name for."""
    try:
        height, width, colour, _ = simplejpeg.decode_jpeg_header(blob, strict=True)
    except KeyError:  # libjpeg-turbo has read the header: four lines of luma to one of colour
        return 0, 0, ""
    return height, width, colour


def check_jpeg(blob: bytes) -> None:
    """Raise ValueError for a JPEG that libjpeg-turbo fails on or warns of; it is decoded at an eighth of its size."""
    simplejpeg.decode_jpeg(blob, colorspace="GRAY", min_height=1, min_width=1, min_factor=8, strict=True)


def jpeg_upper_pixels(
    blob: bytes, mode: str, header: Header, rows: int, *, shortcuts: bool = False, divisor: int = 1
) -> Array | None:
    """Return at least the upper `rows` of the pixels that `jpeg_pixels` returns, or None if that is to be asked.

    The frame header of a copy claims fewer lines, and libjpeg-turbo stops there. It then warns of the data that are
    left; any other warning comes first, and gives None. Damage below the rows stays unseen, so this is for a file that is
    known to be whole.

    Parameters
    ----------
    header : Header
        Of `blob`.
    divisor : int
        1, 2, 4 or 8: by how much the picture, and so `rows`, is decoded smaller.
    """
    lines = min(-(-(rows + _MARGIN) // _ROW) * _ROW, header.height)
    if not header.in_one_scan or (lines == header.height and divisor == 1):
        return None
    at = header.height_at
    shorter = b"".join((memoryview(blob)[:at], lines.to_bytes(2, "big"), memoryview(blob)[at + 2 :]))
    height, width = -(-lines // divisor), -(-header.width // divisor)
    try:
        own_mode, name = _MODES.get(_header(shorter)[2], ("", ""))
        if own_mode != mode:
            return None
        # The warning of the data that are left is an error too, so the pixels are taken from memory of our own.
        pixels = np.empty((height, width, 1 if name == "GRAY" else 3), np.uint8)
        simplejpeg.decode_jpeg(
            shorter,
            colorspace=name,
            fastdct=shortcuts,
            fastupsample=shortcuts,
            min_height=height,
            min_width=width,
            min_factor=divisor,
            buffer=pixels,
            strict=True,
        )
    except ValueError as error:
        left = _REST.fullmatch(str(error))
        return pixels if left and (header.has_restarts or left[1] == "9") else None
    return pixels
