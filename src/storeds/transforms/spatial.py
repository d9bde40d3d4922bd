"""Built-in transforms that pad, flip and rotate, and crops at random places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image

from storeds.errors import ConfigError
from storeds.protocols import Array, Cropped, CropRequest, Window
from storeds.transforms.arguments import (
    as_tuple,
    both_edges,
    check_bool,
    check_choice,
    check_interpolation,
    checked_colour,
    checked_int,
    checked_padding,
    checked_size,
    is_number,
    set_fields,
)
from storeds.transforms.functional import ImageT, draw_int, draw_uniform, owned, size_of
from storeds.transforms.geometry import (
    PADDING_MODES,
    Matrix,
    expanded_size,
    inverse_matrix,
    moved_points,
    rotate_pillow,
    turned,
    warp,
    warp_mask,
)
from storeds.transforms.operations import Cut, InTurn, Operation, PadBy, ResizeTo, Size

__all__ = ["LetterBox", "Pad", "RandomCrop", "RandomRotation"]

Fill = float | Sequence[float]


@dataclass(frozen=True)
class Pad:
    """Add pixels at the edges of an image.

    Parameters
    ----------
    padding : int or sequence of int
        Pixels: an int for all edges, a pair (left and right, top and bottom), or (left, top, right, bottom).
    fill : float or sequence of float
        Value of the new pixels with mode ``constant``, one for all channels or one for each.
    padding_mode : str
        ``constant``; ``edge`` repeats the outermost pixel; ``reflect`` mirrors the image without its outermost pixel,
        and ``symmetric`` with it.
    mask_fill : int
        Class id of new pixels of masks with mode ``constant``.

    Raises
    ------
    ConfigError
        An argument is invalid.
    """

    padding: int | Sequence[int]
    fill: Fill = 0
    padding_mode: str = "constant"
    mask_fill: int = 0

    def __post_init__(self) -> None:
        set_fields(self, padding=checked_padding("Pad", self.padding), **_checked_fills("Pad", self))

    def __call__(self, image: ImageT) -> ImageT:
        """Return the padded image; raise TypeError or ValueError if the argument is not an image."""
        padded: ImageT = self.operation(*size_of(image, "Pad")).image(image)
        return padded

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Return what this does to a sample, whatever the size of its images."""
        return _pad(checked_padding("Pad", self.padding), self, "Pad")


@dataclass(frozen=True)
class RandomCrop:
    """Cut a window of a given size out of an image, at a random place.

    Parameters
    ----------
    size : int or (int, int)
        (height, width) of the window in pixels, or an int for both.
    padding : int or sequence of int, optional
        Pixels to add before, as for `Pad`.
    pad_if_needed : bool
        Add the missing rows and columns at both sides of an image that is smaller than the window. Without it, such
        an image raises ValueError.
    fill, padding_mode, mask_fill
        As for `Pad`.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    Unless it pads with other values than 0, it draws the window before the image is decoded, and only a part of a JPEG
    is decoded.
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: Fill = 0
    padding_mode: str = "constant"
    mask_fill: int = 0

    def __post_init__(self) -> None:
        padding = None if self.padding is None else checked_padding("RandomCrop", self.padding)
        check_bool("RandomCrop", "pad_if_needed", self.pad_if_needed)
        set_fields(
            self, size=checked_size("RandomCrop", self.size), padding=padding, **_checked_fills("RandomCrop", self)
        )

    @property
    def cuts_only(self) -> bool:
        """Whether the result is a window of the image that is 0 beyond its edges."""
        pads = self.pad_if_needed or (self.padding is not None and any(checked_padding("RandomCrop", self.padding)))
        has_zeros = self.padding_mode == "constant" and not self.mask_fill and _is_zero(self.fill)
        return has_zeros or not pads

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return an image of exactly `size`; raise TypeError or ValueError if the argument is not such an image."""
        if isinstance(image, Cropped):  # the reader has drawn the window
            return owned(image.images[0])
        cut: ImageT = self.operation(*size_of(image, "RandomCrop"), generator).image(image)
        return cut

    def crops(self, height: int, width: int, generator: torch.Generator | None = None) -> tuple[CropRequest, ...]:
        """Draw the only crop of an image of `height` × `width` pixels; return none for an image that is too small."""
        if self._missing(height, width):
            return ()
        return (CropRequest(self._draw(height, width, generator)[1], both_edges(self.size)),)

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to a sample with images of `height` × `width` pixels."""
        missing = self._missing(height, width)
        if missing:
            raise ValueError(missing)
        padding, window = self._draw(height, width, generator)
        if self.cuts_only or not any(padding):
            return Cut(window, "RandomCrop")
        top, left, *size = window
        inner = (top + padding[1], left + padding[0], size[0], size[1])
        return InTurn((_pad(padding, self, "RandomCrop"), Cut(inner, "RandomCrop")))

    def drawn(self, crop: CropRequest) -> Operation:
        """Return what this does to a sample, with the crop that `crops` returned."""
        return Cut(crop.window, "RandomCrop")

    def _padding(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return the pixels to add to an image of that size."""
        left, top, right, bottom = (0,) * 4 if self.padding is None else checked_padding("RandomCrop", self.padding)
        rows, columns = both_edges(self.size)
        if self.pad_if_needed:
            more_rows = max(0, rows - (top + height + bottom))
            more_columns = max(0, columns - (left + width + right))
            return left + more_columns, top + more_rows, right + more_columns, bottom + more_rows
        return left, top, right, bottom

    def _missing(self, height: int, width: int) -> str:
        """Return why the window does not fit into an image of that size, or an empty text."""
        left, top, right, bottom = self._padding(height, width)
        rows, columns = both_edges(self.size)
        if rows <= top + height + bottom and columns <= left + width + right:
            return ""
        padded = " with its padding" if self.padding is not None else ""
        return (
            f"RandomCrop: a window {rows} high and {columns} wide does not fit into an image {top + height + bottom} high and "
            f"{left + width + right} wide{padded}; set pad_if_needed, or put a Resize before"
        )

    def _draw(
        self, height: int, width: int, generator: torch.Generator | None
    ) -> tuple[tuple[int, int, int, int], Window]:
        """Draw a window, relative to the image without its padding."""
        padding = left, top, right, bottom = self._padding(height, width)
        rows, columns = both_edges(self.size)
        # Without a choice, torchvision draws nothing.
        free_rows, free_columns = top + height + bottom - rows, left + width + right - columns
        row = draw_int(free_rows + 1, generator) if free_rows else 0
        column = draw_int(free_columns + 1, generator) if free_columns else 0
        return padding, (row - top, column - left, rows, columns)


