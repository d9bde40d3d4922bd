"""Foreign layouts: how storeds reads stores that other tools wrote.

One package for each engine: `storeds.layouts.hdf5`, `storeds.layouts.lmdb`, `storeds.layouts.mongodb`. `open_backend`
finds the layout of a store in ``storeds/backends/opening.py``. Read ``pattern.py`` first, then ``hdf5/reading.py``.
"""
