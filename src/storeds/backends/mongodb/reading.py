"""Reads native MongoDB stores: a collection with a document for each record, and one for the meta."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from storeds._utils.settings import parse_options
from storeds._utils.text import some
from storeds._utils.urls import StoreURL
from storeds.backends.engine import Engine
from storeds.backends.handles import POOL
from storeds.backends.mongodb.client import ClientFactory, ClientOpener, Location, parse_location, pymongo_errors
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
from storeds.backends.mongodb.retry import with_retries
from storeds.backends.mongodb.sink import MongodbSink
from storeds.backends.mongodb.versions import version_collections
from storeds.backends.raw import BackendOptions, Fault, Opener, RawStore, Rows
from storeds.errors import FormatError, RecordError, StoreNotFoundError, UnavailableError
from storeds.protocols import Description, Field, Meta
from storeds.records.codec import FAULT_DIGEST, FAULT_SEAL, SEAL, checksum, encode
from storeds.records.columns import SCALARS
from storeds.records.meta import WRITTEN_BY
from storeds.records.verifier import Verifier, native_meta

__all__ = ["MONGODB", "MongodbOpener"]

POOL.wait_before_forks()

T = TypeVar("T")

_WORTH_TWO = 512 << 10  # bytes
_REPLY_BYTES = 16 << 20  # the most that a server puts into one reply
_REPLY_DOCUMENTS = 100_000
_PAGE = 65_536  # values of a column
_THREADS = 4  # shared by all readers of this process


# One pool for each process, since a fork copies no threads. The cache has no lock that a fork could copy locked.
@functools.lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "storeds-mongodb")


class Found(NamedTuple):
    """What the document of the meta says.

    Attributes
    ----------
    mean_bytes : int
        Of a record. No checksum covers it: it only divides batches into queries, so a store is read without it too.
    documents : Any
        Their number.
    """

    meta: Meta
    verifier: Verifier
    mean_bytes: int
    documents: Any


class MongodbStore(RawStore):
    """A native store in a collection, read through the client of its process.

    A batch is one query by ``_id``; above 512 KiB it is two at once, and above 32 MiB more. A query that fails by a
    failover, a frozen node or a network fault is repeated; after ``timeoutMS`` (default 30 s) it raises UnavailableError.
    """

    reads_fields: ClassVar[bool] = True

    def __init__(self, client: Any, location: Location, found: Found) -> None:
        self._client, self._location, self.found = client, location, found
        self.meta, self.verifier, self._mean_bytes = found.meta, found.verifier, found.mean_bytes

    def _on_database(self, operation: Callable[[Any], T]) -> T:
        """Call `operation` with the database and return its result, repeated after transient failures."""

        def attempt() -> T:
            with pymongo_errors(self._location):
                return operation(self._client[self._location.database])

        return with_retries(self._location, attempt)

    def check(self) -> None:
        # docstring inherited
        with pymongo_errors(self._location):
            count = self._count(self._client[self._location.database])
        if count != self.meta.count:
            raise FormatError(
                f"{self._location.url}: {count} documents are there, its meta says {self.meta.count}; write the store again"
            )

    def _count(self, database: Any) -> int:
        collection = database[self._location.collection]
        # The server's own count is fast, and may be wrong after a crash.
        is_complete = collection.estimated_document_count() == self.found.documents
        return self.meta.count if is_complete else int(collection.count_documents(RECORDS))

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        # docstring inherited
        if fields is not None:
            wanted = {name: self.meta.fields[name] for name in fields}
            return Rows(self._rows(positions, wanted, with_build=True).records)
        middle = len(positions) // 2
        if not middle or self._mean_bytes * len(positions) <= _WORTH_TWO:
            return self._read_whole(positions)
        # One half of a batch is decoded while the server sends the other: a batch of 12 MiB takes 0.5 to 0.8 of the time, one
        # of 2.5 MiB 0.6 to 0.9, see `python -m benchmarks reading`.
        second = _threads(os.getpid()).submit(self._read_whole, positions[middle:])
        try:
            first = self._read_whole(positions[:middle])
            return _joined([first, second.result()])
        finally:
            wait([second])

    def _read_whole(self, positions: Sequence[int]) -> Rows:
        step = max(1, _REPLY_BYTES // max(1, self._mean_bytes))  # so that each query has the whole deadline
        found = []
        for start in range(0, len(positions), step):
            part = positions[start : start + step]
            rows = self._rows(part, self.meta.fields, with_build=False)
            assert self.verifier is not None
            if not self.verifier.seals.match(rows.digests, rows.seals, part):
                # A record is bad only if its store is still the one that was opened.
                rows = self._rows(part, self.meta.fields, with_build=True)
            found.append(rows)
        return found[0] if len(found) == 1 else _joined(found)

    def _rows(self, positions: Sequence[int], wanted: Mapping[str, Field], *, with_build: bool) -> Rows:
        find = partial(self._documents, positions=positions, wanted=wanted, with_build=with_build)
        documents, parts = self._on_database(find)
        maps, digests, seals = list[Any](), list[bytes](), list[bytes]()
        is_whole = len(wanted) == len(self.meta.fields)
        for position in positions:
            try:
                document = documents.get(position)
                if document is None:
                    raise ValueError("its document is missing from the collection")
                if parts is not None:
                    resolve(document, parts)
                record: dict[str, Any] | Fault = packed_map(document, wanted)
                digest, seal = (checksum(encode(record)), seal_of(document)) if is_whole else (b"", b"")
            except (ValueError, TypeError, OverflowError) as error:  # the last two: msgpack has no such type or integer
                key = (document or {}).get("key")
                record, digest, seal = (
                    Fault(str(error), key if isinstance(key, str) else None),
                    FAULT_DIGEST,
                    FAULT_SEAL,
                )
            maps.append(record)
            digests.append(digest)
            seals.append(seal)
        return Rows(maps, b"".join(digests), b"".join(seals))

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
        rows = database[self._location.collection].find(query, projection, batch_size=_REPLY_DOCUMENTS)
        found = {row["_id"]: row for row in rows}
        build = found.pop(META, {}).get(BUILD)
        if with_build and build is None:
            raise UnavailableError(f"{self._location.url} was there when it was opened and is gone now")
        if with_build and build != self.meta.build:
            raise UnavailableError(f"{self._location.url} was replaced while in use; open it again")
        return found

    def column(self, name: str) -> Sequence[Sequence[bytes]]:
        # docstring inherited
        field = self.meta.fields[name]
        values: list[Any] = []
        for start in range(0, self.meta.count, _PAGE):  # pages, so that every query is short and no cursor stays open
            page = range(start, min(start + _PAGE, self.meta.count))
            rows = self._rows(page, {name: field}, with_build=True)
            for position, each in zip(page, rows.records, strict=True):
                if isinstance(each, Fault):
                    raise RecordError.at(self._location.url, position, each.reason, key=each.key)
            values += [record[name] for record in rows.records]
        if field.kind != "str":
            return [[np.array(values, SCALARS[field.kind]).tobytes()]]
        texts = [text.encode() for text in values]
        return [texts, [np.cumsum([0, *map(len, texts)], dtype="<i8").tobytes()]]

    def describe(self) -> Description:
        # docstring inherited
        options, nodes = self._client.options, len(self._client.nodes)
        pool, deadline, name = options.pool_options.max_pool_size, self._location.deadline, self._location.collection
        return Description(
            self._on_database(lambda database: int(database.command("collStats", name)["size"])),
            {
                "max_pool_size": pool,
                "nodes": nodes,
                # PyMongo monitors each node over one connection and measures round-trip times over another.
                "connections_per_process": pool + 2 * nodes,
                "deadline_s": None if deadline == math.inf else deadline,
                "server_selection_timeout_s": options.server_selection_timeout,
                "read_preference": options.read_preference.name,
            },
            leftovers=self._on_database(lambda database: _leftovers(database, name)),
        )


def _joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, in order."""
    records, digests, seals = zip(*parts, strict=True)
    return Rows([record for part in records for record in part], b"".join(digests), b"".join(seals))


