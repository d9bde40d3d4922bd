"""The MongoDB engine: a native store is one collection with a document a record, its meta in ``<collection>.meta``."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pymongo.errors import OperationFailure

from storeds._columns import column_of
from storeds._handles import HandlePool, Ticket
from storeds._meta import meta_from_row
from storeds.backends._mongodb_client import (
    CLIENTS,
    ClientFactory,
    ClientOpener,
    Location,
    parse_location,
    pymongo_errors,
)
from storeds.backends._mongodb_documents import from_document, references
from storeds.backends.base import BackendOptions, HandleBackend, check_where, parse_options
from storeds.errors import FormatError, RecordError, StoreNotFoundError, UnavailableError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.record import CHECKSUM, checksum

if TYPE_CHECKING:
    from storeds.protocols import Writer

__all__ = ["MongodbBackend", "identity_of", "meta_collection", "partial_collection", "values_collection"]

_BATCH_SIZE = 100_000  # the server ends its first reply at 16 MiB anyway
_OTHER_UUID = 361  # CollectionUUIDMismatch
_NO_UUID = (40415, 323)  # an unknown field, before MongoDB 6.0; refused by a strict Stable API


def meta_collection(name: str) -> str:
    """Return the collection that holds the meta of collection `name`."""
    return f"{name}.meta"


def values_collection(name: str) -> str:
    """Return the GridFS bucket that holds the large values of collection `name`."""
    return f"{name}.values"


def partial_collection(name: str) -> str:
    """Return the collection in which a writer builds collection `name`."""
    return f"{name}.partial"


def identity_of(database: Any, name: str) -> Any:
    """Return what tells this collection from a later one of the same name, or None when it does not exist.

    That is its UUID, which a rename carries along. A server without UUIDs (mongomock) gives its name instead.
    """
    try:
        listed = list(database.list_collections(filter={"name": name}))
    except NotImplementedError:
        return f"name:{name}" if name in database.list_collection_names() else None
    if not listed:
        return None
    return listed[0]["info"].get("uuid", f"name:{name}")  # a view has none


class MongodbHandle:
    """A claim on the process's client for a URI, and what the collection says about itself."""

    def __init__(self, opener: MongodbOpener) -> None:
        self.location = opener.location
        self.checks_uuid = (
            opener.factory is None
        )  # a factory may make a client that knows no commands, as mongomock does
        self.ticket: Ticket[Any] = CLIENTS.ticket(
            self, ClientOpener(opener.location.uri, opener.location.url, opener.factory)
        )
        try:
            with self.database() as database:
                self.identity, self.meta = self._find_meta(database)
        except BaseException:
            self.ticket.close()
            raise

    @contextmanager
    def database(self) -> Iterator[Any]:
        """Lease the client and give its database; PyMongo's exceptions leave as ours."""
        with self.ticket.lease() as client, pymongo_errors(self.location):
            yield client[self.location.database]

    def find(self, query: Mapping[str, Any], fields: Iterable[str] | None) -> tuple[dict[int, Any], dict[str, bytes]]:
        """Return position → document and the large values they refer to; all fields where `fields` is None.

        Raises UnavailableError if the collection is another than the one that was opened. The server itself makes
        sure, in the same round trip: a find may name the UUID that it expects (MongoDB 6.0 and later).
        """
        name = self.location.collection
        command = {"find": name, "filter": query, "batchSize": _BATCH_SIZE}
        if fields is not None:
            command["projection"] = dict.fromkeys(("_id", *fields), True)
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
        """Return what is found, or None if the server cannot compare UUIDs."""
        guarded = {**command, "collectionUUID": self.identity}
        try:
            return list(database.cursor_command(guarded, read_preference=database.read_preference))
        except OperationFailure as error:
            if error.code == _OTHER_UUID:
                raise self._replaced() from error
            if error.code in _NO_UUID:
                return None
            raise

    def _replaced(self) -> UnavailableError:
        return UnavailableError(f"{self.location.url} was replaced or dropped while in use; open it again")

    def is_current(self, database: Any) -> bool:
        """Whether the collection is still the one that was opened."""
        name = self.location.collection
        row = database[meta_collection(name)].find_one({"_id": self.identity}) or {}
        # The build is for a server without UUIDs.
        return identity_of(database, name) == self.identity and row.get("build") == self.meta.build

    def _find_meta(self, database: Any) -> tuple[Any, Meta]:
        name, url = self.location.collection, self.location.url
        identity = identity_of(database, name)
        if identity is None:
            left = identity_of(database, partial_collection(name)) is not None
            begun = (
                f"; {partial_collection(name)!r} is what an interrupted writer left: go on with resume=True (--resume)"
            )
            raise StoreNotFoundError(f"no store at {url}: {_existing(database)}{begun if left else ''}")
        row = database[meta_collection(name)].find_one({"_id": identity})
        if row is None or "layout" not in row:
            raise FormatError(
                f"{url} is a collection, but no native store: {meta_collection(name)} has no entry for it; "
                "native stores are written by storeds.open_writer, `storeds pack` or `storeds convert`"
            )
        return identity, meta_from_row(row, url)


def _existing(database: Any) -> str:
    names = sorted(
        name for name in database.list_collection_names() if not name.endswith((".meta", ".chunks", ".files"))
    )
    shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
    return (
        f"database {database.name!r} has the collections {shown}"
        if names
        else f"database {database.name!r} has no collections"
    )


@dataclass(frozen=True)
class MongodbOpener:
    """Finds one collection's meta through the process's client for its URI."""

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
        handle.ticket.close()

    def disown(self, handle: MongodbHandle, /) -> None:
        pass  # the client itself is disowned by its own pool


