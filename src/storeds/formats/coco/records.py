"""The records of stores packed from COCO: from images and annotations to fields, and back without loss.

What readers use has fields of its own. The field ``coco`` keeps everything as it was:
``{"image": {…}, "annotations": [{…}, …]}``. Only what would be stored twice is left out there: the id and the name of the
image, and masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.segmentations import run_lengths_box

__all__ = [
    "COCO_FIELDS",
    "REST",
    "CocoLayout",
    "changed_fields",
    "class_attrs",
    "class_index",
    "from_record",
    "hull_of",
    "is_caption",
    "is_from_coco",
    "is_missing",
    "is_number",
    "listed_size",
    "mask_of",
    "to_record",
]

REST = "coco"
"""The field of kind json, and the attribute, with everything that has no field or attribute of its own."""

_NO_ID = -1


def is_number(value: object) -> bool:
    """Whether `value` is a finite number of JSON."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # no float64 is so large
        return False


def is_missing(value: Any) -> bool:
    """Whether a value of an annotation is absent or empty: null, ``""``, ``[]``, ``[[]]``, a run-length encoding without runs."""
    if isinstance(value, list):
        return all(map(is_missing, value))
    if isinstance(value, Mapping) and "counts" in value:
        return is_missing(value["counts"])
    return value is None or value == "" or value == {}


