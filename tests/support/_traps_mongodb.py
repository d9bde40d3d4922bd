"""Fills MongoDB collections as other programs do, with PyMongo alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo

__all__ = ["filled"]


@contextmanager
def filled(database_url: str) -> Iterator[Any]:
    """Give the database at a URL, by a client of its own."""
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(database_url)
    with client:
        yield client[database_url.rpartition("/")[2].partition("?")[0]]
