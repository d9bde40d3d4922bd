"""LMDB environments that other tools wrote, read by record patterns.

Start with `backend.py`. `environment.py` opens files, `presets.py` says what an environment certainly is, `entries.py` separates
records from descriptions, and `records.py` reads the values.
"""

from storeds.layouts.lmdb.backend import ForeignLmdb

__all__ = ["ForeignLmdb"]
