"""What a transform does to one sample, once its random numbers are drawn.

A built-in transform that moves pixels returns an `Operation`, and `JointTransform` applies it to every element of the
sample. Images, masks and coordinates so move alike.

Coordinates are continuous: pixel i covers [i, i + 1]. Masks hold class ids, so operations copy pixels of masks and never
compute new ones. The centre of a mask's pixel and of the image's pixel beside it come from the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from storeds.protocols import Array, Window
from storeds.records.roles import ORIENTATIONS
from storeds.transforms.functional import crop, crop_and_resize, flip

__all__ = ["Axes", "Cut", "Flip", "Operation", "Orient", "Size"]

Size = tuple[int, int]
"""Height and width in pixels."""
Axes = tuple[float, float, float, float]
"""What multiplies x, what is added to it, and the same of y."""


class Operation:
    """What a transform does to one sample. This base changes nothing."""

    pairs: Sequence[Sequence[int]] = ()
    """Numbers of keypoints that swap, such as those of the left and the right eye."""

    def image(self, image: Any) -> Any:
        """Return the changed image, of the type of `image`: Pillow, or a tensor (…, channels, height, width)."""
        return image

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the changed mask, integers of shape (height, width) or (n, height, width)."""
        return mask

    def axes(self) -> Axes:
        """Return how coordinates change: (scale of x, shift of x, scale of y, shift of y)."""
        return 1.0, 0.0, 1.0, 0.0

    def size(self, height: int, width: int) -> Size:
        """Return (height, width) of the result for an image of that size."""
        return height, width


@dataclass(frozen=True)
class Cut(Operation):
    """Cut out a window (top, left, height, width), and resize it to `result`, (height, width).

    A window that keeps its size may reach beyond the image. Pixels and class ids are 0 there.
    """

    window: Window
    result: Size
    interpolation: str = "bilinear"

    def image(self, image: Any) -> Any:
        # docstring inherited
        return crop_and_resize(image, self.window, self.result, self.interpolation)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        if self.window[2:] == self.result:
            return crop(mask, self.window)
        return torch.from_numpy(_nearest(mask.numpy(), self.window, self.result))

    def axes(self) -> Axes:
        # docstring inherited
        top, left, height, width = self.window
        scale_x, scale_y = self.result[1] / width, self.result[0] / height
        return scale_x, -left * scale_x, scale_y, -top * scale_y

    def size(self, height: int, width: int) -> Size:
        # docstring inherited
        return self.result


@dataclass(frozen=True)
class Flip(Operation):
    """Mirror images of size `canvas`, (height, width), left to right or top to bottom."""

    canvas: Size
    vertical: bool = False
    pairs: Sequence[Sequence[int]] = ()

    def image(self, image: Any) -> Any:
        # docstring inherited
        return flip(image, vertical=self.vertical)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        return flip(mask, vertical=self.vertical)

    def axes(self) -> Axes:
        # docstring inherited
        height, width = self.canvas
        return (1.0, 0.0, -1.0, height) if self.vertical else (-1.0, width, 1.0, 0.0)


@dataclass(frozen=True)
class Orient:
    """Rotate by an EXIF orientation, 1 to 8, what belongs to images of size `canvas`, (height, width) before the rotation.

    Readers rotate the images themselves when they decode them.
    """

    canvas: Size
    orientation: int

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a rotated mask, integers of shape (height, width) or (n, height, width)."""
        swap, reverse_rows, reverse_columns = ORIENTATIONS[self.orientation]
        pixels = mask.numpy()
        pixels = pixels.swapaxes(-1, -2) if swap else pixels
        turned = pixels[..., :: -1 if reverse_rows else 1, :: -1 if reverse_columns else 1]
        return torch.from_numpy(turned.copy())  # a reversed single row is contiguous, and torch refuses it

    def points(self, points: Array) -> Array:
        """Return where points go, floats of shape (…, 2): x and y."""
        swap, reverse_rows, reverse_columns = ORIENTATIONS[self.orientation]
        height, width = self.size()
        turned: Array = points[..., ::-1] if swap else points
        signs = -1 if reverse_columns else 1, -1 if reverse_rows else 1
        shift = width if reverse_columns else 0, height if reverse_rows else 0
        return turned * signs + shift

    def boxes(self, boxes: Array) -> Array:
        """Return where boxes go, floats of shape (n, 4): left, top, right, bottom."""
        corners = self.points(boxes.reshape(-1, 2, 2))
        return np.concatenate([corners.min(1), corners.max(1)], axis=1)

    def size(self) -> Size:
        """Return (height, width) after the rotation."""
        height, width = self.canvas
        return (width, height) if ORIENTATIONS[self.orientation][0] else (height, width)


def _nearest(mask: Array, window: Window, result: Size) -> Array:
    """Resize a window inside a mask: the centre of each new pixel gets the pixel in which it lies."""
    top, left, height, width = window
    rows = ((2 * np.arange(result[0]) + 1) * height) // (2 * result[0]) + top
    columns = ((2 * np.arange(result[1]) + 1) * width) // (2 * result[1]) + left
    # NumPy's take needs a seventh of the time of torch's index_select, and supports every dtype.
    return mask.take(rows, axis=-2).take(columns, axis=-1)
