"""The HDF5 engine: a native store is one file, which any HDF5 tool can read.

Start with ``reading.py``, then ``rows.py`` and ``sink.py``. ``rows.py`` and ``stamp.py`` are also for files of
other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.hdf5.reading import Hdf5Options

__all__ = ["Hdf5Options"]

__getattr__ = export_lazily(__name__, {"reading": ("Hdf5Options",)})
