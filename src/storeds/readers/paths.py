"""What a user says about the elements of samples: paths to values inside JSON, and roles.

A path is ``annotation.size.width``, or ``objects[].bbox`` for one value of each item of a list.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from storeds.errors import ConfigError
from storeds.protocols import Field
from storeds.records.roles import parse_role
from storeds.records.segmentations import short

__all__ = ["JsonPath", "flattened", "split_path", "value_at", "with_given_role"]

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

    Lists stay nested: ``a[].b[]`` gives a list of lists, see `flattened`.
    """
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if step is None and isinstance(value, list):
        return [value_at(item, rest, f"{shown}, item {number}") for number, item in enumerate(value)]
    if isinstance(value, dict) and step in value:
        return value_at(value[step], rest, shown)
    wanted = "[] needs a list" if step is None else f"there is no {step!r}"
    raise ValueError(f"path {shown!r}: {wanted} in {short(value)}")


def flattened(value: Any, levels: int) -> Any:
    """Return the items of lists in a list as one list, for each of `levels`."""
    for _ in range(levels):
        value = [item for each in value for item in each]
    return value


def with_given_role(name: str, declared: Field, given: Mapping[str, Any]) -> Field:
    """Return a declaration with the keys that the user gives; raise ConfigError if they do not fit.

    Rows that a store of another tool holds in one dimension, or as text, become kind json.
    """
    keys = {key: value for key, value in given.items() if key != "classes"}
    if not keys:
        return declared
    if "role" in keys:  # another role than the store's has other keys
        keys = {"format": None, "relative": False, **keys}
    declared = dataclasses.replace(declared, **keys)
    shape = declared.shape or ()
    # Files of other tools with arrays of different shapes do not tell how many columns these have.
    flat = declared.role in ("boxes", "keypoints") and (len(shape) == 1 or shape[-1:] == (None,))
    text = declared.kind in ("str", "bytes") and declared.role in _ROWS
    if flat or text:
        declared = dataclasses.replace(declared, kind="json", dtype=None, shape=None)
    elif declared.kind == "json" and declared.role == "label":  # at the end of a path
        declared = dataclasses.replace(declared, kind="str")
    return parse_role(name, declared)
