"""Bounds how deep unpickled values nest: whoever walks a value afterwards, Python's own C code included, may do it by recursion."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from storeds._unpickle_numpy import PickleError

__all__ = ["MAX_DEPTH", "check_depth"]

MAX_DEPTH = 100
_CONTAINERS = (list, tuple, dict)


def check_depth(value: Any) -> None:
    """Raise PickleError if lists, tuples and dicts nest too deep in `value`, which is a tree: level by level."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for holder in level for item in _items(holder) if isinstance(item, _CONTAINERS)]
        if not level:
            return
    raise PickleError(f"refused: it nests deeper than {MAX_DEPTH} levels")


def _items(holder: Any) -> Iterable[Any]:
    if isinstance(holder, dict):
        return itertools.chain(holder, holder.values())
    return holder if isinstance(holder, _CONTAINERS) else ()
