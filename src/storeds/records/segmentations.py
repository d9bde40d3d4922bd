"""Masks of instances in the forms of COCO: checked, and drawn.

A field of kind json with role ``mask`` and format ``coco`` holds one item per instance. An item is a list of polygons
``[[x1, y1, x2, y2, …], …]``, or a run-length encoding ``{"size": [height, width], "counts": list or str}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from storeds.errors import MissingDependencyError
from storeds.protocols import Array

__all__ = [
    "array_of",
    "boxes_around",
    "check_coco_masks",
    "in_pixels",
    "rasterised",
    "run_lengths",
    "run_lengths_box",
    "short",
]

_FAR = 100_000  # pixels outside the image: the memory for drawing a polygon grows with its perimeter
_MOST = 1 << 32  # bytes of the masks of one image
_DIGITS = 7  # of one number in compressed counts: 35 bits
_FORMS = "a mask is a list of polygons [[x1, y1, x2, y2, …], …], or a run-length encoding {'size': …, 'counts': …}"


def check_coco_masks(
    name: str, value: Any, size: tuple[int, int] | None = None, *, relative: bool = False
) -> list[Any]:
    """Return masks of kind json, one for each instance; raise ValueError for the first that is no polygons and no RLE.

    Parameters
    ----------
    name : str
        The field, for the message.
    value : object
        Any JSON. An empty list of polygons is an empty mask.
    size : (int, int), optional
        Height and width of the image. Without it, only relative polygons are compared with the image.
    relative : bool
        Whether the coordinates of polygons are fractions of width and height.
    """
    if not isinstance(value, list):
        raise ValueError(f"field {name!r}: masks are a list, one for each instance, not {type(value).__name__}")
    for row, mask in enumerate(value):
        fault = _fault(mask, size, relative)
        if fault is not None:
            raise ValueError(f"field {name!r}, row {row}: {fault}")
    return value


def _fault(mask: Any, size: tuple[int, int] | None, relative: bool) -> str | None:
    """Return why a value is not the mask of an instance, or None if it is one."""
    if isinstance(mask, Mapping):
        return _run_lengths_fault(mask, size)
    if not isinstance(mask, list):
        return f"{_FORMS}, not {type(mask).__name__}"
    return next((fault for polygon in mask if (fault := _polygon_fault(polygon, size, relative))), None)


def _polygon_fault(polygon: Any, size: tuple[int, int] | None, relative: bool) -> str | None:
    if not isinstance(polygon, list):
        return f"{_FORMS}; a polygon is a list, not {type(polygon).__name__}"
    if len(polygon) < 6 or len(polygon) % 2:
        return f"a polygon has an even number of coordinates, at least 6, not {len(polygon)}; leave the polygon out"
    numbers = array_of(polygon)  # of objects, if a number is too large for any dtype
    if numbers is not None and numbers.dtype.kind in "iuf" and numbers.ndim == 1:
        longest = max(size or (0, 0))
        far = _FAR / (longest or 1) if relative else _FAR + longest
        least, most = numbers.min(), numbers.max()
        if -far <= least and most <= far:  # False for NaN
            return None
        if np.isfinite([least, most]).all():
            return f"a polygon reaches from {least:g} to {most:g}, which is far outside the image"
    return f"the coordinates of a polygon are finite numbers, not {short(polygon)}"


def _run_lengths_fault(mask: Mapping[str, Any], size: tuple[int, int] | None) -> str | None:
    if not mask.keys() >= {"size", "counts"}:
        return f"a run-length encoding has the keys size and counts, not {', '.join(map(str, mask)) or 'none'}"
    given = mask["size"]
    if not isinstance(given, list) or len(given) != 2 or not all(map(_is_count, given)):
        return f"size is [height, width], two whole numbers, not {short(given)}"
    if size is not None and tuple(given) != tuple(size):
        return f"size is [height, width] of the image, {list(size)}, not {given}"
    try:
        total = int(run_lengths(mask["counts"]).sum())
    except ValueError as error:
        return str(error)
    if total != given[0] * given[1]:
        return f"counts add up to {total}, and size {given} has {given[0] * given[1]} pixels"
    return None


def rasterised(value: Any, height: int, width: int, *, relative: bool = False, name: str = "mask") -> Array:
    """Return the masks of all instances of one image.

    Parameters
    ----------
    value : list
        One item per instance: a list of polygons or a run-length encoding. An empty list of polygons is an empty mask.
    height, width : int
        Size of the image in pixels.
    relative : bool
        Whether the coordinates of polygons are fractions of width and height.
    name : str
        The field, for messages.

    Returns
    -------
    ndarray
        uint8 of shape (instances, height, width), 1 inside an instance. Pixels are those of pycocotools.

    Raises
    ------
    ValueError
        An item has another form, or does not fit the image: the message names its row. Or the masks have more than 4 GiB.
    MissingDependencyError
        There are polygons, and pycocotools is not installed. Run-length encodings do not need it.
    """
    check_coco_masks(name, value, (height, width), relative=relative)
    if len(value) * height * width > _MOST:
        raise ValueError(
            f"field {name!r}: {len(value):,} masks of {height} x {width} pixels take more than {_MOST:,} bytes; make the picture "
            "smaller, or leave masks out"
        )
    masks = np.zeros((len(value), height, width), np.uint8)
    for number, mask in enumerate(value):
        if mask:
            encoding = _encoding_of(mask, height, width, relative=relative)
            masks[number] = _from_runs(run_lengths(encoding["counts"]), height, width)
    return masks


def boxes_around(value: Any, height: int, width: int, name: str = "mask") -> list[list[float] | None]:
    """Return the box around each mask: left, top, width, height; None around one without pixels.

    Takes and raises what `rasterised` does, with coordinates in pixels, and draws no mask.
    """
    check_coco_masks(name, value, (height, width))
    return [run_lengths_box(_encoding_of(mask, height, width)) if mask else None for mask in value]


def _encoding_of(mask: Any, height: int, width: int, *, relative: bool = False) -> Mapping[str, Any]:
    """Return the run-length encoding of a mask, which is one or polygons."""
    if isinstance(mask, Mapping):
        return mask
    coco = _pycocotools()
    polygons = coco.frPyObjects(in_pixels(mask, height, width) if relative else mask, height, width)
    # pycocotools.mask.decode warns under NumPy 2.
    return {"size": [height, width], "counts": coco.merge(polygons)["counts"]}


def in_pixels(polygons: list[list[float]], height: int, width: int) -> list[list[float]]:
    """Return polygons in pixels whose coordinates are fractions of the height and width of an image."""
    return [[number * (height if at % 2 else width) for at, number in enumerate(polygon)] for polygon in polygons]


def run_lengths(counts: Any) -> Array:
    """Return the lengths of the runs of a run-length encoding: 0, 1, 0, … down the columns, int64.

    Parameters
    ----------
    counts : list of int, str or bytes
        Uncompressed, or in the compressed form of pycocotools.

    Raises
    ------
    ValueError
        It is neither.
    """
    if isinstance(counts, str):
        if not counts or not counts.isascii():
            raise ValueError("counts is the text of COCO's encoding, not other text")
        counts = counts.encode()
    if isinstance(counts, bytes):
        return _uncompressed(counts)
    if not isinstance(counts, list) or not all(map(_is_count, counts)):
        raise ValueError("counts are a list of integers of 0 or more, or compressed text")
    return np.array(counts, np.int64)


def run_lengths_box(mask: Mapping[str, Any]) -> list[float] | None:
    """Return the box around the pixels of a run-length encoding: left, top, width, height; None if it has no pixel."""
    height = mask["size"][0]
    stops = run_lengths(mask["counts"]).cumsum()
    starts, stops = stops[:-1:2], stops[1::2]
    starts, stops = starts[stops > starts], stops[stops > starts]
    if not len(starts):
        return None
    (first, top), (last, bottom) = np.divmod(starts, height), np.divmod(stops - 1, height)
    is_high = (first < last).any()  # a run that goes on in the next column reaches the bottom and the top
    low, high = (0, height - 1) if is_high else (top.min(), bottom.max())
    return [float(side) for side in (first.min(), low, last.max() + 1 - first.min(), high + 1 - low)]


def _is_count(value: object) -> bool:
    """Return whether a value is a number of pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _uncompressed(text: bytes) -> Array:
    """Return the numbers in compressed counts.

    Each byte holds 5 bits of a number, lowest first, plus 48; bit 5 says that more follow, and bit 4 of the last is the
    sign. From the fourth number on, a number is the difference from the one two places before.
    """
    digits = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not len(digits):
        return digits
    last = np.flatnonzero(digits & 0x20 == 0)
    if ((digits < 0) | (digits > 63)).any() or not len(last) or last[-1] != len(digits) - 1:
        raise ValueError("its compressed counts are damaged")
    first = np.concatenate([[0], last[:-1] + 1])
    place = np.arange(len(digits)) - np.repeat(first, last - first + 1)
    if place.max() >= _DIGITS:
        raise ValueError("its compressed counts are damaged")
    numbers = np.add.reduceat((digits & 0x1F) << (5 * place), first)
    numbers -= ((digits[last] & 0x10) != 0).astype(np.int64) << (5 * (place[last] + 1))
    numbers[1::2] = numbers[1::2].cumsum()
    numbers[2::2] = numbers[2::2].cumsum()
    if (numbers < 0).any():
        raise ValueError("its compressed counts are damaged")
    return numbers


def _from_runs(lengths: Array, height: int, width: int) -> Array:
    values = np.arange(len(lengths)) % 2
    return np.repeat(values.astype(np.uint8), lengths).reshape(width, height).T


def _pycocotools() -> Any:
    try:
        from pycocotools import mask
    except ImportError as error:
        raise MissingDependencyError(
            f"masks from polygons need pycocotools, which cannot be imported ({error}): pip install storeds[coco]"
        ) from error
    return mask


def array_of(value: Any) -> Array | None:
    """Return an array, or the array of a list; None for other values, and for lists of different lengths."""
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(value) if isinstance(value, list) else None
    except (ValueError, OverflowError):
        return None


def short(value: Any) -> str:
    """Return a value for a message, numbers without trailing zeros."""
    text = repr(value)
    if isinstance(value, list):
        text = f"[{', '.join(f'{each:g}' if isinstance(each, float) else repr(each) for each in value)}]"
    return text if len(text) <= 80 else f"{text[:79]}…"
