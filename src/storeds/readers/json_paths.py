"""Paths to values inside JSON: ``annotation.size.width``, and ``objects[].bbox`` for one value of each item of a list."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any, NamedTuple

from storeds.errors import ConfigError, suggest

__all__ = ["JsonPath", "is_path", "split_path", "value_at"]

_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|(?P<each>\[\])")
_BEGINS = re.compile(r"[.\[]")


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
    for found in reversed([*_BEGINS.finditer(text)]):
        if text[: found.start()] in fields:
            return JsonPath(text[: found.start()], _steps(text, found.start()))
    return None


def is_path(text: str, fields: Container[str]) -> bool:
    """Return whether `text` begins with a stored field and goes on as a path does."""
    return text not in fields and any(text[: found.start()] in fields for found in _BEGINS.finditer(text))


def _steps(text: str, start: int) -> tuple[str | None, ...]:
    steps: list[str | None] = []
    while start < len(text):
        step = _STEP.match(text, start)
        if step is None:
            raise ConfigError(
                f"fields: {text!r} is not a path: after the field come .key and [] for each item of a list, as in "
                "objects[].bbox"
            )
        steps.append(step["key"])
        start = step.end()
    return tuple(steps)


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
