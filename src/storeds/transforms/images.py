"""The built-in transforms: crops, resizing, flips, conversion to normalised tensors, and a filter of boxes.

Those that move pixels draw an `Operation` from the size of an image. So they also apply to whole samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from storeds.protocols import Array, Cropped, CropRequest
from storeds.transforms.arguments import (
    Coordinate,
    Declared,
    Edges,
    Flag,
    Interpolation,
    Interval,
    Length,
    Numbers,
    Padding,
    Pairs,
    Pixels,
    Probability,
)
from storeds.transforms.operations import Cut, Flip, ImageT, Operation, normalize, size_of, to_tensor

__all__ = [
    "CenterCrop",
    "Crop",
    "FilterBoxes",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "Spatial",
    "ToTensor",
]

_MAX_PIXELS = 2**28


class Spatial(Declared):
    """Base of the transforms that move pixels.

    Attributes
    ----------
    is_random : bool
        Whether it draws for each sample where they go.
    """

    moves_pixels: ClassVar[bool] = True
    is_random: ClassVar[bool] = False

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return the transformed image.

        Parameters
        ----------
        image : PIL.Image.Image or torch.Tensor
        generator : torch.Generator, optional
            Random numbers come from it, by default from torch's global generator.

        Raises
        ------
        TypeError, ValueError
            The argument is not an image, has no pixels, or does not fit this transform.
        """
        made: ImageT = self.operation(*size_of(image, type(self).__name__), generator).image(image)
        return made

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to a sample with images of `height` × `width` pixels."""
        raise NotImplementedError


@dataclass(frozen=True)
class Resize(Spatial):
    """Resize an image, with antialiasing.

    Parameters
    ----------
    size : int or (int, int)
        Pixels. An int is the new shorter edge; the longer edge keeps the aspect ratio, rounded down. A pair is
        (height, width).
    interpolation : str
        ``bilinear``, ``bicubic``, ``nearest``, ``nearest-exact``; for Pillow images also ``box``, ``hamming``,
        ``lanczos``. Pillow's nearest is torch's ``nearest-exact``.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    Images that would become larger than 2**28 pixels raise ValueError.
    """

    size: Edges
    interpolation: Interpolation = "bilinear"

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        # docstring inherited
        size = self.size
        result = _shorter_edge(height, width, size) if isinstance(size, int) else _both_edges(size)
        return Cut((0, 0, height, width), result, self.interpolation)


def _both_edges(size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width); a single length stands for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _shorter_edge(height: int, width: int, size: int) -> tuple[int, int]:
    """Return the (height, width) with shorter edge `size`. The longer edge is rounded down, as in torchvision."""
    longer = int(size * max(height, width) / min(height, width))
    # One line of 65,500 pixels would need 10 GB at size 224. Raise an error that the dataset's policy can handle.
    if size * longer > _MAX_PIXELS:
        raise ValueError(
            f"Resize: an image {height} high and {width} wide would have more than {_MAX_PIXELS} pixels with a shorter edge "
            f"of {size}; give both edges"
        )
    return (longer, size) if width <= height else (size, longer)


class _Crop(Spatial):
    """Base of the crops, which are `storeds.protocols.Cropper`: a reader may draw the window and decode only that."""

    def draw(self, height: int, width: int, generator: torch.Generator | None = None) -> CropRequest:
        """Draw the window in an image of `height` × `width` pixels; raise ValueError if none fits."""
        raise NotImplementedError

    def drawn(self, crop: CropRequest) -> Operation:
        """Return what this does to a sample, with a crop that `draw` or `crops` returned."""
        return Cut(crop.window, crop.size)

    def crops(self, height: int, width: int, generator: torch.Generator | None = None) -> tuple[CropRequest, ...]:
        """Draw the only crop of an image of `height` × `width` pixels; return none for an image that is too small."""
        try:
            return (self.draw(height, width, generator),)
        except ValueError:  # the image itself will raise it, as a bad sample
            return ()

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        # docstring inherited
        return self.drawn(self.draw(height, width, generator))

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        # docstring inherited
        if not isinstance(image, Cropped):
            return super().__call__(image, generator)
        cut: ImageT = self.drawn(CropRequest((0, 0, 0, 0), self._result())).image(image)  # the reader has drawn it
        return cut

    def _result(self) -> tuple[int, int]:
        """Return (height, width) of the result."""
        size: int | Sequence[int] = self.size  # type: ignore[attr-defined]  # a field of the subclass
        return _both_edges(size)


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Cut out the middle of an image, and pad smaller images with zeros.

    Parameters
    ----------
    size : int or (int, int)
        (height, width) in pixels, or an int for both.

    Raises
    ------
    ConfigError
        `size` is invalid.
    """

    size: Edges

    def draw(self, height: int, width: int, generator: torch.Generator | None = None) -> CropRequest:
        # docstring inherited
        rows, columns = self._result()
        return CropRequest((_middle(height, rows), _middle(width, columns), rows, columns), (rows, columns))


