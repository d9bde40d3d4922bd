"""The transform that drops small boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.errors import ConfigError
from storeds.protocols import Array
from storeds.transforms.arguments import is_number

__all__ = ["FilterBoxes"]


@dataclass(frozen=True)
class FilterBoxes:
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

    min_area: float = 0.0
    min_visibility: float = 0.0
    min_size: float = 0.0

    def __post_init__(self) -> None:
        for name in ("min_area", "min_visibility", "min_size"):
            value = getattr(self, name)
            if not is_number(value) or value < 0 or (name == "min_visibility" and value > 1):
                what = "a fraction, 0 to 1" if name == "min_visibility" else "a number of pixels, 0 or more"
                raise ConfigError(f"FilterBoxes: {name} must be {what}, not {value!r}")

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
