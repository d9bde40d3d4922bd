"""Foreign layouts: how storeds reads stores that other tools wrote.

``presets.py`` lists the layouts, ``pattern.py`` says where records are, and ``tree.py`` decides what a store is. One package
for each engine, `storeds.layouts.hdf5`, `storeds.layouts.lmdb`, `storeds.layouts.mongodb`, and `storeds.layouts.files` for
folders and tar files: start with ``tree.py`` there.
"""
