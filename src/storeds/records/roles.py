"""What fields mean: the declaration of roles, their values, and the samples that joint transforms take.

A role says what the values of a field are: an image, a mask, boxes. `parse_role` checks that a kind and shape can hold
them, `boxes_of` tells which rows belong together, and `Sample` is what readers pass to joint transforms. Functions such
as `check_boxes` check the values of one record. They raise ValueError, and the caller adds the record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.errors import ConfigError, suggest
from storeds.protocols import JSON, ROLES, Array, CropRequest, Field
from storeds.records.segmentations import array_of, check_coco_masks, short

__all__ = [
    "BOX_FORMATS",
    "LARGEST",
    "ORIENTATIONS",
    "ROLE_KEYS",
    "Sample",
    "box_edges",
    "boxes_of",
    "check_boxes",
    "check_coco_masks",
    "check_keypoints",
    "check_labels",
    "check_mask",
    "check_mask_mode",
    "check_row_counts",
    "check_rows",
    "check_values",
    "class_fields",
    "classes_in",
    "given_roles",
    "parse_role",
    "role_text",
    "role_to_json",
    "stored_classes",
    "unnamed_class",
    "with_roles",
]

ROLE_KEYS = ("role", "format", "relative", "of")
"""The keys of a declaration that belong to its role."""

BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
_KINDS = {
    "image": ("image", "array"),
    "mask": ("image", "array", "json"),
    "boxes": ("array", "json"),
    "keypoints": ("array", "json"),
    "label": ("int", "str", "bool", "float"),
    "labels": ("array", "json"),
    "text": ("str", "json"),
}


def role_to_json(field: Field) -> dict[str, JSON]:
    """Return the keys of a declaration that belong to its role; nothing for a field without one."""
    return {key: value for key in ROLE_KEYS if (value := getattr(field, key))}


def role_text(field: Field) -> str:
    """Return what the values of a field mean, for people: ``boxes xyxy relative``, ``labels of boxes``; or ``""``."""
    words = [field.role, field.format, "relative" if field.relative else None, f"of {field.of}" if field.of else None]
    return " ".join(word for word in words if word)


def parse_role(name: str, spec: Field) -> Field:
    """Return a declaration with the defaults of its role filled in; raise ConfigError if they do not fit together."""
    if spec.role is not None:
        if spec.role not in ROLES:
            raise ConfigError(f"field {name!r}: unknown role {spec.role!r}; {suggest(spec.role, ROLES, 'roles')}")
        if spec.kind not in _KINDS[spec.role]:
            kinds = ", ".join(_KINDS[spec.role])
            raise ConfigError(f"field {name!r}: role {spec.role!r} needs kind {kinds}, not {spec.kind}")
        _check_array(name, spec)
    spec = _with_format(name, spec)
    if not isinstance(spec.relative, bool):
        raise ConfigError(f"field {name!r}: relative is True or False, not {spec.relative!r}")
    if spec.relative and spec.role not in ("boxes", "keypoints") and spec.format != "coco":
        raise ConfigError(f"field {name!r}: relative is for boxes, keypoints and masks of format 'coco'")
    if spec.of is not None and not isinstance(spec.of, str):
        raise ConfigError(f"field {name!r}: of names a field of boxes, not {spec.of!r}")
    return spec


def given_roles(roles: Any, *more: str) -> dict[str, dict[str, Any]]:
    """Return name → the keys of its role that the user gives, `ROLE_KEYS` and `more`; raise ConfigError for what is none."""
    if not isinstance(roles, (Mapping, type(None))):
        raise ConfigError(f"roles is a mapping from elements to roles, for example {{'mask': 'mask'}}, not {roles!r}")
    found: dict[str, dict[str, Any]] = {}
    known = (*ROLE_KEYS, *more)
    for name, spec in (roles or {}).items():
        keys = {"role": spec} if isinstance(spec, str) else spec
        if not isinstance(keys, Mapping):
            raise ConfigError(f"roles: that of {name!r} is the name of a role or a mapping of its keys, not {spec!r}")
        for key in keys:
            if key not in known:
                raise ConfigError(f"roles: {name!r} has an unknown key {key!r}; {suggest(key, known, 'keys')}")
        role, classes = keys.get("role"), keys.get("classes")
        if role is not None and role not in ROLES:
            raise ConfigError(f"roles: {name!r} has an unknown role {role!r}; {suggest(role, ROLES, 'roles')}")
        is_list = isinstance(classes, (list, tuple)) and {type(each) for each in classes} in ({str}, {int})
        if classes is not None and not is_list:
            raise ConfigError(
                f"roles: the classes of {name!r} are a list of names or a list of numbers, not {classes!r}"
            )
        found[name] = dict(keys)
    return found


def with_roles(fields: Mapping[str, Field], roles: Mapping[str, str | Mapping[str, Any]]) -> dict[str, Field]:
    """Return fields with other roles; raise ConfigError if one does not exist or does not fit.

    Parameters
    ----------
    fields : mapping of str to Field
    roles : mapping of str to str, or mapping of str to mapping
        Field → its role, or the keys of a declaration that belong to a role. They replace those that it has.
    """
    changed = dict(fields)
    for name, keys in given_roles(roles).items():
        if name not in fields:
            raise ConfigError(f"roles: there is no field {name!r}; {suggest(name, fields, 'fields')}")
        shape = fields[name].shape
        if keys.get("role") == "boxes" and shape is not None and len(shape) == 2 and shape[1] is None:
            shape = (shape[0], 4)  # files of other tools do not tell; the writer compares each array
        plain = Field(fields[name].kind, fields[name].dtype, shape)
        changed[name] = parse_role(name, dataclasses.replace(plain, **keys))
    return check_rows(changed)


def _check_array(name: str, spec: Field) -> None:
    """Raise ConfigError if the dtype or shape of an array does not fit its role."""
    if spec.kind != "array" or spec.role not in _ARRAYS:
        return
    dtypes, dimensions, last, what = _ARRAYS[spec.role]
    shape, dtype = spec.shape or (), (spec.dtype or "").lstrip("<|>=")[:1]
    if dtype not in dtypes or len(shape) not in dimensions or (last and shape[-1] not in last):
        raise ConfigError(f"field {name!r}: {what}, not {spec.dtype} of shape {list(shape)}")


# Role → dtypes, numbers of dimensions and lengths of the last one that an array may have, and what it is.
_ARRAYS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], str]] = {
    "boxes": ("iuf", (2,), (4,), "boxes are numbers of shape (n, 4), for example dtype='float32', shape=[None, 4]"),
    "keypoints": (
        "iuf",
        (2, 3),
        (2, 3),
        "keypoints are numbers of shape (points, 2 or 3) or (instances, points, 2 or 3): x, y and perhaps a visibility",
    ),
    "mask": ("iub", (2, 3), (), "masks are integers of shape (height, width) or (instances, height, width)"),
    "labels": ("iu", (1,), (), "labels are integers of shape (n,)"),
}


def _with_format(name: str, spec: Field) -> Field:
    is_json_mask = spec.role == "mask" and spec.kind == "json"
    formats = BOX_FORMATS if spec.role == "boxes" else ("coco",) if is_json_mask else ()
    if spec.format is None:
        return dataclasses.replace(spec, format=formats[0]) if formats else spec
    if not formats:
        raise ConfigError(f"field {name!r}: format is for boxes, and for masks of kind json; leave it out")
    if spec.format not in formats:
        raise ConfigError(f"field {name!r}: unknown format {spec.format!r}; {suggest(spec.format, formats, 'formats')}")
    return spec


def check_rows(fields: dict[str, Field]) -> dict[str, Field]:
    """Return `fields`; raise ConfigError if ``of`` of one does not name a field of boxes."""
    boxes = [name for name, each in fields.items() if each.role == "boxes"]
    for name, each in fields.items():
        if each.of is not None and each.kind not in ("array", "json"):
            raise ConfigError(f"field {name!r}: of is for arrays and json, which have rows, not for kind {each.kind}")
        if each.of is not None and (each.of not in boxes or each.role == "boxes"):
            raise ConfigError(f"field {name!r}: of names {each.of!r}; {suggest(each.of, boxes, 'fields of boxes')}")
    return fields


def boxes_of(name: str, fields: Mapping[str, Field], value: Any = None) -> str | None:
    """Return the boxes whose rows element `name` describes, row by row; None if it describes the whole sample.

    This is the field that ``of`` names. Without ``of``, these elements belong to the only field of boxes: ``labels``,
    keypoints and masks of three dimensions, and masks of format ``coco``. Of keypoints of kind json, `value` tells.
    """
    declared = fields[name]
    if declared.of is not None:
        return declared.of if declared.of in fields else None
    boxes = [other for other, each in fields.items() if each.role == "boxes"]
    if len(boxes) != 1 or declared.role not in ("labels", "keypoints", "mask"):
        return None
    by_row = declared.role == "labels" or declared.format == "coco" or len(declared.shape or ()) == 3
    if declared.role == "keypoints" and declared.kind == "json":
        by_row = _are_instances(value)
    return boxes[0] if by_row else None


def _are_instances(points: Any) -> bool:
    """Return whether keypoints are those of several instances, (instances, points, 2 or 3)."""
    if not isinstance(points, list):
        return getattr(points, "ndim", 0) == 3
    return bool(points) and isinstance(points[0], list) and bool(points[0]) and isinstance(points[0][0], list)


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


def stored_classes(attrs: Mapping[str, Any], name: str | None) -> list[str] | None:
    """Return the classes of label `name` in the order of their class numbers; None if the attributes of a store name none.

    ``attrs["classes"]`` is a list, or a mapping from fields to lists.
    """
    classes = attrs.get("classes")
    if isinstance(classes, Mapping):
        classes = classes.get(name)
    return [str(each) for each in classes] if isinstance(classes, list) else None


def class_fields(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields whose values are classes: ids or names."""
    return {
        name: field
        for name, field in fields.items()
        if field.role == "labels" or (field.role == "label" and field.kind in ("int", "str"))
    }


