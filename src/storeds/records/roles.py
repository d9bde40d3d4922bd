"""What fields mean: the declaration of roles, and the samples that joint transforms take.

A role says what the values of a field are: an image, a mask, boxes. `parse_role` checks that a kind and shape can hold
them, `boxes_of` tells which rows belong together, and `Sample` is what readers pass to joint transforms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storeds.errors import ConfigError, suggest
from storeds.protocols import JSON, ROLES, CropRequest, Field

__all__ = ["BOX_FORMATS", "ROLE_KEYS", "Sample", "boxes_of", "check_rows", "parse_role", "role_to_json"]

ROLE_KEYS = ("role", "format", "relative", "of")
"""The keys of a declaration that belong to its role."""

BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
_MASK_FORMATS = ("coco",)
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


def parse_role(name: str, spec: Field) -> Field:
    """Return a declaration with the defaults of its role filled in; raise ConfigError if they do not fit together."""
    if spec.role is not None:
        if spec.role not in ROLES:
            raise ConfigError(f"field {name!r}: unknown role {spec.role!r}; {suggest(spec.role, ROLES, 'roles')}")
        if spec.kind not in _KINDS[spec.role]:
            kinds = ", ".join(_KINDS[spec.role])
            raise ConfigError(f"field {name!r}: role {spec.role!r} needs kind {kinds}, not {spec.kind}")
        _check_array(name, spec)
    if not isinstance(spec.relative, bool):
        raise ConfigError(f"field {name!r}: relative is True or False, not {spec.relative!r}")
    if spec.relative and spec.role not in ("boxes", "keypoints") and spec.format != "coco":
        raise ConfigError(f"field {name!r}: relative is for boxes, keypoints and masks of format 'coco'")
    if spec.of is not None and not isinstance(spec.of, str):
        raise ConfigError(f"field {name!r}: of names a field of boxes, not {spec.of!r}")
    return _with_format(name, spec)


def _check_array(name: str, spec: Field) -> None:
    """Raise ConfigError if the dtype or shape of an array does not fit its role."""
    if spec.kind != "array":
        return
    shape, dtype = tuple(spec.shape or ()), (spec.dtype or "").lstrip("<|>=")[:1]
    is_number = dtype in ("i", "u", "f")
    if spec.role == "boxes" and (len(shape) != 2 or shape[1] != 4 or not is_number):
        raise ConfigError(
            f"field {name!r}: boxes are numbers of shape (n, 4), for example dtype='float32', shape=[None, 4], not "
            f"{spec.dtype} of shape {list(shape)}"
        )
    if spec.role == "keypoints" and (len(shape) not in (2, 3) or shape[-1] not in (2, 3) or not is_number):
        raise ConfigError(
            f"field {name!r}: keypoints are numbers of shape (points, 2 or 3) or (instances, points, 2 or 3): x, y and "
            f"perhaps a visibility, not {spec.dtype} of shape {list(shape)}"
        )
    if spec.role == "mask" and (len(shape) not in (2, 3) or dtype not in ("i", "u", "b")):
        raise ConfigError(
            f"field {name!r}: masks are integers of shape (height, width) or (instances, height, width), not {spec.dtype} of "
            f"shape {list(shape)}"
        )
    if spec.role == "labels" and (len(shape) != 1 or dtype not in ("i", "u")):
        raise ConfigError(f"field {name!r}: labels are integers of shape (n,), not {spec.dtype} of shape {list(shape)}")


def _with_format(name: str, spec: Field) -> Field:
    formats = BOX_FORMATS if spec.role == "boxes" else _MASK_FORMATS if _is_json_mask(spec) else ()
    if spec.format is None:
        return dataclasses.replace(spec, format=formats[0]) if formats else spec
    if not formats:
        raise ConfigError(f"field {name!r}: format is for boxes, and for masks of kind json; leave it out")
    if spec.format not in formats:
        raise ConfigError(f"field {name!r}: unknown format {spec.format!r}; {suggest(spec.format, formats, 'formats')}")
    return spec


def _is_json_mask(spec: Field) -> bool:
    return spec.role == "mask" and spec.kind == "json"


def check_rows(fields: dict[str, Field]) -> dict[str, Field]:
    """Return `fields`; raise ConfigError if ``of`` of one does not name a field of boxes."""
    boxes = [name for name, each in fields.items() if each.role == "boxes"]
    for name, each in fields.items():
        if each.of is not None and (each.of not in boxes or each.role == "boxes"):
            raise ConfigError(f"field {name!r}: of names {each.of!r}; {suggest(each.of, boxes, 'fields of boxes')}")
    return fields


def boxes_of(name: str, fields: Mapping[str, Field]) -> str | None:
    """Return the boxes whose rows element `name` describes, row by row; None if it describes the whole sample.

    This is the field that ``of`` names. Without ``of``, these elements belong to the only field of boxes: ``labels``,
    keypoints and masks of three dimensions, and masks of format ``coco``.
    """
    declared = fields[name]
    if declared.of is not None:
        return declared.of if declared.of in fields else None
    boxes = [other for other, each in fields.items() if each.role == "boxes"]
    if len(boxes) != 1 or declared.role not in ("labels", "keypoints", "mask"):
        return None
    by_row = declared.role == "labels" or declared.format == "coco" or len(declared.shape or ()) == 3
    return boxes[0] if by_row else None


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
    visible: Any = field(default=None, repr=False)
    """Per field of boxes: the fraction of each box that crops have left, float32 (n,)."""
