"""The few transforms that training a classifier needs, over Pillow images and torch tensors, and their configs.

They mean what torchvision's of the same name mean, and from the same generator state they draw the same numbers. All
randomness comes from the `torch.Generator` a transform is called with; None stands for torch's global one. Anything
else is named in a config by its dotted path (`build_transform`) and gets its randomness from `BoundTransform`.

Images are `PIL.Image.Image` or tensors of shape (..., channels, height, width), uint8 or floating. No transform changes
the image it is given, unless told to (``Normalize(inplace=True)``); one with nothing to do returns it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from storeds._utils.roi import Windowed
from storeds.errors import ConfigError
from storeds.protocols import Transform
from storeds.transforms.binding import BoundTransform, Compose, apply_transform
from storeds.transforms.checks import (
    both_edges,
    check_interpolation,
    checked_interval,
    checked_numbers,
    checked_size,
    is_number,
    set_frozen,
)
from storeds.transforms.deferred import ToNormalized
from storeds.transforms.functional import (
    ImageT,
    center_crop,
    crop_and_resize,
    draw_uniform,
    draw_window,
    flip,
    normalize,
    resize,
    shorter_edge,
    size_of,
    to_tensor,
)
from storeds.transforms.spec import build

__all__ = [
    "BoundTransform",
    "CenterCrop",
    "Compose",
    "Normalize",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "ToTensor",
    "apply_transform",
    "build_transform",
    "first_crop",
    "takes_strided",
]


def build_transform(spec: Any, where: str = "transform") -> Transform | None:
    """Return the transform that a config describes.

    Parameters
    ----------
    spec : None, callable, str, mapping or sequence
        A callable is returned as it is, and None too. A string is the name of a transform here, or the dotted path of
        another (``"torchvision.transforms.v2.ColorJitter"`` or ``"package.module:Name"``). A mapping has the ``name``
        and the arguments: ``{"name": "RandomResizedCrop", "size": 224}``. A sequence of all these makes a `Compose`.
        A class at a dotted path is instantiated with the arguments; a function is called with them beside the value.
        A dotted path runs the code it names: load only configs that you would run as programs.
    where : str
        What messages call the place of the description.

    Returns
    -------
    callable or None
        To be bound with `BoundTransform`.

    Raises
    ------
    ConfigError
        A name or argument is unknown, missing or refused; the message says which, where, and what there is.
    MissingDependencyError
        A dotted path leads to a package that is not installed.
    """
    return None if spec is None else build(spec, _BUILT_IN, where)


@dataclass(frozen=True)
class Resize:
    """Resizes an image, with antialiasing.

    Parameters
    ----------
    size : int or (int, int)
        In pixels. An int is the new shorter edge, and the longer one keeps the aspect ratio, rounded down; a pair is
        (height, width).
    interpolation : str
        ``bilinear``, ``bicubic``, ``nearest``, ``nearest-exact``; for Pillow images also ``box``, ``hamming``,
        ``lanczos``. Pillow's nearest is torch's ``nearest-exact``.

    Raises
    ------
    ConfigError
        An argument is not one of these.
    """

    size: int | Sequence[int]
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        set_frozen(self, size=checked_size("Resize", self.size))
        check_interpolation("Resize", self.interpolation)

    def __call__(self, image: ImageT) -> ImageT:
        """Return an image of the same mode or dtype, in the new size.

        Raises
        ------
        TypeError, ValueError
            It is no image, has no pixels, or would get more than 2**28 of them from a shorter edge.
        """
        size = self.size
        if isinstance(size, int):
            size = shorter_edge(*size_of(image, "Resize"), size, "Resize")
        return resize(image, (size[0], size[1]), self.interpolation, "Resize")


@dataclass(frozen=True)
class CenterCrop:
    """Cuts out the middle of an image; what is smaller is padded with zeros.

    Parameters
    ----------
    size : int or (int, int)
        In pixels: (height, width), or an int for both.

    Raises
    ------
    ConfigError
        `size` is not one of these.
    """

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        set_frozen(self, size=checked_size("CenterCrop", self.size))

    def __call__(self, image: ImageT) -> ImageT:
        """Return an image of exactly `size`; raises TypeError or ValueError for what is no image."""
        return center_crop(image, both_edges(self.size), "CenterCrop")


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cuts out a window of random area and aspect ratio, and resizes it: the augmentation of Inception networks.

    Parameters
    ----------
    size : int or (int, int)
        In pixels: (height, width) of the result, or an int for both.
    scale : (float, float)
        Least and greatest area of the window, as parts of the image's area.
    ratio : (float, float)
        Least and greatest aspect ratio (width / height) of the window; its logarithm is drawn uniformly.
    interpolation : str
        As for `Resize`.

    Raises
    ------
    ConfigError
        An argument is not one of these, or an interval is upside down.

    Notes
    -----
    After ten windows that do not fit into the image, it takes the largest one in the middle whose ratio is allowed.
    """

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        set_frozen(
            self,
            size=checked_size("RandomResizedCrop", self.size),
            scale=checked_interval("RandomResizedCrop", "scale", self.scale),
            ratio=checked_interval("RandomResizedCrop", "ratio", self.ratio),
        )
        check_interpolation("RandomResizedCrop", self.interpolation)

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return an image of exactly `size`; raises TypeError or ValueError for what is no image."""
        if isinstance(image, Windowed):  # by a reader, which has drawn the window
            image, window = image
        else:
            window = self.window(*size_of(image, "RandomResizedCrop"), generator)
        return crop_and_resize(image, window, self.edges, self.interpolation, "RandomResizedCrop")

    @property
    def edges(self) -> tuple[int, int]:
        """Height and width of the result, in pixels."""
        return both_edges(self.size)

    def window(self, height: int, width: int, generator: torch.Generator | None = None) -> tuple[int, int, int, int]:
        """Draw (top, left, height, width) of the window in an image of `height` × `width` pixels."""
        return draw_window(height, width, self.scale, self.ratio, generator)


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Mirrors an image left and right, with a given probability.

    Parameters
    ----------
    p : float
        The probability, in [0, 1].

    Raises
    ------
    ConfigError
        `p` is no probability.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        if not is_number(self.p) or not 0 <= self.p <= 1:
            raise ConfigError(f"RandomHorizontalFlip: p must be a number in [0, 1], not {self.p!r}")
        set_frozen(self, p=float(self.p))

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return the image or its mirror image; raises TypeError or ValueError for what is no image."""
        size_of(image, "RandomHorizontalFlip")
        # One number is drawn whatever p is, so that p does not shift what later transforms draw.
        return flip(image) if draw_uniform(0.0, 1.0, generator) < self.p else image


