"""The most common built-in transforms: resize, crop, flip, and convert to normalised tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import torch

from storeds.errors import ConfigError
from storeds.protocols import Cropped, CropRequest, Transform, Window
from storeds.transforms.arguments import (
    both_edges,
    check_bool,
    check_interpolation,
    checked_interval,
    checked_numbers,
    checked_padding,
    checked_pairs,
    checked_probability,
    checked_size,
    set_fields,
)
from storeds.transforms.functional import (
    ImageT,
    ToNormalized,
    center_window,
    crop,
    crop_and_resize,
    draw_int,
    draw_uniform,
    draw_window,
    normalize,
    owned,
    resize,
    shorter_edge,
    size_of,
    to_tensor,
)
from storeds.transforms.operations import Cut, CutAndResize, EachImage, Flip, Operation, ResizeTo

__all__ = [
    "CenterCrop",
    "Crop",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
]


@dataclass(frozen=True)
class Resize:
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
    """

    size: int | Sequence[int]
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        set_fields(self, size=checked_size("Resize", self.size))
        check_interpolation("Resize", self.interpolation)

    def __call__(self, image: ImageT) -> ImageT:
        """Return an image of the same mode or dtype in the new size.

        Raises
        ------
        TypeError, ValueError
            The argument is not an image, has no pixels, or would become larger than 2**28 pixels.
        """
        size = self.size
        if isinstance(size, int):
            size = shorter_edge(*size_of(image, "Resize"), size, "Resize")
        return resize(image, (size[0], size[1]), self.interpolation, "Resize")

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Return what this does to a sample with images of `height` × `width` pixels."""
        size = self.size
        result = shorter_edge(height, width, size, "Resize") if isinstance(size, int) else (size[0], size[1])
        if result == (height, width):
            return Operation()
        return ResizeTo((height, width), result, self.interpolation)


@dataclass(frozen=True)
class CenterCrop:
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

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        set_fields(self, size=checked_size("CenterCrop", self.size))

    def __call__(self, image: ImageT) -> ImageT:
        """Return an image of exactly `size`; raise TypeError or ValueError if the argument is not an image."""
        if isinstance(image, Cropped):
            return owned(image.images[0])
        return crop(image, *self.window(*size_of(image, "CenterCrop")), "CenterCrop")

    def window(self, height: int, width: int) -> Window:
        """Return (top, left, height, width) of the window in an image of `height` × `width` pixels."""
        return center_window(height, width, both_edges(self.size))

    def crops(self, height: int, width: int, generator: torch.Generator | None = None) -> tuple[CropRequest, ...]:
        """Return the only crop of an image of `height` × `width` pixels."""
        return (CropRequest(self.window(height, width), both_edges(self.size)),)

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Return what this does to a sample with images of `height` × `width` pixels."""
        return Cut(self.window(height, width), "CenterCrop")

    def drawn(self, crop: CropRequest) -> Operation:
        """Return what this does to a sample, with the crop that `crops` returned."""
        return Cut(crop.window, "CenterCrop")


