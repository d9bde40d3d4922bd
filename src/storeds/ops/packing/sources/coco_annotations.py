"""The categories and annotations of a file of COCO, and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from storeds.errors import ConfigError
from storeds.ops.coco_records import is_caption, is_number
from storeds.ops.packing.sources.base import Problem, is_text, show
from storeds.ops.packing.sources.coco_images import CocoImages, listed_size
from storeds.ops.packing.sources.coco_json import parse_item
from storeds.protocols import JSON, Field
from storeds.records.roles import LARGEST, check_boxes, check_coco_masks

__all__ = ["CocoAnnotations", "CocoCategories"]

_KEYS = ("bbox", "category_id", "segmentation", "keypoints", "iscrowd", "area", "id")
_ROW, _MASK_ROW = "field 'bbox', row 0: ", "field 'segmentation', row 0: "  # of messages about one box, or one mask
_BOX = Field("array", "<f8", (None, 4), role="boxes", format="xywh")


class CocoCategories:
    """The classes of a file.

    Parameters
    ----------
    rows : list of dict
        ``categories``.
    where : str
        The file in messages.

    Attributes
    ----------
    index : dict
        Category id → class index.
    points : dict
        Category id → how many keypoints it has, where it names them.
    """

    def __init__(self, rows: Any, where: str) -> None:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{where}: categories are a list of objects with id and name")
        self.rows: list[dict[str, Any]] = rows
        self.index: dict[Any, int] = {}
        self.points: dict[Any, int] = {}
        for number, row in enumerate(rows):
            own, name = row.get("id"), row.get("name")
            if isinstance(own, bool) or not isinstance(own, (int, str)):
                raise ConfigError(f"{where}: categories[{number}] has no id, a whole number or text: {row}")
            if not isinstance(name, str) or not name:
                raise ConfigError(f"{where}: category {own!r} has no name; add it, so that its boxes have a class")
            if own in self.index:
                raise ConfigError(
                    f"{where}: categories {rows[self.index[own]].get('name')!r} and {name!r} have one id, {own!r}"
                )
            self.index[own] = number
            if isinstance(row.get("keypoints"), list) and row["keypoints"]:
                self.points[own] = len(row["keypoints"])

    @property
    def names(self) -> list[str]:
        """The class names, in order."""
        return [row["name"] for row in self.rows]

    def attrs(self) -> dict[str, JSON]:
        """Return the attributes of the store."""
        if not self.rows:
            return {}
        names: list[JSON] = list(self.names)
        attrs: dict[str, JSON] = {"classes": names, "category_ids": list(self.index)}
        posed = [row for row in self.rows if row["id"] in self.points]
        if posed:
            most = max(posed, key=lambda row: len(row["keypoints"]))
            attrs["keypoint_names"] = most["keypoints"]
            if isinstance(most.get("skeleton"), list):
                attrs["skeleton"] = most["skeleton"]
        return attrs


class CocoAnnotations:
    """The annotations of a file by image, as JSON texts, and what is wrong with them."""

    def __init__(self, images: CocoImages, categories: CocoCategories, where: str) -> None:
        self._images, self._categories, self._where = images, categories, where
        self._good = {image["id"] for image in images.good}
        self._ids: set[Any] = set()
        self._keys: set[str] = {"bbox", "category_id"} if categories.rows else set()
        self._first_points = 0
        self.points = max(categories.points.values(), default=0)
        self.of_image: dict[Any, list[bytes]] = {}
        self.problems: list[Problem] = []

    def keys(self) -> frozenset[str]:
        """Return the keys of all good annotations that have a field of their own."""
        return frozenset(self._keys)

    def add(self, number: int, raw: Any) -> None:
        """Add ``annotations[number]``, or report what is wrong with it."""
        annotation = parse_item(raw)
        of = annotation.get("image_id") if isinstance(annotation, dict) else None
        if isinstance(of, (int, str)) and of in self._images.bad and of not in self._images.by_id:
            return  # the image was reported
        fault = self._fault(annotation)
        if fault is not None:
            self.problems.append(Problem(self._name(number, annotation), fault))
            return
        own, image = annotation.get("id"), annotation["image_id"]
        if own is not None:
            self._ids.add(own)
        if image not in self._good:  # the image was reported
            return
        if is_caption(annotation):
            self._keys.add("caption")
        else:
            self._keys.update(key for key, value in annotation.items() if key in _KEYS and value is not None)
            self._keys.update(("bbox", "category_id"))
        self.of_image.setdefault(image, []).append(bytes(raw))

    def _name(self, number: int, annotation: Any) -> str:
        if not isinstance(annotation, dict):
            return f"{self._where} annotations[{number}]"
        own = annotation.get("id")
        called = f"annotations[{number}]" if own is None else f"annotation {str(own)[:40]}"
        try:
            image = self._images.by_id.get(annotation.get("image_id"))
        except TypeError:  # a list or an object
            image = None
        return f"{self._where} {called}" + ("" if image is None else f" ({show(image['file_name'])})")

    def _fault(self, annotation: Any) -> str | None:
        if not isinstance(annotation, dict):
            return f"an annotation is an object, not {type(annotation).__name__}"
        own, image = annotation.get("id"), annotation.get("image_id")
        if isinstance(own, (list, dict, float)) or isinstance(image, (list, dict, float)):
            return "its id and image_id are whole numbers or text"
        if own is not None and own in self._ids:
            return "another annotation has the same id"
        if image is None:
            return "it has no image_id"
        if image not in self._images.by_id:
            return f"its image is not in the list of images: image_id {image!r}"
        if "segments_info" in annotation:
            return "it belongs to panoptic segmentation, whose masks are pictures; pack these with kind='masks' (--kind masks)"
        if is_caption(annotation):
            said = annotation["caption"]
            return None if isinstance(said, str) and is_text(said) else "its caption is not text"
        return self._instance_fault(annotation, listed_size(self._images.by_id[image]))

    def _instance_fault(self, annotation: Mapping[str, Any], size: tuple[int, int] | None) -> str | None:
        category = annotation.get("category_id")
        if category is None:
            return "it has no category_id"
        if isinstance(category, (list, dict, float, bool)) or category not in self._categories.index:
            return f"its category has no name in the list of categories: category_id {repr(category)[:40]}"
        return (
            _mask_fault(annotation.get("segmentation"), size)
            or _box_fault(annotation, size)
            or self._points_fault(annotation.get("keypoints"), category)
            or _area_fault(annotation.get("area"))
        )

    def _points_fault(self, points: Any, category: Any) -> str | None:
        if points is None:
            return None
        if not isinstance(points, list) or not all(map(is_number, points)):
            return "its keypoints are not a list of numbers x, y, visibility, …"
        if _is_too_large(points):
            return "one of its keypoints is too large for float32, which readers return; fix it, or leave the keypoints out"
        expected = 3 * (self._categories.points.get(category) or self._first_points or len(points) // 3)
        if len(points) != expected or not points:
            count = (
                f"{expected // 3} points, as its category has" if category in self._categories.points else "its points"
            )
            return f"its keypoints have a wrong length: {len(points)} numbers, not x, y and visibility of {count}"
        if category not in self._categories.points:
            self._first_points = expected // 3
        self.points = max(self.points, expected // 3)
        return None


def _box_fault(annotation: Mapping[str, Any], size: tuple[int, int] | None) -> str | None:
    box = annotation.get("bbox")
    if box is None:
        mask = annotation.get("segmentation")
        if "bbox" not in annotation and isinstance(mask, list) and any(mask):
            return None
        return "it has no bbox"
    if not isinstance(box, list) or len(box) != 4 or not all(type(each) in (float, int) for each in box):
        return f"its bbox is not 4 numbers, left, top, width and height: {str(box)[:60]}"
    try:
        left, top, width, height = box
        is_inside = left >= 0 and top >= 0 and width >= 0 and height >= 0
        if is_inside and size is not None and left + width <= size[1] and top + height <= size[0]:
            return None  # as nearly all are; what follows takes 20 times as long
        check_boxes("bbox", [box], _BOX, size)
        if _is_too_large([*box, left + width, top + height]):
            return f"its bbox is too large for float32, which readers return: {str(box)[:60]}"
    except (ValueError, OverflowError) as error:  # a whole number that no float holds
        return f"its bbox is bad: {str(error).removeprefix(_ROW)}"
    return None


def _area_fault(area: Any) -> str | None:
    if area is None or (type(area) is int) or (isinstance(area, float) and math.isfinite(area)):
        return None
    return f"its area is not a number: {str([area])[1:-1][:60]}"


def _is_too_large(numbers: Sequence[float]) -> bool:
    return bool(numbers) and max(max(numbers), -min(numbers)) > LARGEST


def _mask_fault(mask: Any, size: tuple[int, int] | None) -> str | None:
    if mask is None:
        return None
    try:
        check_coco_masks("segmentation", [mask], size)
    except ValueError as error:
        return f"its segmentation is bad: {str(error).removeprefix(_MASK_ROW)}"
    return None
