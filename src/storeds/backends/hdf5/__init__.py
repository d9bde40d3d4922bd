"""The HDF5 engine: a native store is one file, which any HDF5 tool can read.

Start with ``backend.py``, which reads, then ``rows.py`` and ``sink.py``. ``rows.py`` and ``stamp.py`` are also for files of
other tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.hdf5.backend import Hdf5Backend, Hdf5Opener, Hdf5Options
    from storeds.backends.hdf5.sink import Hdf5Sink

__all__ = ["Hdf5Backend", "Hdf5Opener", "Hdf5Options", "Hdf5Sink"]

__getattr__ = export_lazily(__name__, {"backend": ("Hdf5Backend", "Hdf5Opener", "Hdf5Options"), "sink": ("Hdf5Sink",)})
