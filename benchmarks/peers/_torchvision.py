"""For the peers that return bytes: torchvision's fastest decoding and transforms on the CPU."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.peers._job import MEAN, SIZE, STD

try:
    import torchvision  # noqa: F401  # only to see whether it can be
except RuntimeError:  # its C++ part does not load beside a torch without CUDA, and it describes operators of that part
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")

from torchvision.io import image as _native
from torchvision.transforms import v2

Decode = Callable[[bytes], torch.Tensor]


def decode_pillow(blob: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(blob)) as opened:
        pixels = np.array(opened.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def decode_torchvision(blob: bytes) -> torch.Tensor:
    pixels: torch.Tensor = _native.decode_jpeg(torch.frombuffer(bytearray(blob), dtype=torch.uint8), "RGB")
    return pixels


def decode_simplejpeg(blob: bytes) -> torch.Tensor:
    import simplejpeg

    return torch.from_numpy(simplejpeg.decode_jpeg(blob)).permute(2, 0, 1)


def decoder(name: str) -> Decode:
    """Return the decoder to a uint8 tensor: torchvision's own where it loads, else Pillow, or simplejpeg on demand."""
    if name == "simplejpeg":
        return decode_simplejpeg
    return decode_torchvision if _native._has_image_ops() else decode_pillow


def decoder_name(name: str) -> str:
    return decoder(name).__name__.removeprefix("decode_")


def augmentation() -> Any:
    """Return the transforms as torchvision's guide wants them for speed: uint8 tensors as long as possible, antialiased."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD, inplace=True),
        ]
    )


class ToImage:
    """From the bytes of a JPEG to the normalised float32 tensor."""

    def __init__(self, name: str) -> None:
        self._decode, self._augment = decoder(name), augmentation()

    def __call__(self, blob: bytes) -> torch.Tensor:
        image: torch.Tensor = self._augment(self._decode(blob))
        return image


def loader(dataset: Any, batch: int, workers: int, **arguments: Any) -> Any:
    """Return the stock DataLoader with workers that stay."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=batch, num_workers=workers, persistent_workers=workers > 0, **arguments)
