"""The MongoDB engine: a native store is a collection with one document per record, and ``<collection>.meta``."""

from __future__ import annotations

import contextvars
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from storeds._utils.locations import StoreURL
from storeds.backends.base import BackendOptions, HandleBackend, parse_options
from storeds.backends.handles import HandlePool, OpenStore
from storeds.backends.mongodb.client import ClientFactory, parse_location
from storeds.backends.mongodb.collections import stale_parts, values_collection
from storeds.backends.mongodb.documents import DocumentSeals, from_document
from storeds.backends.mongodb.handle import MongodbHandle, MongodbOpener
from storeds.backends.mongodb.lease import live_writer
from storeds.backends.mongodb.retry import shared_deadline, with_retries
from storeds.backends.mongodb.writer import count_documents
from storeds.errors import FormatError, RecordError
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.codec import SEAL, checksum
from storeds.records.columns import column_from_records, column_of

if TYPE_CHECKING:
    from storeds.protocols import Writer

__all__ = ["MongodbBackend", "pipelined"]


P = TypeVar("P")
R = TypeVar("R")

_THREADS = 4  # shared by all readers of this process; each reads one part here and one in its own thread


def pipelined(function: Callable[[P], R], parts: Iterable[P]) -> Iterator[R]:
    """Yield ``function(part)`` for each part in order, two at a time; no call is running when it raises."""
    remaining = iter(parts)
    while pair := list(islice(remaining, 2)):
        if len(pair) == 1:
            yield function(pair[0])
            return
        # One deadline for both: the second may wait for a thread, and must not start a new deadline then.
        with shared_deadline():
            try:
                second = _threads(os.getpid()).submit(contextvars.copy_context().run, function, pair[1])
            except RuntimeError:  # the interpreter is shutting down and accepts no more work
                both = [function(part) for part in pair]
            else:
                try:
                    first = function(pair[0])
                except BaseException:
                    if not second.cancel():
                        second.exception()  # waits
                    raise
                both = [first, second.result()]
        yield from both


@functools.lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    # One pool per process: a fork does not copy threads.
    return ThreadPoolExecutor(_THREADS, "storeds-mongodb")


T = TypeVar("T")

_REPLY_BYTES = 16 << 20  # the most that a server puts into one reply
_WORTH_TWO = 512 << 10  # bytes; a larger batch is read by two queries at once
_SMALL = 256  # approximate bytes of a document without blobs


