"""The decoder ``simplejpeg``: the pixels of ``tensor``, decoded by libjpeg-turbo without Pillow where that is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import simplejpeg

from storeds.decode import decode_tensor, to_tensor
from storeds.jpeg.estimate import MAX_PIXELS

if TYPE_CHECKING:
    import torch

__all__ = ["decode_simplejpeg"]

_MODES = {"Gray": ("L", "GRAY"), "YCbCr": ("RGB", "RGB")}


def decode_simplejpeg(blob: bytes, mode: str, *, orient: bool = False, max_pixels: int = MAX_PIXELS) -> torch.Tensor:
    """Return what `storeds.decode.decode_tensor` does.

    Only a colour or grayscale JPEG without a fault goes to simplejpeg: with ``strict=False`` it may return memory that it
    never wrote, which can be an earlier picture.
    """
    if not orient and blob.startswith(b"\xff\xd8"):
        try:
            height, width, colour, _ = simplejpeg.decode_jpeg_header(blob, strict=True)
            own_mode, name = _MODES.get(colour, ("", ""))
            if own_mode == mode and height * width <= max_pixels:
                return to_tensor(simplejpeg.decode_jpeg(blob, colorspace=name, strict=True))
        except ValueError:
            pass  # a fault, of which Pillow decodes what there is
    return decode_tensor(blob, mode, orient=orient, max_pixels=max_pixels)
