"""Where a test's collections lie, and who may do what to them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pymongo

from conftest import with_path

__all__ = ["GIVEN", "GIVEN_READONLY", "KINDS", "Place"]

GIVEN = os.environ.get("STOREDS_TEST_MONGODB_URI")
GIVEN_READONLY = os.environ.get("STOREDS_TEST_MONGODB_READONLY_URI")
KINDS = ("given",) if GIVEN else ("standalone", "replica_set", "secure")


@dataclass(frozen=True)
class Place:
    """A database that others may use too, and the start of the names of this test's collections in it.

    Attributes
    ----------
    writer, reader : str
        URIs of who may write and of who need not, with the database.
    prefix : str
        What the names of this test's collections start with.
    """

    writer: str = field(repr=False)  # they hold passwords
    reader: str = field(repr=False)
    prefix: str

    @classmethod
    def at(cls, writer: str, reader: str, database: str = "storeds") -> Place:
        """Return a new place; `database` is for URIs that name none."""
        found = [uri if urlsplit(uri).path.strip("/") else with_path(uri, database) for uri in (writer, reader)]
        return cls(found[0], found[1], f"test_{secrets.token_hex(6)}")

    @property
    def has_reader(self) -> bool:
        """Whether there is a user who may only read."""
        return self.writer != self.reader

    def url(self, name: str = "store", user: str = "writer", **options: object) -> str:
        """Return the URL of a store for ``writer`` or ``reader``."""
        return self.url_at(self.writer if user == "writer" else self.reader, name, **options)

    def url_at(self, uri: str, /, *names: str, **options: object) -> str:
        """Return the URL of a store of this place at another URI of it."""
        found = with_path(uri, f"{self.prefix}_{'_'.join(names)}")
        for option, value in options.items():
            found += f"{'&' if '?' in found else '?'}{option}={value}"
        return found

    @contextmanager
    def database(self) -> Iterator[Any]:
        """Give the database as PyMongo shows it to the writer."""
        client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(self.writer)
        with client:
            yield client.get_default_database()

    def drop(self) -> None:
        """Drop this test's collections."""
        with self.database() as database:
            for name in database.list_collection_names(filter={"name": {"$regex": f"^{self.prefix}"}}):
                database.drop_collection(name)
