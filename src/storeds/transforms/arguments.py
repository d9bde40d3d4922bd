"""Declares the arguments of built-in transforms: their types check the values."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from storeds._utils.settings import in_words
from storeds.errors import ConfigError, suggest

__all__ = [
    "Coordinate",
    "Declared",
    "Edges",
    "Flag",
    "Interpolation",
    "Interval",
    "Length",
    "Numbers",
    "Padding",
    "Pairs",
    "Pixels",
    "Probability",
    "is_list",
]

_FINITE = sys.float_info.max
_Edge = Annotated[int, Meta(ge=1)]
# Not tuple[_Edge, _Edge]: converting to a union of an int with a limit and a tuple of fixed length crashes msgspec 0.22.
_TwoEdges = Annotated[tuple[_Edge, ...], Meta(min_length=2, max_length=2)]
_Count = Annotated[int, Meta(ge=0)]
_Positive = Annotated[float, Meta(gt=0, le=_FINITE)]
_Least = Annotated[float, Meta(ge=0, le=_FINITE)]
_Number = Annotated[float, Meta(ge=-_FINITE, le=_FINITE)]
_Resampling = Literal["nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos"]

# What callers may pass, and the type to which msgspec converts it.
Edges = Annotated[int | Sequence[int], _Edge | _TwoEdges]
"""Pixels: one length, or (height, width)."""
Pixels = Annotated[int, _Edge]
"""A positive number of pixels."""
Coordinate = Annotated[int, Annotated[int, Meta(ge=-(2**31), lt=2**31)]]
"""A place in pixels, which may be negative."""
Padding = Annotated[int | Sequence[int] | None, None | _Count | Annotated[tuple[_Count, ...], Meta(max_length=4)]]
"""Pixels to add: for all edges, (left and right, top and bottom) or (left, top, right, bottom)."""
Interval = Annotated[Sequence[float], tuple[_Positive, _Positive]]
"""Two positive numbers, in ascending order."""
Numbers = Annotated[Sequence[float], Annotated[tuple[_Number, ...], Meta(min_length=1)]]
"""One or more finite numbers."""
Length = Annotated[float, _Least]
"""A number of pixels, 0 or more."""
Probability = Annotated[float, Annotated[float, Meta(ge=0, le=1)]]
"""A number from 0 to 1."""
Flag = Annotated[bool, bool]
Interpolation = Annotated[str, _Resampling]
Pairs = Annotated[Sequence[Sequence[int]], tuple[tuple[_Count, _Count], ...]]
"""Pairs of numbers from 0."""


class Declared:
    """Base of frozen dataclasses whose fields have types of this module.

    Creating one checks every field, and raises ConfigError, which names the class and the field. Lists become tuples,
    so that equal transforms compare equal.
    """

    def __post_init__(self) -> None:
        owner: Any = type(self)
        for name, kind in _declared(owner).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, msgspec.convert(_plain(value), kind))
            except msgspec.ValidationError as error:
                advice = f"; {suggest(value, get_args(kind), 'values')}" if get_origin(kind) is Literal else ""
                raise self._refusal(name, f"{in_words(str(error))}{advice}") from None

    def _refusal(self, name: str, reason: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__}: {name}={getattr(self, name)!r}: {reason}")


@functools.cache
def _declared(owner: type) -> Mapping[str, Any]:
    """Return field → the type to which its value is converted."""
    hints = get_type_hints(owner, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}


def _plain(value: Any) -> Any:
    """Return NumPy's numbers as Python's."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def is_list(value: object) -> bool:
    """Return whether `value` is a sequence and no string."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
