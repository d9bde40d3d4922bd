"""Masks of instances from the forms of COCO: polygons and run-length encodings.

A field of kind json with role ``mask`` and format ``coco`` holds one item per instance. An item is a list of polygons
``[[x1, y1, x2, y2, …], …]``, or a run-length encoding ``{"size": [height, width], "counts": list or str}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from storeds.errors import MissingDependencyError
from storeds.protocols import Array
from storeds.records.segmentations import far_fault, in_pixels, is_count, run_lengths

__all__ = ["rasterised", "segmentation_fault"]


def rasterised(value: Any, height: int, width: int, *, relative: bool = False) -> Array:
    """Return the masks of all instances of one image.

    Parameters
    ----------
    value : list
        One item per instance: a list of polygons or a run-length encoding. An empty list of polygons is an empty mask.
    height, width : int
        Size of the image in pixels.
    relative : bool
        Whether the coordinates of polygons are fractions of width and height.

    Returns
    -------
    ndarray
        uint8 of shape (instances, height, width), 1 inside an instance. Pixels are those of pycocotools.

    Raises
    ------
    ValueError
        An item has another form, or does not fit the image. The message names the instance.
    MissingDependencyError
        There are polygons, and pycocotools is not installed. Run-length encodings do not need it.
    """
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise ValueError(f"masks of format 'coco' are a list with one item per instance, not {type(value).__name__}")
    masks = np.zeros((len(value), height, width), np.uint8)
    for number, item in enumerate(value):
        fault = segmentation_fault(item, height, width, relative=relative)
        if fault is not None:
            raise ValueError(f"instance {number}: {fault}")
        if isinstance(item, Mapping):
            masks[number] = _from_runs(run_lengths(item["counts"]), height, width)
        elif item:
            masks[number] = _from_polygons(item, height, width, relative)
    return masks


def segmentation_fault(
    item: Any, height: int | None = None, width: int | None = None, *, relative: bool = False
) -> str | None:
    """Return why `item` is not the mask of an instance, or None if it is one. Without a size, its size is not compared."""
    if isinstance(item, Mapping):
        return _rle_fault(item, height, width)
    if not isinstance(item, list):
        return f"a mask is a list of polygons, or an object with size and counts, not {type(item).__name__}"
    for polygon in item:
        fault = _polygon_fault(polygon, height, width, relative)
        if fault is not None:
            return fault
    return None


def _polygon_fault(polygon: Any, height: int | None, width: int | None, relative: bool) -> str | None:
    if not isinstance(polygon, list):
        return f"a polygon is a list of numbers x1, y1, x2, y2, …, not {type(polygon).__name__}"
    if len(polygon) < 6 or len(polygon) % 2:
        return f"a polygon has 3 points or more, and an even count of numbers, not {len(polygon)}"
    try:
        is_finite = math.isfinite(math.fsum(polygon))
    except TypeError:
        return "a polygon holds numbers only"
    except (OverflowError, ValueError):  # an integer beyond the range of floats, or infinities of both signs
        is_finite = False
    if not is_finite:
        return "a coordinate of a polygon is not finite"
    return far_fault(polygon, height, width, relative)


def _rle_fault(item: Mapping[str, Any], height: int | None, width: int | None) -> str | None:
    size = item.get("size")
    if not isinstance(size, list) or len(size) != 2 or not all(map(is_count, size)) or "counts" not in item:
        return 'a run-length encoding is {"size": [height, width], "counts": list or str}'
    if height is not None and width is not None and tuple(size) != (height, width):
        return f"its run-length encoding is {size[1]} × {size[0]} pixels, but the image is {width} × {height}"
    try:
        total = int(run_lengths(item["counts"]).sum())
    except ValueError as error:
        return str(error)
    if total != size[0] * size[1]:
        return f"its counts sum to {total}, not to the {size[0] * size[1]} pixels of its size"
    return None


def _from_runs(lengths: Array, height: int, width: int) -> Array:
    values = np.arange(len(lengths)) % 2
    return np.repeat(values.astype(np.uint8), lengths).reshape(width, height).T


def _from_polygons(polygons: list[list[float]], height: int, width: int, relative: bool) -> Array:
    coco = _pycocotools()
    drawn = coco.merge(coco.frPyObjects(in_pixels(polygons, height, width) if relative else polygons, height, width))
    return _from_runs(run_lengths(drawn["counts"]), height, width)  # pycocotools.mask.decode warns under NumPy 2


def _pycocotools() -> Any:
    try:
        from pycocotools import mask
    except ImportError as error:
        raise MissingDependencyError(
            f"masks from polygons need pycocotools, which cannot be imported ({error}): pip install storeds[coco]"
        ) from error
    return mask
