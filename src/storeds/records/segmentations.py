"""Parts of COCO's masks: run-length encodings, and polygons that reach too far to be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from storeds.protocols import Array

__all__ = ["far_fault", "in_pixels", "is_count", "run_lengths"]

_FAR = 100_000  # pixels outside the image: the memory for drawing a polygon grows with its perimeter
_DIGITS = 7  # of one number in compressed counts: 35 bits


def far_fault(polygon: list[float], height: int | None, width: int | None, relative: bool) -> str | None:
    """Return why a polygon cannot be drawn because it reaches far outside the image, or None."""
    least, most = min(polygon), max(polygon)
    far = _FAR / max(height or 1, width or 1) if relative else _FAR + max(height or 0, width or 0)
    if least < -far or most > far:
        return f"a polygon reaches from {least:g} to {most:g}, which is far outside the image"
    return None


def in_pixels(polygons: list[list[float]], height: int, width: int) -> list[list[float]]:
    """Return polygons in pixels whose coordinates are fractions of the height and width of an image."""
    return [[number * (height if at % 2 else width) for at, number in enumerate(polygon)] for polygon in polygons]


def is_count(value: object) -> bool:
    """Return whether a value is a number of pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def run_lengths(counts: Any) -> Array:
    """Return the lengths of the runs of a run-length encoding: 0, 1, 0, … down the columns, int64.

    Parameters
    ----------
    counts : list of int or str
        Uncompressed, or in the compressed form of pycocotools.

    Raises
    ------
    ValueError
        It is neither.
    """
    if isinstance(counts, (str, bytes)):
        return _uncompressed(counts.encode("ascii", "replace") if isinstance(counts, str) else counts)
    if not isinstance(counts, list) or not all(map(is_count, counts)):
        raise ValueError("counts are a list of integers of 0 or more, or compressed text")
    return np.array(counts, np.int64)


def _uncompressed(text: bytes) -> Array:
    """Return the numbers in compressed counts.

    Each byte holds 5 bits of a number, lowest first, plus 48; bit 5 says that more follow, and bit 4 of the last is the
    sign. From the fourth number on, a number is the difference from the one two places before.
    """
    digits = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not len(digits):
        return digits
    last = np.flatnonzero(digits & 0x20 == 0)
    if ((digits < 0) | (digits > 63)).any() or not len(last) or last[-1] != len(digits) - 1:
        raise ValueError("its compressed counts are damaged")
    first = np.concatenate([[0], last[:-1] + 1])
    place = np.arange(len(digits)) - np.repeat(first, last - first + 1)
    if place.max() >= _DIGITS:
        raise ValueError("its compressed counts are damaged")
    numbers = np.add.reduceat((digits & 0x1F) << (5 * place), first)
    numbers -= ((digits[last] & 0x10) != 0).astype(np.int64) << (5 * (place[last] + 1))
    numbers[1::2] = numbers[1::2].cumsum()
    numbers[2::2] = numbers[2::2].cumsum()
    if (numbers < 0).any():
        raise ValueError("its compressed counts are damaged")
    return numbers
