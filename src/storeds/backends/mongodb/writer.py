"""Writes native MongoDB stores to a temporary collection, which replaces the target by one rename."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar

import pymongo
from pymongo import ReadPreference
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.write_concern import WriteConcern

from storeds._utils.locations import StoreURL
from storeds.backends.base import BackendOptions, parse_options
from storeds.backends.handles import HandleRef
from storeds.backends.mongodb.client import (
    CLIENTS,
    ClientFactory,
    ClientOpener,
    knows_server,
    leased_database,
    parse_location,
)
from storeds.backends.mongodb.collections import (
    Partial,
    identity_of,
    meta_collection,
    partial_collection,
    remove_values,
    remove_values_from,
    sweep,
    values_collection,
)
from storeds.backends.mongodb.documents import (
    DOCUMENT_BYTES,
    GUESSED_BYTES,
    DocumentSeals,
    LargeValue,
    large_value_files,
    to_document,
)
from storeds.backends.mongodb.handle import NO_UUID, is_other_collection
from storeds.backends.mongodb.lease import WriterLease
from storeds.backends.mongodb.retry import with_retries
from storeds.backends.writer import COMMIT_EVERY, EncodedRecord, StoreWriter, other_plan, target_exists
from storeds.errors import ConfigError, StoredsError, StoreExistsError, suggest
from storeds.protocols import JSON, Meta
from storeds.records.codec import SEAL, ContentHash, Places
from storeds.records.fields import canonical_json, fields_to_json, meta_to_row, new_build

__all__ = [
    "MongodbWriter",
    "arrived_digests",
    "check_arrived",
    "check_large",
    "count_documents",
    "insert_fenced",
    "insert_missing",
]


_DUPLICATE = 11000
_PAGE = 50_000
_FILES = 1000


def insert_missing(collection: Any, documents: Sequence[Mapping[str, Any]]) -> None:
    """Insert the `documents` that an earlier attempt has not inserted; raises PyMongo's OperationFailure."""
    try:
        collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        _check_failures([*error.details["writeErrors"], *error.details["writeConcernErrors"]])


def insert_fenced(collection: Any, documents: Sequence[Mapping[str, Any]], identity: Any) -> bool:
    """Do the same if the collection still has this UUID and name; return False if the server cannot compare UUIDs.

    One command holds all documents, so their total size is limited to 16 MiB.
    """
    command = {"insert": collection.name, "documents": documents, "ordered": False, "collectionUUID": identity}
    try:
        reply = collection.database.command({**command, "writeConcern": collection.write_concern.document})
    except OperationFailure as error:
        if error.code in NO_UUID:
            return False
        raise
    _check_failures([*reply.get("writeErrors", ()), *filter(None, [reply.get("writeConcernError")])])
    return True


def _check_failures(errors: list[dict[str, Any]]) -> None:
    failures = [one for one in errors if one.get("code") != _DUPLICATE]
    if failures:
        raise OperationFailure(str(failures[0].get("errmsg")), failures[0].get("code"), failures[0])


def arrived_digests(collection: Any, seals: DocumentSeals) -> Iterator[bytes]:
    """Yield the checksums of records 0, 1, …, up to the first that is missing or that another writer sent."""
    for position, row in enumerate(collection.find({}, {SEAL: True}).sort("_id", 1)):
        digest = seals.digest(row, position) if row["_id"] == position else None
        if digest is None:
            return
        yield digest


def count_documents(collection: Any, expected: int) -> int:
    """Return the number of documents; fast if the server's estimate equals `expected`."""
    if collection.estimated_document_count() == expected:
        return expected
    return int(collection.count_documents({}))  # the estimate may be wrong after a crash


def check_arrived(read: Callable[[Callable[[Any], Any]], Any], meta: Meta, seals: DocumentSeals, url: str) -> None:
    """Raise StoredsError unless exactly the records of `meta` have arrived, all from this writer.

    Parameters
    ----------
    read : callable
        Calls a function with the collection, with retries, and returns its result.
    """
    arrived = read(lambda collection: count_documents(collection, meta.count))
    if arrived != meta.count:
        raise StoredsError(f"{url}: {meta.count} records were sent and {arrived} arrived; nothing was published")
    content = ContentHash()
    for start in range(0, meta.count, _PAGE):
        stop = min(start + _PAGE, meta.count)
        digests = read(partial(_page, start=start, stop=stop, seals=seals))
        if len(digests) != stop - start:
            raise StoredsError(
                f"{url}: of records {start} to {stop - 1}, {len(digests)} arrived from this writer; nothing was published"
            )
        content.update(b"".join(digests))
    if content.finish(meta.fields, meta.attrs) != meta.id:
        raise StoredsError(f"{url}: the checksums that arrived are not those that were sent; nothing was published")