class MongodbBackend(HandleBackend[MongodbHandle, MongodbOpener]):
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
    A batch is one ``$in`` query by ``_id``, which also detects that the collection was replaced; a batch above 512 KiB
    is two concurrent queries or more. A query that fails by a failover, a frozen node or a network fault is repeated;
    after ``timeoutMS`` (default 30 s) it raises UnavailableError.
    """

    Options: ClassVar[type[BackendOptions]] = BackendOptions
    shares_open_store = True
    pool: ClassVar[HandlePool[MongodbHandle]] = HandlePool(limit=64, quiesce=False)

    _document_bytes: int | None = None  # read when a batch first needs it

    def __init__(
        self,
        url: str | StoreURL,
        *,
        opened: OpenStore | None = None,
        client_factory: ClientFactory | None = None,
        **options: Any,
    ) -> None:
        parse_options(BackendOptions, {}, options, url)
        super().__init__(MongodbOpener(parse_location(url), client_factory))

    def _is_stale(self, handle: MongodbHandle) -> bool:
        with handle.database() as database:
            return not handle.is_current(database)

    def _probe(self, handle: MongodbHandle) -> Meta:
        meta, url = handle.meta, handle.location.url
        with handle.database() as database:
            count = count_documents(database[handle.location.collection], meta.count)
        if count != meta.count:
            raise FormatError(f"{url}: {count} documents are there, its meta says {meta.count}; write the store again")
        return meta

    @staticmethod
    def open_writer(url: str | StoreURL, fields: Mapping[str, Any], **options: Any) -> Writer:
        """Return a `Writer` of a native store; see `storeds.open_writer`."""
        from storeds.backends.mongodb.writer import MongodbWriter

        return MongodbWriter(url, fields, **options)

    def stored_bytes(self) -> int:
        # docstring inherited
        with self._lease() as handle, handle.database() as database:
            name = handle.location.collection
            parts = (name, f"{values_collection(name)}.files", f"{values_collection(name)}.chunks")
            return sum(int(database.command("collStats", part).get("size", 0)) for part in parts)

    def handle_settings(self) -> dict[str, JSON]:
        # docstring inherited
        with self._lease() as handle, handle.ref.lease() as client:
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
            name = handle.location.collection
            return None if live_writer(database, name) else ", ".join(stale_parts(database, name)) or None

    def writer(self) -> str | None:
        # docstring inherited
        with self._lease() as handle, handle.database() as database:
            writing = live_writer(database, handle.location.collection)
            return str(writing) if writing else None

    def _with_retries(self, operation: Callable[[MongodbHandle], T]) -> T:
        """Return the result of `operation`, repeated with a new lease after transient failures."""

        def attempt() -> T:
            with self._lease() as handle:
                return operation(handle)

        return with_retries(self._opener.location, attempt, self._knows_server)

    def _knows_server(self) -> bool:
        with self._ref.lease() as handle:
            return handle.knows_server()

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        whole = self._codec.needs_whole(fields)
        wanted = self.meta.fields if whole else {name: self.meta.fields[name] for name in fields}
        parts = self._parts(positions, blobs=any(field.is_blob for field in wanted.values()))
        return list(itertools.chain.from_iterable(pipelined(lambda part: self._read_part(part, wanted, whole), parts)))

    def _read_part(
        self, positions: Sequence[int], wanted: Mapping[str, Field], whole: bool
    ) -> list[Record | RecordError]:
        return self._found({"_id": {"$in": positions}}, positions, wanted, whole)

    def _found(
        self, query: Mapping[str, Any], positions: Sequence[int], wanted: Mapping[str, Field], whole: bool
    ) -> list[Record | RecordError]:
        def found(handle: MongodbHandle) -> tuple[dict[int, Any], dict[str, bytes], DocumentSeals]:
            return *handle.find(query, None if whole else wanted), handle.seals

        documents, large, seals = self._with_retries(found)
        return [self._record(position, documents.get(position), wanted, large, seals, whole) for position in positions]

    def _parts(self, positions: Sequence[int], *, blobs: bool) -> Iterator[Sequence[int]]:
        """Divide a batch into queries whose reply fits into one message, so that each has the whole deadline.

        A batch above `_WORTH_TWO` becomes at least two queries, which run concurrently.
        """
        size = self._mean_size() if blobs else _SMALL
        step = max(1, _REPLY_BYTES // max(1, size))
        if size * len(positions) > _WORTH_TWO:
            step = min(step, -(-len(positions) // 2))
        for start in range(0, len(positions), step):
            yield positions[start : start + step]

    def _mean_size(self) -> int:
        # Not functools.cached_property: up to Python 3.11 it has a lock, which a fork may copy locked.
        if self._document_bytes is None:
            self._document_bytes = self._with_retries(lambda handle: handle.document_bytes)
        return self._document_bytes

    def _record(
        self,
        position: int,
        document: Any,
        wanted: Mapping[str, Field],
        large: Mapping[str, bytes],
        seals: DocumentSeals,
        whole: bool,
    ) -> Record | RecordError:
        try:
            if document is None:
                raise ValueError("its document is missing from the collection")
            record, seal = from_document(document, wanted, large), document.get(SEAL)
            if whole:
                seals.check_record(seal, checksum(self._codec.pack(record)), position)
            else:
                seals.check_values(seal, record, position)
            return self._codec.revive_stored(record)
        except ValueError as error:
            return self._fault(position, error, document)

    def _column(self, name: str, field: Field) -> Array:
        if field.is_blob:
            return column_from_records(self, name)
        # Read pages, so that every query is short and no cursor stays open.
        values: list[Any] = []
        step = _REPLY_BYTES // _SMALL
        for start in range(0, self.meta.count, step):
            stop = min(start + step, self.meta.count)
            page = {"_id": {"$gte": start, "$lt": stop}}
            for record in self._found(page, range(start, stop), {name: field}, whole=False):
                if isinstance(record, RecordError):
                    raise record
                values.append(record[name])
        return column_of(field, values)
