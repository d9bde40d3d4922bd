"""Draws the numbers that random transforms need: the same as torchvision's from the same generator state."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence

import torch

__all__ = ["draw_uniform", "draw_window"]


class _Drawn(threading.local):
    """Where a thread draws single numbers: a tensor for each would cost as much again."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # what is made in that mode cannot be drawn into outside of it
            self.number, self.whole = torch.empty(1), torch.empty(1, dtype=torch.int64)


_drawn = _Drawn()


def draw_uniform(low: float, high: float, generator: torch.Generator | None) -> float:
    """Draw a number of float32 between `low` and `high`, as ``torch.empty(1).uniform_`` does."""
    return _drawn.number.uniform_(low, high, generator=generator).item()


@functools.lru_cache(maxsize=64)
def _logarithms(ratio: tuple[float, ...]) -> tuple[float, float]:
    low, high = torch.log(torch.tensor(ratio, dtype=torch.float32)).tolist()
    return low, high


def draw_window(
    height: int, width: int, scale: Sequence[float], ratio: Sequence[float], generator: torch.Generator | None
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width) of a window in an image, within bounds of its area and of its width / height."""
    # In float32 and in this order, as torchvision draws: the same seed gives the same windows.
    low, high = _logarithms(tuple(ratio))
    for _ in range(10):
        area = height * width * draw_uniform(scale[0], scale[1], generator)
        aspect = _drawn.number.uniform_(low, high, generator=generator).exp_().item()
        cut_width, cut_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            top = int(_drawn.whole.random_(0, height - cut_height + 1, generator=generator).item())
            left = int(_drawn.whole.random_(0, width - cut_width + 1, generator=generator).item())
            return top, left, cut_height, cut_width
    cut_width, cut_height = width, height
    if width / height < ratio[0]:
        cut_height = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        cut_width = max(1, round(height * ratio[1]))
    return (height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width
