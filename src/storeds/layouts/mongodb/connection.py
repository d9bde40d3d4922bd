"""A connection to a MongoDB database of another tool, and queries of its collections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from pymongo.errors import OperationFailure

from storeds.backends.handles import HandleRef
from storeds.backends.mongodb.client import CLIENTS, ClientFactory, ClientOpener, Location, leased_database
from storeds.errors import ConfigError, StoreNotFoundError, UnavailableError, suggest
from storeds.layouts.mongodb.documents import paths_of

__all__ = ["Connection"]

_REPLY_DOCUMENTS = 100_000  # the server limits a reply to 16 MiB anyway
_OTHER_UUID = 361  # CollectionUUIDMismatch: the collection was replaced since it was opened
_NO_UUID = (40415, 323)  # unknown field, before MongoDB 6.0; not allowed by the strict Stable API
_BAD_QUERY = (2, 9, 14, 51091)  # BadValue, FailedToParse, TypeMismatch, a regular expression that does not compile


class Connection:
    """A reference to the process's client for one URI; it connects on the first operation."""

    def __init__(self, location: Location, factory: ClientFactory | None) -> None:
        self.location = location
        self._ref: HandleRef[Any] = CLIENTS.ref(self, ClientOpener(location, factory))
        # A factory may return a client without commands, such as mongomock's.
        self._guards = factory is None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._ref.closed

    def release(self) -> None:
        """Release the client until the next operation."""
        self._ref.release()

    def close(self) -> None:
        """Release the client for good."""
        self._ref.close()

    @contextmanager
    def database(self) -> Iterator[Any]:
        """Yield the database; converts PyMongo's exceptions to those of storeds."""
        with leased_database(self._ref, self.location) as database:
            yield database

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
            found, uuid = _look_up(database, name)
        if not found:
            what = f"collections of database {self.location.database!r}"
            raise StoreNotFoundError(
                f"no collection {name!r} at {self.location.url}: {suggest(name, self.names(), what)}"
            )
        return uuid

    def check_field(self, name: str, path: str, option: str) -> None:
        """Raise ConfigError if no document of collection `name` has a value at `path`, which `option` gives."""
        if next(self.find(name, {path: {"$exists": True}}, {path: True}, limit=1), None) is None:
            one = next(self.find(name, {}, limit=1), {})
            raise ConfigError(
                f"{self.location.url}: no document of {name!r} has the field {path!r} ({option}); "
                f"{suggest(path, paths_of(one), 'fields of a document there')}"
            )

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
            In the form of MongoDB.
        identity : optional
            The result of `identity`. The server checks in the same round trip that the collection still has this UUID
            (MongoDB 6.0 and later).
        ordered : bool
            Sort by ``_id``.
        limit : int
            0 for no limit.

        Raises
        ------
        UnavailableError
            The collection was replaced, or the server cannot be reached.
        ConfigError
            MongoDB rejects the query.
        """
        with self.database() as database:
            try:
                with closing(self._cursor(database, name, query, projection, identity, ordered, limit)) as cursor:
                    yield from cursor
            except OperationFailure as error:
                if error.code == _OTHER_UUID:
                    raise self._replaced(name) from error
                if error.code in _BAD_QUERY:
                    raise ConfigError(f"{self.location.url}: MongoDB rejects the query: {error}") from None
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
            command: dict[str, Any] = {"find": name, "filter": query, "limit": limit, "batchSize": _REPLY_DOCUMENTS}
            if projection is not None:
                command["projection"] = projection
            if ordered:
                # Documents with images exceed the memory that a server uses to sort.
                command.update(sort={"_id": 1}, allowDiskUse=True)
            if identity is not None:
                command["collectionUUID"] = identity
            if database.read_concern.level is not None:  # PyMongo adds it only to its own commands
                command["readConcern"] = database.read_concern.document
            try:
                return database.cursor_command(command, read_preference=database.read_preference)
            except OperationFailure as error:
                if error.code not in _NO_UUID:
                    raise
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
