"""Label files of YOLO: one object a line, relative to the picture as it is displayed."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from storeds.formats.turned import inverse, turned_centres, turned_keypoints, turned_points
from storeds.layouts.files.rows import BadItem
from storeds.pictures.decoders import orientation_of
from storeds.pictures.formats import read_picture_header
from storeds.protocols import Field, Record

__all__ = ["TOLERANCE", "LabelFile", "Task", "as_stored", "hull", "labels_of"]

TOLERANCE = 1e-3
"""How far a coordinate may lie outside [0, 1]: half a unit of the last of three decimals, and some more."""


def labels_of(key: str) -> str:
    """Return the label file of an image: in ``labels`` in place of the last ``images``, or beside the image."""
    before, found, after = f"/{key}".rpartition("/images/")
    stem = posixpath.splitext(f"{before}/labels/{after}" if found else f"/{key}")[0]
    return f"{stem}.txt"[1:]


Task = Literal["boxes", "polygons", "keypoints"]


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

    task: Task
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

    def parse(self, blob: bytes, name: str) -> tuple[Record, tuple[int, int, int]]:
        """Return the objects in the bytes of file `name`; raises `BadItem`.

        The numbers are those of lines that were there before, of boxes without an area, and of keypoints at 0 0 that have
        no visibility.
        """
        try:
            text = blob.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadItem(f"its label file is not text: byte {error.start} is not UTF-8 ({name})") from None
        found: dict[tuple[float, ...], None] = {}
        count = 0
        for number, line in enumerate(text.split("\n"), 1):
            texts = line.split()
            if texts:
                count += 1
                try:
                    found[self._row(texts)] = None
                except BadItem as fault:
                    raise BadItem(f"{fault} ({name} line {number})") from None
        record, unplaced = self._record(list(found)), 0
        if self.keypoints is not None and self.keypoints[1] == 2:
            unplaced = int((record["keypoints"] == 0).all(-1).sum())
        return record, (count - len(found), int((record["boxes"][:, 2:] == 0).any(1).sum()), unplaced)

    def _row(self, texts: Sequence[str]) -> tuple[float, ...]:
        """Return the numbers of one line; raises `BadItem`."""
        points, values = self.keypoints or (0, 0)
        is_wrong, what = len(texts) != 5, "the first line of the data set is a box, of 5: class, x, y, width, height"
        if self.task == "polygons":
            is_wrong = len(texts) < 7 or len(texts) % 2 == 0
            what = "the first line of the data set is a polygon, of a class and three or more points x y"
        elif self.task == "keypoints":
            is_wrong = len(texts) != 5 + points * values
            what = f"kpt_shape asks for a box of 5, and {values} for each of {points} keypoints"
        if is_wrong:
            raise BadItem(f"a line has {len(texts)} values; {what}")
        try:
            row = tuple(map(float, texts))
        except ValueError as error:
            raise BadItem(f"a value is not a number: {error}") from None
        if not row[0].is_integer() or not 0 <= row[0] < self.classes:
            raise BadItem(f"class {texts[0]} has no name: there are {self.classes} classes, and the first is 0")
        places = row[1:]
        if values == 3:  # a keypoint of visibility 0 has no place
            triples = [row[start : start + 3] for start in range(5, len(row), 3)]
            places = (*row[1:5], *(value for x, y, seen in triples if seen for value in (x, y)))
        for value in places:
            if not -TOLERANCE <= value <= 1 + TOLERANCE:
                pixels = ", so these are perhaps pixels" if value > 2 else ""
                raise BadItem(f"a coordinate is {value:g}, outside 0 to 1{pixels}")
        return row

    def _record(self, rows: Sequence[tuple[float, ...]]) -> Record:
        boxes = [hull(row[1:]) if self.task == "polygons" else row[1:5] for row in rows]
        record: Record = {
            "boxes": np.array(boxes, np.float64).reshape(-1, 4),
            "labels": np.array([row[0] for row in rows], np.int64),
        }
        if self.task == "polygons":
            record["masks"] = [[list(row[1:])] for row in rows]
        if self.keypoints is not None:
            points = [row[5:] for row in rows]
            record["keypoints"] = np.array(points, np.float64).reshape(-1, *self.keypoints)
        return record


def hull(points: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the box around a polygon, as centre and size."""
    left, right, top, bottom = min(points[::2]), max(points[::2]), min(points[1::2]), max(points[1::2])
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def as_stored(objects: Record, blob: bytes) -> Record:
    """Return the objects of a picture for its pixels as stored: label files refer to the picture as EXIF displays it."""
    orientation = orientation_of(blob) or 1
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
