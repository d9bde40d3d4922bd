"""Tables: what 🤗 datasets saves, loads or publishes, and other Parquet or Arrow files with images."""

from storeds.formats.format import Format
from storeds.formats.tables.read import table

__all__ = ["TABLE"]

TABLE = Format(about="what 🤗 datasets saves or publishes, and other Parquet or Arrow files with images", read=table)