def _middle(length: int, wanted: int) -> int:
    """Return where a window in the middle begins, rounded as in torchvision."""
    return round((length - wanted) / 2) if wanted <= length else -((wanted - length) // 2)


@dataclass(frozen=True)
class Crop(_Crop):
    """Cut out a fixed window of an image, and pad with zeros beyond its edges.

    Parameters
    ----------
    top, left : int
        Position of the first pixel of the window; negative above or left of the image.
    height, width : int
        Pixels of the window.

    Raises
    ------
    ConfigError
        A number is not an int, or the window has no pixels.
    """

    top: Coordinate
    left: Coordinate
    height: Pixels
    width: Pixels

    def draw(self, height: int, width: int, generator: torch.Generator | None = None) -> CropRequest:
        # docstring inherited
        return CropRequest((self.top, self.left, self.height, self.width), self._result())

    def _result(self) -> tuple[int, int]:
        return self.height, self.width


@dataclass(frozen=True)
class RandomResizedCrop(_Crop):
    """Cut out a window of random area and aspect ratio, and resize it.

    Parameters
    ----------
    size : int or (int, int)
        (height, width) of the result in pixels, or an int for both.
    scale : (float, float)
        Minimum and maximum area of the window, relative to the area of the image.
    ratio : (float, float)
        Minimum and maximum aspect ratio (width / height) of the window. Its logarithm is drawn uniformly.
    interpolation : str
        As for `Resize`.

    Raises
    ------
    ConfigError
        An argument is invalid, or an interval is reversed.

    Notes
    -----
    After ten windows that do not fit into the image, it uses the largest centred window with an allowed ratio.
    """

    is_random: ClassVar[bool] = True
    size: Edges
    scale: Interval = (0.08, 1.0)
    ratio: Interval = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale", "ratio"):
            least, greatest = getattr(self, name)
            if least > greatest:
                raise self._refusal(name, "Expected the lesser number first")

    def draw(self, height: int, width: int, generator: torch.Generator | None = None) -> CropRequest:
        # docstring inherited
        # Draw in float32 and in torchvision's order: the same seed gives the same windows.
        for _ in range(10):
            area = height * width * _uniform(self.scale[0], self.scale[1], generator).item()
            aspect = _uniform(*_logarithms(tuple(self.ratio)), generator).exp_().item()
            columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < columns <= width and 0 < rows <= height:
                top, left = _integer(height - rows + 1, generator), _integer(width - columns + 1, generator)
                return CropRequest((top, left, rows, columns), self._result())
        columns, rows = width, height
        if width / height < self.ratio[0]:
            rows = max(1, round(width / self.ratio[0]))
        elif width / height > self.ratio[1]:
            columns = max(1, round(height * self.ratio[1]))
        return CropRequest(((height - rows) // 2, (width - columns) // 2, rows, columns), self._result())

    def drawn(self, crop: CropRequest) -> Operation:
        # docstring inherited
        return Cut(crop.window, crop.size, self.interpolation)


@dataclass(frozen=True)
class RandomCrop(_Crop):
    """Cut a window of a given size out of an image, at a random place.

    Parameters
    ----------
    size : int or (int, int)
        (height, width) of the window in pixels, or an int for both.
    padding : int or sequence of int, optional
        Pixels of 0 to add before: an int for all edges, a pair (left and right, top and bottom), or (left, top, right,
        bottom).
    pad_if_needed : bool
        Add the missing rows and columns at both sides of an image that is smaller than the window. Without it, such
        an image raises ValueError.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    The window is drawn before the image is decoded, and only a part of a JPEG is decoded. torchvision's ``RandomCrop``,
    by its dotted path, pads with other values.
    """

    is_random: ClassVar[bool] = True
    size: Edges
    padding: Padding = None
    pad_if_needed: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.padding is not None:
            edges = (self.padding,) if isinstance(self.padding, int) else tuple(self.padding)
            if len(edges) not in (1, 2, 4):
                raise self._refusal("padding", "Expected 1, 2 or 4 numbers")
            object.__setattr__(self, "padding", edges * (4 // len(edges)))

    def draw(self, height: int, width: int, generator: torch.Generator | None = None) -> CropRequest:
        # docstring inherited
        rows, columns = self._result()
        left, top, right, bottom = self.padding or (0, 0, 0, 0)  # type: ignore[misc]  # four since __post_init__
        height, width = top + height + bottom, left + width + right
        if self.pad_if_needed:
            more_rows, more_columns = max(0, rows - height), max(0, columns - width)
            top, left = top + more_rows, left + more_columns
            height, width = height + 2 * more_rows, width + 2 * more_columns
        if rows > height or columns > width:
            padded = " with its padding" if self.padding is not None else ""
            raise ValueError(
                f"RandomCrop: a window {rows} high and {columns} wide does not fit into an image {height} high and "
                f"{width} wide{padded}; set pad_if_needed, or put a Resize before"
            )
        # Without a choice, torchvision draws nothing.
        row = _integer(height - rows + 1, generator) if height > rows else 0
        column = _integer(width - columns + 1, generator) if width > columns else 0
        return CropRequest((row - top, column - left, rows, columns), (rows, columns))


def _uniform(low: float, high: float, generator: torch.Generator | None) -> torch.Tensor:
    """Draw a float32 number between `low` and `high`."""
    # The device is explicit because a default device may be another than the generator's.
    return torch.empty(1, device="cpu").uniform_(low, high, generator=generator)


def _integer(count: int, generator: torch.Generator | None) -> int:
    """Draw an integer from 0 to `count` - 1."""
    return int(torch.randint(count, (1,), generator=generator, device="cpu").item())


@functools.lru_cache(maxsize=64)
def _logarithms(ratio: tuple[float, ...]) -> tuple[float, float]:
    low, high = torch.log(torch.tensor(ratio, dtype=torch.float32, device="cpu")).tolist()
    return low, high


@dataclass(frozen=True)
class _RandomFlip(Spatial):
    """Base of the two random flips."""

    is_random: ClassVar[bool] = True
    vertical: ClassVar[bool] = False
    p: Probability = 0.5
    keypoint_pairs: Pairs = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = [number for pair in self.keypoint_pairs for number in pair]
        if len(set(numbers)) < len(numbers):
            raise self._refusal("keypoint_pairs", "Expected no number twice")

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        # docstring inherited
        # Draw one number whatever p is, so that p does not change what later transforms draw.
        if _uniform(0.0, 1.0, generator).item() >= self.p:
            return Operation()
        return Flip((height, width), vertical=self.vertical, pairs=self.keypoint_pairs)


class RandomHorizontalFlip(_RandomFlip):
    """Mirror an image left to right with a given probability.

    Parameters
    ----------
    p : float
        Probability in [0, 1].
    keypoint_pairs : sequence of (int, int)
        Numbers of keypoints that swap when a sample is mirrored, such as those of the left and the right eye: ``[[1,
        2], [3, 4]]``.

    Raises
    ------
    ConfigError
        `p` is not a probability, or a keypoint is in two pairs.
    """


class RandomVerticalFlip(_RandomFlip):
    """Mirror an image top to bottom with a given probability.

    Parameters
    ----------
    p : float
        Probability in [0, 1].
    keypoint_pairs : sequence of (int, int)
        As for `RandomHorizontalFlip`.

    Raises
    ------
    ConfigError
        `p` is not a probability, or a keypoint is in two pairs.
    """

    vertical: ClassVar[bool] = True


@dataclass(frozen=True)
class ToTensor(Declared):
    """Convert an image to a float32 tensor of shape (channels, height, width) with values in [0, 1]."""

    moves_pixels: ClassVar[bool] = False

    def __call__(self, image: Any) -> torch.Tensor:
        """Return the tensor, which shares no memory with a Pillow image or array.

        Parameters
        ----------
        image : PIL.Image.Image, numpy.ndarray or torch.Tensor
            Values of Pillow's 8-bit modes (``L``, ``RGB``, ``RGBA``, ``CMYK``, …) are divided by 255, and mode ``1``
            becomes 0 or 1. Modes ``I;16``, ``I`` and ``F`` keep their values, as int16, int32 and float32. An array has
            shape (height, width[, channels]); uint8 is divided by 255, other dtypes keep their values. A uint8 tensor
            is divided by 255. A floating tensor counts as scaled and becomes float32.

        Raises
        ------
        TypeError, ValueError
            The argument is none of these, or an ``I;16`` image has values beyond int16.
        """
        return to_tensor(image)


@dataclass(frozen=True)
class Normalize(Declared):
    """Subtract a mean from each channel of a floating tensor, and divide by a standard deviation.

    Parameters
    ----------
    mean, std : sequence of float
        One number per channel, or ``[number]`` for all, in the unit of the tensor (after `ToTensor`, values are in [0,
        1]).
    inplace : bool
        Change the given tensor and return it.

    Raises
    ------
    ConfigError
        A number is not finite, a deviation is not above zero, or the lengths differ.
    """

    moves_pixels: ClassVar[bool] = False
    mean: Numbers
    std: Numbers
    inplace: Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.std) <= 0:
            raise self._refusal("std", "Expected numbers above zero")
        if len(self.mean) != len(self.std) and 1 not in (len(self.mean), len(self.std)):
            raise self._refusal("std", f"Expected as many channels as mean has, {len(self.mean)}")

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Return the normalised tensor, of the same shape and dtype.

        Raises
        ------
        TypeError, ValueError
            The argument is not a floating tensor or has another number of channels, or a deviation is zero in its
            dtype.
        """
        return normalize(image, self.mean, self.std, inplace=self.inplace)


@dataclass(frozen=True)
class FilterBoxes(Declared):
    """Drop small boxes, and the rows of other elements that describe them: labels, keypoints, instance masks.

    For ``transforms=``, after transforms that move pixels. These drop boxes that are completely outside the image
    themselves.

    Parameters
    ----------
    min_area : float
        Least area of a box in pixels.
    min_visibility : float
        Least fraction of its area, 0 to 1, that the crops before have left of a box. Crops of built-in transforms count,
        and no others.
    min_size : float
        Least width and height of a box in pixels.

    Raises
    ------
    ConfigError
        An argument is negative or not a number, or `min_visibility` is above 1.
    """

    moves_pixels: ClassVar[bool] = False
    min_area: Length = 0.0
    min_visibility: Probability = 0.0
    min_size: Length = 0.0

    def __call__(self, image: Any) -> Any:
        """Raise TypeError: an image alone has no boxes."""
        raise TypeError("FilterBoxes takes whole samples: put it into transforms=, not into transform=")

    def kept(self, boxes: Array, visible: Array) -> Array:
        """Return which boxes to keep, bool (n,).

        Parameters
        ----------
        boxes : numpy.ndarray
            (n, 4): left, top, right, bottom.
        visible : numpy.ndarray
            (n,): the fraction of each box that crops have left.
        """
        sides = boxes[:, 2:] - boxes[:, :2]
        kept: Array = (sides.min(axis=1, initial=np.inf) >= self.min_size) & (sides.prod(axis=1) >= self.min_area)
        return kept & (visible >= self.min_visibility)