def classes_in(field: Field, value: Any) -> list[int | str]:
    """Return the classes in one value of such a field."""
    if field.role == "label":
        return [value]
    return [*np.asarray(check_labels("", value)).tolist()]


def unnamed_class(found: Mapping[str, Mapping[int | str, int]], classes: JSON) -> tuple[int, str] | None:
    """Return the position and the fault of a record with a class that `classes` lacks, or None.

    Parameters
    ----------
    found : mapping
        Field of classes → each of its classes, with the position of the first record that has it.
    classes : JSON
        ``classes`` of the attributes: a list of names, or a mapping from a field to its names. Other values name none. With
        several fields of classes, a list is for those called ``label`` and ``labels``.
    """
    for name, positions in found.items():
        names = classes.get(name) if isinstance(classes, Mapping) else classes
        if not isinstance(names, (list, tuple)):
            continue
        if names is classes and len(found) > 1 and name not in ("label", "labels"):
            continue  # the list may name the classes of another field
        listed = {each for each in names if isinstance(each, str)}
        for value, position in positions.items():
            if value not in listed if isinstance(value, str) else not 0 <= value < len(names):
                return position, _unnamed_fault(name, value, names)
    return None


def _unnamed_fault(name: str, value: Any, names: Sequence[Any]) -> str:
    if isinstance(value, str):
        hint = suggest(value, [each for each in names if isinstance(each, str)], "classes")
        return (
            f"field {name!r} has class {value[:80]!r}, which attrs['classes'] does not name: {hint}; add the missing name, "
            "correct the label, or declare the field without a role"
        )
    given = f"names the ids 0 to {len(names) - 1}" if names else "is empty"
    return (
        f"field {name!r} has class id {value}, which has no name: attrs['classes'] {given}; add the missing names, correct "
        "the id, or declare the field without a role"
    )


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


ORIENTATIONS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
"""EXIF orientation → whether to swap height and width, and then to reverse rows and columns."""


@dataclass
class Sample:
    """One sample that a reader built, for joint transforms. Values share no memory with the store.

    Parameters
    ----------
    values : dict
        Element → value. An image is a Pillow image, a tensor of shape (channels, height, width), or a `Cropped`. A mask
        is an integer tensor of shape (height, width) or (instances, height, width). Boxes are a float32 tensor (n, 4) in
        pixels, in the format of their field. Keypoints are float32 (…, 2) or (…, 3) in pixels, where (0, 0) is the centre
        of the first pixel. Labels are an int64 tensor (n,). Other values are as stored.
    fields : mapping of str to Field
        Element → its declaration, with the role.
    size : (int, int)
        Height and width of the images as stored, after `orientation`. (0, 0) without images, masks and boxes.
    orientation : int
        EXIF orientation, 1 to 8, by which the reader has rotated the images, but not the other elements yet.
    window : CropRequest or None
        The first crop of the transforms, which the reader has drawn, and cut out of the images, but not of the others.
    """

    values: dict[str, Any]
    fields: Mapping[str, Field]
    size: tuple[int, int] = (0, 0)
    orientation: int = 1
    window: CropRequest | None = None
