"""The reader's handle on one collection: its identity, its meta, and queries that fail if it was replaced."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pymongo.errors import OperationFailure

from storeds._utils.text import some
from storeds.backends.handles import HandleRef
from storeds.backends.mongodb.client import (
    CLIENTS,
    ClientFactory,
    ClientOpener,
    Location,
    knows_server,
    leased_database,
)
from storeds.backends.mongodb.collections import (
    buckets_of,
    find_partial,
    identity_of,
    meta_collection,
    values_collection,
)
from storeds.backends.mongodb.documents import GUESSED_BYTES, DocumentSeals, references
from storeds.backends.mongodb.lease import live_writer
from storeds.errors import FormatError, StoredsError, StoreNotFoundError, UnavailableError
from storeds.protocols import Meta
from storeds.records.codec import SEAL, Places
from storeds.records.fields import WRITTEN_BY, meta_from_row

__all__ = ["NO_UUID", "MongodbHandle", "MongodbOpener", "guarded_find", "is_other_collection"]


_BATCH_SIZE = 100_000  # the server limits a reply to 16 MiB anyway
_OTHER_UUID = 361  # CollectionUUIDMismatch
NO_UUID = (40415, 323)  # unknown field, before MongoDB 6.0; not allowed by the strict Stable API


def guarded_find(database: Any, command: Mapping[str, Any], identity: Any) -> Any:
    """Run a ``find`` command and return its cursor, or None if the server cannot compare UUIDs.

    Parameters
    ----------
    identity : optional
        The UUID of the opened collection, which the server compares in the same round trip (MongoDB 6.0 and later).
        None skips the comparison.

    Raises
    ------
    OperationFailure
        The command fails; `is_other_collection` says whether the collection was replaced.
    """
    guarded = {**command, "batchSize": _BATCH_SIZE}
    if identity is not None:
        guarded["collectionUUID"] = identity
    if database.read_concern.level is not None:  # PyMongo adds it only to its own commands
        guarded["readConcern"] = database.read_concern.document
    try:
        return database.cursor_command(guarded, read_preference=database.read_preference)
    except OperationFailure as error:
        if error.code in NO_UUID:
            return None
        raise


def is_other_collection(error: OperationFailure) -> bool:
    """Whether a collection was replaced since it was opened."""
    return error.code == _OTHER_UUID


@dataclass(frozen=True)
class _Facts:
    identity: Any
    meta: Meta
    seals: DocumentSeals
    document_bytes: int


class MongodbHandle:
    """A reference to the process's client for a URI, and the collection's meta. Thread-safe.

    The meta is read on first use, not while the handle pool is locked.
    """

    def __init__(self, opener: MongodbOpener) -> None:
        self.location: Location = opener.location
        # A factory may return a client without commands, such as mongomock's.
        self.checks_uuid: bool = opener.factory is None
        self.ref: HandleRef[Any] = CLIENTS.ref(
            self, ClientOpener(opener.location.uri, opener.location.url, opener.factory)
        )
        self._found: _Facts | None = None
        self._finding = threading.Lock()

    @property
    def meta(self) -> Meta:
        """The meta of the collection when it was first read."""
        return self._facts.meta

    @property
    def identity(self) -> Any:
        """The collection's identity; see `identity_of`."""
        return self._facts.identity

    @property
    def seals(self) -> DocumentSeals:
        """Verifies that documents belong to this collection."""
        return self._facts.seals

    @property
    def document_bytes(self) -> int:
        """The mean size of a document."""
        return self._facts.document_bytes

    @property
    def _facts(self) -> _Facts:
        with self._finding:
            if self._found is None:
                self._found = self._find_facts()
            return self._found

    def knows_server(self) -> bool:
        """Whether the client has found a server to read from."""
        with self.ref.lease() as client:
            return knows_server(client)

    @contextmanager
    def database(self) -> Iterator[Any]:
        """Lease the client and yield its database; converts PyMongo's exceptions to ours."""
        with leased_database(self.ref, self.location) as database:
            yield database

    def find(self, query: Mapping[str, Any], fields: Iterable[str] | None) -> tuple[dict[int, Any], dict[str, bytes]]:
        """Return position → document with its seal, and the large values they refer to; by default all fields.

        Raises UnavailableError if the collection was replaced. From MongoDB 6.0 on, the server checks this in the same
        round trip, because the command names the expected UUID.
        """
        name = self.location.collection
        command: dict[str, Any] = {"find": name, "filter": query}
        if fields is not None:
            command["projection"] = dict.fromkeys(("_id", *fields, SEAL), True)
        with self.database() as database:
            found = self._find_guarded(database, command) if self.checks_uuid else None
            if found is None:
                self.checks_uuid = False
                found = list(database[name].find(query, command.get("projection")))
                if not self.is_current(database):
                    raise self._replaced()
            documents = {row["_id"]: row for row in found}
            return documents, _read_large(database, name, references(found))

    def _find_guarded(self, database: Any, command: Mapping[str, Any]) -> list[Any] | None:
        """Return the matching documents, or None if the server cannot compare UUIDs."""
        try:
            cursor = guarded_find(database, command, self.identity)
            return None if cursor is None else list(cursor)
        except OperationFailure as error:
            if is_other_collection(error):
                raise self._replaced() from error
            raise

    def _replaced(self) -> UnavailableError:
        return UnavailableError(f"{self.location.url} was replaced or dropped while in use; open it again")

    def is_current(self, database: Any) -> bool:
        """Whether the collection is still the one that was opened."""
        name = self.location.collection
        row = database[meta_collection(name)].find_one({"_id": self.identity}) or {}
        # Compare the build for servers without UUIDs.
        return identity_of(database, name) == self.identity and row.get("build") == self.meta.build

    def _find_facts(self) -> _Facts:
        name, url = self.location.collection, self.location.url
        with self.database() as database:
            identity = identity_of(database, name)
            if identity is None:
                raise _absent(database, name, url)
            row = database[meta_collection(name)].find_one({"_id": identity})
        if row is None or "layout" not in row:
            raise FormatError(
                f"{url} is a collection, but not a native store: {meta_collection(name)} has no entry for it; {WRITTEN_BY}"
            )
        meta, body = meta_from_row(row, ("salt",), url)
        seals = DocumentSeals(meta.fields, Places.of(body["salt"], meta.count, url))
        return _Facts(identity, meta, seals, int(row.get("document_bytes", GUESSED_BYTES)))


