"""Decodes JPEGs by libjpeg-turbo without Pillow, where that gives the same pixels, and sooner."""

from __future__ import annotations

import simplejpeg

from storeds.protocols import Array

__all__ = ["jpeg_pixels"]

_MODES = {"Gray": ("L", "GRAY"), "YCbCr": ("RGB", "RGB")}


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
