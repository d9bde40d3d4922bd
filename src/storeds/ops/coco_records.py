"""The records of stores packed from COCO: from images and annotations to fields, and back without loss.

What has a field of its own is stored there, so that readers use it. Everything else stays in the field ``coco``:
``{"image": {…}, "rows": [{…}, …], "captions": [{…}, …], "without": {key: [row, …]}}``, where ``without`` lists the
annotations that lack a key which others have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.protocols import JSON, Array, Field, Meta, Record

__all__ = ["COCO_FIELDS", "REST", "CocoLayout", "from_record", "is_caption", "is_from_coco", "is_number", "to_record"]

REST = "coco"
"""The field of kind json, and the attribute, with everything that has no field or attribute of its own."""

_NO_ID = -1
_EXACT = 2**53  # float64 holds each integer up to this one


def is_number(value: object) -> bool:
    """Whether `value` is a finite number of JSON."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # no float64 is so large
        return False


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
    """

    keys: frozenset[str]
    categories: Mapping[Any, int]
    points: int = 0
    image_id: str = "int"

    @property
    def fields(self) -> dict[str, Field]:
        """The fields, in order."""
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
            fields["caption_ids"] = Field("array", "<i8", (None,))
        kind: Any = self.image_id
        return {**fields, "image_id": Field(kind), "key": Field("str"), REST: Field("json")}

    @property
    def has_boxes(self) -> bool:
        """Whether there are annotations of instances."""
        return "bbox" in self.keys


def to_record(image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], layout: CocoLayout) -> Record:
    """Return the record of an image and its annotations, without the picture."""
    rows = [each for each in annotations if not is_caption(each)]
    said = [each for each in annotations if is_caption(each)]
    record: Record = {}
    without: dict[str, list[int]] = {}
    fields = layout.fields
    stored = {key: convert for key, convert in _ROWS.items() if convert[0] in fields}
    kept = [{key: value for key, value in row.items() if key not in stored and key != "image_id"} for row in rows]
    for key, (name, convert) in stored.items():
        values = []
        for number, row in enumerate(rows):
            value, is_exact = convert(row, layout)
            values.append(value)
            if key not in row:
                without.setdefault(key, []).append(number)
            elif not is_exact:
                kept[number][key] = row[key]
        record[name] = values if fields[name].kind == "json" else _array(values, fields[name])
    captions: list[dict[str, Any]] = []
    if "captions" in fields:
        record["captions"] = [each["caption"] for each in said]
        record["caption_ids"] = np.array([_id_of(each, layout)[0] for each in said], np.int64)
        captions = [_rest_of_caption(each, layout) for each in said]
    rest = {
        "image": {key: value for key, value in image.items() if key not in ("id", "file_name")},
        "captions": captions if any(captions) else [],
        "rows": kept if any(kept) else [],
        "without": without,
    }
    rest = {key: part for key, part in rest.items() if part}
    return {**record, "image_id": image["id"], "key": image["file_name"], REST: rest}


def _array(values: list[Any], declared: Field) -> Array:
    shape = [len(values), *(declared.shape or ())[1:]]
    return np.array(values, np.dtype(declared.dtype)).reshape([int(size or 0) for size in shape])


def _rest_of_caption(annotation: Mapping[str, Any], layout: CocoLayout) -> dict[str, Any]:
    left = {key: value for key, value in annotation.items() if key not in ("caption", "id", "image_id")}
    if "id" in annotation and not _id_of(annotation, layout)[1]:
        left["id"] = annotation["id"]
    return left


def _box_of(row: Mapping[str, Any], layout: CocoLayout) -> tuple[list[float], bool]:
    box = row.get("bbox")
    if box is not None:
        return [float(number) for number in box], all(map(_is_exact, box))
    return hull_of(row.get("segmentation")) or [0.0] * 4, True


def hull_of(segmentation: Any) -> list[float] | None:
    """Return the box around polygons as left, top, width and height; None for anything else."""
    if not isinstance(segmentation, list) or not any(segmentation):
        return None
    flat = [np.array(polygon, np.float64).reshape(-1, 2) for polygon in segmentation]
    points = np.concatenate(flat)
    start = points.min(0)
    return [*start.tolist(), *(points.max(0) - start).tolist()]


def _label_of(row: Mapping[str, Any], layout: CocoLayout) -> tuple[int, bool]:
    return layout.categories[row["category_id"]], True


def _mask_of(row: Mapping[str, Any], layout: CocoLayout) -> tuple[Any, bool]:
    mask = row.get("segmentation")
    return ([], False) if mask is None else (mask, True)


def _points_of(row: Mapping[str, Any], layout: CocoLayout) -> tuple[Array, bool]:
    points = np.zeros(3 * layout.points)
    given = row.get("keypoints")
    if given is None:
        return points, False
    points[: len(given)] = given
    return points, len(given) == len(points) and all(map(_is_exact, given))


def _crowd_of(row: Mapping[str, Any], layout: CocoLayout) -> tuple[bool, bool]:
    value = row.get("iscrowd", 0)
    is_flag = isinstance(value, (int, float)) and value in (0, 1)
    return bool(value) and value != "0", is_flag


def _area_of(row: Mapping[str, Any], layout: CocoLayout) -> tuple[float, bool]:
    area = row.get("area")
    if is_number(area):
        return float(area or 0), _is_exact(area)
    box = _box_of(row, layout)[0]
    return box[2] * box[3], False


def _id_of(row: Mapping[str, Any], layout: CocoLayout) -> tuple[int, bool]:
    number = row.get("id")
    if isinstance(number, int) and not isinstance(number, bool) and -(2**63) <= number < 2**63:
        return number, number != _NO_ID
    return _NO_ID, False


def _is_exact(value: Any) -> bool:
    return isinstance(value, float) or abs(value) <= _EXACT


# Key of an annotation → its field, and what returns the value to store, and whether that gives the original back.
_ROWS: dict[str, tuple[str, Callable[[Mapping[str, Any], CocoLayout], tuple[Any, bool]]]] = {
    "bbox": ("boxes", _box_of),
    "category_id": ("labels", _label_of),
    "segmentation": ("masks", _mask_of),
    "keypoints": ("keypoints", _points_of),
    "iscrowd": ("iscrowd", _crowd_of),
    "area": ("area", _area_of),
    "id": ("annotation_ids", _id_of),
}


COCO_FIELDS = frozenset(
    ("image", *(name for name, _ in _ROWS.values()), "captions", "caption_ids", "image_id", "key", REST)
)
"""All fields that `CocoLayout.fields` may have."""


def is_from_coco(meta: Meta) -> bool:
    """Whether a store was packed from COCO, so that `from_record` gives the original annotations."""
    known = meta.fields.get(REST)
    return known is not None and known.kind == "json" and isinstance(meta.attrs.get(REST), Mapping)


def from_record(record: Record, meta: Meta) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the image and the annotations that `to_record` stored. Numbers are equal, 1 may have become 1.0."""
    rest: Mapping[str, Any] = record[REST]
    number = record["image_id"]
    image = {"id": number, "file_name": record["key"], **rest.get("image", {})}
    ids: Any = meta.attrs.get("category_ids")
    count = len(record["boxes"]) if "boxes" in meta.fields else 0
    kept: Sequence[Mapping[str, Any]] = rest.get("rows") or [{}] * count
    without: Mapping[str, Sequence[int]] = rest.get("without", {})
    annotations: list[dict[str, Any]] = [{"image_id": number, **kept[row]} for row in range(count)]
    for key, (name, _) in _ROWS.items():
        if name not in meta.fields:
            continue
        values = _plain(key, record[name], ids)
        absent = set(without.get(key, ()))
        for row, annotation in enumerate(annotations):
            if row not in absent and key not in annotation:
                annotation[key] = values[row]
    if "captions" in meta.fields:
        texts = record["captions"]
        more: Sequence[Mapping[str, Any]] = rest.get("captions") or [{}] * len(texts)
        for text, own, left in zip(texts, record["caption_ids"].tolist(), more, strict=True):
            given = {} if own == _NO_ID else {"id": own}
            annotations.append({"image_id": number, **given, "caption": text, **left})
    return image, annotations


def _plain(key: str, values: Any, ids: Sequence[JSON]) -> list[Any]:
    """Return the values of all rows as JSON."""
    if key == "segmentation":
        return list(values)
    if key == "category_id":
        return [ids[label] for label in values.tolist()]
    if key == "iscrowd":
        return [int(value) for value in values.tolist()]
    if key == "keypoints":
        flat: list[Any] = values.reshape(len(values), math.prod(values.shape[1:])).tolist()
        return flat
    listed: list[Any] = values.tolist()
    return listed
