"""The base of foreign MongoDB layouts: a connection, ids that are resolved once and kept packed, batches read by ``_id``."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import xxhash
from pymongo.errors import OperationFailure

from storeds._utils.locations import redact
from storeds._utils.text import counted
from storeds.backends.base import BackendOptions, StoreBackend, bounded, parse_options
from storeds.backends.handles import HandleRef
from storeds.backends.mongodb.client import (
    CLIENTS,
    ClientFactory,
    ClientOpener,
    Location,
    leased_database,
    parse_location,
)
from storeds.backends.mongodb.retry import with_retries
from storeds.backends.readings import shown_value
from storeds.errors import ClosedError, ConfigError, RecordError, StoreNotFoundError, UnavailableError, suggest
from storeds.layouts.embedded import evenly
from storeds.layouts.mongodb.packing import Packed, id_of, key_of, pack_table, unpack_table
from storeds.layouts.mongodb.values import Column, infer, paths_of, projection_of
from storeds.protocols import Array, Field, Meta, Record
from storeds.records.columns import column_of, index_path, load_index, save_index
from storeds.records.fields import Count, canonical_json, fields_to_json

__all__ = [
    "Connection",
    "MongodbLayout",
    "batches",
    "listed",
]


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


# A command may have 48 MB and a document of it, an `$in` included, 16 MiB.
_BATCH_BYTES = 8 << 20
_SAMPLE = 16  # documents from which fields are inferred
_SHOWN = 10

_LOOP = """\
import pymongo, storeds

