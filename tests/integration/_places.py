"""Where a test's collections lie, who may do what to them, and what lies in them."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pymongo

from conftest import with_path
from make_store import make_store

__all__ = ["GIVEN", "GIVEN_READONLY", "KINDS", "SLACK", "Place", "login_of", "rows", "write_rows"]

GIVEN = os.environ.get("STOREDS_TEST_MONGODB_URI")
GIVEN_READONLY = os.environ.get("STOREDS_TEST_MONGODB_READONLY_URI")
SLACK = 25.0  # seconds beyond a deadline, for a busy machine; PyMongo itself waits 30
KINDS = ("given",) if GIVEN else ("standalone", "replica_set", "secure")


@dataclass(frozen=True)
class Place:
    """A database that others may use too, and the start of the names of this test's collections in it.

    Attributes
    ----------
    writer, reader : str
        URIs of a user who may write and of one who need not, with the database.
    prefix : str
        The start of the names of this test's collections.
    """

    writer: str = field(repr=False)  # they hold passwords
    reader: str = field(repr=False)
    prefix: str

    @classmethod
    def at(cls, writer: str, reader: str = "", database: str = "storeds") -> Place:
        """Return a new place; `database` is for URIs that name none."""
        found = [
            uri if urlsplit(uri).path.strip("/") else with_path(uri, database) for uri in (writer, reader or writer)
        ]
        return cls(found[0], found[1], f"test_{secrets.token_hex(6)}")

    def url(self, name: str = "store", user: str = "writer", **options: object) -> str:
        """Return the URL of a store for ``writer`` or ``reader``."""
        found = with_path(self.writer if user == "writer" else self.reader, f"{self.prefix}_{name}")
        for option, value in options.items():
            found += f"{'&' if '?' in found else '?'}{option}={value}"
        return found

    @contextmanager
    def database(self) -> Iterator[Any]:
        """Yield the database as PyMongo shows it to the writer."""
        with pymongo.MongoClient[Any](self.writer) as client:
            yield client.get_default_database()

    def drop(self) -> None:
        """Drop this test's collections."""
        with self.database() as database:
            for name in database.list_collection_names(filter={"name": {"$regex": f"^{self.prefix}"}}):
                database.drop_collection(name)


def login_of(uri: str) -> str:
    """Return ``user:password`` of a URI, or nothing."""
    return urlsplit(uri).netloc.rpartition("@")[0]


def rows(count: int, size: int) -> list[dict[str, Any]]:
    """Return records, no two alike: an image of `size` bytes and a label."""
    images = (hashlib.shake_128(f"{number}".encode()).digest(size) for number in range(count))
    return [{"image": image, "label": number * 7 % 13} for number, image in enumerate(images)]


def write_rows(records: Sequence[dict[str, Any]], url: str) -> str:
    return make_store({"image": "image", "label": "int"}, records, url)