class MongodbBackend(HandleBackend[MongodbHandle, MongodbOpener]):
    """Reads a native MongoDB store.

    Parameters
    ----------
    url : str
        ``mongodb://`` or ``mongodb+srv://``, ``[user:password@]hosts/database/collection[?options]``; every option
        goes to PyMongo.
    client_factory : callable, optional
        Makes the client from PyMongo's part of the URL; must be picklable for workers that are spawned.

    Raises
    ------
    StoreNotFoundError, FormatError, ConfigError, UnavailableError
        No such collection; not written by storeds; a malformed URL; no server within ``serverSelectionTimeoutMS``
        (10 s unless given), or it refuses.

    Notes
    -----
    One client a process and URI, made with ``connect=False`` and a pool of two, whatever the number of backends.
    A batch is one ``$in`` query by ``_id``, which also tells whether the collection was replaced meanwhile.
    """

    Options: ClassVar[type[BackendOptions]] = BackendOptions
    pool: ClassVar[HandlePool[MongodbHandle]] = HandlePool(limit=64, quiesce=False)

    def __init__(self, url: str, *, client_factory: ClientFactory | None = None, **options: Any) -> None:
        parse_options(BackendOptions, {}, options, url)
        super().__init__(MongodbOpener(parse_location(url), client_factory))

    def _is_stale(self, handle: MongodbHandle) -> bool:
        with handle.database() as database:
            return not handle.is_current(database)

    def _probe(self, handle: MongodbHandle) -> Meta:
        meta, url = handle.meta, handle.location.url
        with handle.database() as database:
            collection = database[handle.location.collection]
            count = collection.estimated_document_count()
            if count != meta.count:
                count = collection.count_documents({})  # the estimate may be off after a crash
        if count != meta.count:
            raise FormatError(f"{url}: {count} documents are there, its meta says {meta.count}; write the store again")
        return meta

    @staticmethod
    def open_writer(url: str, fields: Mapping[str, Any], **options: Any) -> Writer:
        """Return a `Writer` of a native store; see `storeds.open_writer`."""
        from storeds.backends._mongodb_writer import MongodbWriter

        return MongodbWriter(url, fields, **options)

    def stored_bytes(self) -> int:
        # docstring inherited
        with self._lease() as handle, handle.database() as database:
            name = handle.location.collection
            parts = (name, f"{values_collection(name)}.files", f"{values_collection(name)}.chunks")
            return sum(int(database.command("collStats", part).get("size", 0)) for part in parts)

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        with self._lease() as handle, handle.ticket.lease() as client:
            options = client.options
            return {
                "max_pool_size": options.pool_options.max_pool_size,
                "server_selection_timeout_s": options.server_selection_timeout,
                "read_preference": options.read_preference.name,
                "checks_uuid": handle.checks_uuid,
            }

    def advice(self) -> list[str]:
        # docstring inherited
        with self._lease() as handle:
            if handle.checks_uuid:
                return []
        return [
            "the server cannot compare collection UUIDs (older than MongoDB 6.0?): every batch costs two more round trips"
        ]

    def leftovers(self) -> str | None:
        # docstring inherited
        with self._lease() as handle, handle.database() as database:
            partial = partial_collection(handle.location.collection)
            return f"collection {partial}" if identity_of(database, partial) is not None else None

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        whole = self._codec.needs_whole(fields)
        wanted = self.meta.fields if whole else {name: self.meta.fields[name] for name in fields}
        with self._lease() as handle:
            documents, large = handle.find({"_id": {"$in": positions}}, None if whole else fields)
        return [self._record(position, documents.get(position), wanted, large, whole) for position in positions]

    def _record(
        self, position: int, document: Any, wanted: Mapping[str, Field], large: Mapping[str, bytes], whole: bool
    ) -> Record | RecordError:
        try:
            if document is None:
                raise ValueError("its document is missing from the collection")
            record = from_document(document, wanted, large)
            if whole and checksum(self._codec.pack(record)) != bytes(document.get(CHECKSUM, b"")):
                raise ValueError("its checksum does not match its values")
            return self._codec.revive_stored(record)
        except ValueError as error:
            return self._fault(position, error, document)

    def _column(self, name: str, field: Field) -> Array:
        # Pages keep every query short, so that no cursor lives on between them.
        step = 256 if field.is_blob else 50_000
        values: list[Any] = []
        for start in range(0, self.meta.count, step):
            for record in self._page(name, field, start, min(start + step, self.meta.count)):
                if isinstance(record, RecordError):
                    raise record
                values.append(record[name])
        return column_of(field, values)

    def _page(self, name: str, field: Field, start: int, stop: int) -> list[Record | RecordError]:
        with self._lease() as handle:
            found, large = handle.find({"_id": {"$gte": start, "$lt": stop}}, (name,))
        return [self._record(at, found.get(at), {name: field}, large, whole=False) for at in range(start, stop)]

    def select(self, where: Mapping[str, Any], /) -> Array:
        # docstring inherited
        accepted = check_where(where, self.meta.fields, self.url)
        query = {name: {"$in": values} for name, values in accepted.items()}
        with self._lease() as handle:
            found, _ = handle.find(query, ())
        return np.array(sorted(found), np.int64)


def _read_large(database: Any, name: str, ids: list[str]) -> dict[str, bytes]:
    """Return GridFS id → bytes, all files in one query."""
    if not ids:
        return {}
    parts: dict[str, list[bytes]] = {}
    chunks = database[f"{values_collection(name)}.chunks"]
    for chunk in chunks.find({"files_id": {"$in": ids}}).sort([("files_id", 1), ("n", 1)]):
        parts.setdefault(chunk["files_id"], []).append(chunk["data"])
    return {id: b"".join(data) for id, data in parts.items()}
