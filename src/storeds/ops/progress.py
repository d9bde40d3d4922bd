"""How far an operation has come, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Progress", "ProgressHook"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an operation stands.

    Attributes
    ----------
    done, total : int
        Items or records.
    bytes : int
        Of blobs that went by.
    bad : int
        Items with a problem.
    odd : int
        Damaged JPEGs; for `verify`, notes.
    """

    done: int
    total: int
    bytes: int
    bad: int = 0
    odd: int = 0


ProgressHook: TypeAlias = Callable[[Progress], None]
