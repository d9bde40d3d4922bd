"""What a user says about the elements of samples: paths to values inside JSON, roles, and classes of labels.

A path is ``annotation.size.width``, or ``objects[].bbox`` for one value of each item of a list.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from storeds.errors import ConfigError, suggest
from storeds.protocols import ROLES, Field
from storeds.records.roles import ROLE_KEYS

__all__ = ["JsonPath", "check_given_roles", "given_classes", "given_keys", "in_kind_of_role", "split_path", "value_at"]

_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|(?P<each>\[\])")
_ROWS = ("boxes", "keypoints", "labels", "mask")


class JsonPath(NamedTuple):
    """A stored field, and the steps from its value to the one that is wanted: keys, and None for each item of a list."""

    field: str
    steps: tuple[str | None, ...] = ()


def split_path(text: str, fields: Container[str]) -> JsonPath | None:
    """Return the stored field and the steps of a path; None if the store has no such field.

    Raises ConfigError for a path that does not have the form of one.
    """
    if text in fields:
        return JsonPath(text)
    starts = [found.start() for found in re.finditer(r"[.\[]", text) if text[: found.start()] in fields]
    if not starts:
        return None
    end, steps = starts[-1], []
    while end < len(text):
        step = _STEP.match(text, end)
        if step is None:
            raise ConfigError(
                f"fields: {text!r} is not a path: after the field come .key and [] for each item of a list, as in "
                "objects[].bbox"
            )
        steps.append(step["key"])
        end = step.end()
    return JsonPath(text[: starts[-1]], tuple(steps))


def value_at(value: Any, steps: tuple[str | None, ...], shown: str) -> Any:
    """Return the value at the end of `steps`; raises ValueError, which says `shown`, if there is none.

    Lists stay nested: ``a[].b[]`` gives a list of lists.
    """
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if step is None:
        if not isinstance(value, list):
            raise ValueError(f"path {shown!r}: [] needs a list, not {type(value).__name__}")
        return [value_at(item, rest, f"{shown}, item {number}") for number, item in enumerate(value)]
    if not isinstance(value, dict):
        raise ValueError(f"path {shown!r}: .{step} needs an object, not {type(value).__name__}")
    if step not in value:
        raise ValueError(f"path {shown!r}: there is no {step!r}; {suggest(step, value, 'keys')}")
    return value_at(value[step], rest, shown)


def check_given_roles(roles: Any) -> None:
    """Raise ConfigError unless `roles` maps elements to roles, or to mappings of their keys."""
    if not isinstance(roles, (Mapping, type(None))):
        raise ConfigError(f"roles is a mapping from elements to roles, for example {{'mask': 'mask'}}, not {roles!r}")
    known = (*ROLE_KEYS, "classes")
    for name, spec in (roles or {}).items():
        given = {"role": spec} if isinstance(spec, str) else spec
        if not isinstance(given, Mapping):
            raise ConfigError(f"roles: that of {name!r} is the name of a role or a mapping of its keys, not {spec!r}")
        for key in given:
            if key not in known:
                raise ConfigError(f"roles: {name!r} has an unknown key {key!r}; {suggest(key, known, 'keys')}")
        role, classes = given.get("role"), given.get("classes")
        if role is not None and role not in ROLES:
            raise ConfigError(f"roles: {name!r} has an unknown role {role!r}; {suggest(role, ROLES, 'roles')}")
        is_list = isinstance(classes, (list, tuple)) and {type(each) for each in classes} in ({str}, {int})
        if classes is not None and not is_list:
            raise ConfigError(
                f"roles: the classes of {name!r} are a list of names or a list of numbers, not {classes!r}"
            )


def given_keys(roles: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the keys of a declaration that `roles` gives for an element."""
    spec = (roles or {}).get(name, {})
    given = {"role": spec} if isinstance(spec, str) else dict(spec)
    given.pop("classes", None)
    if "role" in given:  # another role than the store's has other keys
        return {"format": None, "relative": False, **given}
    return given


def given_classes(roles: Mapping[str, Any] | None, name: str) -> Sequence[str] | Sequence[int] | None:
    """Return the classes that `roles` gives for a label, or None."""
    spec = (roles or {}).get(name)
    return spec.get("classes") if isinstance(spec, Mapping) else None


def in_kind_of_role(declared: Field) -> Field:
    """Return the declaration of rows that a store of another tool holds in one dimension, or as text, as kind json."""
    shape = declared.shape or ()
    # Files of other tools with arrays of different shapes do not tell how many columns these have.
    flat = declared.role in ("boxes", "keypoints") and (len(shape) == 1 or shape[-1:] == (None,))
    text = declared.kind in ("str", "bytes") and declared.role in _ROWS
    if flat or text:
        return dataclasses.replace(declared, kind="json", dtype=None, shape=None)
    if declared.kind == "json" and declared.role == "label":  # at the end of a path
        return dataclasses.replace(declared, kind="str")
    return declared
