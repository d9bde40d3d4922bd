"""Exports a store to YOLO: pictures in ``images/``, one text file for each in ``labels/``, and ``data.yaml``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from yaml import safe_dump

from storeds._utils.text import some
from storeds.formats.coco.records import mask_of
from storeds.formats.turned import turned_centres, turned_keypoints, turned_points
from storeds.formats.writing import (
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
from storeds.formats.yolo.describing import SPLITS
from storeds.formats.yolo.labels import TOLERANCE, hull, labels_of
from storeds.pictures.decoders import orientation_of
from storeds.protocols import JSON, Array, Meta, Record
from storeds.records.classes import stored_classes
from storeds.records.roles import boxes_of
from storeds.records.segmentations import run_lengths_box
from storeds.records.verdict_fields import without_verdicts

__all__ = ["YoloExporter"]

_FORMAT = "yolo"
_FOLDERS = ("images", "JPEGImages")
_MOST_CLASSES = 100_000  # without names
_DIGITS = 15  # of coordinates that were computed as 1 - x
_SAME = 1e-9
_CUT = "reached over the edge of the picture, and were cut: YOLO has values from 0 to 1"
_WHY = {
    "nowhere": "objects with neither a box nor a mask are left out",
    "crowd": "crowd regions are left out: YOLO would take each as one object",
    "joined": "objects of several polygons became one polygon each, joined by lines without width",
    "corners": "objects without polygons, such as run-length encodings, became the corners of their boxes",
    "hull": "boxes are not those around their polygons; label files with polygons hold no boxes",
    "boxes": f"boxes {_CUT}",
    "polygons": f"polygons {_CUT}",
    "keypoints": "keypoints lay outside the picture, and became 0 0, not labelled",
    "repeated": "lines are there twice in a file, as their objects are in the store: programs take such objects once",
}


def _below(key: str, split: str) -> str:
    """Return a key without the folders that the export adds: ``images/train/a.jpg`` becomes ``a.jpg``."""
    parts = key.split("/")
    own = [*_FOLDERS, split] if split else list(_FOLDERS)
    while len(parts) > 1 and parts[0] in own:
        own.remove(parts.pop(0))
    # Programs look for the label file of an image in place of the last folder named images.
    return "/".join(["images_" if part == "images" else part for part in parts[:-1]] + parts[-1:])


class YoloExporter:
    """Writes the pictures of a store, a label file for each, and a data.yaml, as Ultralytics reads them.

    The fields of the store have roles: an image and boxes, or masks of format ``coco``.

    Notes
    -----
    A line holds a box with its keypoints if the store has keypoints; else a polygon if it has masks of format ``coco``;
    else a box. Numbers that the store holds relative to the picture, in the format ``cxcywh``, do not change.
    """

    def __init__(self, meta: Meta, out: ExportFolder) -> None:
        meta = replace(meta, fields=without_verdicts(meta.fields))
        self._out, self._files = out, FileNames("images/", beside=labels_of)
        self._splits: dict[str, None] = {}
        self._image, self._fields, self._attrs = image_field(meta, _FORMAT), meta.fields, meta.attrs
        self._has_splits = "split" in meta.fields and meta.fields["split"].kind == "str"
        masks = [name for name in fields_of(meta, "mask") if meta.fields[name].format == "coco"]
        self._masks = masks[0] if masks else None
        self._boxes = one_field(meta, _FORMAT, "boxes", required=not masks)
        self._labels = one_field(meta, _FORMAT, "labels", required=False)
        points = one_field(meta, _FORMAT, "keypoints", required=False)
        has_rows = points is not None and self._boxes is not None and boxes_of(points, meta.fields) == self._boxes
        self._keypoints = points if has_rows and len(meta.fields[str(points)].shape or ()) == 3 else None
        self._shape: tuple[int, int] | None = None
        self._crowd = "iscrowd" if "iscrowd" in meta.fields and boxes_of("iscrowd", meta.fields) else None
        self._names = stored_classes(meta.attrs, self._labels) or []
        self._counts: Counter[str] = Counter()
        used = {self._image, self._boxes, self._labels, self._keypoints, self._crowd, "key"}
        used |= {"split"} if self._has_splits else set()
        used |= {self._masks} if self._keypoints is None else set()
        self._missing = {name: "YOLO has no place for it" for name in meta.fields if name not in used}

    def add(self, position: int, record: Record) -> None:
        """Write the picture of a record, and its label file."""
        blob, key = record[self._image], record.get("key")
        split = str(record["split"]) if self._has_splits else ""
        split = "_" if split in (".", "..") else split.replace("/", "_").replace("\0", "_")
        self._splits[split] = None
        below = f"{position:08}" if key is None else _below(key, split)
        name = self._files.name(f"{split}/{below}" if split else below, position, blob)
        lines = list(self._lines(record))
        self._out.write(name, blob)
        self._out.write(labels_of(name), "".join(f"{line}\n" for line in lines))
        self._counts["repeated"] += len(lines) - len(set(lines))

    def _lines(self, record: Record) -> Iterator[str]:
        """Yield the lines of a record."""
        size = checked_size(record, self._image, self._fields, _FORMAT)
        orientation = orientation_of(record[self._image]) or 1
        polygons = None if self._masks is None or self._keypoints is not None else self._polygons(record, size)
        boxes = self._centres(record, size, polygons)
        if self._labels is not None:
            check_counts({self._labels: record[self._labels]}, len(boxes))
        labels = self._numbers(record, len(boxes))
        points = self._points(record, size, orientation)
        skip = record[self._crowd] if self._crowd is not None else np.zeros(len(boxes))
        if orientation > 1:
            boxes = turned_centres(boxes, orientation).round(_DIGITS)
        for row, label in enumerate(labels):
            if skip[row] or np.isnan(boxes[row]).any():
                self._counts["crowd" if skip[row] else "nowhere"] += 1
                continue
            if polygons is None:
                values = self._cut_box(boxes[row])
                values = values if points is None else [*values, *points[row]]
            else:
                values = self._polygon(polygons[row], boxes[row], orientation)
            yield " ".join([str(label), *map(_text, values)])

    def _polygons(self, record: Record, size: tuple[int, int]) -> list[list[Array]]:
        """Return the polygons of each object, relative, each of shape (points, 2)."""
        assert self._masks is not None
        scale = np.array([1, 1] if self._fields[self._masks].relative else [size[1], size[0]], np.float64)
        return [
            [np.reshape(polygon, (-1, 2)) / scale for polygon in mask] if isinstance(mask, list) else []
            for mask in record[self._masks]
        ]

    def _centres(self, record: Record, size: tuple[int, int], polygons: list[list[Array]] | None) -> Array:
        """Return the boxes, relative, in the format cxcywh; NaN for an object with neither a box nor a mask."""
        if self._boxes is None:
            assert polygons is not None
            assert self._masks is not None
            hulls = [
                _rings_hull(each) if mask_of(mask) and each else _runs_hull(mask)
                for each, mask in zip(polygons, record[self._masks], strict=True)
            ]
            return np.array(hulls, np.float64).reshape(-1, 4)
        declared = self._fields[self._boxes]
        rows = boxes_as("cxcywh", record[self._boxes], declared, (1, 1))
        rows = rows if declared.relative else rows / np.array([size[1], size[0]] * 2)
        for row, each in zip(rows, polygons or (), strict=False):
            if each and not np.allclose(_rings_hull(each), row, rtol=0, atol=_SAME):
                self._counts["hull"] += 1
        return rows

    def _numbers(self, record: Record, count: int) -> list[int]:
        """Return the class number of each object."""
        if self._labels is None:
            self._names = self._names or ["object"]
            return [0] * count
        numbers = []
        for label in record[self._labels]:
            if isinstance(label, str):
                if label not in self._names:
                    self._names.append(label)
                numbers.append(self._names.index(label))
                continue
            number = int(label)
            if not 0 <= number < max(_MOST_CLASSES, len(self._names)):
                raise ValueError(f"field {self._labels!r} has class {number}; the classes of YOLO are 0, 1, 2, …")
            self._names += [str(each) for each in range(len(self._names), number + 1)]
            numbers.append(number)
        return numbers

    def _points(self, record: Record, size: tuple[int, int], orientation: int) -> list[list[float]] | None:
        """Return the values of the keypoints of each object."""
        if self._keypoints is None:
            return None
        points = np.array(record[self._keypoints], np.float64)
        if len(points):
            shape = points.shape[1], points.shape[2]
            if self._shape not in (None, shape):
                raise ValueError(
                    f"field {self._keypoints!r} has {shape[0]} keypoints for each box, and earlier records have "
                    f"{self._shape[0] if self._shape else 0}; YOLO has one number of keypoints"
                )
            self._shape = shape
        if not self._fields[self._keypoints].relative:
            points[..., :2] /= (size[1], size[0])
        if orientation > 1:
            points = turned_keypoints(points, orientation, size).round(_DIGITS)
        places = points[..., :2]
        outside = ((places < -TOLERANCE) | (places > 1 + TOLERANCE)).any(-1)
        seen = points[..., 2] != 0 if points.shape[-1] == 3 else True
        self._counts["keypoints"] += int((outside & seen).sum())
        points[outside] = 0
        flat: list[list[float]] = points.reshape(len(points), points.shape[1] * points.shape[2]).tolist()
        return flat

    def _cut_box(self, box: Array) -> list[float]:
        """Return a box whose values are from 0 to 1: cut to the picture if they are not."""
        if ((box >= -TOLERANCE) & (box <= 1 + TOLERANCE)).all():
            return list(box.tolist())
        self._counts["boxes"] += 1
        start, stop = np.clip(box[:2] - box[2:] / 2, 0, 1), np.clip(box[:2] + box[2:] / 2, 0, 1)
        return [*((start + stop) / 2).tolist(), *(stop - start).tolist()]

    def _polygon(self, polygons: list[Array], box: Array, orientation: int) -> list[float]:
        """Return the points of one polygon for one object."""
        if not polygons:
            self._counts["corners"] += 1
            left, top, right, bottom = [*(box[:2] - box[2:] / 2), *(box[:2] + box[2:] / 2)]
            ring = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
        else:
            ring = _joined(polygons)
            self._counts["joined"] += len(polygons) > 1
            if orientation > 1:
                ring = turned_points(ring, orientation).round(_DIGITS)
        if not ((ring >= -TOLERANCE) & (ring <= 1 + TOLERANCE)).all():
            self._counts["polygons"] += 1
            ring = np.clip(ring, 0, 1)
        flat: list[float] = ring.ravel().tolist()
        return flat

    def finish(self) -> Differences:
        """Write data.yaml."""
        # Without path, paths are relative to the file. Ultralytics wants a train and a val split.
        named = sorted(filter(None, self._splits), key=lambda split: (*SPLITS, split).index(split))
        data: dict[str, Any] = {split: f"images/{split}" for split in named} or {"train": "images", "val": "images"}
        data["names"] = dict(enumerate(self._names or ["object"]))
        if self._keypoints is not None:
            declared: Any = self._fields[self._keypoints].shape
            data["kpt_shape"] = list(self._shape or (declared[1] or 1, declared[2]))
            flip: JSON = self._attrs.get("flip_idx")
            if isinstance(flip, list):
                data["flip_idx"] = flip
        self._out.write("data.yaml", safe_dump(data, allow_unicode=True, sort_keys=False))
        notes = [
            *self._files.notes(),
            *(f"{self._counts[each]:,} {why}" for each, why in _WHY.items() if self._counts[each]),
        ]
        other = [split for split in named if split not in SPLITS]
        if other:
            notes.append(f"data.yaml names the splits {some(other)}, and programs read {', '.join(SPLITS)} only")
        if "" in self._splits and named:
            notes.append(
                "data.yaml does not name the images of records whose split is empty; they are directly in images/"
            )
        return Differences(self._missing, tuple(notes))


def _text(value: float) -> str:
    """Return the shortest digits of a number, without ``.0``."""
    return repr(int(value)) if value.is_integer() else repr(value)


def _rings_hull(polygons: list[Array]) -> tuple[float, ...]:
    """Return the box around polygons as centre and size."""
    return hull(np.concatenate(polygons).ravel().tolist())


def _runs_hull(mask: Any) -> tuple[float, ...]:
    """Return the box around a run-length encoding as centre and size, relative; NaN without pixels, and for polygons."""
    box = run_lengths_box(mask) if isinstance(mask, Mapping) else None
    if box is None:
        return (float("nan"),) * 4
    height, width = mask["size"]
    return hull((np.array([box[:2], [box[0] + box[2], box[1] + box[3]]]) / [width, height]).ravel().tolist())


def _joined(polygons: list[Array]) -> Array:
    """Return one ring around several polygons: from the first point of the first to each other, around it, and back."""
    first = polygons[0]
    parts = [first]
    for other in polygons[1:]:
        parts += [first[:1], other, other[:1]]
    return np.concatenate(parts)