@dataclass(frozen=True)
class RandomRotation:
    """Rotate an image by a random angle.

    Parameters
    ----------
    degrees : float or (float, float)
        Smallest and greatest angle, counterclockwise. A single number stands for ``(-degrees, degrees)``.
    interpolation : str
        ``nearest``, ``bilinear``; for Pillow images also ``bicubic``.
    expand : bool
        Make the canvas so large that no pixel is lost. Leave `center` out with it.
    center : (float, float), optional
        Position x and y around which to rotate, in pixels from the upper left corner; the centre of the image by default.
    fill : float or sequence of float
        Value of pixels from beyond the edges, one for all channels or one for each.
    mask_fill : int
        Class id of such pixels in masks.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    With `expand`, Pillow and torch round sizes differently: in 1 of 10,000 samples by one pixel. In a sample with masks or
    boxes, a Pillow image then loses or gets one row or column of `fill`, so that all sizes agree.
    """

    degrees: float | Sequence[float]
    interpolation: str = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Fill = 0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        given: Any = self.degrees
        degrees = as_tuple(given)
        if degrees is None and is_number(given) and given >= 0:
            degrees = (-given, given)
        if degrees is None or len(degrees) != 2 or not all(map(is_number, degrees)) or degrees[0] > degrees[1]:
            raise ConfigError(
                "RandomRotation: degrees must be a number of at least 0, or a pair of numbers, least and greatest, not "
                f"{self.degrees!r}"
            )
        center = as_tuple(self.center)
        if self.center is not None and (center is None or len(center) != 2 or not all(map(is_number, center))):
            raise ConfigError(f"RandomRotation: center must be a pair of numbers, x and y, not {self.center!r}")
        check_bool("RandomRotation", "expand", self.expand)
        check_interpolation("RandomRotation", self.interpolation)
        set_fields(
            self,
            degrees=(float(degrees[0]), float(degrees[1])),
            center=center,
            fill=checked_colour("RandomRotation", "fill", self.fill),
            mask_fill=checked_int("RandomRotation", "mask_fill", self.mask_fill),
        )

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return the rotated image; raise TypeError or ValueError if the argument is not an image."""
        rotated: ImageT = self._draw(*size_of(image, "RandomRotation"), generator).rotated(image)
        return rotated

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to a sample with images of `height` × `width` pixels."""
        return self._draw(height, width, generator)

    def _draw(self, height: int, width: int, generator: torch.Generator | None) -> Rotate:
        low, high = as_tuple(self.degrees) or (0.0, 0.0)
        center = as_tuple(self.center)
        return Rotate(
            (height, width),
            draw_uniform(low, high, generator),
            self.interpolation,
            self.expand,
            None if center is None else (center[0], center[1]),
            self.fill,
            self.mask_fill,
        )


