"""The built-in decoders: stored bytes, a Pillow image, or a uint8 tensor."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import torch

__all__ = ["decode_bytes", "decode_pil", "decode_reason", "decode_tensor"]


_ADDRESS = re.compile(r" ?<_io\.BytesIO object at 0x[0-9a-f]+>")


def decode_reason(error: Exception) -> str:
    """Return why a decoder failed, the same text for the same bytes: Pillow shows a memory address."""
    return f"{type(error).__name__}: {_ADDRESS.sub('', str(error))}"


def decode_bytes(blob: bytes, mode: str) -> bytes:
    """Return the stored bytes untouched."""
    return blob


def decode_pil(blob: bytes, mode: str) -> Image.Image:
    """Return the image in `mode`, fully loaded, as ``PIL.Image.open(…).convert(mode)`` gives it."""
    with Image.open(io.BytesIO(blob)) as image:
        return image.convert(mode)


def decode_tensor(blob: bytes, mode: str) -> torch.Tensor:
    """Return the pixels of `decode_pil` as a uint8 tensor, shape (channels, height, width), owning its memory."""
    import torch

    pixels = np.array(decode_pil(blob, mode))
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
