"""LMDB environments that other tools wrote, read by record patterns.

Start with `finding.py`, then `reading.py`. `environment.py` opens files, `presets.py` says what an environment certainly is, `entries.py` separates
records from descriptions, and `records.py` reads the values.
"""

from storeds.layouts.lmdb.finding import FOREIGN_LMDB

__all__ = ["FOREIGN_LMDB"]