@dataclass(frozen=True)
class MongodbOpener(ClientOpener, Opener[Any]):
    """Finds a native store on the server of a client; later processes do not ask for its meta again."""

    found: Found | None = field(default=None, compare=False)

    def attach(self, handle: Any, /) -> MongodbStore:
        return MongodbStore(handle, self.location, self.found or self._find(handle))

    def _find(self, client: Any) -> Found:
        location = self.location
        with pymongo_errors(location):
            database = client[location.database]
            document = _meta_in(database, location.collection, location.url)
        meta, verifier = native_meta(document[META_TEXT], location.url)
        mean = document.get(MEAN_BYTES)
        return Found(meta, verifier, mean if isinstance(mean, int) else 0, document.get(DOCUMENTS))

    def settled(self, raw: MongodbStore, /) -> MongodbOpener:
        return replace(self, found=raw.found)


def _meta_in(database: Any, name: str, url: str) -> Mapping[str, Any]:
    """Return the document with the meta of a native store.

    Raises
    ------
    FormatError
        The collection, or bucket, is another tool's.
    StoreNotFoundError
        Neither exists.
    """
    found: Mapping[str, Any] = database[name].find_one({"_id": META}) or {}
    if isinstance(found.get(META_TEXT), str):
        return found
    names = sorted(database.list_collection_names())
    left = partials_of(name, names)
    begun = f"; {left[0]!r} is an interrupted write; continue it with resume=True (--resume)" if left else ""
    if name in names or _is_bucket(name, names):
        raise FormatError(f"{url} is not a native store; {WRITTEN_BY}{begun}")
    others = [one for one in names if ".partial." not in one]
    shown = f"the collections {some(others, 8)}" if others else "no collections"
    raise StoreNotFoundError(f"no store at {url}: database {database.name!r} has {shown}{begun}")


