"""The HDF5 engine: a native store is one file, which any HDF5 tool can read.

Start with ``backend.py``, which reads, then ``rows.py`` and ``sink.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.hdf5.backend import Hdf5Backend, Hdf5Opener, Hdf5Options
    from storeds.backends.hdf5.rows import FlatRows, Rows, gather, read_ranges
    from storeds.backends.hdf5.sink import Hdf5Sink
    from storeds.backends.hdf5.stamp import check_hdf5_file, open_hdf5_file

__all__ = [
    "FlatRows",
    "Hdf5Backend",
    "Hdf5Opener",
    "Hdf5Options",
    "Hdf5Sink",
    "Rows",
    "check_hdf5_file",
    "gather",
    "open_hdf5_file",
    "read_ranges",
]

__getattr__ = export_lazily(
    __name__,
    {
        "backend": ("Hdf5Backend", "Hdf5Opener", "Hdf5Options"),
        "rows": ("FlatRows", "Rows", "gather", "read_ranges"),
        "sink": ("Hdf5Sink",),
        "stamp": ("check_hdf5_file", "open_hdf5_file"),
    },
)
