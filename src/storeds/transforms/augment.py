"""TrivialAugment: one random change of an image, of its colours or its geometry, with a random strength."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image

from storeds.protocols import Array
from storeds.transforms.adjust import (
    autocontrast,
    brightness,
    contrast,
    equalize,
    explained,
    posterize,
    saturation,
    sharpness,
    solarize,
)
from storeds.transforms.arguments import check_interpolation, checked_colour, checked_int, set_fields
from storeds.transforms.functional import ImageT, draw_int, draw_uniform, size_of
from storeds.transforms.geometry import Matrix, inverse_matrix, moved_points, warp, warp_mask, warp_pillow
from storeds.transforms.operations import Operation, Size
from storeds.transforms.spatial import Rotate

__all__ = ["TrivialAugmentWide"]

_CHANGES: dict[str, tuple[float, bool] | None] = {
    "identity": None,
    "shear_x": (0.99, True),
    "shear_y": (0.99, True),
    "translate_x": (32.0, True),
    "translate_y": (32.0, True),
    "rotate": (135.0, True),
    "brightness": (0.99, True),
    "saturation": (0.99, True),
    "contrast": (0.99, True),
    "sharpness": (0.99, True),
    "posterize": (6.0, False),
    "solarize": (1.0, False),
    "autocontrast": None,
    "equalize": None,
}
"""In the order in which torchvision draws them: the greatest strength, and whether a sign is drawn. None: neither."""


@dataclass(frozen=True)
class TrivialAugmentWide:
    """Change an image in one of 14 ways, drawn at random, with a random strength.

    The ways are: nothing, shear and translate along x or y, rotate, brightness, saturation, contrast, sharpness,
    posterize, solarize, autocontrast and equalize. See https://arxiv.org/abs/2103.10158.

    Parameters
    ----------
    num_magnitude_bins : int
        How many strengths there are; at least 2.
    interpolation : str
        ``nearest``, ``bilinear``; for Pillow images also ``bicubic``.
    fill : float or sequence of float, optional
        Value of pixels from beyond the edges, one for all channels or one for each. None is 0, and blends bilinear
        pixels at the edges less.
    mask_fill : int
        Class id of such pixels in masks.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Notes
    -----
    Shear, translation and rotation move masks, boxes and keypoints of a sample too, where torchvision refuses them.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: float | Sequence[float] | None = None
    mask_fill: int = 0

    def __post_init__(self) -> None:
        check_interpolation("TrivialAugmentWide", self.interpolation)
        set_fields(
            self,
            num_magnitude_bins=checked_int(
                "TrivialAugmentWide", "num_magnitude_bins", self.num_magnitude_bins, least=2
            ),
            fill=None if self.fill is None else checked_colour("TrivialAugmentWide", "fill", self.fill),
            mask_fill=checked_int("TrivialAugmentWide", "mask_fill", self.mask_fill),
        )

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return an image of the same size, mode or dtype.

        Raises
        ------
        TypeError, ValueError
            The argument is not an image, or is a tensor of other than 1 or 3 channels, or a Pillow image of a mode other
            than ``L`` and ``RGB`` for which Pillow lacks the drawn change.
        """
        changed: ImageT = self.operation(*size_of(image, "TrivialAugmentWide"), generator).image(image)
        return changed

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to a sample with images of `height` × `width` pixels."""
        name = list(_CHANGES)[draw_int(len(_CHANGES), generator)]
        change, strength = _CHANGES[name], 0.0
        if change is not None:
            bins = self.num_magnitude_bins
            strength = _strengths(name, bins)[draw_int(bins, generator)]
            if change[1] and draw_uniform(0.0, 1.0, generator) <= 0.5:
                strength = -strength
        if name == "identity":
            return Operation()
        pixels: dict[str, Any] = {"interpolation": self.interpolation, "fill": self.fill, "mask_fill": self.mask_fill}
        if name == "rotate":
            return Rotate((height, width), strength, who="TrivialAugmentWide", **pixels)
        if name.startswith("shear"):
            degrees = math.degrees(math.atan(strength))
            shear = (degrees, 0.0) if name == "shear_x" else (0.0, degrees)
            return _Slide((height, width), shear=shear, **pixels)
        if name.startswith("translate"):
            pixel_count = int(strength)
            shift = (pixel_count, 0) if name == "translate_x" else (0, pixel_count)
            return _Slide((height, width), translate=shift, **pixels)
        return _Recolour(name, strength)


@functools.lru_cache(maxsize=256)
def _strengths(name: str, bins: int) -> tuple[float, ...]:
    """Return the strengths of a change, in float32 as in torchvision."""
    if name == "posterize":
        return tuple((8 - (torch.arange(bins) / ((bins - 1) / 6))).round().tolist())
    greatest = (_CHANGES[name] or (0.0, False))[0]
    ends = (1.0, 0.0) if name == "solarize" else (0.0, greatest)
    return tuple(torch.linspace(*ends, bins).tolist())


@dataclass(frozen=True)
class _Recolour(Operation):
    """Change the colours of images in one way."""

    name: str
    strength: float

    def image(self, image: Any) -> Any:
        # docstring inherited
        with explained(image, "TrivialAugmentWide"):
            return self._changed(image)

    def _changed(self, image: Any) -> Any:
        who = "TrivialAugmentWide"
        if self.name == "posterize":
            return posterize(image, int(self.strength), who)
        if self.name == "solarize":
            return solarize(image, self.strength, who)
        if self.name in ("autocontrast", "equalize"):
            return (autocontrast if self.name == "autocontrast" else equalize)(image, who)
        change = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "sharpness": sharpness}
        return change[self.name](image, 1.0 + self.strength, who)


@dataclass(frozen=True)
class _Slide(Operation):
    """Translate images of size `canvas`, (height, width), by (x, y) pixels, or shear them from their upper left corner."""

    canvas: Size
    translate: tuple[int, int] | None = None
    shear: tuple[float, float] = (0.0, 0.0)
    interpolation: str = "nearest"
    fill: Any = None
    mask_fill: int = 0
    who: str = "TrivialAugmentWide"
    moves: ClassVar[bool] = True
    turns: ClassVar[bool] = True

    def image(self, image: Any) -> Any:
        # docstring inherited
        if isinstance(image, Image.Image):
            height, width = self.canvas
            center = (0.0, 0.0) if self.translate is None else (width * 0.5, height * 0.5)
            return warp_pillow(image, self._matrix(center), self.interpolation, self.fill, self.who)
        return warp(image, self._centered(), self.canvas, self.interpolation, self.fill, self.who)

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        # docstring inherited
        return warp_mask(mask, self._centered(), self.canvas, self.mask_fill)

    def points(self, points: Array) -> Array:
        # docstring inherited
        return moved_points(points, self._centered(), self.canvas, self.canvas)

    def _centered(self) -> Matrix:
        """Return the matrix whose origin is the centre of the image."""
        height, width = self.canvas
        return self._matrix((0.0 - width * 0.5, 0.0 - height * 0.5) if self.translate is None else (0.0, 0.0))

    def _matrix(self, center: tuple[float, float]) -> Matrix:
        x, y = self.translate or (0, 0)
        return inverse_matrix(center, 0.0, (float(x), float(y)), self.shear)
