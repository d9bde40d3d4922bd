"""Folders of images and tar shards, as stores and as sources of `pack`.

Start with `tree.py`, then `reading.py`. `folders.py`, `masks.py` and `tars.py` list what is there as `rows.py` describes it;
`detect.py` says which of them does, and `listing.py` keeps the list in the cache folder.
"""

from storeds.layouts.files.tree import FILES, FilesOptions

__all__ = ["FILES", "FilesOptions"]
