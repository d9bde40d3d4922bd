"""MongoDB collections that other tools wrote.

Start with `presets.py`, which recognises a collection or a bucket, then read `backend.py` and `query.py`.
"""

from storeds.layouts.mongodb.presets import FOREIGN_MONGODB

__all__ = ["FOREIGN_MONGODB"]
