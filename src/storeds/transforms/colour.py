"""Built-in transforms that change the values of pixels and leave them in their place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from storeds.errors import ConfigError
from storeds.transforms.adjust import brightness, contrast, explained, grayscale, hue, saturation
from storeds.transforms.arguments import (
    as_tuple,
    check_bool,
    checked_colour,
    checked_interval,
    checked_probability,
    is_number,
    set_fields,
)
from storeds.transforms.functional import ImageT, draw_aspect, draw_int, draw_uniform, size_of
from storeds.transforms.operations import EachImage, Operation

__all__ = ["ColorJitter", "Grayscale", "RandomErasing"]


@dataclass(frozen=True)
class Grayscale:
    """Convert an image to gray.

    Parameters
    ----------
    num_output_channels : int
        1, or 3 for three equal channels.

    Raises
    ------
    ConfigError
        The number is not 1 or 3.
    """

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.num_output_channels, bool) or self.num_output_channels not in (1, 3):
            raise ConfigError(f"Grayscale: num_output_channels must be 1 or 3, not {self.num_output_channels!r}")

    def __call__(self, image: ImageT) -> ImageT:
        """Return an image of mode ``L`` or ``RGB``, or a tensor of the same dtype.

        Raises
        ------
        TypeError, ValueError
            The argument is not an image, or is a tensor of other than 1 or 3 channels.
        """
        size_of(image, "Grayscale")
        return grayscale(image, self.num_output_channels, "Grayscale")

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Return what this does to a sample: it converts the images."""
        return EachImage(self)


_Range = float | Sequence[float] | None


