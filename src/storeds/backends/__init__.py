"""The storage engines, and what every engine and foreign layout builds on.

Start with ``opening.py``, which turns a URL into a backend, then ``base.py``. Each engine has a package of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.protocols import Place
from storeds.records.index import Index
from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.base import HandleBackend, StoreBackend, bounded, check_most_is_read
    from storeds.backends.memory import MemoryBackend
    from storeds.backends.selecting import select
    from storeds.backends.view import View
    from storeds.backends.writer import StoreWriter

__all__ = [
    "HandleBackend",
    "Index",
    "MemoryBackend",
    "Place",
    "StoreBackend",
    "StoreWriter",
    "View",
    "bounded",
    "check_most_is_read",
    "select",
]

__getattr__ = export_lazily(
    __name__,
    {
        "base": ("HandleBackend", "StoreBackend", "bounded", "check_most_is_read"),
        "memory": ("MemoryBackend",),
        "selecting": ("select",),
        "view": ("View",),
        "writer": ("StoreWriter",),
    },
)