@dataclass(frozen=True)
class Crop:
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

    top: int
    left: int
    height: int
    width: int

    def __post_init__(self) -> None:
        for name in ("top", "left", "height", "width"):
            value: object = getattr(self, name)
            least = 1 if name in ("height", "width") else -(2**31)
            if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
                what = "a positive int" if least == 1 else "an int"
                raise ConfigError(f"Crop: {name} must be {what}, not {value!r}")
            set_fields(self, **{name: int(value)})

    def __call__(self, image: ImageT) -> ImageT:
        """Return the window; raise TypeError or ValueError if the argument is not an image."""
        if isinstance(image, Cropped):
            return owned(image.images[0])
        size_of(image, "Crop")
        return crop(image, self.top, self.left, self.height, self.width, "Crop")

    def crops(self, height: int, width: int, generator: torch.Generator | None = None) -> tuple[CropRequest, ...]:
        """Return the only crop, whatever the size of the image."""
        return (CropRequest((self.top, self.left, self.height, self.width), (self.height, self.width)),)

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Return what this does to a sample, whatever the size of its images."""
        return Cut((self.top, self.left, self.height, self.width))

    def drawn(self, crop: CropRequest) -> Operation:
        """Return what this does to a sample, with the crop that `crops` returned."""
        return Cut(crop.window)


@dataclass(frozen=True)
class RandomResizedCrop:
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

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        set_fields(
            self,
            size=checked_size("RandomResizedCrop", self.size),
            scale=checked_interval("RandomResizedCrop", "scale", self.scale),
            ratio=checked_interval("RandomResizedCrop", "ratio", self.ratio),
        )
        check_interpolation("RandomResizedCrop", self.interpolation)

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return an image of exactly `size`; raise TypeError or ValueError if the argument is not an image."""
        is_cut = isinstance(image, Cropped)  # the reader has drawn the window
        window = (0, 0, 0, 0) if is_cut else self.window(*size_of(image, "RandomResizedCrop"), generator)
        result: ImageT = crop_and_resize(image, window, both_edges(self.size), self.interpolation, "RandomResizedCrop")
        return result

    def window(self, height: int, width: int, generator: torch.Generator | None = None) -> Window:
        """Draw (top, left, height, width) of the window in an image of `height` × `width` pixels."""
        return draw_window(height, width, self.scale, self.ratio, generator)

    def crops(self, height: int, width: int, generator: torch.Generator | None = None) -> tuple[CropRequest, ...]:
        """Draw the only crop of an image of `height` × `width` pixels."""
        return (CropRequest(self.window(height, width, generator), both_edges(self.size)),)

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to a sample with images of `height` × `width` pixels."""
        return self.drawn(*self.crops(height, width, generator))

    def drawn(self, crop: CropRequest) -> Operation:
        """Return what this does to a sample, with the crop that `crops` returned."""
        return CutAndResize(crop.window, crop.size, self.interpolation)


@dataclass(frozen=True)
class RandomCrop:
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

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False

    def __post_init__(self) -> None:
        padding = None if self.padding is None else checked_padding("RandomCrop", self.padding)
        check_bool("RandomCrop", "pad_if_needed", self.pad_if_needed)
        set_fields(self, size=checked_size("RandomCrop", self.size), padding=padding)

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
        return (CropRequest(self._draw(height, width, generator), both_edges(self.size)),)

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to a sample with images of `height` × `width` pixels."""
        missing = self._missing(height, width)
        if missing:
            raise ValueError(missing)
        return Cut(self._draw(height, width, generator), "RandomCrop")

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

    def _draw(self, height: int, width: int, generator: torch.Generator | None) -> Window:
        """Draw a window, relative to the image without its padding."""
        left, top, right, bottom = self._padding(height, width)
        rows, columns = both_edges(self.size)
        # Without a choice, torchvision draws nothing.
        free_rows, free_columns = top + height + bottom - rows, left + width + right - columns
        row = draw_int(free_rows + 1, generator) if free_rows else 0
        column = draw_int(free_columns + 1, generator) if free_columns else 0
        return row - top, column - left, rows, columns


@dataclass(frozen=True)
class _RandomFlip:
    """Base of the two random flips."""

    vertical: ClassVar[bool] = False
    p: float = 0.5
    keypoint_pairs: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        name = type(self).__name__
        pairs = checked_pairs(name, self.keypoint_pairs)
        set_fields(self, p=checked_probability(name, self.p), keypoint_pairs=pairs)

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return the image or its mirror image; raise TypeError or ValueError if the argument is not an image."""
        flipped: ImageT = self.operation(*size_of(image, type(self).__name__), generator).image(image)
        return flipped

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to a sample with images of `height` × `width` pixels."""
        # Draw one number whatever p is, so that p does not change what later transforms draw.
        if draw_uniform(0.0, 1.0, generator) >= self.p:
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
class ToTensor:
    """Convert an image to a float32 tensor of shape (channels, height, width) with values in [0, 1]."""

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
        return to_tensor(image, "ToTensor")

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Return what this does to a sample: it converts the images."""
        return EachImage(self)

    def followed_by(self, other: object) -> Transform | None:
        """Return one transform that computes this and then `other`, or None. A subclass may compute something else."""
        if type(self) is not ToTensor or type(other) is not Normalize:
            return None
        return ToNormalized(other.mean, other.std, other.inplace)


@dataclass(frozen=True)
class Normalize:
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

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = False

    def __post_init__(self) -> None:
        mean, std = checked_numbers("Normalize", "mean", self.mean), checked_numbers("Normalize", "std", self.std)
        if min(std) <= 0:
            raise ConfigError(f"Normalize: std must be above zero, not {self.std!r}")
        if len(mean) != len(std) and 1 not in (len(mean), len(std)):
            raise ConfigError(f"Normalize: mean has {len(mean)} channels and std {len(std)}")
        check_bool("Normalize", "inplace", self.inplace)
        set_fields(self, mean=mean, std=std)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Return the normalised tensor, of the same shape and dtype.

        Raises
        ------
        TypeError, ValueError
            The argument is not a floating tensor or has another number of channels, or a deviation is zero in its
            dtype.
        """
        return normalize(image, self.mean, self.std, "Normalize", inplace=self.inplace)

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Return what this does to a sample: it normalises the images."""
        return EachImage(self)
