"""Lists what workers have copies of, so that a loader notices which of it was assigned since."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import torch

from storeds.datasets.map_dataset import StoreDataset
from storeds.protocols import Backend

__all__ = ["are_same", "parts_of"]

_PLAIN = (bool, int, float, str)
_MOST_PARTS, _MOST_ITEMS = 10_000, 1000


def parts_of(roots: Sequence[Any]) -> list[Any]:
    """Return some values and what they consist of: attributes, items, theirs and so on; at most `_MOST_PARTS`."""
    parts, pending, seen = list[Any](), [*roots], set[int]()
    while pending and len(parts) < _MOST_PARTS:
        value = pending.pop()
        parts.append(value)
        if id(value) not in seen:
            seen.add(id(value))
            pending += _inside(value)
    return parts


def _inside(value: Any) -> Iterable[Any]:
    """Return what may be assigned in a dataset, a transform or a function: attributes, or the items of a container."""
    if isinstance(value, StoreDataset):  # everything else is how it works
        others = [each for name, each in vars(value).items() if not name.startswith("_")]
        return value.transforms, value.transform, value.target_transform, value.as_dict, value.seed, *others
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        return items if len(items) <= _MOST_ITEMS else (len(items),)
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    return (
        () if isinstance(value, (Backend, torch.Tensor, ModuleType, type)) else getattr(value, "__dict__", {}).values()
    )


def are_same(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """Return whether two lists of `parts_of` have the same objects, or equal plain values."""
    return len(before) == len(now) and all(
        one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)
        for one, other in zip(before, now, strict=True)
    )
