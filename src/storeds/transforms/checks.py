"""Checks the arguments of transforms; a refusal names the transform and the argument."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from storeds.errors import ConfigError, suggest
from storeds.transforms.functional import INTERPOLATIONS

__all__ = [
    "both_edges",
    "check_interpolation",
    "check_picklable",
    "checked_interval",
    "checked_numbers",
    "checked_size",
    "is_list",
    "is_number",
    "set_frozen",
]


def set_frozen(frozen: object, **values: Any) -> None:
    """Set attributes of a frozen dataclass: lists of a config become tuples, so that equal transforms are equal."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def is_list(value: object) -> bool:
    """Whether `value` is a sequence of items: a string is not."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def is_number(value: object) -> bool:
    """Whether `value` is a finite real number: a bool is not."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def checked_size(owner: str, size: Any) -> int | tuple[int, int]:
    """Return a length in pixels, or (height, width)."""
    edges = tuple(size) if is_list(size) else (size,)
    good = all(not isinstance(edge, bool) and isinstance(edge, Integral) and int(edge) > 0 for edge in edges)
    if not good or len(edges) not in (1, 2):
        raise ConfigError(f"{owner}: size must be a positive int or a pair of them (height, width), not {size!r}")
    return (int(edges[0]), int(edges[1])) if len(edges) == 2 else int(edges[0])


def check_picklable(name: str, transform: object) -> None:
    """Raise ConfigError for a transform that a worker started by spawn or forkserver could not be sent."""
    parts = getattr(transform, "transforms", None) or [transform]
    for part in parts:
        try:
            pickle.dumps(part)
        except Exception as error:  # whatever a stranger's __reduce__ raises
            raise ConfigError(
                f"{name} {part!r} cannot be sent to a worker process: {error}; define it at the top level of a module (no "
                "lambda, no class or function inside a function), or use start method fork, or num_workers=0"
            ) from error


def both_edges(size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) of a checked size, whose single length stands for both."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def checked_interval(owner: str, name: str, value: Any) -> tuple[float, float]:
    """Return two positive numbers, the lesser first."""
    ends = tuple(value) if is_list(value) else ()
    if len(ends) != 2 or not all(map(is_number, ends)) or not 0 < ends[0] <= ends[1]:
        raise ConfigError(f"{owner}: {name} must be a pair of numbers, 0 < least <= greatest, not {value!r}")
    return float(ends[0]), float(ends[1])


def checked_numbers(owner: str, name: str, value: Any) -> tuple[float, ...]:
    """Return at least one number."""
    numbers = tuple(value) if is_list(value) else ()
    if not numbers or not all(map(is_number, numbers)):
        raise ConfigError(f"{owner}: {name} must be a list of finite numbers, not {value!r}")
    return tuple(float(each) for each in numbers)


def check_interpolation(owner: str, interpolation: object) -> None:
    """Refuse what is no interpolation."""
    if not isinstance(interpolation, str) or interpolation not in INTERPOLATIONS:
        listing = suggest(interpolation, INTERPOLATIONS, "interpolations")
        raise ConfigError(f"{owner}: unknown interpolation {interpolation!r}; {listing}")
