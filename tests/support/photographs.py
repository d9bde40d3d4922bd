"""Small crops of real photographs, for tests."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from skimage import data

import storeds

__all__ = ["by_pillow", "jpeg", "photo_folders", "photo_store", "photograph", "saved"]


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
    return saved(photograph(number, size), "JPEG", **options)


def photo_folders(*folders: str, count: int = 20, size: tuple[int, int] = (160, 120)) -> None:
    """Write photographs into each folder, for the examples of pages."""
    for folder in folders:
        Path(folder).mkdir(parents=True)
        for number in range(count):
            Path(folder, f"{number:02}.jpg").write_bytes(jpeg(number, size))


def photo_store(url: str, count: int = 20, size: tuple[int, int] = (96, 64)) -> None:
    """Write a store of photographs with two classes, for the examples of pages."""
    with storeds.open_writer(url, {"key": "str", "image": "image", "label": "int"}) as writer:
        writer.append({"key": f"{n}.jpg", "image": jpeg(n, size), "label": n % 2} for n in range(count))
        writer.publish({"classes": ["cat", "dog"]})


def saved(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """Return an image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def by_pillow(blob: bytes, mode: str = "RGB") -> np.ndarray[Any, Any]:
    """Return the pixels that Pillow decodes, in `mode`."""
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert(mode))
