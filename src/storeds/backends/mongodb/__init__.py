"""The MongoDB engine: a native store is one collection, with a document for each record.

Start with ``backend.py``, which reads, then ``documents.py`` and ``sink.py``. ``client.py`` connects, ``retry.py`` repeats.
"""

from __future__ import annotations

from storeds.backends.mongodb.backend import MongodbBackend
from storeds.backends.mongodb.client import ClientFactory, ClientOpener, Location, parse_location, pymongo_errors
from storeds.backends.mongodb.retry import with_retries
from storeds.backends.mongodb.sink import MongodbSink

__all__ = [
    "ClientFactory",
    "ClientOpener",
    "Location",
    "MongodbBackend",
    "MongodbSink",
    "parse_location",
    "pymongo_errors",
    "with_retries",
]
