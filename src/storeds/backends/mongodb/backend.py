"""The MongoDB engine: a native store is a collection with a document for each record, and one for the meta."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from storeds._utils.settings import parse_options
from storeds._utils.text import some
from storeds._utils.urls import StoreURL
from storeds.backends.base import BackendOptions, HandleBackend
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
from storeds.records.codec import Seals, check_column, checksum, encode
from storeds.records.columns import column_from_records, column_of, text_offsets
from storeds.records.meta import WRITTEN_BY, meta_from_text

__all__ = ["MongodbBackend"]

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")

_WORTH_TWO = 512 << 10  # bytes
_REPLY_BYTES = 16 << 20  # the most that a server puts into one reply
_REPLY_DOCUMENTS = 100_000
_PAGE = 65_536  # values of a column
_THREADS = 4  # shared by all readers of this process


def _start(function: Callable[[P], R], part: P) -> Future[R]:
    """Call ``function(part)`` in a thread."""
    # One half of a batch is decoded while the server sends the other: a batch of 12 MiB takes 0.5 to 0.8 of the time, one of
    # 2.5 MiB 0.6 to 0.9, see `python -m benchmarks reading`.
    try:
        return _threads(os.getpid()).submit(function, part)
    except RuntimeError:  # the interpreter is shutting down and accepts no more work
        done: Future[R] = Future()
        done.set_result(function(part))
        return done


# One pool for each process, since a fork copies no threads. The cache has no lock that a fork could copy locked.
@functools.lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "storeds-mongodb")


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
    A batch is one query by ``_id``; above 512 KiB it is two at once, and above 32 MiB more. A query that fails by a
    failover, a frozen node or a network fault is repeated; after ``timeoutMS`` (default 30 s) it raises UnavailableError.

    Whole records are verified by their seals, and columns by their checksums. `get_many` of numbers and texts reads these
    alone, after it has compared their columns with their checksums, once for each opened store. Every other request reads
    whole records.
    """

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
        self._intact: dict[str, bool] = {}

    def _probe(self, client: Any) -> Meta:
        location = self._opener.location
        with leased_database(self._ref, location) as database:
            collection = database[location.collection]
            found = collection.find_one({"_id": META}) or {}
            if not isinstance(found.get(META_TEXT), str):
                raise _no_store(database, location.collection, location.url)
            meta, body = meta_from_text(found[META_TEXT], location.url)
            # The server's own count is fast, and may be wrong after a crash.
            is_complete = collection.estimated_document_count() == found.get(DOCUMENTS)
            count = meta.count if is_complete else collection.count_documents(RECORDS)
        if count != meta.count:
            raise FormatError(
                f"{location.url}: {count} documents are there, its meta says {meta.count}; write the store again"
            )
        self._seals = Seals.of(body.get("salt"), meta.count, location.url)
        # No checksum covers the mean. It only divides batches into queries, so a store is read without it too.
        mean = found.get(MEAN_BYTES)
        self._mean_bytes, self._checksums = mean if isinstance(mean, int) else 0, body.get("columns", {})
        return meta

    @staticmethod
    def sink(url: str | StoreURL, *, client_factory: ClientFactory | None = None, **options: Any) -> MongodbSink:
        """Return the sink of a native store."""
        parse_options(BackendOptions, {}, options, url)
        return MongodbSink(parse_location(url), client_factory)

    def stored_bytes(self) -> int:
        # docstring inherited
        name = self._opener.location.collection
        return self._on_database(lambda database: int(database.command("collStats", name)["size"]))

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        with self._ref.lease() as client:
            options, nodes = client.options, len(client.nodes)
            pool, deadline = options.pool_options.max_pool_size, self._opener.location.deadline
            return {
                "max_pool_size": pool,
                "nodes": nodes,
                # PyMongo monitors each node over one connection and measures round-trip times over another.
                "connections_per_process": pool + 2 * nodes,
                "deadline_s": None if deadline == math.inf else deadline,
                "server_selection_timeout_s": options.server_selection_timeout,
                "read_preference": options.read_preference.name,
            }

    def leftovers(self) -> str | None:
        # docstring inherited
        return self._on_database(lambda database: _leftovers(database, self._opener.location.collection))

    def _on_database(self, operation: Callable[[Any], T]) -> T:
        """Call `operation` with the database and return its result, repeated after transient failures."""
        return on_database(self._ref, self._opener.location, operation)

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        if not self._codec.needs_whole(fields) and all(map(self._is_intact, fields)):
            return self._records(positions, {name: self.meta.fields[name] for name in fields}, with_build=True)
        middle = len(positions) // 2
        if not middle or self._mean_bytes * len(positions) <= _WORTH_TWO:
            return self._read_whole(positions)
        second = _start(self._read_whole, positions[middle:])
        try:
            return self._read_whole(positions[:middle]) + second.result()
        finally:
            wait([second])

    def _is_intact(self, name: str) -> bool:
        """Whether a field can be read without its records, since its column matches its checksum."""
        if name not in self._intact:
            try:
                self._intact[name] = name in self._checksums and self._column(name, self.meta.fields[name]) is not None
            except (RecordError, FormatError):
                self._intact[name] = False  # whole records show which one is bad
        return self._intact[name]

    def _read_whole(self, positions: Sequence[int]) -> list[Record | RecordError]:
        step = max(1, _REPLY_BYTES // max(1, self._mean_bytes))  # so that each query has the whole deadline
        found: list[Record | RecordError] = []
        for start in range(0, len(positions), step):
            part = positions[start : start + step]
            records = self._records(part, self.meta.fields, with_build=False)
            if any(isinstance(record, RecordError) for record in records):
                # A record is bad only if its store is still the one that was opened.
                records = self._records(part, self.meta.fields, with_build=True)
            found += records
        return found

    def _records(
        self, positions: Sequence[int], wanted: Mapping[str, Field], *, with_build: bool
    ) -> list[Record | RecordError]:
        find = partial(self._documents, positions=positions, wanted=wanted, with_build=with_build)
        found, parts = self._on_database(find)
        return [self._record(position, found.get(position), wanted, parts) for position in positions]

    def _documents(
        self, database: Any, positions: Sequence[int], wanted: Mapping[str, Field], *, with_build: bool
    ) -> tuple[dict[Any, Any], dict[Any, Any] | None]:
        """Return position → document, and the parts of their large values, or None if they have none."""
        is_range = len(positions) == positions[-1] - positions[0] + 1
        ids = {"$gte": positions[0], "$lte": positions[-1]} if is_range else {"$in": positions}
        projection = None if len(wanted) == len(self.meta.fields) else dict.fromkeys((*wanted, BUILD), True)
        found = self._find(database, ids, projection, with_build=with_build)
        large = part_ids(found.values())
        return found, self._find(database, {"$in": large}, with_build=True) if large else None

    def _find(
        self, database: Any, ids: Any, projection: Mapping[str, bool] | None = None, *, with_build: bool
    ) -> dict[Any, Any]:
        """Return ``_id`` → document.

        `with_build` reads the build by the same query, so that it is that of the collection that the documents are from.
        UnavailableError is raised if it is not that of the opened store.
        """
        query = {"$or": [{"_id": ids}, {"_id": META}]} if with_build else {"_id": ids}
        rows = database[self._opener.location.collection].find(query, projection, batch_size=_REPLY_DOCUMENTS)
        found = {row["_id"]: row for row in rows}
        build = found.pop(META, {}).get(BUILD)
        if with_build and build is None:
            raise UnavailableError(f"{self.url} was there when it was opened and is gone now")
        if with_build and build != self.meta.build:
            raise UnavailableError(f"{self.url} was replaced while in use; open it again")
        return found

    def _record(
        self, position: int, document: Any, wanted: Mapping[str, Field], parts: Mapping[Any, Any] | None
    ) -> Record | RecordError:
        """Return the record of a document, or its error."""
        try:
            if document is None:
                raise ValueError("its document is missing from the collection")
            if parts is not None:
                resolve(document, parts)
            record = packed_map(document, wanted)
            if len(wanted) == len(self.meta.fields):
                fault = self._seals.fault(seal_of(document), checksum(encode(record)), position)
                if fault is not None:
                    raise ValueError(fault)
            return self._codec.to_user_values(record)
        except (ValueError, TypeError, OverflowError) as error:  # the last two: msgpack has no such type or integer
            return self._fault(position, error, document)

    def _column(self, name: str, field: Field) -> Array:
        if field.is_blob:
            return column_from_records(self, name)
        values: list[Any] = []
        for start in range(0, self.meta.count, _PAGE):  # pages, so that every query is short and no cursor stays open
            page = range(start, min(start + _PAGE, self.meta.count))
            for record in self._records(page, {name: field}, with_build=True):
                if isinstance(record, RecordError):
                    raise record
                values.append(record[name])
        column = column_of(field, values)
        stored: dict[str, Any] = {name: column}
        if field.kind == "str":
            texts = [text.encode() for text in values]
            bounds = np.cumsum([0, *map(len, texts)], dtype="<i8")
            stored = {name: b"".join(texts), text_offsets(name): bounds}
        for part, data in stored.items():
            check_column(part, data, self._checksums.get(part), self.url)
        return column


def _no_store(database: Any, name: str, url: str) -> StoredsError:
    """Return the error for a collection that has no meta, or does not exist."""
    names = sorted(database.list_collection_names())
    left = partials_of(name, names)
    begun = f"; {left[0]!r} is an interrupted write; continue it with resume=True (--resume)" if left else ""
    is_bucket = {f"{name}.files", f"{name}.chunks"} <= set(names)
    if name in names or is_bucket:
        what = "GridFS bucket" if is_bucket else "collection"
        return FormatError(f"{url} is a {what}, but not a native store; {WRITTEN_BY}{begun}")
    others = [one for one in names if ".partial." not in one]
    found = f"the collections {some(others, 8)}" if others else "no collections"
    return StoreNotFoundError(f"no store at {url}: database {database.name!r} has {found}{begun}")


def _leftovers(database: Any, name: str) -> str | None:
    """Describe, in words, the collections that other writers of a store fill, or left."""
    entries = []
    for partial_name in partials_of(name, database.list_collection_names()):
        writer = (database[partial_name].find_one({"_id": META}, {WRITER: True}) or {}).get(WRITER)
        entries.append(f"collection {partial_name}{f' (last written by {writer})' if writer else ''}")
    return ", ".join(entries) or None
