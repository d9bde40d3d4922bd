"""The storage engines, and what every engine and foreign layout builds on.

Start with ``opening.py``, which turns a URL into a backend, then ``store.py``, which reads, and ``raw.py``, which says what an engine provides. Each engine has a package of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.protocols import Place
from storeds.records.index import Index
from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.selecting import select
    from storeds.backends.store import Store
    from storeds.backends.view import View
    from storeds.backends.writer import StoreWriter

__all__ = [
    "Index",
    "Place",
    "Store",
    "StoreWriter",
    "View",
    "select",
]

__getattr__ = export_lazily(
    __name__,
    {
        "selecting": ("select",),
        "store": ("Store",),
        "view": ("View",),
        "writer": ("StoreWriter",),
    },
)
