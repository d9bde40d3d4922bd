"""Foreign layouts: how storeds reads stores that other tools wrote.

One package for each engine: `storeds.layouts.hdf5`, `storeds.layouts.lmdb`, `storeds.layouts.mongodb`. `open_backend`
finds the layout of a store in ``storeds/backends/opening.py``; read a package's ``base.py`` first.
"""
