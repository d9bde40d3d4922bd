"""Tells from the declaration of an element what its values are in a picture: pixels, a map of them, or neither."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from storeds.protocols import Field

__all__ = [
    "ChannelAxis",
    "Channels",
    "holds_integers",
    "holds_pixels",
    "is_image_like",
    "is_mask",
    "is_pixel_array",
    "is_spatial",
    "layout_of",
    "with_pictures",
]

Channels: TypeAlias = Literal["first", "last"]
ChannelAxis: TypeAlias = Literal["first", "last", "none"]
_CHANNELS = (1, 3, 4)
_WORD = re.compile(r"[a-z]+")
_MASK = re.compile("(mask|seg|segm|segmentation|semantic|labelmap|trimap|label|target)s?")
_IN_IMAGES = re.compile("(mask|bbox|keypoint|landmark|polygon|contour)(e?s)?|box(es)?")
_LEAST = 8  # pixels: a smaller array is a table, such as boxes of shape (n, 4)


def layout_of(shape: Sequence[int | None]) -> ChannelAxis | None:
    """Return where the channels are in arrays of that shape, or None if that is ambiguous.

    ``"none"``: a single channel, shape (height, width). ``"last"`` or ``"first"``: of the last three dimensions, exactly that
    end is 1, 3 or 4. Earlier dimensions count frames. A dimension of None, which varies between records, is not channels.
    """
    if len(shape) == 2:
        return "none"
    if len(shape) < 2 or (shape[-1] in _CHANNELS) == (shape[-3] in _CHANNELS):
        return None
    return "last" if shape[-1] in _CHANNELS else "first"


def is_mask(name: str) -> bool:
    """Whether the name of an element is typical for masks of classes: ``mask``, ``seg_map``, ``labels``."""
    return any(map(_MASK.fullmatch, _WORD.findall(name)))


def is_image_like(field: Field) -> bool:
    """Whether the shape of an array is that of an image with channels, or of a sequence of frames."""
    shape = field.shape or ()
    return len(shape) > 2 and layout_of(shape) is not None and any(_fits(size, []) for size in _spatial_sizes(shape))


def holds_pixels(field: Field, channels: Channels | None = None) -> bool:
    """Whether arrays are pixels of a Pillow image: uint8 with 1, 3 or 4 channels, or uint16 with a single one.

    Parameters
    ----------
    field : Field
    channels : str, optional
        Where the channels are, if the user says it. Otherwise they may be where the shape allows it.
    """
    shape = field.shape or ()
    if field.kind != "array" or len(shape) not in (2, 3):
        return False
    ends = {"first": shape[:1], "last": shape[-1:], None: (shape[0], shape[-1]), "none": (1,)}
    counts = ends["none" if len(shape) == 2 else channels or layout_of(shape)]
    if field.dtype == "<u2":
        return set(counts) == {1}
    return field.dtype == "|u1" and any(count is None or count in _CHANNELS for count in counts)


def with_pictures(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields of a store. If it declares no image, arrays of pixels in the shape of one get the role image."""
    if any(_is_declared_picture(name, field) for name, field in fields.items()):
        return dict(fields)
    return {
        name: dataclasses.replace(field, role="image") if is_pixel_array(field) and not is_mask(name) else field
        for name, field in fields.items()
    }


def _is_declared_picture(name: str, field: Field) -> bool:
    return field.role == "image" or (field.kind == "image" and field.role is None and not is_mask(name))


def is_pixel_array(field: Field) -> bool:
    """Whether an array without a role has the dtype and the shape of one image, which tells where the channels are."""
    if field.role is not None or not holds_pixels(field):
        return False
    sizes = _spatial_sizes(field.shape or ())
    return len(sizes) == 1 and _fits(sizes[0], [])  # two sizes where it is ambiguous


def is_spatial(name: str, field: Field, data: Field | None) -> bool:
    """Whether an element has image coordinates: an image, a map of pixels, boxes or points."""
    if field.role is not None:
        return field.role in ("image", "mask", "boxes", "keypoints")
    if field.kind == "image":
        return True
    if field.is_scalar or field.kind == "str":
        return False
    if any(map(_IN_IMAGES.fullmatch, _WORD.findall(name))):
        return True
    images = _spatial_sizes(data.shape) if data is not None and data.shape is not None and data is not field else []
    return any(_fits(size, images) for size in _spatial_sizes(field.shape or ()))


def _fits(size: tuple[int | None, int | None], images: list[tuple[int | None, int | None]]) -> bool:
    """Whether a map of that size may belong to images of one of these sizes; without sizes, any large enough map may."""
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
    """Whether the values of an element may be class numbers."""
    return field.kind == "image" or (field.dtype or "").lstrip("<>|=")[:1] in ("b", "i", "u")


def _spatial_sizes(shape: Sequence[int | None]) -> list[tuple[int | None, int | None]]:
    """Return what (height, width) of images of that shape may be; empty for fewer than two dimensions."""
    if len(shape) < 2:
        return []
    layout = layout_of(shape)
    first, last = (shape[-2], shape[-1]), (shape[-3] if len(shape) > 2 else None, shape[-2])
    if layout is None:
        return [first, last]
    return [last if layout == "last" else first]
