"""Checks positions of records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storeds.protocols import Array

__all__ = ["check_positions", "outside"]

_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


def check_positions(positions: Sequence[int], count: int, url: str) -> Array:
    """Return positions of records as an int64 array.

    Raises
    ------
    TypeError
        They are not a sequence of integers.
    IndexError
        One lies outside ``[0, count)``.
    """
    try:
        asked = np.asarray(positions)
    except ValueError as error:  # lists of several lengths
        raise TypeError(f"positions must be a sequence of integers ({error})") from None
    if asked.ndim == 1 and not asked.size:
        return np.empty(0, np.int64)
    may_mix = isinstance(positions, (list, tuple)) or asked.dtype.kind == "O"
    if may_mix and not {bool, np.bool_}.isdisjoint(map(type, positions)):  # NumPy takes True among integers for 1
        raise TypeError("positions must be a sequence of integers, and one is a bool")
    # As an unsigned number, a negative one is greater than any count.
    if asked.dtype is _INT64 and asked.ndim == 1 and int(np.maximum.reduce(asked.view(_UINT64))) < count:
        return asked
    if asked.ndim == 1 and asked.dtype.kind in "fO" and all(isinstance(at, (int, np.integer)) for at in positions):
        asked = np.array(positions, object)  # too large for NumPy's integer types, so out of range
    elif asked.ndim != 1 or asked.dtype.kind not in "iu":
        raise TypeError(f"positions must be a sequence of integers, got {asked.dtype} of shape {asked.shape}")
    low, high = int(asked.min()), int(asked.max())
    if low < 0 or high >= count:
        raise outside(low, high, count, url)
    return asked.astype(np.int64, copy=False)


def outside(low: int, high: int, count: int, url: str) -> IndexError:
    """Return the error for a lowest and a highest position of which one lies outside ``[0, count)``."""
    return IndexError(f"position {low if low < 0 else high} is outside [0, {count}) of {url}")
