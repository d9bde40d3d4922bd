"""The LMDB engine: a native store is one file.

Start with ``reading.py``, then ``sink.py``. ``files.py`` is also for files of other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.lmdb.format import LmdbOptions

__all__ = ["LmdbOptions"]

__getattr__ = export_lazily(__name__, {"format": ("LmdbOptions",)})
