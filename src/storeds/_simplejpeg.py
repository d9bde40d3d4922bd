"""Decodes JPEGs by libjpeg-turbo without Pillow, where that gives the same pixels, and sooner."""

from __future__ import annotations

import simplejpeg

from storeds.jpeg import Finding
from storeds.protocols import Array

__all__ = ["jpeg_pixels", "jpeg_upper_pixels"]

_MODES = {"Gray": ("L", "GRAY"), "YCbCr": ("RGB", "RGB")}
_MARKERS = {"baseline": 0xC0, "extended": 0xC1}
# Colours are smoothed over two lines beyond a line; and whole rows of blocks are decoded anyway.
_MARGIN, _ROW = 4, 8


def jpeg_pixels(blob: bytes, mode: str, max_pixels: int, *, shortcuts: bool = False) -> Array | None:
    """Return the pixels, uint8 of shape (height, width, channels), or None if Pillow is to decode them.

    Only a colour or grayscale JPEG without a fault is decoded here: with ``strict=False`` simplejpeg may return memory
    that it never wrote, which can be an earlier picture.

    Parameters
    ----------
    shortcuts : bool
        Use libjpeg-turbo's fast DCT and its fast upsampling of colours, which give slightly other pixels.
    """
    if not blob.startswith(b"\xff\xd8"):
        return None
    try:
        height, width, colour, _ = simplejpeg.decode_jpeg_header(blob, strict=True)
        own_mode, name = _MODES.get(colour, ("", ""))
        if own_mode != mode or height * width > max_pixels:
            return None
        pixels: Array = simplejpeg.decode_jpeg(
            blob, colorspace=name, fastdct=shortcuts, fastupsample=shortcuts, strict=True
        )
        return pixels
    except ValueError:
        return None  # a fault, of which Pillow decodes what there is


def jpeg_upper_pixels(
    blob: bytes, mode: str, finding: Finding, rows: int, *, shortcuts: bool = False, divisor: int = 1
) -> Array | None:
    """Return at least the upper `rows` of the pixels that `jpeg_pixels` returns, or None if that is to be asked.

    The frame header of a copy claims fewer lines, and libjpeg-turbo stops there; what it says of the data that are left
    is not heard, so this is for a file whose structure is intact, with all of its data in one scan.

    Parameters
    ----------
    finding : Finding
        Of `blob`.
    divisor : int
        1, 2, 4 or 8: by how much the picture, and so `rows`, is decoded smaller.
    """
    frame = finding.frame
    if finding.kind != "intact" or finding.scans != 1 or frame is None or frame.process not in _MARKERS:
        return None
    lines = min(-(-(rows + _MARGIN) // _ROW) * _ROW, frame.height)
    header = bytes((0xFF, _MARKERS[frame.process], 0, 8 + 3 * frame.components, 8)) + frame.height.to_bytes(2, "big")
    at = blob.find(header) + len(header)
    if at < len(header) or (lines == frame.height and divisor == 1):
        return None
    shorter = b"".join((memoryview(blob)[: at - 2], lines.to_bytes(2, "big"), memoryview(blob)[at:]))
    least = -(-lines // divisor), -(-frame.width // divisor)
    try:
        own_mode, name = _MODES.get(simplejpeg.decode_jpeg_header(shorter, strict=False)[2], ("", ""))
        if own_mode != mode:
            return None
        pixels: Array = simplejpeg.decode_jpeg(
            shorter,
            colorspace=name,
            fastdct=shortcuts,
            fastupsample=shortcuts,
            min_height=least[0],
            min_width=least[1],
            min_factor=divisor,
            strict=False,
        )
    except ValueError:
        return None
    return pixels if pixels.shape[:2] == least else None
