"""Reads the label files of YOLO: one object a line, as a box, a polygon, or a box with keypoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from storeds.jpeg.formats import read_picture_header
from storeds.ops.packing.sources.base import BadItem
from storeds.ops.packing.sources.turned import (
    exif_orientation,
    inverse,
    turned_centres,
    turned_keypoints,
    turned_points,
)
from storeds.protocols import Field, Record
from storeds.records.roles import check_boxes

__all__ = ["TOLERANCE", "LabelFile", "LabelTask", "as_stored", "task_of"]

LabelTask = Literal["boxes", "polygons", "keypoints"]

TOLERANCE = 1e-3
"""How far a coordinate may lie outside [0, 1]: half a unit of the last of three decimals, and some more."""

_SHOWN = 5  # faults of one file


def task_of(line: str) -> LabelTask:
    """Return what a line of a file without keypoints describes, by the number of its values."""
    return "polygons" if len(line.split()) > 6 else "boxes"


@dataclass(frozen=True)
class LabelFile:
    """How the label files of one data set are read.

    Parameters
    ----------
    task : str
        What every line describes.
    classes : int
        Number of classes.
    keypoints : (int, int) or None
        For keypoints: how many each object has, and 2 or 3 values for each.
    """

    task: LabelTask
    classes: int
    keypoints: tuple[int, int] | None = None

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of the objects, in the order of a record."""
        fields = {
            "boxes": Field("array", "<f8", (None, 4), role="boxes", format="cxcywh", relative=True),
            "labels": Field("array", "<i8", (None,), role="labels"),
        }
        if self.task == "polygons":
            fields["masks"] = Field("json", role="mask", format="coco", relative=True)
        if self.keypoints is not None:
            fields["keypoints"] = Field("array", "<f8", (None, *self.keypoints), role="keypoints", relative=True)
        return fields

    def parse(self, blob: bytes, name: str) -> Record:
        """Return the objects in the bytes of file `name`; raises `BadItem` that lists the faulty lines."""
        try:
            text = blob.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadItem(f"its label file is not text: byte {error.start} is not UTF-8 ({name})") from None
        labels: list[int] = []
        rows: list[list[float]] = []
        faults: list[str] = []
        first: dict[tuple[int, tuple[float, ...]], int] = {}
        for number, values in _lines(text):
            try:
                label, row = self._row(values)
                earlier = first.setdefault((label, tuple(row)), number)
                if earlier != number:
                    raise BadItem(f"a line is there twice, and line {earlier} is the first")
            except BadItem as fault:
                faults.append(f"{fault} ({name} line {number})")
            else:
                labels.append(label)
                rows.append(row)
        if faults:
            more = f"; and {len(faults) - _SHOWN} more lines" if len(faults) > _SHOWN else ""
            raise BadItem("; ".join(faults[:_SHOWN]) + more)
        record = self._record(labels, rows)
        try:
            check_boxes("boxes", record["boxes"], self.fields["boxes"])
        except ValueError as error:  # a box beyond the edge of the image, by less than the tolerance
            raise BadItem(f"{error} ({name})") from None
        return record

    def _row(self, texts: Sequence[str]) -> tuple[int, list[float]]:
        """Return the class and the further values of one line; raises `BadItem`."""
        self._check_count(len(texts))
        label, *row = [_number(text) for text in texts]
        if not label.is_integer() or label < 0:
            raise BadItem(f"class {texts[0]} is not a number from 0 on")
        if label >= self.classes:
            raise BadItem(f"class {texts[0]} has no name: there are {self.classes} classes, and the first is 0")
        if self.task == "polygons":
            _check_range(row, texts[1:], "a coordinate")
            return int(label), row
        if row[2] < 0 or row[3] < 0:
            raise BadItem(f"a box has a negative size of {texts[3]} x {texts[4]}")
        _check_range(row[:4], texts[1:5], "a value of a box")
        if self.keypoints is not None:
            self._check_keypoints(row[4:], texts[5:], self.keypoints[1])
        return int(label), row

    def _check_count(self, count: int) -> None:
        if self.task == "polygons":
            if count < 7 or count % 2 == 0:
                hint = ", which is a box, but the first line of the data set is a polygon" if count == 5 else ""
                raise BadItem(f"a line has {count} values{hint}; a polygon has a class and three or more points x y")
            return
        points, values = self.keypoints or (0, 0)
        expected = 5 + points * values
        if count == expected:
            return
        if self.keypoints is not None:
            what = f"class, x, y, width, height, and {values} for each of {points} keypoints"
            raise BadItem(f"a line has {count} values; kpt_shape asks for {expected}: {what}")
        hint = ", the last perhaps a confidence" if count == 6 else ""
        hint = ", which is a polygon, but the first line of the data set is a box" if count > 6 and count % 2 else hint
        raise BadItem(f"a line has {count} values{hint}; a box has 5: class, x, y, width, height")

    def _check_keypoints(self, row: Sequence[float], texts: Sequence[str], values: int) -> None:
        for start in range(0, len(row), values):
            if values == 3 and row[start + 2] not in (0, 1, 2):
                raise BadItem(f"a visibility of {texts[start + 2]} is none of 0, 1 and 2")
            if values == 2 or row[start + 2]:  # a keypoint of visibility 0 has no place
                _check_range(row[start : start + 2], texts[start : start + 2], "a keypoint's coordinate")

    def _record(self, labels: list[int], rows: list[list[float]]) -> Record:
        boxes: Any = [_hull(row) for row in rows] if self.task == "polygons" else [row[:4] for row in rows]
        record: Record = {
            "boxes": np.array(boxes, np.float64).reshape(-1, 4),
            "labels": np.array(labels, np.int64),
        }
        if self.task == "polygons":
            record["masks"] = [[row] for row in rows]
        if self.keypoints is not None:
            points = [row[4:] for row in rows]
            record["keypoints"] = np.array(points, np.float64).reshape(-1, *self.keypoints)
        return record


