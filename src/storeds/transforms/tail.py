"""`Tail`: the end of a transform that acts on each pixel alone, so that a batch can do it in its own memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image

from storeds.protocols import Transform
from storeds.transforms.images import Normalize, ToTensor
from storeds.transforms.operations import check_channels, normalize, pixels_of, size_of, to_tensor

__all__ = ["Tail", "split"]


@dataclass(frozen=True)
class Tail:
    """`ToTensor`, and perhaps `Normalize` after it.

    Its floats are what both return one after the other, bit for bit. A table of 256 values for each channel gives the same
    floats, but looking them up took longer than the four passes over memory that the cache holds: 130 µs for 3 × 224 × 224
    pixels, of 90.

    Parameters
    ----------
    normalize : Normalize, optional
    """

    moves_pixels: ClassVar[bool] = False
    normalize: Normalize | None = None

    def __call__(self, image: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the floats of an image.

        Parameters
        ----------
        image : PIL.Image.Image, numpy.ndarray or torch.Tensor
            What `ToTensor` takes; with `out` what `pixels` returned, a tensor that `is_waiting`.
        out : torch.Tensor, optional
            float32 of the same shape: where to put them.
        """
        if out is not None:
            floats = out.copy_(image).div_(255)
        else:
            floats = to_tensor(image)
            if self.normalize is not None and isinstance(image, torch.Tensor) and image.is_floating_point():
                return self.normalize(floats)  # it may be the image itself
        if self.normalize is None:
            return floats
        return normalize(floats, self.normalize.mean, self.normalize.std, inplace=True)

    def pixels(self, image: Any) -> Any:
        """Return an 8-bit image as a tensor that is waiting for this tail, and of others the result.

        Raises
        ------
        TypeError, ValueError
            The image is none, or does not fit.
        """
        values = pixels_of(image) if isinstance(image, Image.Image) else image
        if not self.is_waiting(values) or not values.is_cpu:
            return self(image)
        size_of(values, "ToTensor")
        if self.normalize is not None:
            check_channels(values, self.normalize.mean, self.normalize.std)
        return values

    @staticmethod
    def is_waiting(value: Any) -> bool:
        """Return whether a value still needs the tail: no result of it is uint8."""
        return isinstance(value, torch.Tensor) and value.dtype == torch.uint8


def split(transforms: Sequence[Transform]) -> tuple[Sequence[Transform], Tail | None]:
    """Return the first of some transforms, and the tail of them if they end in one."""
    # Exact types: a subclass may compute something else.
    last = [type(each) for each in transforms[-2:]]
    if last[-1:] == [ToTensor]:
        return transforms[:-1], Tail()
    if last == [ToTensor, Normalize]:
        end = transforms[-1]
        assert isinstance(end, Normalize)
        return transforms[:-2], Tail(end)
    return transforms, None