def is_caption(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation describes the whole image in words."""
    return "caption" in annotation and "bbox" not in annotation and "category_id" not in annotation


@dataclass(frozen=True)
class CocoLayout:
    """The fields of a store packed from COCO, and what converts annotations.

    Parameters
    ----------
    keys : frozenset of str
        The keys with a field of their own that any annotation has.
    categories : mapping
        Category id → class index.
    points : int
        The most keypoints of an instance.
    image_id : str
        The kind of the ids of images: ``int`` or ``str``.

    Attributes
    ----------
    fields : dict
        The fields, in order.
    """

    keys: frozenset[str]
    categories: Mapping[Any, int]
    points: int = 0
    image_id: str = "int"
    fields: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", self._fields())

    @classmethod
    def of(cls, meta: Meta) -> CocoLayout:
        """Return a layout with all fields that annotations of the store may have, whichever of them it still has."""
        rest: Any = meta.attrs[REST]
        categories = class_index(rest.get("categories", []))
        keys = frozenset(("bbox", "segmentation", "iscrowd", "area", "id", "caption"))
        if "keypoints" not in meta.fields:
            return cls(keys, categories)
        return cls(keys | {"keypoints"}, categories, (meta.fields["keypoints"].shape or (0, 0))[1] or 0)

    def _fields(self) -> dict[str, Field]:
        fields = {"image": Field("image", role="image")}
        if self.has_boxes:
            fields["boxes"] = Field("array", "<f8", (None, 4), role="boxes", format="xywh")
            fields["labels"] = Field("array", "<i8", (None,), role="labels")
        if "segmentation" in self.keys:
            fields["masks"] = Field("json", role="mask", format="coco")
        if "keypoints" in self.keys:
            fields["keypoints"] = Field("array", "<f8", (None, self.points, 3), role="keypoints")
        for key, name, dtype in (
            ("iscrowd", "iscrowd", "|b1"),
            ("area", "area", "<f8"),
            ("id", "annotation_ids", "<i8"),
        ):
            if key in self.keys and self.has_boxes:
                fields[name] = Field("array", dtype, (None,), of="boxes")
        if "caption" in self.keys:
            fields["captions"] = Field("json", role="text")
        kind: Any = self.image_id
        return {**fields, "image_id": Field(kind), "key": Field("str"), REST: Field("json")}

    @property
    def has_boxes(self) -> bool:
        """Whether there are annotations of instances."""
        return "bbox" in self.keys


def to_record(image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], layout: CocoLayout) -> Record:
    """Return the record of an image and its annotations, without the picture."""
    rows = [each for each in annotations if not is_caption(each)]
    fields = layout.fields
    record: Record = {"image_id": image["id"], "key": image["file_name"]}
    for name, convert in _FIELDS.items():
        if name in fields:
            values = [convert(row, layout) for row in rows]
            record[name] = values if fields[name].kind == "json" else _array(values, fields[name])
    if "captions" in fields:
        record["captions"] = [each["caption"] for each in annotations if is_caption(each)]
    record[REST] = {
        "image": {key: value for key, value in image.items() if key not in ("id", "file_name")},
        "annotations": [
            {key: value for key, value in each.items() if key != "image_id" and not _is_stored_mask(key, value, each)}
            for each in annotations
        ],
    }
    return record


def _is_stored_mask(key: str, value: Any, annotation: Mapping[str, Any]) -> bool:
    return key == "segmentation" and bool(value) and not is_caption(annotation) and mask_of(value) == value


def mask_of(segmentation: Any) -> Any:
    """Return a mask without polygons that are empty or only zeros; ``[]`` if it is missing."""
    if is_missing(segmentation):
        return []
    if isinstance(segmentation, list):
        return [polygon for polygon in segmentation if not isinstance(polygon, list) or any(polygon)]
    return segmentation


def from_record(record: Record) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the image and the annotations that `to_record` stored."""
    rest: Any = record[REST]
    number = record["image_id"]
    annotations = [{"image_id": number, **each} for each in rest["annotations"]]
    masks: Sequence[Any] = record.get("masks", ())
    for row, mask in zip((each for each in annotations if not is_caption(each)), masks, strict=False):
        if mask and "segmentation" not in row:
            row["segmentation"] = mask
    return {"id": number, "file_name": record["key"], **rest["image"]}, annotations


def changed_fields(record: Record, layout: CocoLayout) -> list[str]:
    """Return the fields of a record that are not those of the annotations in its field ``coco``."""
    try:
        packed = to_record(*from_record(record), layout)
    except (AttributeError, KeyError, TypeError, ValueError):
        return [REST]
    return [
        name
        for name in (*_FIELDS, "captions")
        if name in packed and name in record and not _is_equal(packed[name], record[name])
    ]


def _is_equal(packed: Any, stored: Any) -> bool:
    return np.array_equal(packed, stored) if isinstance(packed, np.ndarray) else bool(packed == stored)


def listed_size(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the height and width that COCO lists for an image, if it has both."""
    height, width = entry.get("height"), entry.get("width")
    is_size = all(isinstance(side, int) and 0 < side < 2**31 for side in (height, width))
    return (height, width) if is_size else None  # type: ignore[return-value]  # mypy does not follow all()


def class_index(categories: Sequence[Mapping[str, Any]]) -> dict[Any, int]:
    """Return category id → class number. Categories of one name are one class."""
    numbers: dict[str, int] = {}
    return {row["id"]: numbers.setdefault(row["name"], len(numbers)) for row in categories}


def class_attrs(categories: Sequence[Mapping[str, Any]]) -> dict[str, JSON]:
    """Return the attributes of a store that describe its classes."""
    if not categories:
        return {}
    ids = {row["name"]: row["id"] for row in reversed(categories)}  # the first id of each name
    names = list(dict.fromkeys(row["name"] for row in categories))
    attrs: dict[str, JSON] = {"classes": names, "category_ids": [ids[name] for name in names]}
    posed = [row for row in categories if isinstance(row.get("keypoints"), list)]
    most = max(posed, key=lambda row: len(row["keypoints"]), default={})
    if most.get("keypoints"):
        attrs["keypoint_names"] = most["keypoints"]
        if isinstance(most.get("skeleton"), list):
            attrs["skeleton"] = most["skeleton"]
    return attrs


def is_from_coco(meta: Meta) -> bool:
    """Whether a store was packed from COCO, so that `from_record` gives the original annotations."""
    known = meta.fields.get(REST)
    return known is not None and known.kind == "json" and isinstance(meta.attrs.get(REST), Mapping)


def _array(values: list[Any], declared: Field) -> Array:
    shape = [len(values), *(declared.shape or ())[1:]]
    return np.array(values, np.dtype(declared.dtype)).reshape([int(size or 0) for size in shape])


def _box_of(row: Mapping[str, Any], layout: CocoLayout) -> list[float]:
    box: Any = row.get("bbox")
    if is_missing(box) or not any(box):
        return hull_of(row.get("segmentation")) or [0.0] * 4
    return list(map(float, box))


def hull_of(segmentation: Any) -> list[float] | None:
    """Return the box around a mask as left, top, width and height; None for one that is missing or has no pixel."""
    mask = mask_of(segmentation)
    if isinstance(mask, Mapping):
        return run_lengths_box(mask)
    if not mask:
        return None
    points = np.concatenate([np.array(polygon, np.float64).reshape(-1, 2) for polygon in mask])
    start = points.min(0)
    return [*start.tolist(), *(points.max(0) - start).tolist()]


def _points_of(row: Mapping[str, Any], layout: CocoLayout) -> Array:
    points = np.zeros(3 * layout.points)
    found = row.get("keypoints") or ()
    points[: len(found)] = found
    return points


def _area_of(row: Mapping[str, Any], layout: CocoLayout) -> float:
    area: Any = row.get("area")
    if is_number(area):
        return float(area)
    box = _box_of(row, layout)
    return box[2] * box[3]


def _id_of(row: Mapping[str, Any], layout: CocoLayout) -> int:
    number = row.get("id")
    return number if type(number) is int and -(2**63) <= number < 2**63 else _NO_ID


# Field → what returns its value for one annotation.
_FIELDS: dict[str, Callable[[Mapping[str, Any], CocoLayout], Any]] = {
    "boxes": _box_of,
    "labels": lambda row, layout: layout.categories[row["category_id"]],
    "masks": lambda row, layout: mask_of(row.get("segmentation")),
    "keypoints": _points_of,
    "iscrowd": lambda row, layout: row.get("iscrowd") in (1, "1"),
    "area": _area_of,
    "annotation_ids": _id_of,
}

COCO_FIELDS = frozenset(("image", *_FIELDS, "captions", "image_id", "key", REST))
"""All fields that `CocoLayout.fields` may have."""
