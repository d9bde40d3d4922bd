"""The storage engines, and what every engine and foreign layout builds on.

Start with ``opening.py``, which turns a URL into a backend, then ``base.py``. Each engine has a package of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.base import (
        BackendOptions,
        FileOpener,
        HandleBackend,
        StoreBackend,
        bounded,
        check_most_is_read,
        parse_options,
    )
    from storeds.backends.concatenated import CONCATENATED, ConcatenatedBackend, Place
    from storeds.backends.handles import HandlePool, HandleRef, Opener, OpenStore
    from storeds.backends.memory import MemoryBackend
    from storeds.backends.opening import COMMIT_EVERY, open_backend, open_writer, scheme_of
    from storeds.backends.selection import Selection
    from storeds.backends.staging import Staging
    from storeds.backends.writer import Sink, StoreWriter

__all__ = [
    "COMMIT_EVERY",
    "CONCATENATED",
    "BackendOptions",
    "ConcatenatedBackend",
    "FileOpener",
    "HandleBackend",
    "HandlePool",
    "HandleRef",
    "MemoryBackend",
    "OpenStore",
    "Opener",
    "Place",
    "Selection",
    "Sink",
    "Staging",
    "StoreBackend",
    "StoreWriter",
    "bounded",
    "check_most_is_read",
    "open_backend",
    "open_writer",
    "parse_options",
    "scheme_of",
]

__getattr__ = export_lazily(
    __name__,
    {
        "base": (
            "BackendOptions",
            "FileOpener",
            "HandleBackend",
            "StoreBackend",
            "bounded",
            "check_most_is_read",
            "parse_options",
        ),
        "concatenated": ("CONCATENATED", "ConcatenatedBackend", "Place"),
        "handles": ("HandlePool", "HandleRef", "OpenStore", "Opener"),
        "memory": ("MemoryBackend",),
        "opening": ("COMMIT_EVERY", "open_backend", "open_writer", "scheme_of"),
        "selection": ("Selection",),
        "staging": ("Staging",),
        "writer": ("Sink", "StoreWriter"),
    },
)
