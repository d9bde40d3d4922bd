"""What the name, kind and shape of an element say: a mask, something that lies in an image, where the channels are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from storeds.protocols import Field

__all__ = ["Channels", "Layout", "holds_integers", "is_image_like", "is_mask", "is_spatial", "layout_of"]

Channels: TypeAlias = Literal["first", "last"]
Layout: TypeAlias = Literal["first", "last", "none"]
_CHANNELS = (1, 3, 4)
_WORD = re.compile(r"[a-z]+")
_MASK = re.compile("(mask|seg|segm|segmentation|semantic|labelmap|trimap|label|target)s?")
_IN_IMAGES = re.compile("(mask|bbox|keypoint|landmark|polygon|contour)(e?s)?|box(es)?")
_LEAST = 8  # pixels: what is lower or narrower is a table, such as boxes of shape (n, 4)


def layout_of(shape: Sequence[int | None]) -> Layout | None:
    """Return where the channels are in arrays of that shape; None where that cannot be known.

    ``"none"`` is a single channel, shape (height, width). Else one of the last three dimensions is 1, 3 or 4, and the other
    end is not: ``"last"`` or ``"first"``. Dimensions before these count frames. One that differs from record to record,
    None, counts as no channels.
    """
    if len(shape) == 2:
        return "none"
    if len(shape) < 2 or (shape[-1] in _CHANNELS) == (shape[-3] in _CHANNELS):
        return None
    return "last" if shape[-1] in _CHANNELS else "first"


def is_mask(name: str) -> bool:
    """Whether an element is called as masks of classes are: ``mask``, ``seg_map``, ``labels``."""
    return any(map(_MASK.fullmatch, _WORD.findall(name)))


def is_image_like(field: Field) -> bool:
    """Whether the shape of an array says that it is an image with channels, or a run of frames."""
    shape = field.shape or ()
    return len(shape) > 2 and layout_of(shape) is not None and any(_fits(size, []) for size in _spatial_sizes(shape))


def is_spatial(name: str, field: Field, data: Field | None) -> bool:
    """Whether an element lies in the plane of an image: a picture, a map of pixels, places in them."""
    if field.kind == "image":
        return True
    if field.is_scalar or field.kind == "str":
        return False
    if any(map(_IN_IMAGES.fullmatch, _WORD.findall(name))):
        return True
    images = _spatial_sizes(data.shape) if data is not None and data.shape is not None and data is not field else []
    return any(_fits(size, images) for size in _spatial_sizes(field.shape or ()))


def _fits(size: tuple[int | None, int | None], images: list[tuple[int | None, int | None]]) -> bool:
    """Whether a map of that size may belong to images of one of those: none says more than its aspect ratio."""
    height, width = size
    if any(edge is not None and edge < _LEAST for edge in size):
        return False
    if height is None or width is None or not images:
        return True
    return any(
        high is None or wide is None or abs(high * width - wide * height) <= max(high, wide, height, width)
        for high, wide in images
    )


def holds_integers(field: Field) -> bool:
    """Whether the values of an element may be numbers of classes."""
    return field.kind == "image" or (field.dtype or "").lstrip("<>|=")[:1] in ("b", "i", "u")


def _spatial_sizes(shape: Sequence[int | None]) -> list[tuple[int | None, int | None]]:
    """Return what (height, width) of images of that shape may be; nothing for what has fewer than two dimensions."""
    if len(shape) < 2:
        return []
    layout = layout_of(shape)
    first, last = (shape[-2], shape[-1]), (shape[-3] if len(shape) > 2 else None, shape[-2])
    if layout is None:
        return [first, last]
    return [last if layout == "last" else first]
