"""Writes JSON values as one canonical text, so that equal values have equal checksums."""

from __future__ import annotations

import json
import math

from storeds.protocols import JSON

__all__ = ["canonical_json"]


_MAX_DEPTH = 100  # so that valid JSON never exhausts the stack of a reader


def canonical_json(value: JSON) -> str:
    """Return the canonical JSON text of `value`: sorted keys, no spaces, no NaN. Raises ValueError."""
    _check_json(value, 0)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _check_json(value: object, depth: int) -> None:
    # json.dumps silently turns tuples into lists and other keys into strings.
    if depth > _MAX_DEPTH:
        raise ValueError(f"JSON nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"JSON keys are str, not {type(key).__name__} ({key!r})")
            check_text(key)
            _check_json(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_json(item, depth + 1)
    elif isinstance(value, str):
        check_text(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value!r}")
    elif value is not None and not isinstance(value, (int, float)):
        raise ValueError(f"JSON holds dict, list, str, int, float, bool and None, not {type(value).__name__}")


def check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text with a lone surrogate at character {error.start} has no UTF-8 form") from None