def _is_bucket(name: str, names: Sequence[str]) -> bool:
    return {f"{name}.files", f"{name}.chunks"} <= set(names)


def _leftovers(database: Any, name: str) -> str | None:
    """Describe, in words, the collections that other writers of a store fill, or left."""
    entries = []
    for partial_name in partials_of(name, database.list_collection_names()):
        writer = (database[partial_name].find_one({"_id": META}, {WRITER: True}) or {}).get(WRITER)
        entries.append(f"collection {partial_name}{f' (last written by {writer})' if writer else ''}")
    return ", ".join(entries) or None


def _opener(url: str | StoreURL, *, client_factory: ClientFactory | None = None, **options: Any) -> MongodbOpener:
    parse_options(BackendOptions, {}, options, url)
    return MongodbOpener(parse_location(url), client_factory)


def _sink(url: str | StoreURL, **options: Any) -> MongodbSink:
    opener = _opener(url, **options)
    return MongodbSink(opener.location, opener.factory)


def holds_foreign(url: StoreURL, options: Mapping[str, Any]) -> bool:
    """Return whether a collection or a bucket of another tool is there. Raises UnavailableError and ConfigError."""
    opener = MongodbOpener(parse_location(url), options.get("client_factory"))
    location = opener.location
    with POOL.leased(opener) as client, pymongo_errors(location):
        collection = client[location.database][location.collection]
        found = list(collection.find({"_id": META}, limit=1)) or list(collection.find(RECORDS, limit=1))
        if found:
            return META_TEXT not in found[0] and SEAL not in found[0]  # a store may have lost its meta
        names = client[location.database].list_collection_names()
        return location.collection in names or _is_bucket(location.collection, names)


MONGODB = Engine(_opener, _sink, holds_foreign, versions=version_collections)
"""The engine of ``mongodb://``.

A URL is ``[user:password@]hosts/database/collection[?options]``; every option goes to PyMongo. The keyword ``client_factory``
creates the client from PyMongo's part of the URL; it must be picklable for spawned workers. All stores of a process share one
client per URI, created with ``connect=False`` and a pool of two connections.
"""
