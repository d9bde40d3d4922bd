"""MongoDB collections that other tools wrote.

Start with `presets.py`, which recognises a collection or a bucket, then read `backend.py` and `query.py`.
"""

from storeds.layouts.mongodb.gridfs import GridfsLayout
from storeds.layouts.mongodb.named import NamedLayout
from storeds.layouts.mongodb.presets import PRESETS, open_foreign
from storeds.layouts.mongodb.query import QueryLayout

__all__ = ["PRESETS", "GridfsLayout", "NamedLayout", "QueryLayout", "open_foreign"]
