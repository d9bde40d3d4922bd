"""Checks the values of one annotation of COCO, before any is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storeds.formats.coco.records import hull_of, is_missing, is_number, mask_of
from storeds.protocols import Field
from storeds.records.annotations import LARGEST, check_boxes, check_keypoints
from storeds.records.segmentations import check_coco_masks

__all__ = ["check_numbers", "check_shapes"]

_BOX = Field("array", "<f8", (None, 4), role="boxes", format="xywh")


def check_numbers(annotation: Mapping[str, Any]) -> None:
    """Raise ValueError for an area or a mark of crowds that is there, and cannot be read."""
    area, crowd = annotation.get("area"), annotation.get("iscrowd")
    if not is_missing(area) and type(area) is not int and not is_number(area):
        raise ValueError(f"its area is not a number: {repr(area)[:60]}")
    if not is_missing(crowd) and crowd not in (0, 1, "0", "1"):
        raise ValueError(f"its iscrowd is not 0 or 1: {repr(crowd)[:60]}")


def check_shapes(annotation: Mapping[str, Any], size: tuple[int, int] | None, named: int | None) -> None:
    """Raise ValueError for a mask, a box or keypoints that cannot be stored; `named` is the number of points if it is known."""
    mask, box, points = mask_of(annotation.get("segmentation")), annotation.get("bbox"), annotation.get("keypoints")
    check_coco_masks("segmentation", [mask], size)
    if is_missing(box) and hull_of(mask) is None:
        raise ValueError("it has no bbox, and no segmentation to take it from")
    if not is_missing(box):
        if not isinstance(box, list) or bool in map(type, box):
            raise ValueError(f"its bbox is 4 numbers, not {repr(box)[:60]}")
        if not _is_inside(box, size or (LARGEST, LARGEST)):
            check_boxes("bbox", [box], _BOX, size)
    if not is_missing(points):
        if not isinstance(points, list) or not points or len(points) != 3 * (named or len(points) // 3):
            count = f" of {named} points" if named else ""
            raise ValueError(f"its keypoints are not a list of x, y and visibility{count}: {repr(points)[:60]}")
        check_keypoints("keypoints", [points[at : at + 3] for at in range(0, len(points), 3)])


def _is_inside(box: Any, size: tuple[float, float]) -> bool:
    """Whether a box is good beyond doubt, as nearly all are: `check_boxes` takes 20 times as long."""
    try:
        left, top, width, height = box
        inside: bool = min(left, top, width, height) >= 0 and left + width <= size[1] and top + height <= size[0]
    except (TypeError, ValueError, OverflowError):
        return False
    return inside
