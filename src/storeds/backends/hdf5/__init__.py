"""The HDF5 engine: a native store is one file, which any HDF5 tool can read.

Start with ``backend.py``, which reads, then ``rows.py`` and ``writer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.hdf5.backend import Hdf5Backend, Hdf5Opener, Hdf5Options, check_hdf5_file
    from storeds.backends.hdf5.columns import RecordDigests
    from storeds.backends.hdf5.rows import FileMap, FlatRows, Rows, gather, gather_any, read_spans
    from storeds.backends.hdf5.writer import Hdf5Writer

__all__ = [
    "FileMap",
    "FlatRows",
    "Hdf5Backend",
    "Hdf5Opener",
    "Hdf5Options",
    "Hdf5Writer",
    "RecordDigests",
    "Rows",
    "check_hdf5_file",
    "gather",
    "gather_any",
    "read_spans",
]

__getattr__ = export_lazily(
    __name__,
    {
        "backend": ("Hdf5Backend", "Hdf5Opener", "Hdf5Options", "check_hdf5_file"),
        "columns": ("RecordDigests",),
        "rows": ("FileMap", "FlatRows", "Rows", "gather", "gather_any", "read_spans"),
        "writer": ("Hdf5Writer",),
    },
)
