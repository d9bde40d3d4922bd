"""Checks of the arguments of built-in transforms. They raise ConfigError, which names the transform and the argument."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from storeds.errors import ConfigError, suggest
from storeds.transforms.functional import INTERPOLATIONS

__all__ = [
    "as_tuple",
    "both_edges",
    "check_bool",
    "check_interpolation",
    "checked_interval",
    "checked_numbers",
    "checked_padding",
    "checked_pairs",
    "checked_probability",
    "checked_size",
    "is_list",
    "is_number",
    "set_fields",
]


def set_fields(transform: object, **values: Any) -> None:
    """Set attributes of a frozen dataclass. Lists of a config become tuples, so that equal transforms compare equal."""
    for name, value in values.items():
        object.__setattr__(transform, name, value)


def is_list(value: object) -> bool:
    """Return whether `value` is a sequence and no string."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def as_tuple(value: Any) -> tuple[Any, ...] | None:
    """Return the items of a sequence; None for a string or anything else."""
    return tuple(value) if is_list(value) else None


def is_number(value: object) -> bool:
    """Return whether `value` is a finite real number. A bool is not."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _is_int(value: object, least: int) -> bool:
    """Return whether `value` is an int of at least `least`. A bool is not."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def checked_size(owner: str, size: Any) -> int | tuple[int, int]:
    """Return a length in pixels, or (height, width)."""
    edges = as_tuple(size) or (size,)
    if len(edges) not in (1, 2) or not all(_is_int(edge, 1) for edge in edges):
        raise ConfigError(f"{owner}: size must be a positive int or a pair of them (height, width), not {size!r}")
    return (int(edges[0]), int(edges[1])) if len(edges) == 2 else int(edges[0])


def both_edges(size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width); a single length stands for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def checked_interval(owner: str, name: str, value: Any) -> tuple[float, float]:
    """Return two positive numbers in ascending order."""
    ends = as_tuple(value) or ()
    if len(ends) != 2 or not all(map(is_number, ends)) or not 0 < ends[0] <= ends[1]:
        raise ConfigError(f"{owner}: {name} must be a pair of numbers, 0 < least <= greatest, not {value!r}")
    return float(ends[0]), float(ends[1])


def checked_numbers(owner: str, name: str, value: Any) -> tuple[float, ...]:
    """Return one or more numbers."""
    numbers = as_tuple(value) or ()
    if not numbers or not all(map(is_number, numbers)):
        raise ConfigError(f"{owner}: {name} must be a list of finite numbers, not {value!r}")
    return tuple(float(each) for each in numbers)


def check_interpolation(owner: str, interpolation: object) -> None:
    """Raise ConfigError for an unknown interpolation."""
    if not isinstance(interpolation, str) or interpolation not in INTERPOLATIONS:
        listing = suggest(interpolation, INTERPOLATIONS, "interpolations")
        raise ConfigError(f"{owner}: unknown interpolation {interpolation!r}; {listing}")


def check_bool(owner: str, name: str, value: object) -> None:
    """Raise ConfigError for a value that is not True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{owner}: {name} must be true or false, not {value!r}")


def checked_probability(owner: str, p: Any) -> float:
    """Return a number in [0, 1]."""
    if not is_number(p) or not 0 <= p <= 1:
        raise ConfigError(f"{owner}: p must be a number in [0, 1], not {p!r}")
    return float(p)


def checked_pairs(owner: str, pairs: Any) -> tuple[tuple[int, int], ...]:
    """Return pairs of numbers of keypoints. No number comes twice."""
    given = tuple(as_tuple(pair) or () for pair in as_tuple(pairs) or ()) if as_tuple(pairs) is not None else ((),)
    numbers = [number for pair in given for number in pair]
    valid = all(_is_int(each, 0) for each in numbers)
    if not valid or any(len(pair) != 2 for pair in given) or len(set(numbers)) != len(numbers):
        raise ConfigError(
            f"{owner}: keypoint_pairs must be pairs of numbers of keypoints, from 0, and no number twice, not {pairs!r}"
        )
    return tuple((int(pair[0]), int(pair[1])) for pair in given)


def checked_padding(owner: str, padding: Any) -> tuple[int, int, int, int]:
    """Return pixels to add at the left, top, right and bottom."""
    edges = as_tuple(padding) or (padding,)
    if len(edges) not in (1, 2, 4) or not all(_is_int(edge, 0) for edge in edges):
        raise ConfigError(
            f"{owner}: padding must be an int of at least 0, a pair (left and right, top and bottom), or (left, top, right, "
            f"bottom), not {padding!r}"
        )
    left, top, right, bottom = (edges * (4 // len(edges)))[:4]
    return int(left), int(top), int(right), int(bottom)
