"""LMDB environments that other tools wrote, read by record patterns.

Start with `tree.py`, then `reading.py`. `environment.py` opens files, `recognising.py` says what an environment certainly is, `entries.py` separates
records from descriptions, and `records.py` reads the values.
"""

from storeds.layouts.lmdb.tree import FOREIGN_LMDB

__all__ = ["FOREIGN_LMDB"]