def _absent(database: Any, name: str, url: str) -> StoredsError:
    """Return the error for a collection that does not exist."""
    collections, begun = database.list_collection_names(), _begun(database, name)
    if name in buckets_of(collections):
        return FormatError(f"{url} is a GridFS bucket, but not a native store; {WRITTEN_BY}{begun}")
    return StoreNotFoundError(f"no store at {url}: {_existing(database.name, collections)}{begun}")


def _begun(database: Any, name: str) -> str:
    writing = live_writer(database, name)
    if writing is not None:
        return f"; it is being written by {writing}"
    left = find_partial(database, name)
    if left is None:
        return ""
    return f"; {left.collection!r} is an interrupted write; continue it with resume=True (--resume)"


def _existing(database: str, collections: Collection[str]) -> str:
    plain = (name for name in collections if not name.endswith((".meta", ".chunks", ".files")))
    names = sorted([*plain, *(f"{bucket} (GridFS)" for bucket in buckets_of(collections))])
    return f"database {database!r} has {f'the collections {some(names, 8)}' if names else 'no collections'}"


def _read_large(database: Any, name: str, ids: list[str]) -> dict[str, bytes]:
    """Return GridFS id → bytes, read in one query."""
    if not ids:
        return {}
    parts: dict[str, list[bytes]] = {}
    chunks = database[f"{values_collection(name)}.chunks"]
    for chunk in chunks.find({"files_id": {"$in": ids}}).sort([("files_id", 1), ("n", 1)]):
        parts.setdefault(chunk["files_id"], []).append(chunk["data"])
    return {id: b"".join(data) for id, data in parts.items()}


@dataclass(frozen=True)
class MongodbOpener:
    """Opens the handle of one collection on the process's client for its URI."""

    location: Location
    factory: ClientFactory | None = None

    @property
    def url(self) -> str:
        return self.location.url

    def key(self) -> Hashable:
        return self.location.uri, self.location.collection, self.factory

    def options(self) -> Hashable:
        return None

    def open(self) -> MongodbHandle:
        return MongodbHandle(self)

    def close(self, handle: MongodbHandle, /) -> None:
        handle.ref.close()

    def abandon_after_fork(self, handle: MongodbHandle, /) -> None:
        pass  # the pool of clients abandons the client itself
