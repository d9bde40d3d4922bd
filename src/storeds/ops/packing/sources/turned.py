"""Coordinates of pictures with an EXIF orientation: stores refer to the pixels as stored, other tools to those displayed."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from storeds._utils.text import counted, some
from storeds.pictures import read_picture_header
from storeds.pictures.decoders import orientation_of
from storeds.protocols import Array

__all__ = ["inverse", "is_mask_unproven", "taken_as_stored", "turned_centres", "turned_keypoints", "turned_points"]

_INVERSE = {6: 8, 8: 6}  # every other orientation is its own inverse


def inverse(orientation: int) -> int:
    """Return the orientation that undoes `orientation`."""
    return _INVERSE.get(orientation, orientation)


def taken_as_stored(keys: Collection[str]) -> Iterator[str]:
    """Yield a sentence about pictures that EXIF turns, if nothing tells what their annotations refer to."""
    if keys:
        yield (
            f"{counted(len(keys), 'picture has', 'pictures have')} an EXIF orientation ({some(sorted(keys))}), and nothing tells "
            "whether annotations refer to the picture as displayed: they are taken to refer to the pixels as stored; if boxes "
            "do not fit their objects, store these pictures upright"
        )


def is_mask_unproven(blob: bytes) -> bool:
    """Whether a mask of the size of a picture as stored may be that of the picture as its EXIF orientation displays it."""
    orientation = orientation_of(blob) or 1
    header = read_picture_header(blob) if orientation > 4 else None
    return orientation in (2, 3, 4) or (header is not None and header.width == header.height)


def turned_points(points: Array, orientation: int, size: tuple[int, int] = (1, 1)) -> Array:
    """Return points (…, 2) of a picture of (height, width) `size` after it is turned. The default is relative points."""
    from storeds.transforms.operations import Orient  # it imports torch, which pack, verify and info do not need

    return Orient(size, orientation).points(points)


def turned_centres(boxes: Array, orientation: int) -> Array:
    """Return relative boxes of format cxcywh after their picture is turned."""
    sides = boxes[:, :1:-1] if orientation > 4 else boxes[:, 2:]
    return np.concatenate([turned_points(boxes[:, :2], orientation), sides], axis=1)


def turned_keypoints(points: Array, orientation: int, size: tuple[int, int]) -> Array:
    """Return relative keypoints (…, 2 or 3) after their picture of (height, width) `size` is turned.

    A keypoint at 0, 0 is the centre of the first pixel. One of visibility 0 has no place, and stays.
    """
    half = 0.5 / np.array([size[1], size[0]])
    places = turned_points(points[..., :2] + half, orientation) - (half[::-1] if orientation > 4 else half)
    if points.shape[-1] == 2:
        return places
    return np.concatenate([np.where(points[..., 2:] > 0, places, points[..., :2]), points[..., 2:]], axis=-1)