def check_large(read: Callable[[Callable[[Any], Any]], Any], bucket: str, build: str, url: str) -> None:
    """Raise StoredsError unless every large value of a build is complete in a GridFS bucket.

    Parameters
    ----------
    read : callable
        Calls a function with the database, with retries, and returns its result.
    """
    wanted = {"length": True, "chunkSize": True}
    files = read(lambda database: list(database[f"{bucket}.files"].find({"metadata.build": build}, wanted)))
    for start in range(0, len(files), _FILES):
        page = files[start : start + _FILES]
        arrived = read(partial(_parts, name=f"{bucket}.chunks", ids=[file["_id"] for file in page]))
        for file in page:
            expected, found = -(-int(file["length"]) // int(file["chunkSize"])), arrived.get(file["_id"], 0)
            if found != expected:
                raise StoredsError(
                    f"{url}: {expected} parts of the large value {file['_id']} were sent and {found} arrived; nothing was published"
                )


def _parts(database: Any, name: str, ids: list[str]) -> dict[str, int]:
    """Return the number of chunks of each GridFS file."""
    group = {"_id": "$files_id", "parts": {"$sum": 1}}
    found = database[name].aggregate([{"$match": {"files_id": {"$in": ids}}}, {"$group": group}])
    return {row["_id"]: row["parts"] for row in found}


def _page(collection: Any, start: int, stop: int, seals: DocumentSeals) -> list[bytes]:
    query = {"_id": {"$gte": start, "$lt": stop}}
    rows = collection.find(query, {SEAL: True}).sort("_id", 1)
    return [digest for row in rows if (digest := seals.digest(row, row["_id"])) is not None]


_DURABLE = WriteConcern(w="majority", j=True)
_HEADER = 1024  # bytes; an upper estimate of a document's size beyond its values
_NO_COLLECTION = 26

T = TypeVar("T")


class MongodbWriter(StoreWriter):
    """The `Writer` of ``mongodb://``; see `storeds.open_writer`.

    The collection ``<collection>.partial.<token>`` holds the records being written. Its entry in ``<collection>.meta``
    has the collection's UUID as its key, which the rename keeps. A lease in the same place excludes other writers. A
    writer that takes over from one that seemed dead renames the collection. Every insert names the collection and UUID
    that it expects, so the server rejects later inserts of the first writer.

    The majority of nodes acknowledges every write from its journal. Each step can be repeated: the writer waits up to
    ``timeoutMS`` for a new primary. `publish` first checks that every record's checksum has arrived.

    Parameters
    ----------
    url, fields, overwrite, resume, commit_every, plan
        As for `storeds.open_writer`.
    index : sequence of str, optional
        Fields to index, one index per field, for your own queries.
    client_factory : callable, optional
        As for the backend.
    """

    needs_packed: ClassVar[bool] = False
    part_bytes: ClassVar[int] = 4 << 20  # per command; larger ones do not fit into CPU caches and are slower

    def __init__(
        self,
        url: str | StoreURL,
        fields: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
        commit_every: int = COMMIT_EVERY,
        check: bool = True,
        plan: JSON = None,
        index: Sequence[str] = (),
        client_factory: ClientFactory | None = None,
        **options: Any,
    ) -> None:
        parse_options(BackendOptions, {}, options, url)
        self._location = parse_location(url)
        super().__init__(self._location.url, fields, commit_every, check=check)
        self._name = self._location.collection
        self._overwrite = overwrite
        self._sent = self._sent_bytes = 0
        self._replaced: tuple[Any, str | None] = None, None
        self._index = _check_index(index, self.fields, self.url)
        self._plan = canonical_json({"fields": fields_to_json(self.fields), "plan": plan})
        self._values = new_build()
        opener = ClientOpener(self._location.uri, self.url, client_factory)
        self._lease = WriterLease(self._location, opener)
        self._partial = partial_collection(self._name, self._lease.token)
        self._fences = client_factory is None  # a factory may return a client without commands, such as mongomock's
        self._ref: HandleRef[Any] = CLIENTS.ref(self, opener)
        try:
            with self._database() as database:
                self._begin(database, overwrite=overwrite, resume=resume)
        except BaseException:
            self._release()
            raise

    @contextmanager
    def _database(self) -> Iterator[Any]:
        with leased_database(self._ref, self._location) as database:
            yield _durable(database)

    def _with_retries(self, operation: Callable[[Any], T]) -> T:
        """Call `operation` with the database and return its result, repeated after transient failures."""

        def attempt() -> T:
            with self._database() as database:
                return operation(database)

        return with_retries(self._location, attempt, self._knows_server)

    def _knows_server(self) -> bool:
        with self._ref.lease() as client:
            return knows_server(client)

    def _begin(self, database: Any, *, overwrite: bool, resume: bool) -> None:
        self._lease.take(database)
        exists = identity_of(database, self._name) is not None
        left = sweep(database, self._name, keep_partial=resume or not overwrite)
        if exists and not overwrite:
            raise target_exists(self.url, left is not None)
        if left is not None and not resume:
            raise StoreExistsError(
                f"collection {left.collection!r} holds an interrupted write of {self.url}; pass resume=True "
                "(--resume) to continue it, or overwrite=True (--overwrite) to start again"
            )
        if left is None:
            self._start(database)
        else:
            self._take_over(database, left)
        for name in self._index:  # before the records, since indexing many may exceed the deadline
            database[self._partial].create_index(name)
        self._lease.renew(database)  # the steps above may take long

    def _start(self, database: Any) -> None:
        database.create_collection(self._partial)
        self._identity = identity_of(database, self._partial)
        places = Places()
        self._salt, self._seals = places.text, DocumentSeals(self.fields, places)
        entry = {"_id": self._identity, "token": self._lease.token, "plan": self._plan, "values": self._values}
        entry["salt"] = self._salt
        self._metas(database).replace_one({"_id": self._identity}, entry, upsert=True)

    def _take_over(self, database: Any, left: Partial) -> None:
        """Continue another writer's work, and fence that writer off, since it may still be alive."""
        if left.entry["plan"] != self._plan:
            raise other_plan(self.url, json.loads(left.entry["plan"]), json.loads(self._plan))
        self._identity, self._salt = left.identity, str(left.entry.get("salt"))
        self._seals = DocumentSeals(self.fields, Places.of(self._salt, 0, self.url))
        # From here on, the other writer cannot complete its entry. After the rename, it can neither insert nor publish.
        # Its large values move to this build, so that those arriving later belong to no store.
        adopted = [*left.entry.get("adopted", ()), left.entry["values"]]
        mine = {"token": self._lease.token, "values": self._values, "adopted": adopted}
        if not self._metas(database).update_one({"_id": left.identity}, {"$set": mine}).matched_count:
            raise self._lease.lost(database)
        if _is_uuid(left.identity):
            database[left.collection].rename(self._partial)
        else:
            self._partial = left.collection
        database[f"{values_collection(self._name)}.files"].update_many(
            {"metadata.build": {"$in": adopted}}, {"$set": {"metadata.build": self._values}}
        )
        self._metas(database).update_one(self._own, {"$unset": {"adopted": ""}})
        self.note = json.loads(left.entry.get("note", "null"))
        digests = list(arrived_digests(database[self._partial], self._seals))
        # Drop records after a gap: a batch is inserted in any order.
        database[self._partial].delete_many({"_id": {"$gte": len(digests)}})
        remove_values_from(database, self._name, self._values, len(digests))
        self._resume_from(len(digests), digests)

    @property
    def _own(self) -> dict[str, Any]:
        """The query for this writer's meta entry, which finds nothing after another writer has taken over."""
        return {"_id": self._identity, "token": self._lease.token}

    def _change_own(self, database: Any, change: dict[str, Any]) -> None:
        if not self._metas(database).update_one(self._own, change).matched_count:
            raise self._lease.lost(database)

    def _commit(self, batch: list[EncodedRecord], first: int) -> None:
        if batch:  # inserted records are durable already
            self._write_part(batch, first)

    def _write_part(self, part: list[EncodedRecord], first: int) -> None:
        made = [
            to_document(at, sealed, self.fields, self._values, self._seals) for at, sealed in enumerate(part, first)
        ]
        for value in (value for _, large in made for value in large):
            self._with_retries(partial(self._put_large, value=value))
        documents = [document for document, _ in made]
        sizes = [min(sealed.size, DOCUMENT_BYTES) for sealed in part]
        for some in _commands(documents, sizes):
            self._with_retries(partial(self._insert, documents=some))
        self._sent += len(part)
        self._sent_bytes += sum(sizes)

    def _insert(self, database: Any, documents: list[dict[str, Any]]) -> None:
        collection = database[self._partial]
        try:
            if self._fences and not insert_fenced(collection, documents, self._identity):
                self._fences = False
            if not self._fences:
                self._lease.renew(database)
                insert_missing(collection, documents)
        except OperationFailure as error:
            if is_other_collection(error):
                raise self._lease.lost(database) from None
            raise

    def _put_large(self, database: Any, value: LargeValue) -> None:
        bucket = values_collection(self._name)
        file, chunks = large_value_files(value, self._values)
        by_file = [("files_id", pymongo.ASCENDING), ("n", pymongo.ASCENDING)]
        database[f"{bucket}.chunks"].create_index(by_file, unique=True)
        insert_missing(database[f"{bucket}.chunks"], chunks)
        insert_missing(database[f"{bucket}.files"], [file])

    def _save_note(self, note: JSON) -> None:
        self._with_retries(lambda database: self._change_own(database, {"$set": {"note": canonical_json(note)}}))

    def _metas(self, database: Any) -> Any:
        return database[meta_collection(self._name)]

    def _publish(self, meta: Meta) -> None:
        self._with_retries(self._lease.renew)
        try:
            check_large(self._with_retries, values_collection(self._name), self._values, self.url)
            arrived = partial(check_arrived, meta=meta, seals=self._seals, url=self.url)
            arrived(lambda read: self._with_retries(lambda database: read(database[self._partial])))
        except StoredsError:
            self._with_retries(self._lease.renew)  # raises the more helpful error if another writer took over
            raise
        row = {**meta_to_row(meta, salt=self._salt), "values": self._values, "document_bytes": self._document_bytes()}
        # Keep the plan in the entry, so that the write can be resumed if the rename fails.
        self._with_retries(lambda database: self._change_own(database, {"$set": row}))
        self._with_retries(self._rename)
        self._with_retries(lambda database: self._clean_up(database, row))
        self._release()

    def _document_bytes(self) -> int:
        """Return the mean size of the documents sent by this writer, by which readers divide batches."""
        return -(-self._sent_bytes // self._sent) if self._sent else GUESSED_BYTES

    def _rename(self, database: Any) -> None:
        target = identity_of(database, self._name)
        if target == self._identity:
            return  # an earlier attempt succeeded, but its reply was lost
        self._replaced = target, self._entry(database, target).get("values")
        try:
            database[self._partial].rename(self._name, dropTarget=self._overwrite)
        except OperationFailure as error:
            target = identity_of(database, self._name)
            if target == self._identity:
                return
            if error.code == _NO_COLLECTION:
                raise self._lease.lost(database) from None
            if self._overwrite or target is None:
                raise
            raise StoreExistsError(f"{self.url} appeared while it was being written; nothing was replaced") from None

    def _entry(self, database: Any, identity: Any) -> dict[str, Any]:
        return self._metas(database).find_one({"_id": identity}) or {}

    def _clean_up(self, database: Any, row: Mapping[str, Any]) -> None:
        published = self._identity if _is_uuid(self._identity) else identity_of(database, self._name)
        # Another writer may already have replaced the collection and its entry.
        self._metas(database).replace_one({"_id": published}, {"_id": published, **row}, upsert=not _is_uuid(published))
        replaced, values = self._replaced
        for identity in {replaced, self._identity} - {published, None}:
            self._metas(database).delete_one({"_id": identity})
        if values is not None:
            remove_values(database, self._name, {"metadata.build": values})

    def _discard(self) -> None:
        try:
            self._remove_own()
        finally:
            self._release()

    def _remove_own(self) -> None:
        with self._database() as database:
            if self._metas(database).delete_one(self._own).deleted_count:
                database[self._partial].drop()
                remove_values(database, self._name, {"metadata.build": self._values})

    def _suspend(self) -> None:
        self._release()

    def _release(self) -> None:
        self._lease.release()
        self._ref.close()


def _commands(documents: list[dict[str, Any]], sizes: list[int]) -> Iterator[list[dict[str, Any]]]:
    """Divide `documents` into parts that fit into one command each."""
    some: list[dict[str, Any]] = []
    room = DOCUMENT_BYTES
    for document, size in zip(documents, sizes, strict=True):
        if some and size > room:
            yield some
            some, room = [], DOCUMENT_BYTES
        some.append(document)
        room -= size + _HEADER
    yield some


def _is_uuid(identity: Any) -> bool:
    return not isinstance(identity, str)  # mongomock has only names


def _durable(database: Any) -> Any:
    try:
        # Read from the primary, whatever the URL prefers: a secondary may lag behind the majority.
        return database.with_options(write_concern=_DURABLE, read_preference=ReadPreference.PRIMARY)
    except NotImplementedError:  # mongomock, which needs no write concern
        return database


def _check_index(index: Sequence[str], fields: Mapping[str, Any], url: str) -> tuple[str, ...]:
    names = (index,) if isinstance(index, str) else tuple(index)
    for name in names:
        if name not in fields:
            raise ConfigError(f"{url}: index: there is no field {name!r}; {suggest(name, fields, 'fields')}")
        if fields[name].is_blob:
            raise ConfigError(
                f"{url}: index: field {name!r} is of kind {fields[name].kind}, which cannot be indexed by value"
            )
    return names
