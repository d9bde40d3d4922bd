"""The HDF5 engine: a native store is one file, which any HDF5 tool can read.

Start with ``reading.py``, then ``rows.py`` and ``sink.py``. ``rows.py`` and ``stamp.py`` are also for files of
other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.hdf5.reading import HDF5, Hdf5Opener, Hdf5Options
    from storeds.backends.hdf5.sink import Hdf5Sink

__all__ = ["HDF5", "Hdf5Opener", "Hdf5Options", "Hdf5Sink"]

__getattr__ = export_lazily(__name__, {"reading": ("HDF5", "Hdf5Opener", "Hdf5Options"), "sink": ("Hdf5Sink",)})