@dataclass(frozen=True)
class ToTensor:
    """Converts an image to a float32 tensor of shape (channels, height, width), its values in [0, 1]."""

    def __call__(self, image: Any) -> torch.Tensor:
        """Return the tensor, which shares no memory with an image or array.

        Parameters
        ----------
        image : PIL.Image.Image, numpy.ndarray or torch.Tensor
            Pillow's 8-bit modes (``L``, ``RGB``, ``RGBA``, ``CMYK``, …) are divided by 255 and ``1`` becomes 0 or 1;
            ``I;16``, ``I`` and ``F`` keep their values, as int16, int32 and float32. An array has shape
            (height, width[, channels]): uint8 is divided by 255, another dtype is kept. A uint8 tensor is divided by
            255; a floating one counts as scaled, and is only made float32.

        Raises
        ------
        TypeError, ValueError
            It is none of these, or an ``I;16`` image has values that int16 cannot hold.
        """
        return to_tensor(image, "ToTensor")

    def followed_by(self, other: object) -> Transform | None:
        """Return what does this and `other` at once, to the same values, or None."""
        return ToNormalized(other.mean, other.std, other.inplace) if isinstance(other, Normalize) else None


@dataclass(frozen=True)
class Normalize:
    """Subtracts a mean from each channel of a floating tensor and divides by a standard deviation.

    Parameters
    ----------
    mean, std : sequence of float
        One number a channel, or ``[number]`` for all; in the unit of the tensor's values, which is 1 after `ToTensor`.
    inplace : bool
        Change the tensor that is given, and return it.

    Raises
    ------
    ConfigError
        A number is not finite, a deviation not above zero, or the lengths differ.
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
        if not isinstance(self.inplace, bool):
            raise ConfigError(f"Normalize: inplace must be true or false, not {self.inplace!r}")
        set_frozen(self, mean=mean, std=std)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Return the normalised tensor, of the same shape and dtype.

        Raises
        ------
        TypeError, ValueError
            It is no floating tensor, has another number of channels, or a deviation is zero in its dtype.
        """
        return normalize(image, self.mean, self.std, "Normalize", inplace=self.inplace)


def first_crop(transform: Transform | None) -> RandomResizedCrop | None:
    """Return the crop that a transform begins with, if nothing sees the image before it."""
    first = transform.transforms[0] if type(transform) is Compose and transform.transforms else transform
    return first if type(first) is RandomResizedCrop else None


def takes_strided(transform: Transform | None) -> bool:
    """Whether a transform makes the same of a tensor whose channels lie last in memory, at no greater cost."""
    if type(transform) is Compose:
        return bool(transform.transforms) and all(map(takes_strided, transform.transforms))
    return type(transform) in (CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor)


_BUILT_IN: dict[str, type] = {
    each.__name__: each
    for each in (CenterCrop, Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor)
}
