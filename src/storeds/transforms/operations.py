"""What a transform does to one sample, once its random numbers are drawn.

A built-in transform returns an `Operation`, and `JointTransform` applies it to every element of the sample. Images,
masks and coordinates so move alike.

Coordinates are continuous: pixel i covers [i, i + 1]. Masks hold class ids, so operations copy pixels of masks and never
compute new ones. The centre of a mask's pixel and of the image's pixel beside it come from the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from storeds.protocols import Array, Cropped, Window
from storeds.records.roles import ORIENTATIONS
from storeds.transforms.functional import crop, crop_and_resize, flip, owned, resize

__all__ = [
    "Axes",
    "Cut",
    "CutAndResize",
    "EachImage",
    "Flip",
    "Operation",
    "Orient",
    "ResizeTo",
    "Size",
]

Size = tuple[int, int]
"""Height and width in pixels."""
Axes = tuple[float, float, float, float]
"""What multiplies x, what is added to it, and the same of y."""


class Operation:
    """What a transform does to one sample. This base changes nothing.

    A subclass overrides what it changes. One that changes only values of pixels overrides `image` alone.
    """

    moves: ClassVar[bool] = False
    """Whether pixels move. If not, `mask`, `points`, `boxes` and `size` are not called."""
    turns: ClassVar[bool] = False
    """Whether a subclass overrides `points`, because rows may become columns or slanting lines. If not, it overrides `axes`."""
    pairs: Sequence[Sequence[int]] = ()
    """Numbers of keypoints that swap, such as those of the left and the right eye."""

    def image(self, image: Any) -> Any:
        """Return the changed image, of the type of `image`: Pillow, or a tensor (…, channels, height, width)."""
        return image

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the changed mask, integers of shape (height, width) or (n, height, width)."""
        return mask

    def axes(self) -> Axes:
        """Return how coordinates change: (scale of x, shift of x, scale of y, shift of y). Not called if it `turns`."""
        return 1.0, 0.0, 1.0, 0.0

    def points(self, points: Array) -> Array:
        """Return where points go, floats of shape (…, 2): x and y."""
        scale_x, shift_x, scale_y, shift_y = self.axes()
        moved: Array = points * np.array((scale_x, scale_y)) + np.array((shift_x, shift_y))
        return moved

    def size(self, height: int, width: int) -> Size:
        """Return (height, width) of the result for an image of that size."""
        return height, width

    def boxes(self, boxes: Array) -> Array:
        """Return the smallest boxes around what boxes become, floats of shape (n, 4): left, top, right, bottom."""
        corners = self.points(boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2))
        return np.concatenate([corners.min(1), corners.max(1)], axis=1)


@dataclass(frozen=True)
class EachImage(Operation):
    """Apply a transform that draws nothing and moves no pixels to every image."""

    transform: Any

    def image(self, image: Any) -> Any:
        # docstring inherited
        return self.transform(image)


@dataclass(frozen=True)
class Cut(Operation):
    """Cut out a window (top, left, height, width). Outside the image, pixels and class ids are 0."""

    window: Window
    who: str = "Crop"
    moves: ClassVar[bool] = True

    def image(self, image: Any) -> Any:
        # docstring inherited
        return owned(image.images[0]) if isinstance(image, Cropped) else crop(image, *self.window, self.who)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        return torch.from_numpy(_cut(mask.numpy(), self.window))

    def axes(self) -> Axes:
        # docstring inherited
        return 1.0, -self.window[1], 1.0, -self.window[0]

    def size(self, height: int, width: int) -> Size:
        # docstring inherited
        return self.window[2], self.window[3]


@dataclass(frozen=True)
class ResizeTo(Operation):
    """Resize images of size `canvas` to `result`, each (height, width), and masks by the nearest pixel."""

    canvas: Size
    result: Size
    interpolation: str = "bilinear"
    who: str = "Resize"
    moves: ClassVar[bool] = True

    def image(self, image: Any) -> Any:
        # docstring inherited
        return resize(image, self.result, self.interpolation, self.who)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        return _nearest(mask, (0, 0, *self.canvas), self.result)

    def axes(self) -> Axes:
        # docstring inherited
        return self.result[1] / self.canvas[1], 0.0, self.result[0] / self.canvas[0], 0.0

    def size(self, height: int, width: int) -> Size:
        # docstring inherited
        return self.result


