"""The MongoDB engine: a native store is one collection, with a document for each record.

Start with ``backend.py``, which reads, then ``documents.py`` and ``sink.py``. ``client.py`` connects, ``retry.py`` repeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
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

__getattr__ = export_lazily(
    __name__,
    {
        "backend": ("MongodbBackend",),
        "client": ("ClientFactory", "ClientOpener", "Location", "parse_location", "pymongo_errors"),
        "retry": ("with_retries",),
        "sink": ("MongodbSink",),
    },
)
