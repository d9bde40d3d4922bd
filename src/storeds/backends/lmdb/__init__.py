"""The LMDB engine: a native store is one file.

Start with ``backend.py``, which reads, then ``sink.py``, which writes. ``files.py`` is also for files of other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.lmdb.backend import LmdbBackend
    from storeds.backends.lmdb.format import LmdbOptions
    from storeds.backends.lmdb.sink import LmdbSink

__all__ = ["LmdbBackend", "LmdbOptions", "LmdbSink"]

__getattr__ = export_lazily(__name__, {"backend": ("LmdbBackend",), "format": ("LmdbOptions",), "sink": ("LmdbSink",)})
