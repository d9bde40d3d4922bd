"""HDF5 files that other tools wrote.

Read ``tree.py`` first. ``recognising.py`` recognises what a file is, ``scan.py`` finds its records by a pattern, ``records.py``
makes their fields, ``files.py`` opens files and follows links, and ``values.py`` and ``elements.py`` read values.
"""

from storeds.layouts.hdf5.files import ForeignOptions
from storeds.layouts.hdf5.tree import FOREIGN_HDF5

__all__ = ["FOREIGN_HDF5", "ForeignOptions"]
