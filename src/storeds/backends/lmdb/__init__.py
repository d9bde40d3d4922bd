"""The LMDB engine: a native store is one file.

Start with ``backend.py``, which reads, then ``writer.py``. ``pages.py`` reads damaged files without LMDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.lmdb.backend import LmdbBackend, LmdbOptions, open_environment, read_header
    from storeds.backends.lmdb.pages import DamagedPageError
    from storeds.backends.lmdb.writer import LmdbWriter

__all__ = [
    "DamagedPageError",
    "LmdbBackend",
    "LmdbOptions",
    "LmdbWriter",
    "open_environment",
    "read_header",
]

__getattr__ = export_lazily(
    __name__,
    {
        "backend": ("LmdbBackend", "LmdbOptions", "open_environment", "read_header"),
        "pages": ("DamagedPageError",),
        "writer": ("LmdbWriter",),
    },
)
