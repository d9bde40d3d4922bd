"""Boxes and keypoints of a sample while operations move them, in arithmetic of NumPy.

Operations that keep rows and columns straight only scale and shift x and y. So several of them need one pass over the
coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from storeds.protocols import Array
from storeds.transforms.operations import Axes, Operation, Orient, Size

__all__ = ["Coordinates", "from_corners", "to_corners"]

_SAME = (1.0, 0.0, 1.0, 0.0)
_LEAST = 0.001  # pixels; float32 rounds thinner boxes to ones without a width, which detectors refuse
_NO_LIMITS = (-math.inf, -math.inf, math.inf, math.inf)


class Coordinates:
    """The boxes and keypoints of a sample.

    Attributes
    ----------
    boxes : dict of str to numpy.ndarray
        Element → float64 (n, 4): left, top, right, bottom. After `settle`, inside the image.
    points : dict of str to numpy.ndarray
        Element → float64 (…, 2 or 3): x, y, and perhaps a visibility, 0 for a point that is lost. x and y count from the
        edge of the first pixel.
    visible : dict of str to numpy.ndarray
        Element of boxes → the fraction of each box that operations have left, (n,).
    """

    def __init__(self, boxes: dict[str, Array], points: dict[str, Array], visible: dict[str, Array]) -> None:
        self.boxes, self.points, self.visible = boxes, points, visible
        # What `settle` has to do: scale and shift, then clip to (left, top, right, bottom).
        self._axes: Axes = _SAME
        self._limits = _NO_LIMITS

    def turn(self, orient: Orient) -> None:
        """Rotate all, before any `move`."""
        self.boxes = {name: orient.boxes(each) for name, each in self.boxes.items()}
        for each in self.points.values():
            each[..., :2] = orient.points(each[..., :2])

    def move(self, operation: Operation, size: Size) -> None:
        """Note an operation with a result of (height, width)."""
        left, top, right, bottom = self._limits
        scale_x, shift_x, scale_y, shift_y = operation.axes()
        before = self._axes
        self._axes = (
            before[0] * scale_x,
            before[1] * scale_x + shift_x,
            before[2] * scale_y,
            before[3] * scale_y + shift_y,
        )
        left, right = sorted((left * scale_x + shift_x, right * scale_x + shift_x))
        top, bottom = sorted((top * scale_y + shift_y, bottom * scale_y + shift_y))
        height, width = size
        self._limits = max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))
        if operation.pairs:
            self._swap(operation.pairs)

    def settle(self) -> dict[str, Array]:
        """Do what is noted: move boxes and points, clip boxes to the image and drop those thinner than 0.001 pixels.

        Returns
        -------
        dict of str to numpy.ndarray
            Element of boxes → which of them are kept, bool (n,), for those that lost any.
        """
        if self._limits == _NO_LIMITS:
            return {}
        left, top, right, bottom = self._limits
        scale_x, shift_x, scale_y, shift_y = self._axes
        self._axes, self._limits = _SAME, _NO_LIMITS
        pairs = (scale_x, scale_y) * 2, (shift_x, shift_y) * 2, (left, top) * 2, (right, bottom) * 2
        scale, shift, low, high = np.array(pairs)
        for each in self.points.values():
            xy = each[..., :2]
            xy *= scale[:2]
            xy += shift[:2]
            if each.shape[-1] == 3:
                each[..., 2][((xy < low[:2]) | (xy > high[:2])).any(axis=-1)] = 0
        losses = {}
        for name, each in self.boxes.items():
            if not len(each):
                continue
            moved = each * scale
            moved += shift
            if scale_x < 0 or scale_y < 0:  # what was left is right now, and what was above is below
                moved = np.sort(moved.reshape(-1, 2, 2), axis=1).reshape(-1, 4)
            clipped = np.maximum(moved, low)
            np.minimum(clipped, high, out=clipped)
            sides = clipped[:, 2:] - clipped[:, :2]
            self.boxes[name] = clipped
            whole = (moved[:, 2:] - moved[:, :2]).prod(axis=1)
            self.visible[name] = self.visible[name] * sides.prod(axis=1) / np.maximum(whole, 1e-12)
            if sides.min() < _LEAST:
                losses[name] = sides.min(axis=1) >= _LEAST
                self.keep(name, losses[name])
        return losses

    def keep(self, name: str, kept: Array) -> None:
        """Drop the other boxes."""
        self.boxes[name] = self.boxes[name][kept]
        self.visible[name] = self.visible[name][kept]

    def _swap(self, pairs: Sequence[Sequence[int]]) -> None:
        for name, points in self.points.items():
            if not points.size:  # JSON without a row does not say how many points one has
                continue
            order = list(range(points.shape[-2]))
            for first, second in pairs:
                if max(first, second) >= len(order):
                    raise ValueError(
                        f"keypoint_pairs names keypoint {max(first, second)}, but {name!r} has {len(order)}"
                    )
                order[first], order[second] = order[second], order[first]
            self.points[name] = points[..., order, :]


def to_corners(boxes: Array, format: str) -> Array:
    """Return float64 (n, 4): left, top, right, bottom."""
    corners = boxes.astype(np.float64)
    if format == "cxcywh":
        corners[:, :2] -= corners[:, 2:] / 2
    if format != "xyxy":
        corners[:, 2:] += corners[:, :2]
    return corners


def from_corners(corners: Array, format: str) -> Array:
    """Return boxes float32 in a format, in memory of their own."""
    boxes = corners.astype(np.float32)
    if format != "xyxy":
        boxes[:, 2:] -= boxes[:, :2]
    if format == "cxcywh":
        boxes[:, :2] += boxes[:, 2:] / 2
    return boxes
