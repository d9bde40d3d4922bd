"""Reads numbers and truth values from the text of CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["is_int", "is_number", "values_of_cells"]

# int() accepts more: int("1_0") is 10, and 007 would lose its zeros.
_INT = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][+-]?[0-9]+)?|[+-]?inf|nan", re.I)
_EXACT = 2**53  # float64 holds each integer up to this one
_BOOLS = {"true": True, "false": False}


def is_int(text: str) -> bool:
    """Whether `text` is an int64 as Python writes it."""
    return len(text) < 21 and _INT.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63


def is_number(text: str) -> bool:
    """Whether `text` is a number that a float64 represents."""
    if text.lstrip("-").isdecimal():
        return is_int(text) and abs(int(text)) <= _EXACT
    return _FLOAT.fullmatch(text) is not None


def values_of_cells(cells: Sequence[str]) -> list[Any]:
    """Return the values of a column of CSV: numbers or booleans if all its cells are, None for empty ones; else the texts.

    Integers are those of 64 bits as Python writes them; booleans are ``true`` and ``false``, in any case.
    """
    given = [cell for cell in cells if cell]
    for fits, value in ((is_int, int), (is_number, float), (_is_bool, _bool)):
        if given and all(map(fits, given)):
            return [value(cell) if cell else None for cell in cells]
    return list(cells)


def _is_bool(text: str) -> bool:
    return text.lower() in _BOOLS


def _bool(text: str) -> bool:
    return _BOOLS[text.lower()]
