"""The storage engines, and what every engine and foreign layout builds on.

Start with ``opening.py``, which turns a URL into a backend, then ``store.py``, which reads, and ``raw.py``, which says what an engine provides. Each engine has a package of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.protocols import Place
from storeds.records.index import Index
from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.engine import Engine
    from storeds.backends.raw import Fault, Opener, RawStore, Rows, Stacked
    from storeds.backends.selecting import select
    from storeds.backends.store import Store
    from storeds.backends.unread import bounded, check_most_is_read
    from storeds.backends.view import View
    from storeds.backends.writer import StoreWriter

__all__ = [
    "Engine",
    "Fault",
    "Index",
    "Opener",
    "Place",
    "RawStore",
    "Rows",
    "Stacked",
    "Store",
    "StoreWriter",
    "View",
    "bounded",
    "check_most_is_read",
    "select",
]

__getattr__ = export_lazily(
    __name__,
    {
        "engine": ("Engine",),
        "raw": ("Fault", "Opener", "RawStore", "Rows", "Stacked"),
        "selecting": ("select",),
        "store": ("Store",),
        "unread": ("bounded", "check_most_is_read"),
        "view": ("View",),
        "writer": ("StoreWriter",),
    },
)
