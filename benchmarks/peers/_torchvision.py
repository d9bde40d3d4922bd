"""For the peers that return bytes: torchvision's fastest decoding and transforms on the CPU."""

from __future__ import annotations

import io
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


def decode(blob: bytes) -> torch.Tensor:
    """Decode to a uint8 tensor: by torchvision where its C++ part loads, else by Pillow."""
    if _native._has_image_ops():
        native: torch.Tensor = _native.decode_jpeg(torch.frombuffer(bytearray(blob), dtype=torch.uint8), "RGB")
        return native
    with Image.open(io.BytesIO(blob)) as opened:
        return torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)


class ToImage:
    """From the bytes of a JPEG to the normalised float32 tensor, as torchvision's guide wants it for speed."""

    def __init__(self) -> None:
        crop = v2.RandomResizedCrop(SIZE, antialias=True)
        floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD, inplace=True)]
        self._augment = v2.Compose([crop, v2.RandomHorizontalFlip(), *floats])

    def __call__(self, blob: bytes) -> torch.Tensor:
        image: torch.Tensor = self._augment(decode(blob))
        return image


def loader(dataset: Any, batch: int, workers: int, **arguments: Any) -> Any:
    """Return the stock DataLoader with workers that stay."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=batch, num_workers=workers, persistent_workers=workers > 0, **arguments)
