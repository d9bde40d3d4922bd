"""Reads rows out of files that are no stores, and writes such files.

Read ``format.py`` and ``opening.py`` first. Each format has a module or a package of its own.
"""

from storeds.formats.format import Format
from storeds.formats.opening import open_source
from storeds.formats.writing import Differences, Exporter, ExportFolder
from storeds.layouts.files.rows import Bad, BadItem, File, Part, Reference, Row, Rows, from_start

__all__ = [
    "Bad",
    "BadItem",
    "Differences",
    "ExportFolder",
    "Exporter",
    "File",
    "Format",
    "Part",
    "Reference",
    "Row",
    "Rows",
    "from_start",
    "open_source",
]
