"""Coordinates of pictures with an EXIF orientation: stores refer to the pixels as stored, other tools to those displayed."""

from __future__ import annotations

import io

from PIL import ExifTags, Image

from storeds.protocols import Array
from storeds.readers.decoders import orientation_of
from storeds.transforms.operations import Orient

__all__ = ["as_displayed", "as_stored", "exif_orientation"]

_INVERSE = {6: 8, 8: 6}  # every other orientation is its own inverse


def exif_orientation(blob: bytes) -> int:
    """Return the EXIF orientation of a picture, 1 to 8; 1 if it has none or cannot be read."""
    found = orientation_of(blob)
    if found is not None:
        return found
    try:
        with Image.open(io.BytesIO(blob)) as image:
            found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # decoders raise any exception on damaged bytes
        return 1
    return found if found in range(1, 9) else 1


def as_stored(points: Array, size: tuple[int, int], orientation: int) -> Array:
    """Return points (…, 2) of the picture as displayed, whose (height, width) is `size`, in the pixels as stored."""
    return Orient(size, _INVERSE.get(orientation, orientation)).points(points)


def as_displayed(points: Array, size: tuple[int, int], orientation: int) -> Array:
    """Return points (…, 2) of the pixels as stored, whose (height, width) is `size`, in the picture as displayed."""
    return Orient(size, orientation).points(points)
