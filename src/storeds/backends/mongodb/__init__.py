"""The MongoDB engine: a native store is one collection, with a document for each record.

Start with ``reading.py``, then ``documents.py`` and ``sink.py``. ``client.py`` connects, ``retry.py`` repeats.
"""

from __future__ import annotations

from storeds.backends.mongodb.client import ClientFactory, ClientOpener, Location, parse_location, pymongo_errors
from storeds.backends.mongodb.reading import MONGODB, MongodbOpener
from storeds.backends.mongodb.retry import with_retries
from storeds.backends.mongodb.sink import MongodbSink

__all__ = [
    "MONGODB",
    "ClientFactory",
    "ClientOpener",
    "Location",
    "MongodbOpener",
    "MongodbSink",
    "parse_location",
    "pymongo_errors",
    "with_retries",
]