@dataclass(frozen=True)
class ColorJitter:
    """Change the brightness, contrast, saturation and hue of an image by random factors, in random order.

    Parameters
    ----------
    brightness, contrast, saturation : float or (float, float), optional
        Smallest and greatest factor. A number x stands for ``(max(0, 1 - x), 1 + x)``. 0 and None change nothing.
    hue : float or (float, float), optional
        Smallest and greatest part of the colour circle by which to turn hues, in [-0.5, 0.5]. A number x stands for
        ``(-x, x)``.

    Raises
    ------
    ConfigError
        An argument is out of range.
    """

    brightness: _Range = None
    contrast: _Range = None
    saturation: _Range = None
    hue: _Range = None

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            set_fields(self, **{name: _checked_range(name, getattr(self, name), 1.0, (0.0, math.inf))})
        set_fields(self, hue=_checked_range("hue", self.hue, 0.0, (-0.5, 0.5)))

    def __call__(self, image: ImageT, generator: torch.Generator | None = None) -> ImageT:
        """Return an image of the same mode or dtype.

        Raises
        ------
        TypeError, ValueError
            The argument is not an image, or is a tensor of other than 1 or 3 channels.
        """
        changed: ImageT = self.operation(*size_of(image, "ColorJitter"), generator).image(image)
        return changed

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to the images of a sample."""
        order = torch.randperm(4, generator=generator).tolist()
        factors = []
        for interval in (self.brightness, self.contrast, self.saturation, self.hue):
            ends = as_tuple(interval)
            factors.append(None if ends is None else draw_uniform(ends[0], ends[1], generator))
        return _Jitter(tuple((step, factor) for step in order if (factor := factors[step]) is not None))


@dataclass(frozen=True)
class _Jitter(Operation):
    """Change colours. Each step is a number, 0 for brightness to 3 for hue, and its factor."""

    steps: tuple[tuple[int, float], ...]

    def image(self, image: Any) -> Any:
        # docstring inherited
        for step, factor in self.steps:
            with explained(image, "ColorJitter"):
                image = (brightness, contrast, saturation, hue)[step](image, factor, "ColorJitter")
        return image


def _checked_range(name: str, value: Any, center: float, bounds: tuple[float, float]) -> tuple[float, float] | None:
    """Return two factors, or None if they change nothing."""
    if value is None:
        return None
    ends = as_tuple(value)
    if ends is None and is_number(value) and value >= 0:
        ends = (max(center - value, bounds[0]) if center else -value, center + value)
    if ends is None or len(ends) != 2 or not all(map(is_number, ends)):
        raise ConfigError(f"ColorJitter: {name} must be a number of at least 0, or a pair of numbers, not {value!r}")
    if not bounds[0] <= ends[0] <= ends[1] <= bounds[1]:
        least, most = bounds
        raise ConfigError(f"ColorJitter: {name} must be an interval in [{least}, {most}], not {value!r}")
    return None if ends[0] == ends[1] == center else (float(ends[0]), float(ends[1]))


@dataclass(frozen=True)
class RandomErasing:
    """Overwrite a random rectangle of a tensor, with a given probability.

    Parameters
    ----------
    p : float
        Probability in [0, 1].
    scale : (float, float)
        Minimum and maximum area of the rectangle, relative to the area of the image.
    ratio : (float, float)
        Minimum and maximum aspect ratio (height / width) of the rectangle. Its logarithm is drawn uniformly.
    value : float, sequence of float or "random"
        New value of the pixels, one for all channels or one for each. ``"random"`` draws each from a normal distribution
        with mean 0 and deviation 1, as after `Normalize`.
    inplace : bool
        Change the given tensor and return it.

    Raises
    ------
    ConfigError
        An argument is invalid, or an interval is reversed.

    Notes
    -----
    After ten rectangles that do not fit into the image, it changes nothing.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | str = 0
    inplace: bool = False

    def __post_init__(self) -> None:
        scale = as_tuple(self.scale) or ()
        if len(scale) != 2 or not all(map(is_number, scale)) or not 0 <= scale[0] <= scale[1] <= 1:
            raise ConfigError(
                f"RandomErasing: scale must be a pair of numbers, 0 <= least <= greatest <= 1, not {self.scale!r}"
            )
        check_bool("RandomErasing", "inplace", self.inplace)
        value: Any = self.value
        if value != "random":
            if isinstance(value, str):
                raise ConfigError(
                    f"RandomErasing: value must be a number, a list of numbers, or 'random', not {value!r}"
                )
            value = checked_colour("RandomErasing", "value", value)
        set_fields(
            self,
            p=checked_probability("RandomErasing", self.p),
            scale=(float(scale[0]), float(scale[1])),
            ratio=checked_interval("RandomErasing", "ratio", self.ratio),
            value=value,
        )

    def __call__(self, image: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return a tensor of the same shape and dtype.

        Raises
        ------
        TypeError, ValueError
            The argument is not a tensor, or `value` has numbers for another count of channels.
        """
        erased: torch.Tensor = self.operation(*size_of(image, "RandomErasing"), generator).image(image)
        return erased

    def operation(self, height: int, width: int, generator: torch.Generator | None = None) -> Operation:
        """Draw what this does to the images of a sample."""
        if draw_uniform(0.0, 1.0, generator) >= self.p:
            return Operation()
        for _ in range(10):
            area = height * width * draw_uniform(self.scale[0], self.scale[1], generator)
            aspect = draw_aspect(self.ratio, generator)
            rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if rows < height and columns < width:
                return _Erase(self.value, (rows, columns), generator, self.inplace)
        return Operation()


class _Erase(Operation):
    """Overwrite a rectangle of `size`, (height, width), in each image of a sample, at the same place.

    `image` draws the place, because torchvision draws it after the noise, whose shape depends on the image's channels.
    """

    def __init__(self, value: Any, size: tuple[int, int], generator: torch.Generator | None, inplace: bool) -> None:
        self.value, self.size_, self.generator, self.inplace = value, size, generator, inplace
        self.place: tuple[int, int] | None = None
        self.noise: dict[int, torch.Tensor] = {}

    def image(self, image: Any) -> Any:
        # docstring inherited
        if isinstance(image, Image.Image):
            raise TypeError("RandomErasing takes a torch tensor, not a Pillow image; put ToTensor before it")
        channels, height, width = image.shape[-3:]
        value, (rows, columns) = self._value(channels), self.size_
        if self.place is None:
            self.place = draw_int(height - rows + 1, self.generator), draw_int(width - columns + 1, self.generator)
        top, left = self.place
        image = image if self.inplace else image.clone()
        image[..., top : top + rows, left : left + columns] = value.to(image.device)
        return image

    def _value(self, channels: int) -> torch.Tensor:
        if self.value != "random":
            numbers = as_tuple(self.value) or (self.value,)
            if len(numbers) not in (1, channels):
                raise ValueError(
                    f"RandomErasing: value has numbers for {len(numbers)} channels, but the image has {channels}"
                )
            return torch.tensor([float(number) for number in numbers])[:, None, None]
        if channels not in self.noise:
            self.noise[channels] = torch.empty(channels, *self.size_).normal_(generator=self.generator)
        return self.noise[channels]
