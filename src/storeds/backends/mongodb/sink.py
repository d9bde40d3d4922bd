"""Writes native MongoDB stores: `MongodbSink` fills a collection of its own, which a rename makes the store."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from storeds._utils.prefetch import ReadAhead
from storeds.backends.handles import POOL, HandleRef
from storeds.backends.mongodb.client import ClientFactory, ClientOpener, Location, durable, leased_database
from storeds.backends.mongodb.documents import (
    BUILD,
    COUNT,
    DOCUMENTS,
    MEAN_BYTES,
    META,
    META_TEXT,
    NOTE,
    RECORDS,
    TIME,
    WRITER,
    part_ids,
    partials_of,
    parts_from,
    resolve,
    sealed_of,
    to_documents,
)
from storeds.backends.mongodb.retry import on_primary
from storeds.errors import StoredsError, StoreExistsError, UnavailableError, appeared
from storeds.protocols import Array

__all__ = ["MongodbSink"]

_DUPLICATE = 11000
_COMMAND_BYTES = 4 << 20  # larger commands do not fit into CPU caches and are slower
_AHEAD = 2  # commands on their way while the next one is built

T = TypeVar("T")


class MongodbSink:
    """The `storeds.backends.writer.Sink` of ``mongodb://``.

    Each writer fills a collection ``<collection>.partial.<token>`` with a random token of its own. The document `META` of
    that collection holds the note and the number of records that it covers. Resuming renames the collection to the new
    writer's token, and publishing renames it to the target. So a writer that only seemed dead finds its collection gone:
    what it still sends belongs to no store, and its next step fails.

    The majority of nodes acknowledges every write from its journal. Opening waits up to ``serverSelectionTimeoutMS`` for
    a primary. Every later step can be repeated: the sink waits up to ``timeoutMS`` for a new one.

    Parameters
    ----------
    location : Location
    factory : callable, optional
        Creates the client.
    """

    errors: tuple[type[Exception], ...] = ()  # PyMongo's are converted here

    def __init__(self, location: Location, factory: ClientFactory | None) -> None:
        self.url: str = location.url
        self._location = location
        self._ref: HandleRef[Any] = POOL.ref(self, ClientOpener(location, factory))
        self._own = f"{location.collection}.partial.{secrets.token_hex(6)}"
        self._is_begun = False
        self._left: list[str] = []  # collections of other writers
        self._interrupted, self._note = "", b""  # the one of these that can be continued
        self._count = self._bytes = self._parts = 0

    def _on_database(self, operation: Callable[[Any], T]) -> T:
        """Call `operation` with the database and return its result, repeated after transient failures."""
        return on_primary(self._ref, self._location, operation)

    def exists(self) -> bool:
        # docstring inherited
        with leased_database(self._ref, self._location) as database:
            name = self._location.collection
            if name not in database.list_collection_names():
                return False
            if _build_of(durable(database)[name]) is None:
                raise StoreExistsError(
                    f"{self.url} is a collection, but no store, so it is not replaced; drop it yourself"
                )
        return True

    def begin(self) -> bytes | None:
        # docstring inherited
        with leased_database(self._ref, self._location) as database:
            database = durable(database)
            if not self._is_begun:
                self._left = partials_of(self._location.collection, database.list_collection_names())
            names = [self._own] if self._is_begun else self._left
            states = {name: database[name].find_one({"_id": META}, {NOTE: True, COUNT: True}) for name in names}
        complete = {name: state for name, state in states.items() if state is not None and NOTE in state}
        if not complete:
            return None
        self._interrupted = max(complete, key=lambda name: complete[name][COUNT])
        state = complete[self._interrupted]
        self._note, self._count = bytes(state[NOTE]), int(state[COUNT])
        return self._note

    def scan(self) -> Iterator[bytes]:
        # docstring inherited
        self._on_database(self._take_over)
        return self._records()

    def _take_over(self, database: Any) -> None:
        """Make the interrupted write this sink's, as it was when `begin` found it."""
        if self._interrupted in database.list_collection_names():  # otherwise an earlier attempt renamed it
            database[self._interrupted].rename(self._own)
        own = database[self._own]
        self._save(database, self._note, self._count)  # fails if another writer has taken the interrupted write
        own.delete_many({"_id": {"$gte": self._count}})
        own.delete_many(parts_from(self._count))
        self._left = [name for name in self._left if name != self._interrupted]
        self._is_begun = True

    def _records(self) -> Iterator[bytes]:
        with leased_database(self._ref, self._location) as database:
            own = durable(database)[self._own]
            for document in own.find(RECORDS).sort("_id", 1):
                ids = part_ids([document])
                try:
                    resolve(document, {part["_id"]: part for part in own.find({"_id": {"$in": ids}})} if ids else {})
                    sealed = sealed_of(document)
                except (ValueError, TypeError):
                    sealed = b""  # the writer finds that no seal matches it
                self._bytes += len(sealed)
                self._parts += len(ids)
                yield sealed

    def put(self, first: int, packed: Sequence[bytes], note: bytes) -> None:
        # docstring inherited
        if not self._is_begun:
            self._on_database(partial(self._create, note=note))
            self._is_begun = True
        for _ in ReadAhead(self._insert, self._commands(first, packed), _AHEAD):
            pass
        self._count = first + len(packed)
        self._on_database(lambda database: self._save(database, note, self._count))

    def _create(self, database: Any, note: bytes) -> None:
        with suppress(DuplicateKeyError):  # an earlier attempt succeeded
            database[self._own].insert_one({"_id": META, NOTE: note, COUNT: 0, WRITER: _signature(), TIME: _now()})

    def _commands(self, first: int, packed: Sequence[bytes]) -> Iterator[list[dict[str, Any]]]:
        """Yield the documents of packed records, as many at once as fit into a command."""
        some: list[dict[str, Any]] = []
        room = _COMMAND_BYTES
        for position, sealed in enumerate(packed, first):
            self._bytes += len(sealed)
            for document, size in to_documents(position, sealed):
                if some and size > room:
                    yield some
                    some, room = [], _COMMAND_BYTES
                some.append(document)
                room -= size
                self._parts += document["_id"] != position
        if some:
            yield some

    def _insert(self, documents: list[dict[str, Any]]) -> None:
        def insert(database: Any) -> None:
            try:
                database[self._own].insert_many(documents, ordered=False)
            except BulkWriteError as error:
                for each in (*error.details["writeErrors"], *error.details["writeConcernErrors"]):
                    if each.get("code") != _DUPLICATE:  # an earlier attempt inserted it
                        raise OperationFailure(str(each.get("errmsg")), each.get("code"), each) from None

        self._on_database(insert)

    def _save(self, database: Any, note: bytes, count: int) -> None:
        self._update(database, {NOTE: note, COUNT: count, WRITER: _signature()})

    def _update(self, database: Any, values: Mapping[str, Any]) -> None:
        # Never an upsert: the document moved with the collection if another writer took it.
        if not database[self._own].update_one({"_id": META}, {"$set": {**values, TIME: _now()}}).matched_count:
            raise self._lost(database)

    def _lost(self, database: Any) -> StoredsError:
        database[self._own].drop()  # the server created it again for what was sent too late
        return StoredsError(
            f"{self.url}: another writer has taken over or dropped this write, which cannot be continued here; one of them "
            "must end before the other begins"
        )

    def finish(self, columns: Mapping[str, Array], meta: str, *, replace: bool) -> None:
        # docstring inherited
        build = json.loads(meta)["build"]
        mean, documents = -(-self._bytes // max(1, self._count)), self._count + self._parts + 1
        values = {META_TEXT: meta, BUILD: build, MEAN_BYTES: mean, DOCUMENTS: documents}
        self._on_database(lambda database: self._update(database, values))
        self._on_database(self._check_arrived)
        self._on_database(partial(self._rename, build=build, replace=replace))
        with suppress(UnavailableError):  # the store is published; the next writer removes what is left
            self._on_database(partial(self._clean_up, build=build))

    def _check_arrived(self, database: Any) -> None:
        sent = self._count + self._parts
        arrived = sum(database[self._own].count_documents(query) for query in (RECORDS, parts_from(0)))
        if arrived != sent:
            raise StoredsError(f"{self.url}: {sent} documents were sent and {arrived} arrived; nothing was published")

    def _rename(self, database: Any, build: str, *, replace: bool) -> None:
        name = self._location.collection
        try:
            database[self._own].rename(name, dropTarget=replace)
        except OperationFailure:
            collections = database.list_collection_names()
            if _build_of(database[name]) == build:
                return  # an earlier attempt succeeded, but its reply was lost
            if self._own not in collections:
                raise self._lost(database) from None
            if name in collections and not replace:
                raise appeared(self.url) from None
            raise

    def _clean_up(self, database: Any, build: str) -> None:
        surplus = dict.fromkeys((NOTE, COUNT, WRITER), True)
        # Another writer may already have replaced the store.
        database[self._location.collection].update_one({"_id": META, BUILD: build}, {"$unset": surplus})
        for name in self._left:
            database[name].drop()

    def drop(self) -> None:
        # docstring inherited
        # Before the first `put`, what other writers left; after it, what this writer put.
        names = [self._own] if self._is_begun else self._left
        self._on_database(lambda database: [database[name].drop() for name in names])
        self._left, self._is_begun = [], False
        self._count = self._bytes = self._parts = 0

    def close(self) -> None:
        # docstring inherited
        self._ref.release()

    def explain(self, error: Exception) -> str:
        # docstring inherited
        return str(error)


def _build_of(collection: Any) -> str | None:
    found = (collection.find_one({"_id": META}, {BUILD: True}) or {}).get(BUILD)
    return found if isinstance(found, str) else None


def _signature() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, {_now():%Y-%m-%d %H:%M:%S UTC}"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
