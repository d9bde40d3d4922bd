"""MongoDB collections that other tools wrote.

Start with `tree.py`, which recognises a collection or a bucket, then read `backend.py` and `query.py`.
"""

from storeds.layouts.mongodb.tree import FOREIGN_MONGODB

__all__ = ["FOREIGN_MONGODB"]
