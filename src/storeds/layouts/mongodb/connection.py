"""Queries of the collections of a MongoDB database of another tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pymongo.errors import OperationFailure

from storeds.backends.mongodb.client import Location, pymongo_errors
from storeds.errors import ConfigError, StoreNotFoundError, UnavailableError, suggest
from storeds.layouts.mongodb.documents import paths_of

__all__ = ["Connection"]

_REPLY_DOCUMENTS = 100_000  # the server limits a reply to 16 MiB anyway
_OTHER_UUID = 361  # CollectionUUIDMismatch: the collection was replaced since it was opened
_NO_UUID = (40415, 323)  # unknown field, before MongoDB 6.0; not allowed by the strict Stable API
_BAD_QUERY = (2, 9, 14, 51091)  # BadValue, FailedToParse, TypeMismatch, a regular expression that does not compile


class Connection:
    """A database of a client, which connects on the first operation."""

    def __init__(self, client: Any, location: Location) -> None:
        self._client, self.location = client, location

    @contextmanager
    def database(self) -> Iterator[Any]:
        """Yield the database; converts PyMongo's exceptions to those of storeds."""
        with pymongo_errors(self.location):
            try:
                yield self._client[self.location.database]
            except OperationFailure as error:
                if error.code not in _BAD_QUERY:
                    raise
                raise ConfigError(f"{self.location.url}: MongoDB rejects the query: {error}") from None

    def names(self) -> list[str]:
        """Return the sorted names of the collections."""
        with self.database() as database:
            return sorted(database.list_collection_names())

    def count(self, name: str) -> int:
        """Return the estimated number of documents in collection `name`."""
        with self.database() as database:
            return int(database[name].estimated_document_count())

    def identity(self, name: str) -> Any:
        """Return the UUID of collection `name`, which a later collection with that name lacks; None for a view.

        Raises StoreNotFoundError, which lists the existing collections.
        """
        with self.database() as database:
            try:
                listed = list(database.list_collections(filter={"name": name}))
            except NotImplementedError:  # mongomock
                listed = [{"info": {}}] if name in database.list_collection_names() else []
        if not listed:
            what = f"collections of database {self.location.database!r}"
            raise StoreNotFoundError(
                f"no collection {name!r} at {self.location.url}: {suggest(name, self.names(), what)}"
            )
        return listed[0]["info"].get("uuid")

    def one(self, name: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a document that a query finds, or else an empty one."""
        return next(self.find(name, query or {}, limit=1), {})

    def check_field(self, name: str, path: str, option: str) -> None:
        """Raise ConfigError if no document of collection `name` has a value at `path`, which `option` gives."""
        if not self.one(name, {path: {"$exists": True}}):
            raise ConfigError(
                f"{self.location.url}: no document of {name!r} has the field {path!r} ({option}); "
                f"{suggest(path, paths_of(self.one(name)), 'fields of a document there')}"
            )

    def find(
        self,
        name: str,
        query: Mapping[str, Any],
        projection: Mapping[str, Any] | None = None,
        *,
        ordered: bool = False,
        limit: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """Yield documents of collection `name`, sorted by ``_id`` if `ordered`; raises ConfigError, UnavailableError."""
        with self.database() as database, database[name].find(query, projection, limit=limit) as cursor:
            # Documents with images exceed the memory that a server before 6.0 uses to sort.
            yield from cursor.sort("_id", 1).allow_disk_use(True) if ordered else cursor

    def read(
        self, name: str, identity: Any, query: Mapping[str, Any], projection: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        """Return documents; the server checks in the same round trip that the collection still has this UUID.

        MongoDB before 6.0 cannot check it. Raises UnavailableError if the collection was replaced.
        """
        if identity is None:
            return list(self.find(name, query, projection))
        command = {"find": name, "filter": query, "batchSize": _REPLY_DOCUMENTS, "collectionUUID": identity}
        if projection is not None:
            command["projection"] = projection
        with self.database() as database:
            if database.read_concern.level is not None:  # PyMongo adds it only to its own commands
                command["readConcern"] = database.read_concern.document
            try:
                with database.cursor_command(command, read_preference=database.read_preference) as cursor:
                    return list(cursor)
            except OperationFailure as error:
                if error.code == _OTHER_UUID:
                    raise UnavailableError(
                        f"{self.location.url}: collection {name!r} was replaced or dropped while in use; open it again"
                    ) from error
                if error.code not in _NO_UUID:
                    raise
        return list(self.find(name, query, projection))
