"""HDF5 files that other tools wrote.

Read ``backend.py`` first. ``presets.py`` recognises what a file is, ``scan.py`` finds its records by a pattern, ``records.py``
makes their fields, ``files.py`` opens files and follows links, and ``values.py`` and ``elements.py`` read values.
"""

from storeds.layouts.hdf5.backend import ForeignHdf5
from storeds.layouts.hdf5.files import ForeignOptions

__all__ = ["ForeignHdf5", "ForeignOptions"]
