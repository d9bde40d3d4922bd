"""What two transforms do at once, and what is done behind the last one: the same values with fewer passes over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from storeds.transforms.functional import check_normalize, normalize, to_tensor

__all__ = ["DeferredImage", "ToNormalized", "in_order"]


@dataclass(frozen=True)
class DeferredImage:
    """A uint8 image, and what makes floats of it in memory that it is given.

    Parameters
    ----------
    image : torch.Tensor
        uint8, shape (channels, height, width).
    scale_into : callable
        ``scale_into(image, out)`` fills `out`, float32 of the same shape.
    """

    image: torch.Tensor
    scale_into: Callable[[torch.Tensor, torch.Tensor], Any]

    def scaled(self) -> torch.Tensor:
        """Return the floats, in memory of their own."""
        out = torch.empty(self.image.shape, dtype=torch.float32)
        self.scale_into(self.image, out)
        return out


@dataclass(frozen=True)
class ToNormalized:
    """`ToTensor` and `Normalize` in the memory of the former's result, or later in that of the batch.

    Parameters
    ----------
    mean, std, inplace
        Those of `storeds.transforms.Normalize`.
    """

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool

    def __call__(self, image: Any) -> torch.Tensor:
        tensor = to_tensor(image, "ToTensor")
        own = tensor is not image and not (isinstance(image, torch.Tensor) and image.is_floating_point())
        return normalize(tensor, self.mean, self.std, "Normalize", inplace=self.inplace or own)

    def later(self, image: Any) -> Any:
        """Return an `DeferredImage` where the batch can scale the image, else what calling this does."""
        if not isinstance(image, torch.Tensor) or image.dtype != torch.uint8 or image.ndim != 3 or image.is_cuda:
            return self(image)
        check_normalize(image, self.mean, self.std, "Normalize")
        return DeferredImage(image, self.scale_into)

    def scale_into(self, image: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.copy_(image).div_(255)
        return normalize(out, self.mean, self.std, "Normalize", inplace=True)


def in_order(image: Any) -> Any:
    """Return a tensor whose channels come first in memory too; anything else as it is."""
    return image.contiguous() if isinstance(image, torch.Tensor) else image
