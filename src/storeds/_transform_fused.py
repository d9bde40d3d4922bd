"""What two transforms do at once, and what is done behind the last one: the same values with fewer passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from storeds._deferred import Unscaled
from storeds._imaging import check_normalize, normalize, to_tensor

__all__ = ["ToNormalized", "in_order"]


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
        """Return an `Unscaled` where the batch can scale the image, else what calling this does."""
        if not isinstance(image, torch.Tensor) or image.dtype != torch.uint8 or image.ndim != 3 or image.is_cuda:
            return self(image)
        check_normalize(image, self.mean, self.std, "Normalize")
        return Unscaled(image, self.scale_into)

    def scale_into(self, image: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.copy_(image).div_(255)
        return normalize(out, self.mean, self.std, "Normalize", inplace=True)


def in_order(image: Any) -> Any:
    """Return a tensor whose channels come first in memory too; anything else as it is."""
    return image.contiguous() if isinstance(image, torch.Tensor) else image
