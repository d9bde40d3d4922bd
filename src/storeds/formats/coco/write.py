"""Exports a store to COCO: the pictures in ``images/``, and all annotations in ``annotations.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from storeds._utils.text import counted, some
from storeds.errors import ConfigError
from storeds.formats.coco.records import (
    COCO_FIELDS,
    REST,
    CocoLayout,
    changed_fields,
    class_attrs,
    from_record,
    is_from_coco,
    listed_size,
    mask_of,
)
from storeds.formats.writing import (
    HOW_TO_DECLARE,
    Differences,
    ExportFolder,
    FileNames,
    boxes_as,
    check_counts,
    checked_size,
    fields_of,
    image_field,
    one_field,
)
from storeds.pictures import read_picture_header
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.classes import stored_classes
from storeds.records.roles import boxes_of
from storeds.records.segmentations import boxes_around, in_pixels, run_lengths
from storeds.records.verdict_fields import without_verdicts

__all__ = ["CocoExporter"]

_FORMAT = "coco"
_FILE = "annotations.json"
_IMAGE_KEYS = ("id", "file_name", "width", "height")
_NO_PLACE = ("image", "bytes", "array")  # kinds that JSON does not hold
_WHY = "COCO has no place for it"
_CHANGED = f"if you changed them, write the store without {REST!r}, and the export follows its fields"
_FLAGS = ("iscrowd", "area", "annotation_ids")
_FINITE = ("bbox", "segmentation", "keypoints")  # checked before
_ANNOTATION_KEYS = (
    *("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"),
    *("keypoints", "num_keypoints", "caption"),
)


class CocoExporter:
    """Writes the pictures of a store, and one file of annotations in COCO's form.

    The fields of the store have roles: an image, and boxes, masks of instances, keypoints or captions.
    """

    def __init__(self, meta: Meta, out: ExportFolder) -> None:
        meta = replace(meta, fields=without_verdicts(meta.fields))
        self._parts: _FromCoco | _FromRoles = _FromCoco(meta) if is_from_coco(meta) else _FromRoles(meta)
        self._names = FileNames(with_suffix=isinstance(self._parts, _FromRoles))
        self._out = out
        self._images: list[bytes] = []
        self._image_ids, self._ids = _Ids(), _Ids()
        self._nulls = 0
        self._separator = b"\n"
        out.append(_FILE, b'{"annotations":[')

    def add(self, position: int, record: Record) -> None:
        """Write the picture of a record and its annotations."""
        blob = record[self._parts.image]
        name = self._names.name(record.get("key"), position, blob)
        self._out.write(f"images/{name}", blob)
        image, annotations = self._parts.convert(record, position, name)
        image["id"] = self._image_ids.unused(image["id"])
        for annotation in annotations:
            annotation["image_id"] = image["id"]
            if "id" in annotation:
                annotation["id"] = self._ids.unused(annotation["id"])
            self._out.append(_FILE, self._separator + msgspec.json.encode(annotation))
            self._separator = b",\n"
        self._images.append(msgspec.json.encode(image))
        self._nulls += _infinite([image, *annotations])

    def finish(self) -> Differences:
        """Write the images and the categories."""
        self._out.append(_FILE, b'],\n"images":[\n' + b",\n".join(self._images) + b"]")
        for key, value in self._parts.rest().items():
            self._out.append(_FILE, b",\n" + msgspec.json.encode(key) + b":" + msgspec.json.encode(value))
        self._out.append(_FILE, b"}\n")
        notes = (
            *self._names.notes(),
            *self._parts.notes(),
            *self._image_ids.notes("image"),
            *self._ids.notes("annotation"),
        )
        if self._nulls:
            numbers = counted(self._nulls, "number that is", "numbers that are")
            notes += (f"{numbers} NaN or infinite became null, as JSON has none",)
        return Differences(self._parts.left_out, notes)


class _Ids:
    """Keeps the ids of images or of annotations apart: those of several stores, or of other data, may be equal."""

    def __init__(self) -> None:
        self._used: set[Any] = set()
        self._largest = 0
        self._changed: list[Any] = []

    def unused(self, number: Any) -> Any:
        """Return an id, or another one if it is used."""
        if not isinstance(number, (int, str)):  # null
            return number
        unused = number
        while unused in self._used:
            self._largest += 1
            unused = f"{number}-{self._largest}" if isinstance(number, str) else self._largest
        if unused != number:
            self._changed.append(number)
        if isinstance(unused, int):
            self._largest = max(self._largest, unused)
        self._used.add(unused)
        return unused

    def notes(self, what: str) -> tuple[str, ...]:
        """Return one sentence about ids that changed, or nothing."""
        if not self._changed:
            return ()
        return (
            f"{counted(len(self._changed), what)} got another id, because an earlier one has it: {some(map(str, self._changed))}",
        )


def _infinite(value: Any) -> int:
    """Return how many numbers in a value of JSON are NaN or infinite."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return sum(_infinite(each) for key, each in value.items() if key not in _FINITE)
    return sum(map(_infinite, value)) if isinstance(value, list) else 0