@dataclass(frozen=True)
class Rotate(Operation):
    """Rotate images of size `canvas`, (height, width), counterclockwise by `angle` degrees."""

    canvas: Size
    angle: float
    interpolation: str = "nearest"
    expand: bool = False
    center: tuple[float, float] | None = None
    fill: Any = 0
    mask_fill: int = 0
    who: str = "RandomRotation"
    moves: ClassVar[bool] = True
    turns: ClassVar[bool] = True

    def rotated(self, image: Any) -> Any:
        """Return the rotated image, of the size that torchvision gives it."""
        if isinstance(image, Image.Image):
            return rotate_pillow(image, self.angle, self.interpolation, self.expand, self.center, self.fill, self.who)
        quarter = None if self.center is not None else turned(image, self.angle, self.expand)
        if quarter is not None:
            return quarter
        return warp(image, self._matrix(), self.size(*self.canvas), self.interpolation, self.fill, self.who)

    def image(self, image: Any) -> Any:
        # docstring inherited
        rotated = self.rotated(image)
        height, width = size_of(rotated, self.who)
        rows, columns = self.size(*self.canvas)
        if (height, width) == (rows, columns):
            return rotated
        padding = (0, 0, max(0, columns - width), max(0, rows - height))
        padded = PadBy(padding, self.fill, "constant", self.mask_fill, self.who).image(rotated)
        return Cut((0, 0, rows, columns), self.who).image(padded)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        quarter = None if self.center is not None else turned(mask, self.angle, self.expand)
        if quarter is not None:
            return quarter.contiguous()
        return warp_mask(mask, self._matrix(), self.size(*self.canvas), self.mask_fill)

    def points(self, points: Array) -> Array:
        # docstring inherited
        return moved_points(points, self._matrix(), self.canvas, self.size(*self.canvas))

    def size(self, height: int, width: int) -> Size:
        # docstring inherited
        if not self.expand:
            return height, width
        angle = self.angle % 360
        if self.center is None and angle in (0, 90, 180, 270):
            return (height, width) if angle in (0, 180) else (width, height)
        return expanded_size(self._matrix(), height, width)

    def _matrix(self) -> Matrix:
        height, width = self.canvas
        center = (0.0, 0.0)
        if self.center is not None:
            center = self.center[0] - width * 0.5, self.center[1] - height * 0.5
        return inverse_matrix(center, -(self.angle % 360), (0.0, 0.0), (0.0, 0.0))


@dataclass(frozen=True)
class LetterBox:
    """Resize an image so that it fits into a canvas, keep its aspect ratio, and fill the rest of the canvas.

    Parameters
    ----------
    size : int or (int, int)
        (height, width) of the canvas in pixels, or an int for both.
    fill : float or sequence of float
        Value of the rest of the canvas, for values of 0 to 255, one for all channels or one for each. Floating tensors
        get ``fill / 255``.
    mask_fill : int
        Class id of the rest of the canvas in masks. Many losses ignore 255.
    interpolation : str
        As for `Resize`.
    enlarge : bool
        Whether to enlarge smaller images.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    The image lies in the middle of the canvas. If the number of rows or columns to fill is odd, the larger part is
    below or right of the image.
    """

    size: int | Sequence[int]
    fill: Fill = 114
    mask_fill: int = 0
    interpolation: str = "bilinear"
    enlarge: bool = True

    def __post_init__(self) -> None:
        check_interpolation("LetterBox", self.interpolation)
        check_bool("LetterBox", "enlarge", self.enlarge)
        set_fields(
            self,
            size=checked_size("LetterBox", self.size),
            fill=checked_colour("LetterBox", "fill", self.fill),
            mask_fill=checked_int("LetterBox", "mask_fill", self.mask_fill),
        )

    def __call__(self, image: ImageT) -> ImageT:
        """Return an image of exactly `size`; raise TypeError or ValueError if the argument is not an image."""
        boxed: ImageT = self.operation(*size_of(image, "LetterBox")).image(image)
        return boxed

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Return what this does to a sample with images of `height` × `width` pixels."""
        rows, columns = both_edges(self.size)
        scale = min(rows / height, columns / width)
        if not self.enlarge:
            scale = min(scale, 1.0)
        inner = max(1, round(height * scale)), max(1, round(width * scale))
        top, left = (rows - inner[0]) // 2, (columns - inner[1]) // 2
        padding = left, top, columns - inner[1] - left, rows - inner[0] - top
        resize = ResizeTo((height, width), inner, self.interpolation, "LetterBox")
        return InTurn((resize, PadBy(padding, self.fill, "constant", self.mask_fill, "LetterBox", white=255)))


def _checked_fills(owner: str, transform: Any) -> dict[str, Any]:
    """Return the checked arguments about the new pixels of a padded image."""
    check_choice(owner, "padding_mode", transform.padding_mode, PADDING_MODES)
    fill = checked_colour(owner, "fill", transform.fill)
    if transform.padding_mode != "constant" and not _is_zero(fill):
        raise ConfigError(f"{owner}: fill is for padding_mode 'constant', not {transform.padding_mode!r}; leave it out")
    return {"fill": fill, "mask_fill": checked_int(owner, "mask_fill", transform.mask_fill)}


def _is_zero(fill: Any) -> bool:
    return not any(as_tuple(fill) or (fill,))


def _pad(padding: tuple[int, int, int, int], transform: Pad | RandomCrop, who: str) -> Operation:
    return PadBy(padding, transform.fill, transform.padding_mode, transform.mask_fill, who)
