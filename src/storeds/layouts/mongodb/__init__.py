"""Layouts of MongoDB collections that other tools wrote.

Start with `base.py`, then read `query.py`. `values.py` infers and converts fields; `packing.py` keeps ids in an index file.
"""

from storeds.layouts.mongodb.base import Connection, MongodbLayout
from storeds.layouts.mongodb.gridfs import GridfsLayout
from storeds.layouts.mongodb.named import NamedLayout
from storeds.layouts.mongodb.query import QueryLayout

__all__ = ["Connection", "GridfsLayout", "MongodbLayout", "NamedLayout", "QueryLayout"]