class _FromCoco:
    """Gives the images and annotations back that `pack` read. `_FromRoles` has the same methods.

    Fields and class names that were changed since then are an error: the annotations that ``coco`` keeps are older.
    """

    image = "image"

    def __init__(self, meta: Meta) -> None:
        self._meta, self._layout = meta, CocoLayout.of(meta)
        for name, packed in class_attrs(self.rest().get("categories", [])).items():  # type: ignore[arg-type]  # `pack` stored a list of objects
            if meta.attrs.get(name, packed) != packed:
                raise ConfigError(f"attribute {name!r} differs from the categories in attribute {REST!r}; {_CHANGED}")
        self.left_out: dict[str, str] = {}
        self._added: list[str] = []
        for name, declared in meta.fields.items():
            if name in COCO_FIELDS:
                continue
            if declared.kind in _NO_PLACE:
                self.left_out[name] = _WHY
            else:
                self._added.append(name)

    def convert(self, record: Record, position: int, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the image and the annotations of a record; raises ValueError if its fields were changed."""
        changed = changed_fields(record, self._layout)
        if changed:
            raise ValueError(f"its {some(changed)} differ from its annotations in field {REST!r}; {_CHANGED}")
        image, annotations = from_record(record)
        header = read_picture_header(record[self.image])
        if header is not None and listed_size(image):  # `pack` may have made the picture smaller
            image.update(width=header.width, height=header.height)
        for each in self._added:
            if image.setdefault(each, record[each]) != record[each]:
                self.left_out[each] = f"images of the COCO file that was packed have a key {each!r}, which stays"
        return {**image, "file_name": name}, annotations

    def notes(self) -> tuple[str, ...]:
        """Return nothing: no object is left out."""
        return ()

    def rest(self) -> dict[str, JSON]:
        """Return the other keys of the file."""
        kept: Any = self._meta.attrs[REST]
        return dict(kept)


class _FromRoles:
    """Turns the records of a store whose fields have roles into images and annotations of COCO.

    Parameters
    ----------
    meta : Meta

    Attributes
    ----------
    image : str
        The field of the pictures.
    left_out : dict
        Field → why COCO has no place for it.
    """

    def __init__(self, meta: Meta) -> None:
        self.image, self._meta = image_field(meta, _FORMAT), meta
        self._boxes = one_field(meta, _FORMAT, "boxes", required=False)
        self._labels = one_field(meta, _FORMAT, "labels", required=False)
        self._masks = next((name for name in fields_of(meta, "mask") if _is_instances(meta.fields[name])), None)
        self._captions = one_field(meta, _FORMAT, "text", required=False)
        self._has_instances = bool(self._boxes or self._masks)
        points = one_field(meta, _FORMAT, "keypoints", required=False)
        has_rows = self._has_instances and points is not None and len(meta.fields[points].shape or ()) == 3
        self._keypoints = points if has_rows else None
        if not self._has_instances:  # labels are those of the image
            self._labels = None
        if not (self._has_instances or self._captions):
            raise ConfigError(
                f"format {_FORMAT!r} needs a field with role boxes, mask (of instances) or text; the store has "
                f"{', '.join(meta.fields)}; {HOW_TO_DECLARE}"
            )
        self._classes: dict[Any, int] = {}  # labels that attrs do not name → category
        self._names = stored_classes(meta.attrs, self._labels) or []
        self._ids = _category_ids(meta.attrs, len(self._names))
        self._annotations = self._nowhere = 0
        self.left_out: dict[str, str] = {}
        self._of_rows, self._of_image = self._split_rest()

    def _split_rest(self) -> tuple[list[str], list[str]]:
        """Return the further fields of annotations and of images. The others are left out."""
        used = {self.image, self._boxes, self._labels, self._masks, self._keypoints, "key", "image_id"}
        if not self._has_instances:  # programs of COCO refuse a file with categories and captions
            used.add(self._captions)
        rows, image = [], []
        for name, declared in self._meta.fields.items():
            if name in used or (name in _FLAGS and self._is_of_rows(name)):
                continue
            if name == REST and "image_id" in self._meta.fields:
                self.left_out[name] = (
                    "the stores come from different COCO files, so annotations follow the other fields"
                )
            elif name in (_ANNOTATION_KEYS if self._is_of_rows(name) else _IMAGE_KEYS):
                self.left_out[name] = "COCO uses this name for something else"
            elif declared.role not in ("keypoints", "mask") and self._is_of_rows(name):
                rows.append(name)
            elif declared.role in ("keypoints", "mask") or declared.kind in _NO_PLACE:
                self.left_out[name] = _WHY
            else:
                image.append(name)
        return rows, image

    def _is_of_rows(self, name: str) -> bool:
        return boxes_of(name, self._meta.fields) is not None

    def convert(self, record: Record, position: int, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the image and the annotations of a record; raises ValueError if it does not fit its roles."""
        size = checked_size(record, self.image, self._meta.fields, _FORMAT)
        number = record.get("image_id", position + 1)
        image = {"id": number, "file_name": name, "width": size[1], "height": size[0]}
        image.update({each: record[each] for each in self._of_image})
        ids = record.get("annotation_ids") if "annotation_ids" in self._meta.fields else None
        annotations: list[dict[str, Any]] = []
        for row, annotation in self._rows(record, size):
            self._annotations += 1
            own = self._annotations if ids is None else int(ids[row])
            annotations.append({"id": own, "image_id": number, **annotation})
        return image, annotations

    def notes(self) -> tuple[str, ...]:
        """Return a sentence about objects that are left out, or nothing."""
        if not self._nowhere:
            return ()
        return (f"{counted(self._nowhere, 'object')} with neither a box nor a mask left out",)

    def _rows(self, record: Record, size: tuple[int, int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of each object, or caption, and its annotation."""
        masks = [] if self._masks is None else _segmentations(record[self._masks], self._meta.fields[self._masks], size)
        points = self._points(record, size)
        boxes = self._xywh(record, size, masks)
        labels = [] if self._labels is None else record[self._labels]
        check_counts({self._labels: labels, self._masks: masks, self._keypoints: points}, len(boxes))
        for row, box in enumerate(boxes.tolist()):
            if math.isnan(box[0]):
                self._nowhere += 1
                continue
            area = _area_of(masks[row]) if masks and masks[row] else box[2] * box[3]
            annotation: dict[str, Any] = {"bbox": box, "iscrowd": 0, "area": area}
            annotation["category_id"] = self._category("object" if self._labels is None else labels[row])
            if masks and masks[row]:
                annotation["segmentation"] = masks[row]
            if points:
                annotation["keypoints"] = points[row]
                annotation["num_keypoints"] = sum(visible > 0 for visible in points[row][2::3])
            if "iscrowd" in self._meta.fields and self._is_of_rows("iscrowd"):
                annotation["iscrowd"] = int(record["iscrowd"][row])
            if "area" in self._meta.fields and self._is_of_rows("area"):
                annotation["area"] = float(record["area"][row])
            for name in self._of_rows:
                value = record[name][row]
                annotation[name] = value.tolist() if hasattr(value, "tolist") else value
            yield row, annotation
        if self._captions is not None and not self._has_instances:
            texts = record[self._captions]
            yield from enumerate({"caption": text} for text in ([texts] if isinstance(texts, str) else texts))

    def _xywh(self, record: Record, size: tuple[int, int], masks: list[Any]) -> Array:
        """Return the boxes: in a store without boxes those around the masks, NaN for an empty mask."""
        if self._boxes is not None:
            return boxes_as("xywh", record[self._boxes], self._meta.fields[self._boxes], size)
        boxes = [box or [math.nan] * 4 for box in boxes_around(masks, *size)]
        return np.array(boxes, np.float64).reshape(-1, 4)

    def _points(self, record: Record, size: tuple[int, int]) -> list[list[float]]:
        """Return keypoints as x, y, visibility, x, y, visibility, … for each instance."""
        if self._keypoints is None:
            return []
        points = np.asarray(record[self._keypoints], np.float64)
        if self._meta.fields[self._keypoints].relative:
            points = points * np.array([size[1], size[0], 1.0])[: points.shape[-1]]
        if points.shape[-1] == 2:
            points = np.concatenate([points, np.full((*points.shape[:2], 1), 2.0)], axis=2)
        flat: list[list[float]] = points.reshape(len(points), math.prod(points.shape[1:])).tolist()
        return flat

    def _category(self, label: Any) -> int:
        if isinstance(label, (int, np.integer)) and 0 <= label < len(self._names):
            return self._ids[int(label)]
        key = label if isinstance(label, str) else int(label)
        if key not in self._classes:
            if isinstance(key, str) and key in self._names:
                return self._ids[self._names.index(key)]
            taken = {*self._ids, *self._classes.values()}
            self._classes[key] = max(taken, default=0) + 1
        return self._classes[key]

    def rest(self) -> dict[str, JSON]:
        """Return the other keys of the file. Valid after all records were converted."""
        if not self._has_instances:
            return {}
        points: Any = {key: self._meta.attrs[name] for name, key in _SKELETON.items() if name in self._meta.attrs}
        named = [(number, name) for number, name in zip(self._ids, self._names, strict=True)]
        named += [(number, str(label)) for label, number in self._classes.items()]
        own = points if self._keypoints is not None else {}
        return {"categories": [{"id": number, "name": name, **own} for number, name in named]}


_SKELETON = {"keypoint_names": "keypoints", "skeleton": "skeleton"}


def _category_ids(attrs: Mapping[str, JSON], count: int) -> list[int]:
    """Return the original id of each class, or 1, 2, …: COCO's programs take category 0 for the background."""
    ids = attrs.get("category_ids")
    if isinstance(ids, list):
        numbers = [each for each in ids if isinstance(each, int) and not isinstance(each, bool)]
        if len(numbers) == len(ids) == len(set(numbers)) == count:
            return numbers
    return list(range(1, count + 1))


def _is_instances(declared: Field) -> bool:
    return declared.format == "coco" or (declared.kind == "array" and len(declared.shape or ()) == 3)


def _segmentations(value: Any, declared: Field, size: tuple[int, int]) -> list[Any]:
    """Return the masks of one image in the forms of COCO."""
    if declared.format != "coco":
        return [_run_length_encoding(mask) for mask in value]
    if not declared.relative:
        return [mask_of(mask) for mask in value]
    return [mask if isinstance(mask, Mapping) else in_pixels(mask_of(mask), *size) for mask in value]


def _run_length_encoding(mask: Array) -> dict[str, Any]:
    """Return the run-length encoding of a mask of shape (height, width): runs in column order, zeros first."""
    flat = np.concatenate([[False], mask.T.ravel() != 0])
    edges = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]), [mask.size]])
    return {"size": list(mask.shape), "counts": np.diff(edges).tolist()}


def _area_of(mask: Any) -> float:
    """Return how many pixels a mask has in a form of COCO; of polygons their area, holes and overlaps included."""
    if isinstance(mask, Mapping):
        return int(run_lengths(mask["counts"])[1::2].sum())
    area = 0.0
    for polygon in mask:
        x, y = np.reshape(np.asarray(polygon, np.float64), (-1, 2)).T
        area += abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2
    return area
