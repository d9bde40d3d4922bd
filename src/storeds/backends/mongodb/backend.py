"""The MongoDB engine: a native store is a collection with a document for each record, and one for the meta."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from storeds._utils.locations import StoreURL
from storeds._utils.text import some
from storeds.backends.base import BackendOptions, HandleBackend, parse_options
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.mongodb.client import CLIENTS, ClientFactory, ClientOpener, leased_database, parse_location
from storeds.backends.mongodb.documents import (
    BUILD,
    DOCUMENTS,
    MEAN_BYTES,
    META,
    META_TEXT,
    RECORDS,
    WRITER,
    pack,
    packed_map,
    part_ids,
    partials_of,
    resolve,
    seal_of,
)
from storeds.backends.mongodb.retry import on_database
from storeds.backends.mongodb.sink import MongodbSink
from storeds.errors import FormatError, RecordError, StoredsError, StoreNotFoundError, UnavailableError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.codec import checksum
from storeds.records.columns import column_from_records, column_of, text_offsets
from storeds.records.fields import WRITTEN_BY, meta_from_text
from storeds.records.seals import Seals, check_column

__all__ = ["MongodbBackend"]

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")


def _two_at_once(function: Callable[[P], R], parts: Sequence[P]) -> Iterator[R]:
    """Yield ``function(part)`` for each part in order, two at a time; no call is running when it raises."""
    # One part is decoded while the server sends the other: a batch of 12 MiB takes 0.5 to 0.8 of the time, one of
    # 2.5 MiB 0.6 to 0.9, see benchmarks/reading.py.
    for start in range(0, len(parts), 2):
        try:
            second = [_threads(os.getpid()).submit(function, part) for part in parts[start + 1 : start + 2]]
        except RuntimeError:  # the interpreter is shutting down and accepts no more work
            yield from map(function, parts[start : start + 2])
            continue
        try:
            yield function(parts[start])
        finally:
            wait(running := [each for each in second if not each.cancel()])
        # If no thread was free, this one reads both parts.
        yield from (each.result() for each in running) if running else map(function, parts[start + 1 : start + 2])


# One pool for each process, since a fork copies no threads. The cache has no lock that a fork could copy locked.
@functools.lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "storeds-mongodb")


_THREADS = 4  # shared by all readers of this process
_WORTH_TWO = 512 << 10  # bytes
_REPLY_BYTES = 16 << 20  # the most that a server puts into one reply
_REPLY_DOCUMENTS = 100_000
_PAGE = 65_536  # values of a column


class MongodbBackend(HandleBackend[Any, ClientOpener]):
    """Reads a native MongoDB store.

    Parameters
    ----------
    url : str
        ``mongodb://`` or ``mongodb+srv://``, ``[user:password@]hosts/database/collection[?options]``; every option
        goes to PyMongo.
    client_factory : callable, optional
        Creates the client from PyMongo's part of the URL; must be picklable for spawned workers.

    Raises
    ------
    StoreNotFoundError
        The collection does not exist.
    FormatError
        storeds did not write the collection.
    ConfigError
        The URL is malformed.
    UnavailableError
        No server answers within ``serverSelectionTimeoutMS`` (default 10 s), its name is unknown, or it refuses.

    Notes
    -----
    All backends of a process share one client per URI, created with ``connect=False`` and a pool of two connections.
    A batch is one ``$in`` query by ``_id``; above 512 KiB it is two at once, and above 32 MiB more. A query that fails by a
    failover, a frozen node or a network fault is repeated; after ``timeoutMS`` (default 30 s) it raises UnavailableError.

    Whole records are verified by their seals, and columns by their checksums. Single fields that are neither blobs nor
    arrays are read without the rest of their records, and only their types are verified.
    """

    Options: ClassVar[type[BackendOptions]] = BackendOptions
    shares_open_store = True
    pool: ClassVar[HandlePool[Any]] = CLIENTS

    def __init__(
        self,
        url: str | StoreURL,
        *,
        opened: OpenStore | None = None,
        client_factory: ClientFactory | None = None,
        **options: Any,
    ) -> None:
        parse_options(BackendOptions, {}, options, url)
        super().__init__(ClientOpener(parse_location(url), client_factory))

    def _probe(self, client: Any) -> Meta:
        location = self._opener.location
        with leased_database(self._ref, location) as database:
            found = database[location.collection].find_one({"_id": META})
            text = (found or {}).get(META_TEXT)
            if found is None or not isinstance(text, str):
                raise _no_store(database, location.collection, location.url)
            meta, body = meta_from_text(text, location.url)
            collection = database[location.collection]
            # The server's own count is fast, and may be wrong after a crash.
            is_complete = collection.estimated_document_count() == found.get(DOCUMENTS)
            count = meta.count if is_complete else collection.count_documents(RECORDS)
        if count != meta.count:
            raise FormatError(
                f"{location.url}: {count} documents are there, its meta says {meta.count}; write the store again"
            )
        self._seals = Seals.of(body.get("salt"), meta.count, location.url)
        self._mean_bytes = int(found[MEAN_BYTES])
        return meta

    @staticmethod
    def sink(
        url: str | StoreURL, *, index: Sequence[str] = (), client_factory: ClientFactory | None = None, **options: Any
    ) -> MongodbSink:
        """Return the sink of a native store; `index` names fields to index, for your own queries."""
        parse_options(BackendOptions, {}, options, url)
        return MongodbSink(parse_location(url), index, client_factory)

    def stored_bytes(self) -> int:
        # docstring inherited
        name = self._opener.location.collection
        return self._on_database(lambda database: int(database.command("collStats", name)["size"]))

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        with self._ref.lease() as client:
            options, nodes = client.options, len(client.nodes)
            pool = options.pool_options.max_pool_size
            return {
                "max_pool_size": pool,
                "nodes": nodes,
                # PyMongo monitors each node over one connection and measures round-trip times over another.
                "connections_per_process": pool + 2 * nodes,
                "deadline_s": self._opener.location.deadline,
                "server_selection_timeout_s": options.server_selection_timeout,
                "read_preference": options.read_preference.name,
            }

    def leftovers(self) -> str | None:
        # docstring inherited
        return self._on_database(lambda database: _leftovers(database, self._opener.location.collection))

    def _on_database(self, operation: Callable[[Any], T]) -> T:
        """Call `operation` with the database and return its result, repeated after transient failures."""
        return on_database(self._ref, self._opener.location, operation)

    def _find(
        self, database: Any, query: Any, fields: Iterable[str] | None = None, *, with_build: bool = False
    ) -> dict[Any, dict[str, Any]]:
        """Return ``_id`` → document for a query about ``_id``, by default with all fields.

        Parameters
        ----------
        with_build : bool
            Read the build by the same query, so that it is that of the collection that the documents are from.

        Raises
        ------
        UnavailableError
            The store was replaced.
        """
        projection = None if fields is None else dict.fromkeys((*fields, BUILD), True)
        query = {"$or": [{"_id": query}, {"_id": META}]} if with_build else {"_id": query}
        rows = database[self._opener.location.collection].find(query, projection, batch_size=_REPLY_DOCUMENTS)
        found = {row["_id"]: row for row in rows}
        if with_build:
            self._check_build(found.pop(META, {}))
        return found

    def _check_build(self, found: Mapping[str, Any]) -> None:
        """Raise UnavailableError unless this document of a meta is that of the opened store."""
        if BUILD not in found:
            raise UnavailableError(f"{self.url} was there when it was opened and is gone now")
        if found[BUILD] != self.meta.build:
            raise UnavailableError(f"{self.url} was replaced while in use; open it again")

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        if not self._codec.needs_whole(fields):
            wanted = {name: self.meta.fields[name] for name in fields}
            found = self._on_database(
                lambda database: self._find(database, {"$in": positions}, wanted, with_build=True)
            )
            return [self._values(position, found.get(position), wanted) for position in positions]
        step = max(1, _REPLY_BYTES // max(1, self._mean_bytes))  # so that each query has the whole deadline
        if self._mean_bytes * len(positions) > _WORTH_TWO:
            step = min(step, -(-len(positions) // 2))
        parts = [positions[start : start + step] for start in range(0, len(positions), step)]
        return [*itertools.chain.from_iterable(_two_at_once(self._read_whole, parts))]

    def _read_whole(self, positions: Sequence[int]) -> list[Record | RecordError]:
        records: list[Record | RecordError] = []
        for with_build in (False, True):
            found, parts = self._on_database(partial(self._documents, positions=positions, with_build=with_build))
            records = [self._record(position, found.get(position), parts) for position in positions]
            if not any(isinstance(record, RecordError) for record in records):
                break  # a record is bad only if its store is still the one that was opened
        return records

    def _documents(
        self, database: Any, positions: Sequence[int], *, with_build: bool
    ) -> tuple[dict[Any, dict[str, Any]], dict[Any, dict[str, Any]] | None]:
        """Return position → document, and the parts of their large values, or None if they have none."""
        found = self._find(database, {"$in": positions}, with_build=with_build)
        ids = part_ids(found.values())
        return found, self._find(database, {"$in": ids}, with_build=True) if ids else None

    def _record(
        self, position: int, document: dict[str, Any] | None, parts: Mapping[str, Any] | None
    ) -> Record | RecordError:
        """Return the record of a whole document, or its error."""
        try:
            if document is None:
                raise ValueError("its document is missing from the collection")
            if parts is not None:
                resolve(document, parts)
            record = packed_map(document, self.meta.fields)
            fault = self._seals.fault(seal_of(document), checksum(pack(record)), position)
            if fault is not None:
                raise ValueError(fault)
            return self._codec.revive(record)
        except ValueError as error:
            return self._fault(position, error, document)

    def _values(
        self, position: int, document: Mapping[str, Any] | None, wanted: Mapping[str, Field]
    ) -> Record | RecordError:
        """Return fields that were read without their record, or its error."""
        try:
            if document is None:
                raise ValueError("its document is missing from the collection")
            return self._codec.revive(packed_map(document, wanted))
        except ValueError as error:
            return self._fault(position, error, document)

    def _column(self, name: str, field: Field) -> Array:
        if field.is_blob:
            return column_from_records(self, name)
        values: list[Any] = []
        for start in range(0, self.meta.count, _PAGE):  # pages, so that every query is short and no cursor stays open
            stop = min(start + _PAGE, self.meta.count)
            page = {"$gte": start, "$lt": stop}
            found = self._on_database(partial(self._find, query=page, fields=(name,), with_build=True))
            for position in range(start, stop):
                record = self._values(position, found.get(position), {name: field})
                if isinstance(record, RecordError):
                    raise record
                values.append(record[name])
        column = column_of(field, values)
        checksums = self._on_database(self._column_checksums)
        if field.kind == "str":
            texts = [text.encode() for text in values]
            bounds = np.cumsum([0, *map(len, texts)], dtype="<i8")
            check_column(name, b"".join(texts), checksums.get(name), self.url)
            check_column(text_offsets(name), bounds, checksums.get(text_offsets(name)), self.url)
        else:
            check_column(name, column, checksums.get(name), self.url)
        return column

    def _column_checksums(self, database: Any) -> Mapping[str, Any]:
        found = self._find(database, META, (META_TEXT,)).get(META, {})
        self._check_build(found)
        checksums: Mapping[str, Any] = meta_from_text(found[META_TEXT], self.url)[1]["columns"]
        return checksums


def _no_store(database: Any, name: str, url: str) -> StoredsError:
    """Return the error for a collection that has no meta, or does not exist."""
    names = sorted(database.list_collection_names())
    left = partials_of(name, names)
    begun = f"; {left[0]!r} is an interrupted write; continue it with resume=True (--resume)" if left else ""
    if name in names:
        return FormatError(f"{url} is a collection, but not a native store; {WRITTEN_BY}{begun}")
    files, chunks = ({one.removesuffix(end) for one in names if one.endswith(end)} for end in (".files", ".chunks"))
    buckets = files & chunks
    if name in buckets:
        return FormatError(f"{url} is a GridFS bucket, but not a native store; {WRITTEN_BY}{begun}")
    others = [one for one in names if ".partial." not in one and not one.endswith((".files", ".chunks"))]
    listed = sorted([*others, *(f"{bucket} (GridFS)" for bucket in buckets)])
    found = f"the collections {some(listed, 8)}" if listed else "no collections"
    return StoreNotFoundError(f"no store at {url}: database {database.name!r} has {found}{begun}")


def _leftovers(database: Any, name: str) -> str | None:
    """Describe, in words, the collections that other writers of a store fill, or left."""
    entries = []
    for partial_name in partials_of(name, database.list_collection_names()):
        writer = (database[partial_name].find_one({"_id": META}, {WRITER: True}) or {}).get(WRITER)
        entries.append(f"collection {partial_name}{f' (last written by {writer})' if writer else ''}")
    return ", ".join(entries) or None