def as_stored(objects: Record, blob: bytes) -> Record:
    """Return the objects of a picture for its pixels as stored: label files refer to the picture as EXIF displays it."""
    orientation = exif_orientation(blob)
    header = read_picture_header(blob) if orientation > 1 and len(objects["boxes"]) else None
    if header is None:
        return objects
    back = inverse(orientation)
    turned = {**objects, "boxes": turned_centres(objects["boxes"], back)}
    if "masks" in objects:
        turned["masks"] = [
            [turned_points(np.reshape(polygon, (-1, 2)), back).ravel().tolist() for polygon in polygons]
            for polygons in objects["masks"]
        ]
    if "keypoints" in objects:
        shown = (header.width, header.height) if orientation > 4 else (header.height, header.width)
        turned["keypoints"] = turned_keypoints(objects["keypoints"], back, shown)
    return turned


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the values of each line that has any."""
    for number, line in enumerate(text.split("\n"), 1):
        values = line.split()
        if values:
            yield number, values


def _number(text: str) -> float:
    try:
        # float() also takes 1_0 and digits of other scripts.
        value = float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        value = None
    if value is None:
        raise BadItem(f"{text!r} is not a number")
    if not math.isfinite(value):
        raise BadItem(f"{text!r} is not a finite number")
    return value


def _check_range(row: Sequence[float], texts: Sequence[str], what: str) -> None:
    for value, text in zip(row, texts, strict=True):
        if not -TOLERANCE <= value <= 1 + TOLERANCE:
            pixels = ", so these are perhaps pixels" if value > 2 else ""
            raise BadItem(f"{what} is {text}, outside 0 to 1{pixels}")


def _hull(points: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the box around a polygon, as centre and size."""
    left, right, top, bottom = min(points[::2]), max(points[::2]), min(points[1::2]), max(points[1::2])
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
