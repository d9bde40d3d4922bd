"""How far an operation has come, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Progress", "ProgressHook"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Records done of a total, and the bytes of blobs that went by."""

    done: int
    total: int
    bytes: int


ProgressHook: TypeAlias = Callable[[Progress], None]
