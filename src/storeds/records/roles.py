"""Declares what the values of a field mean: an image, a mask, boxes, and which rows belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from storeds.errors import ConfigError, suggest
from storeds.protocols import JSON, ROLES, Field

__all__ = [
    "BOX_FORMATS",
    "ROLE_KEYS",
    "boxes_of",
    "check_rows",
    "given_roles",
    "parse_role",
    "role_text",
    "role_to_json",
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
                f"roles: the classes of {name!r} are a list of names or a list of numbers, or 'distinct', not {classes!r}"
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