documents = pymongo.MongoClient({uri!r})[{database!r}][{collection!r}]
with storeds.open_writer({target!r}, {{"key": "str", "data": "{kind}"}}) as writer:
    for document in documents.find().sort("_id", 1):
        record = {{"key": str(document["_id"]), "data": {taken}}}  # put the content of the document here
        writer.append([record])"""

Opts = TypeVar("Opts", bound=BackendOptions)


class MongodbLayout(StoreBackend, Generic[Opts]):
    """A collection that another tool wrote, read by ``_id``.

    A subclass finds the documents (`_resolve`), the places of fields in them (`_describe`), and converts a document to a
    record (`_values`).

    Notes
    -----
    The lists that `_resolve` returns are kept as one packed array in an index file of the cache folder. Its name depends on
    its content, so it is never stale. Workers map the file instead of querying the server. If the folder is not writable,
    they resolve the documents again, and raise an error if the result differs.
    """

    layout: ClassVar[str]

    def __init__(self, url: str, *, client_factory: ClientFactory | None = None, **options: Any) -> None:
        settings: Any = parse_options(self.Options, {}, options, url)
        self._prepare(parse_location(url), client_factory, settings)
        try:
            self._identity = self._connection.identity(self._collection)
            lists = self._resolve()
            self._left: list[str] = []
            self._columns, fields = self._describe(lists)
            self._unread = bounded([*self._left, *self._other_collections()])
            table = pack_table(lists)
            meta = Meta(
                _digest(self.layout, fields, table), self._build(table), Count(len(lists[0])), self.layout, fields
            )
        except BaseException:
            self._connection.close()
            raise
        self._connection.release()
        super().__init__(self._location.url, meta)
        kept = load_index(self._index)
        if kept is None or not np.array_equal(kept, table):
            kept = save_index(self._index, table)
        self._kept: list[Packed] | None = unpack_table(kept)

    def _prepare(self, location: Location, factory: ClientFactory | None, settings: Opts) -> None:
        self._location, self._factory, self._settings = location, factory, settings
        self._connection = Connection(location, factory)

    @classmethod
    def guess_can_open(cls, url: str, *, client_factory: ClientFactory | None = None, **options: Any) -> str | None:
        """Return in one sentence why the collection at `url` looks like this layout, or None."""
        settings: Any = parse_options(cls.Options, {}, options, url)
        connection = Connection(parse_location(url), client_factory)
        try:
            return cls._guess(connection, settings)
        finally:
            connection.close()

    @classmethod
    def describe(cls, url: str, *, client_factory: ClientFactory | None = None, **_: Any) -> str:
        """Return in half a sentence what the first document at `url` holds, for the error that no layout fits.

        Raises
        ------
        StoredsError
            The collection does not exist, or the server cannot be reached.
        """
        first = cls._first(url, client_factory)
        if first is None:
            return "it is empty"
        shown = ", ".join(f"{name}={shown_value(first[name])}" for name in sorted(first)[:_SHOWN])
        is_bucket = parse_location(url).collection.endswith((".files", ".chunks"))
        reads = "" if is_bucket else "; layout='query' reads them as they are"
        return f"its first document has the fields {listed(sorted(first))}; it begins {shown}{reads}"

    @classmethod
    def conversion_script(cls, url: str, *, client_factory: ClientFactory | None = None, **_: Any) -> str:
        """Return the shortest program that converts the store at `url`, for users who know what its documents hold.

        Raises
        ------
        StoredsError
            The collection does not exist, or the server cannot be reached.
        """
        location, first = parse_location(url), cls._first(url, client_factory) or {}
        name, value = next(
            ((name, value) for name, value in first.items() if name != "_id" and value is not None), ("", "")
        )
        field, is_text = infer([value])
        kind = field.kind if field.is_blob or (field.is_scalar and not is_text) else "str"
        taken = f"document.get({name!r})"
        return _LOOP.format(
            uri=redact(location.uri),
            database=location.database,
            collection=location.collection,
            target=f"lmdb://{location.collection}.lmdb",
            kind=kind,
            taken=taken if kind == field.kind and not is_text else f"str({taken})",
        )

    @classmethod
    def _first(cls, url: str, client_factory: ClientFactory | None) -> dict[str, Any] | None:
        connection = Connection(parse_location(url), client_factory)
        try:
            return next(connection.find(connection.location.collection, {}, limit=1), None)
        finally:
            connection.close()

    # Defined by subclasses.

    @classmethod
    @abstractmethod
    def _guess(cls, connection: Connection, settings: Opts) -> str | None:
        """Return the result of `guess_can_open`."""

    @abstractmethod
    def _resolve(self) -> list[Packed]:
        """Return the ids of all records in order, and further lists to keep with them."""

    @abstractmethod
    def _describe(self, lists: Sequence[Packed]) -> tuple[dict[str, Column], dict[str, Field]]:
        """Return the columns of documents, and all fields in order."""

    @abstractmethod
    def _values(self, position: int, document: Mapping[str, Any], fields: Sequence[str]) -> Record:
        """Return the record at `position`; raises ValueError with the reason."""

    @property
    def _collection(self) -> str:
        """The collection whose documents have the ``_id``."""
        return self._location.collection

    def _build(self, table: Array) -> str:
        # No server can cheaply report changes to documents, so cached results about values are valid for one opening.
        return secrets.token_hex(16)

    def _name(self, position: int, document: Mapping[str, Any] | None) -> str | None:
        """Return the name of the record for messages."""
        return None

    def unread(self) -> list[str]:
        # docstring inherited
        return list(self._unread)

    def _own_collections(self) -> set[str]:
        """Return the names of all collections that the layout reads."""
        return {self._location.collection}

    def _other_collections(self) -> Iterator[str]:
        """Yield collections that are not read although their names begin with the name of this one."""
        own, collection = self._own_collections(), self._location.collection
        for name in self._connection.names():
            if name not in own and f"{name}.".startswith(f"{collection}."):
                yield f"collection {name!r}: {counted(self._connection.count(name), 'document')}"

    # Reading.

    @property
    def _index(self) -> Path:
        return index_path(self._location.url, self.layout, self.meta.id)

    @property
    def _lists(self) -> list[Packed]:
        if self._connection.closed:
            raise ClosedError(f"{self.url} was closed; open it again with open_backend")
        if self._kept is None:
            table = load_index(self._index)
            try:
                self._kept = unpack_table(self._resolve_again() if table is None else table)
            except ValueError:  # the file was damaged
                self._kept = unpack_table(self._resolve_again())
        return self._kept

    def _resolve_again(self) -> Array:
        table = pack_table(self._resolve())
        if _digest(self.layout, self.meta.fields, table) != self.meta.id:
            raise UnavailableError(f"{self.url} has changed since it was opened: it has other documents; open it again")
        return save_index(self._index, table)

    def _find(
        self, query: Mapping[str, Any], paths: Iterable[str] | None, *, ordered: bool = False, limit: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Yield documents of the opened collection, with all fields if `paths` is None."""
        projection = None if paths is None else projection_of(paths)
        return self._connection.find(
            self._collection, query, projection, identity=self._identity, ordered=ordered, limit=limit
        )

    def _documents(self, keys: Iterable[bytes], kind: int, paths: Iterable[str] | None) -> dict[bytes, dict[str, Any]]:
        """Return key → document, by one query, or several if a command would be too large."""
        paths = None if paths is None else list(paths)
        found: dict[bytes, dict[str, Any]] = {}
        for batch in batches(dict.fromkeys(keys)):
            query = {"_id": {"$in": [id_of(kind, key) for key in batch]}}
            found.update((key_of(kind, document["_id"]), document) for document in self._find(query, paths))
        return found

    def _sample(self, ids: Packed, paths: Iterable[str] | None) -> list[dict[str, Any]]:
        """Return some documents from across the store."""
        return list(self._documents([ids[at] for at in evenly(len(ids), _SAMPLE)], ids.kind, paths).values())

    def _fetch(self, keys: Sequence[bytes], kind: int, fields: Sequence[str]) -> dict[bytes, dict[str, Any]]:
        """Return key → document with the values for `fields`."""
        return self._documents(keys, kind, [self._columns[name].path for name in fields if name in self._columns])

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        ids = self._lists[0]
        keys = [ids[position] for position in positions]
        documents = with_retries(self._location, lambda: self._fetch(keys, ids.kind, fields))
        return [
            self._record(position, documents.get(key), fields) for position, key in zip(positions, keys, strict=True)
        ]

    def _record(self, position: int, document: Mapping[str, Any] | None, fields: Sequence[str]) -> Record | RecordError:
        try:
            if document is None:
                raise ValueError("its document is gone from the collection")
            return self._values(position, document, fields)
        except ValueError as error:
            return self._fault(position, error, {"key": self._name(position, document)})

    def _column(self, name: str, field: Field) -> Array:
        # Short queries leave no cursor open between them.
        step = 256 if field.is_blob else 50_000
        values: list[Any] = []
        for start in range(0, self.meta.count, step):
            for record in self._read(list(range(start, min(start + step, self.meta.count))), (name,)):
                if isinstance(record, RecordError):
                    raise record
                values.append(record[name])
        return column_of(field, values)

    # Processes.

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._restore, self._recipe()

    def _recipe(self) -> tuple[Any, ...]:
        return self._location, self._factory, self._settings, self._identity, self._columns, self._unread, self.meta

    @classmethod
    def _restore(cls, *recipe: Any) -> Self:
        backend = cls.__new__(cls)
        location, factory, settings, backend._identity, backend._columns, backend._unread, meta = recipe
        backend._prepare(location, factory, settings)
        StoreBackend.__init__(backend, location.url, meta)
        backend._kept = None
        return backend

    def close(self) -> None:
        # docstring inherited
        self._connection.close()


def _digest(layout: str, fields: Mapping[str, Field], table: Array) -> str:
    hasher = xxhash.xxh3_128(canonical_json([layout, fields_to_json(fields)]).encode())
    hasher.update(table.data)
    return hasher.hexdigest()


def batches(items: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split byte strings into batches that fit into one command."""
    batch: list[bytes] = []
    size = 0
    for item in items:
        size += len(item) + 16  # BSON numbers the items of an array in text
        if size > _BATCH_BYTES and batch:
            yield batch
            batch, size = [], len(item) + 16
        batch.append(item)
    if batch:
        yield batch


def listed(names: Sequence[str]) -> str:
    """Return the first ten names, and the number of further ones."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
