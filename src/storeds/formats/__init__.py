"""Reads rows out of files that are no stores, and writes such files.

Read ``opening.py`` first. Each format has a module or a package of its own. Folders of images and tar shards are in
`storeds.layouts.files`, since they open as stores too.
"""

from storeds.formats.opening import open_source
from storeds.layouts.files.rows import Bad, BadItem, File, Part, Reference, Row, Rows, from_start

__all__ = ["Bad", "BadItem", "File", "Part", "Reference", "Row", "Rows", "from_start", "open_source"]
