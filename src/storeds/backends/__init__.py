"""The storage engines, and what every engine and foreign layout builds on.

Start with ``opening.py``, which turns a URL into a backend, then ``base.py``. Each engine has a package of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.protocols import Place
from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.base import HandleBackend, StoreBackend, bounded, check_most_is_read
    from storeds.backends.concatenated import ConcatenatedBackend
    from storeds.backends.memory import MemoryBackend
    from storeds.backends.selection import Selection
    from storeds.backends.writer import StoreWriter

__all__ = [
    "ConcatenatedBackend",
    "HandleBackend",
    "MemoryBackend",
    "Place",
    "Selection",
    "StoreBackend",
    "StoreWriter",
    "bounded",
    "check_most_is_read",
]

__getattr__ = export_lazily(
    __name__,
    {
        "base": ("HandleBackend", "StoreBackend", "bounded", "check_most_is_read"),
        "concatenated": ("ConcatenatedBackend",),
        "memory": ("MemoryBackend",),
        "selection": ("Selection",),
        "writer": ("StoreWriter",),
    },
)
