"""Small crops of real photographs, for tests."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from skimage import data

__all__ = ["jpeg", "photograph"]


@functools.cache
def photograph(number: int = 0, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Return a crop, `size` = (width, height), of one of scikit-image's photographs."""
    left, top = (37 * number) % 200, (53 * number) % 100
    return _picture(number % 4).crop((left, top, left + size[0], top + size[1]))


@functools.cache
def _picture(number: int) -> Image.Image:
    pictures: list[Callable[[], Any]] = [data.astronaut, data.chelsea, data.coffee, data.rocket]
    return Image.fromarray(np.asarray(pictures[number]())).convert("RGB")


@functools.cache
def jpeg(number: int = 0, size: tuple[int, int] = (96, 64), **options: Any) -> bytes:
    """Return a photograph as JPEG; `options` go to Pillow's writer."""
    buffer = io.BytesIO()
    photograph(number, size).save(buffer, "JPEG", **options)
    return buffer.getvalue()
