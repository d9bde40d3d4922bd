"""Reads collections through the process's client, and makes sure that each is still the one that was opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from pymongo.errors import OperationFailure

from storeds.backends.handles import HandleRef
from storeds.backends.mongodb.client import (
    CLIENTS,
    ClientFactory,
    ClientOpener,
    Location,
    knows_server,
    leased_database,
)
from storeds.backends.mongodb.handle import guarded_find, is_other_collection
from storeds.errors import ConfigError, StoreNotFoundError, UnavailableError, suggest

__all__ = ["Connection"]

_BAD_QUERY = (2, 9, 14, 51091)  # BadValue, FailedToParse, TypeMismatch, a regular expression that does not compile


class Connection:
    """A claim on the process's client for one URI; it connects on its first operation."""

    def __init__(self, location: Location, factory: ClientFactory | None) -> None:
        self.location = location
        self._ref: HandleRef[Any] = CLIENTS.ref(self, ClientOpener(location.uri, location.url, factory))
        # A factory may make a client that knows no commands, as mongomock does.
        self._guards = factory is None

    @property
    def closed(self) -> bool:
        """Whether it was closed for good."""
        return self._ref.closed

    def knows_server(self) -> bool:
        """Whether the client has found a server to read from."""
        with self._ref.lease() as client:
            return knows_server(client)

    def release(self) -> None:
        """Hold no client until the next operation."""
        self._ref.release()

    def close(self) -> None:
        """Give the claim up for good."""
        self._ref.close()

    @contextmanager
    def database(self) -> Iterator[Any]:
        """Lease the client and give its database; PyMongo's exceptions leave as ours."""
        with leased_database(self._ref, self.location) as database:
            yield database

    def names(self) -> list[str]:
        """Return the names of the database's collections, in order."""
        with self.database() as database:
            return sorted(database.list_collection_names())

    def count(self, name: str) -> int:
        """Return about how many documents collection `name` has."""
        with self.database() as database:
            return int(database[name].estimated_document_count())

    def identity(self, name: str) -> Any:
        """Return what tells collection `name` from a later one of that name; None for a view, which has nothing such.

        Raises StoreNotFoundError that lists the collections that there are.
        """
        with self.database() as database:
            found, uuid = _look_up(database, name)
        if not found:
            what = f"collections of database {self.location.database!r}"
            raise StoreNotFoundError(
                f"no collection {name!r} at {self.location.url}: {suggest(name, self.names(), what)}"
            )
        return uuid

    def find(
        self,
        name: str,
        query: Mapping[str, Any],
        projection: Mapping[str, Any] | None = None,
        *,
        identity: Any = None,
        ordered: bool = False,
        limit: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """Yield documents of collection `name` by one query.

        Parameters
        ----------
        name : str
        query, projection : mapping
            As MongoDB takes them.
        identity : optional
            What `identity` returned. The server itself makes sure, in the same round trip, that the collection is that
            one: a find may name the UUID that it expects (MongoDB 6.0 and later).
        ordered : bool
            By ``_id``.
        limit : int
            0 for no limit.

        Raises
        ------
        UnavailableError
            The collection is another one, or the server cannot be reached.
        ConfigError
            The query makes no sense to MongoDB.
        """
        with self.database() as database:
            try:
                with closing(self._cursor(database, name, query, projection, identity, ordered, limit)) as cursor:
                    yield from cursor
            except OperationFailure as error:
                if is_other_collection(error):
                    raise self._replaced(name) from error
                if error.code in _BAD_QUERY:
                    raise ConfigError(f"{self.location.url}: MongoDB does not understand the query: {error}") from None
                raise
            if identity is not None and not self._guards and _look_up(database, name)[1] != identity:
                raise self._replaced(name)

    def _cursor(
        self,
        database: Any,
        name: str,
        query: Mapping[str, Any],
        projection: Mapping[str, Any] | None,
        identity: Any,
        ordered: bool,
        limit: int,
    ) -> Any:
        if self._guards:
            command: dict[str, Any] = {"find": name, "filter": query, "limit": limit}
            if projection is not None:
                command["projection"] = projection
            if ordered:
                # Documents with images are more than a server sorts in memory.
                command.update(sort={"_id": 1}, allowDiskUse=True)
            found = guarded_find(database, command, identity)
            if found is not None:
                return found
            self._guards = False
        cursor = database[name].find(query, projection, limit=limit)
        return cursor.sort("_id", 1) if ordered else cursor

    def _replaced(self, name: str) -> UnavailableError:
        return UnavailableError(
            f"{self.location.url}: collection {name!r} was replaced or dropped while in use; open it again"
        )


def _look_up(database: Any, name: str) -> tuple[bool, Any]:
    """Return whether collection `name` exists, and its UUID where it has one."""
    try:
        listed = list(database.list_collections(filter={"name": name}))
    except NotImplementedError:  # mongomock
        return name in database.list_collection_names(), None
    return bool(listed), listed[0]["info"].get("uuid") if listed else None