@dataclass(frozen=True)
class CutAndResize(Operation):
    """Resize a window (top, left, height, width) inside the image to `result`, (height, width)."""

    window: Window
    result: Size
    interpolation: str = "bilinear"
    who: str = "RandomResizedCrop"
    moves: ClassVar[bool] = True

    def image(self, image: Any) -> Any:
        # docstring inherited
        return crop_and_resize(image, self.window, self.result, self.interpolation, self.who)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        return _nearest(mask, self.window, self.result)

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
    moves: ClassVar[bool] = True

    def image(self, image: Any) -> Any:
        # docstring inherited
        if not self.vertical:
            return flip(image)
        if isinstance(image, Image.Image):
            return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        return flip(image.mT).mT.contiguous()

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        pixels = mask.numpy()
        return torch.from_numpy(np.ascontiguousarray(pixels[..., ::-1, :] if self.vertical else pixels[..., ::-1]))

    def axes(self) -> Axes:
        # docstring inherited
        height, width = self.canvas
        return (1.0, 0.0, -1.0, height) if self.vertical else (-1.0, width, 1.0, 0.0)


@dataclass(frozen=True)
class Orient(Operation):
    """Rotate by an EXIF orientation, 1 to 8, images of size `canvas`, (height, width) before the rotation."""

    canvas: Size
    orientation: int
    moves: ClassVar[bool] = True
    turns: ClassVar[bool] = True

    def image(self, image: Any) -> Any:
        # docstring inherited
        raise NotImplementedError("readers rotate images when they decode them")

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        swap, reverse_rows, reverse_columns = ORIENTATIONS[self.orientation]
        pixels = mask.numpy()
        pixels = pixels.swapaxes(-1, -2) if swap else pixels
        turned = pixels[..., :: -1 if reverse_rows else 1, :: -1 if reverse_columns else 1]
        return torch.from_numpy(np.ascontiguousarray(turned))

    def points(self, points: Array) -> Array:
        # docstring inherited
        swap, reverse_rows, reverse_columns = ORIENTATIONS[self.orientation]
        height, width = self.size(*self.canvas)
        turned: Array = points[..., ::-1] if swap else points
        signs = -1 if reverse_columns else 1, -1 if reverse_rows else 1
        shift = width if reverse_columns else 0, height if reverse_rows else 0
        return turned * signs + shift

    def size(self, height: int, width: int) -> Size:
        # docstring inherited
        return (width, height) if ORIENTATIONS[self.orientation][0] else (height, width)


def _nearest(mask: torch.Tensor, window: Window, result: Size) -> torch.Tensor:
    """Resize a window inside a mask: the centre of each new pixel gets the pixel in which it lies."""
    top, left, height, width = window
    rows = ((2 * np.arange(result[0]) + 1) * height) // (2 * result[0]) + top
    columns = ((2 * np.arange(result[1]) + 1) * width) // (2 * result[1]) + left
    # NumPy's take needs a seventh of the time of torch's index_select, and supports every dtype.
    return torch.from_numpy(mask.numpy().take(rows, axis=-2).take(columns, axis=-1))


def _cut(mask: Array, window: Window) -> Array:
    """Cut a window out of a mask. Outside the mask it is 0. The result owns its memory."""
    top, left, height, width = window
    first_row, first_column = max(top, 0), max(left, 0)
    inside = mask[..., first_row : max(top + height, 0), first_column : max(left + width, 0)]
    if inside.shape[-2:] == (height, width):
        return inside.copy()
    padded = np.zeros((*mask.shape[:-2], height, width), mask.dtype)
    row, column = first_row - top, first_column - left
    padded[..., row : row + inside.shape[-2], column : column + inside.shape[-1]] = inside
    return padded
