"""The MongoDB engine: a native store is one collection, with a document for each record.

Start with ``backend.py``, which reads, then ``documents.py`` and ``writer.py``. ``client.py`` connects, ``retry.py`` repeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.backends.mongodb.backend import MongodbBackend
    from storeds.backends.mongodb.client import ClientFactory, ClientOpener, Location, parse_location, pymongo_errors
    from storeds.backends.mongodb.handle import MongodbHandle, MongodbOpener, guarded_find, is_other_collection
    from storeds.backends.mongodb.retry import shared_deadline, with_retries
    from storeds.backends.mongodb.writer import MongodbWriter

__all__ = [
    "ClientFactory",
    "ClientOpener",
    "Location",
    "MongodbBackend",
    "MongodbHandle",
    "MongodbOpener",
    "MongodbWriter",
    "guarded_find",
    "is_other_collection",
    "parse_location",
    "pymongo_errors",
    "shared_deadline",
    "with_retries",
]

__getattr__ = export_lazily(
    __name__,
    {
        "backend": ("MongodbBackend",),
        "client": ("ClientFactory", "ClientOpener", "Location", "parse_location", "pymongo_errors"),
        "handle": ("MongodbHandle", "MongodbOpener", "guarded_find", "is_other_collection"),
        "retry": ("shared_deadline", "with_retries"),
        "writer": ("MongodbWriter",),
    },
)
