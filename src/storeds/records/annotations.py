"""Checks masks, boxes, keypoints and labels. Functions raise ValueError, and the caller adds the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from storeds.protocols import Array, Field
from storeds.records.roles import BOX_FORMATS, boxes_of
from storeds.records.segmentations import array_of, check_coco_masks, short

__all__ = [
    "LARGEST",
    "Size",
    "box_edges",
    "check_boxes",
    "check_keypoints",
    "check_labels",
    "check_mask",
    "check_mask_mode",
    "check_row_counts",
    "check_values",
]


Size = tuple[int, int]

LARGEST = float(np.finfo(np.float32).max)
"""The largest coordinate in pixels: samples hold float32."""
_LARGEST_SHARE = LARGEST / 2**31  # a share of a side, which readers multiply by the side of the image
_COLUMNS = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre x, centre y, width, height",
}
_MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L", "I;16N")


def check_boxes(name: str, value: Any, field: Field, size: Size | None = None) -> Array:
    """Return boxes as a float64 array (n, 4), as stored; raise ValueError for a bad one.

    Bad are coordinates that are not finite or too large, a negative width or height, and a box that lies
    completely outside the image. A box may lie partly outside, and may be empty.

    Parameters
    ----------
    name : str
        The field, for the message.
    value : array or list
        Boxes of kind array or json.
    field : Field
        Its declaration, with the format.
    size : (int, int), optional
        Height and width of the image. Without it, only relative boxes are compared with the image.
    """
    boxes = _numbers(name, value, "boxes are rows of 4 numbers", 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"field {name!r}: boxes are rows of 4 numbers, shape (n, 4), not {boxes.shape}")
    if not len(boxes):
        return boxes
    kind = field.format or BOX_FORMATS[0]
    edge = (1, 1) if field.relative else size
    most = None if edge is None else np.array([edge[1], edge[0]], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        start, sides, stop = box_edges(boxes, kind)
        # The usual case, in few operations; comparing with NaN gives False.
        if most is not None and sides.min() >= 0 and start.min() >= 0 and (stop <= most).all():
            return boxes
    how = f"boxes of format {kind!r} are {_COLUMNS[kind]}, {'from 0 to 1' if field.relative else 'in pixels'}"
    _check_range(name, boxes, f"{how}; fix the box, or leave it out", field.relative)
    for axis, side in ((0, "width"), (1, "height")):
        _refuse(name, boxes, sides[:, axis] < 0, f"has a negative {side}; {how}: check the format")
    if most is not None:
        outside = ((stop <= 0) & (start < 0)) | ((start >= most) & (stop > most))
        where = "" if size is None else f" of {size[1]} × {size[0]} pixels (width × height)"
        advice = f"lies outside the image{where}; {how}: check the format, or leave the box out"
        _refuse(name, boxes, outside.any(axis=1), advice)
    return boxes


def box_edges(boxes: Array, format: str) -> tuple[Array, Array, Array]:
    """Return (left, top), (width, height) and (right, bottom) of each box."""
    if format == "xyxy":
        start, stop = boxes[:, :2], boxes[:, 2:]
        return start, stop - start, stop
    start, sides = boxes[:, :2], boxes[:, 2:]
    if format == "cxcywh":
        start = start - sides / 2
    return start, sides, start + sides


def check_keypoints(name: str, value: Any, *, relative: bool = False) -> Array:
    """Return keypoints as a float64 array (…, 2 or 3); raise ValueError if their shape is wrong or one is not finite.

    Keypoints may lie outside the image: datasets keep those that a crop lost.
    """
    what = "keypoints are x, y and perhaps a visibility, shape (points, 2 or 3) or (instances, points, 2 or 3)"
    points = _numbers(name, value, what, 2)
    if points.ndim not in (2, 3) or points.shape[-1] not in (2, 3):
        raise ValueError(f"field {name!r}: {what}, not {points.shape}")
    _check_range(name, points, "fix it; a point that is not known has visibility 0 and is 0, 0", relative)
    return points


def check_labels(name: str, value: Any) -> Array | list[str]:
    """Return labels as an int64 array (n,), or a list of names; raise ValueError for anything else.

    Class ids are whole numbers. Whether each has a name is up to the store: `storeds.Meta.attrs` may hold ``classes``.
    """
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return value
    what = "labels are a list of whole numbers"
    if isinstance(value, list) and not value:
        return np.zeros(0, np.int64)
    labels = array_of(value)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"field {name!r}: {what}, not {short(value)}")
    if isinstance(value, list) and any(isinstance(each, bool) for each in value):
        raise ValueError(f"field {name!r}: {what}, without true and false")
    if labels.dtype == np.uint64 and len(labels) and labels.max() > np.iinfo(np.int64).max:
        raise ValueError(f"field {name!r}: {what} below 2**63, not {labels.max()}")
    return labels.astype(np.int64, copy=False)


def check_mask(name: str, mask: Size, size: Size | None) -> None:
    """Raise ValueError if a mask of height and width `mask` does not cover an image of height and width `size`."""
    if size is not None and tuple(mask) != tuple(size):
        todo = "resize it without interpolation, or pair it with its own image"
        if tuple(mask) == (size[1], size[0]):
            todo = "turn it, if it is that of the image as displayed; a mask is that of the pixels as stored, before any EXIF orientation"
        raise ValueError(
            f"field {name!r}: the mask has {mask[1]} × {mask[0]} pixels (width × height), the image {size[1]} × {size[0]}; a "
            f"mask holds the class of every pixel of its image: {todo}"
        )


def check_mask_mode(name: str, mode: str) -> None:
    """Raise ValueError if pictures of this Pillow mode do not hold one class id for each pixel."""
    if mode not in _MASK_MODES:
        raise ValueError(
            f"field {name!r}: a mask has one channel, which holds class ids, not Pillow mode {mode!r}; convert its colours to "
            "class ids, and store these as a PNG of mode L or P, or leave out the role to store it as an image"
        )


def check_row_counts(values: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
    """Raise ValueError if a field has another number of rows than the boxes that they describe, see `boxes_of`."""
    for name, value in values.items():
        boxes = boxes_of(name, fields, value) if name in fields else None
        if boxes is None or boxes not in values:
            continue
        if not hasattr(value, "__len__"):
            raise ValueError(f"field {name!r}: one row for each box is a list, not {type(value).__name__}")
        if len(value) != len(values[boxes]):
            whole = "; labels of the whole picture have no role" if fields[name].role == "labels" else ""
            raise ValueError(
                f"field {name!r} has {len(value)} rows, and field {boxes!r} has {len(values[boxes])} boxes; row i describes box "
                f"i: add what is missing, or leave out what has no box{whole}"
            )


def check_values(values: Mapping[str, Any], fields: Mapping[str, Field], size: Size | None = None) -> None:
    """Raise ValueError for the first value of a record that does not fit its role.

    Masks of kind image are not checked here: `check_mask_mode` and `check_mask` take what their header says.

    Parameters
    ----------
    values : mapping
        Field → value, as in a record. Fields without a role are ignored.
    fields : mapping of str to Field
    size : (int, int), optional
        Height and width of the image.
    """
    for name, declared in fields.items():
        if name not in values:
            continue
        value = values[name]
        match declared.role:
            case "boxes":
                check_boxes(name, value, declared, size)
            case "keypoints":
                check_keypoints(name, value, relative=declared.relative)
            case "labels":
                check_labels(name, value)
            case "mask" if declared.kind == "json":
                check_coco_masks(name, value, size, relative=declared.relative)
            case "mask" if isinstance(value, np.ndarray):
                check_mask(name, value.shape[-2:], size)
            case "text" if not all(isinstance(each, str) for each in (value if isinstance(value, list) else [value])):
                raise ValueError(f"field {name!r}: a caption is text, or a list of texts, not {short(value)}")
        if declared.of is not None and not isinstance(value, (list, np.ndarray)):
            raise ValueError(f"field {name!r}: one row for each box is a list, not {type(value).__name__}")
    check_row_counts(values, fields)


def _numbers(name: str, value: Any, what: str, columns: int) -> Array:
    """Return finite or other numbers as float64; no rows become shape (0, `columns`)."""
    if isinstance(value, list) and not value:
        return np.zeros((0, columns))
    numbers = array_of(value)
    if numbers is None or numbers.dtype.kind not in "iuf":
        raise ValueError(f"field {name!r}: {what}, not {short(value)}")
    return numbers.astype(np.float64, copy=False)


def _check_range(name: str, rows: Array, advice: str, relative: bool) -> None:
    """Raise ValueError for a row with a number that is not finite, or too large."""
    good = np.abs(rows) <= (_LARGEST_SHARE if relative else LARGEST)  # False for NaN
    if not good.all():
        bad = ~good.reshape(len(rows), -1).all(axis=1)
        _refuse(name, rows, bad, f"is not finite, or too large for float32; {advice}")


def _refuse(name: str, rows: Array, bad: Any, why: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"field {name!r}, row {row}: {short(rows[row].tolist())} {why}")
