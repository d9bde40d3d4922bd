"""Describes the sample that readers pass to joint transforms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storeds.protocols import CropRequest, Field

__all__ = ["ORIENTATIONS", "Sample"]


ORIENTATIONS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
"""EXIF orientation → whether to swap height and width, and then to reverse rows and columns."""


@dataclass
class Sample:
    """One sample that a reader built, for joint transforms. Values share no memory with the store.

    Parameters
    ----------
    values : dict
        Element → value. An image is a Pillow image, a tensor of shape (channels, height, width), or a `Cropped`. A mask
        is an integer tensor of shape (height, width) or (instances, height, width). Boxes are a float32 tensor (n, 4) in
        pixels, in the format of their field. Keypoints are float32 (…, 2) or (…, 3) in pixels, where (0, 0) is the centre
        of the first pixel. Labels are an int64 tensor (n,). Other values are as stored.
    fields : mapping of str to Field
        Element → its declaration, with the role.
    size : (int, int)
        Height and width of the images as stored, after `orientation`. (0, 0) without images, masks and boxes.
    orientation : int
        EXIF orientation, 1 to 8, by which the reader has rotated the images, but not the other elements yet.
    window : CropRequest or None
        The first crop of the transforms, which the reader has drawn, and cut out of the images, but not of the others.
    """

    values: dict[str, Any]
    fields: Mapping[str, Field]
    size: tuple[int, int] = (0, 0)
    orientation: int = 1
    window: CropRequest | None = None
