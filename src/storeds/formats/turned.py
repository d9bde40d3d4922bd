"""Coordinates of pictures with an EXIF orientation: stores refer to the pixels as stored, other tools to those displayed."""

from __future__ import annotations

import numpy as np

from storeds.protocols import Array

__all__ = ["inverse", "turned_centres", "turned_keypoints", "turned_points"]

_INVERSE = {6: 8, 8: 6}  # every other orientation is its own inverse


def inverse(orientation: int) -> int:
    """Return the orientation that undoes `orientation`."""
    return _INVERSE.get(orientation, orientation)


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
