"""Writes native MongoDB stores: into a temporary collection, renamed over the target in one step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pymongo
from pymongo import ReadPreference
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern

from storeds._handles import Ticket
from storeds._meta import meta_to_row, new_build
from storeds._suggest import suggest
from storeds._writer import COMMIT_EVERY, Sealed, StoreWriter, other_plan, target_exists
from storeds.backends._mongodb_arrival import arrived_digests, check_arrived, check_large, insert_missing
from storeds.backends._mongodb_client import (
    CLIENTS,
    ClientFactory,
    ClientOpener,
    knows_server,
    leased_database,
    parse_location,
)
from storeds.backends._mongodb_documents import (
    DOCUMENT_BYTES,
    GUESSED_BYTES,
    LargeValue,
    large_value_files,
    to_document,
)
from storeds.backends._mongodb_names import identity_of, meta_collection, partial_collection, values_collection
from storeds.backends._mongodb_retry import retried
from storeds.backends.base import BackendOptions, parse_options
from storeds.errors import ConfigError, FormatError, StoredsError, StoreExistsError
from storeds.fields import fields_to_json
from storeds.protocols import JSON, Meta
from storeds.record import canonical_json

__all__ = ["MongodbWriter"]

_DURABLE = WriteConcern(w="majority", j=True)
_IDS = 10_000  # in one command

T = TypeVar("T")


class MongodbWriter(StoreWriter):
    """The `Writer` of ``mongodb://``; see `storeds.open_writer`.

    The collection ``<collection>.partial`` holds what is being written; its entry in ``<collection>.meta`` is keyed
    by the collection's UUID, which the rename carries along. Every write is acknowledged by the majority, from its
    journal, and each step may be repeated: a primary that dies or steps down is waited for, until ``timeoutMS`` have
    passed. Nothing is published before every record's checksum was found to have arrived.

    Parameters
    ----------
    url, fields, overwrite, resume, commit_every, plan
        As for `storeds.open_writer`.
    index : sequence of str, optional
        Fields to index, each by itself, for those who query them.
    client_factory : callable, optional
        As for the backend.
    """

    needs_packed, part_bytes = False, 4 << 20  # in one command; larger ones are slower, as no cache holds them

    def __init__(
        self,
        url: str,
        fields: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
        commit_every: int = COMMIT_EVERY,
        plan: JSON = None,
        index: Sequence[str] = (),
        client_factory: ClientFactory | None = None,
        **options: Any,
    ) -> None:
        parse_options(BackendOptions, {}, options, url)
        self._location = parse_location(url)
        super().__init__(self._location.url, fields, commit_every)
        self._name = self._location.collection
        self._partial = partial_collection(self._name)
        self._overwrite = overwrite
        self._sent = self._sent_bytes = 0
        self._replaced: tuple[Any, str | None] = None, None
        self._index = _check_index(index, self.fields, self.url)
        self._plan = canonical_json({"fields": fields_to_json(self.fields), "plan": plan})
        opener = ClientOpener(self._location.uri, self.url, client_factory)
        self._ticket: Ticket[Any] = CLIENTS.ticket(self, opener)
        try:
            with self._database() as database:
                self._begin(database, overwrite=overwrite, resume=resume)
        except BaseException:
            self._ticket.close()
            raise

    @contextmanager
    def _database(self) -> Iterator[Any]:
        with leased_database(self._ticket, self._location) as database:
            yield _durable(database)

    def _retried(self, operation: Callable[[Any], T]) -> T:
        """Return what `operation` returns, given the database; it is repeated while the server may come back."""

        def attempt() -> T:
            with self._database() as database:
                return operation(database)

        return retried(self._location, attempt, self._knows_server)

    def _knows_server(self) -> bool:
        with self._ticket.lease() as client:
            return knows_server(client)

    def _begin(self, database: Any, *, overwrite: bool, resume: bool) -> None:
        found = identity_of(database, self._partial)
        if identity_of(database, self._name) is not None and not overwrite:
            raise target_exists(self.url, found is not None)
        if found is not None and not self._entry(database, found) and not database[self._partial].find_one():
            found = None  # its writer died before it had begun
        if found is not None and not resume and not overwrite:
            raise StoreExistsError(
                f"collection {self._partial!r} holds what an interrupted writer of {self.url} left; pass resume=True "
                "(--resume) to go on from there, or overwrite=True (--overwrite) to start anew"
            )
        if found is not None and resume:
            self._take_over(database, found)
        else:
            self._start(database)
        for name in self._index:  # before the records: to index many at once may take longer than a deadline
            database[self._partial].create_index(name)

    def _start(self, database: Any) -> None:
        left = identity_of(database, self._partial)
        if left is not None:
            values = self._entry(database, left).get("values")
            database[self._partial].drop()
            if values is not None:
                self._remove_values(database, values)
            self._metas(database).delete_one({"_id": left})
        database.create_collection(self._partial)
        self._identity, self._values = identity_of(database, self._partial), new_build()
        entry = {"_id": self._identity, "plan": self._plan, "values": self._values}
        self._metas(database).replace_one({"_id": self._identity}, entry, upsert=True)

    def _entry(self, database: Any, identity: Any) -> dict[str, Any]:
        return self._metas(database).find_one({"_id": identity}) or {}

    def _take_over(self, database: Any, identity: Any) -> None:
        entry = self._entry(database, identity)
        if "plan" not in entry:
            raise FormatError(
                f"{self.url} cannot be resumed: {self._partial!r} has no entry in its meta; start anew with overwrite=True"
            )
        if entry["plan"] != self._plan:
            raise other_plan(self.url, json.loads(entry["plan"]), json.loads(self._plan))
        self._identity, self._values = identity, entry["values"]
        self.note = json.loads(entry.get("note", "null"))
        digests = list(arrived_digests(database[self._partial]))
        # What is after a gap came without its neighbours: a batch is inserted in any order.
        database[self._partial].delete_many({"_id": {"$gte": len(digests)}})
        self._resume_from(len(digests), digests)

    def _commit(self, batch: list[Sealed], first: int) -> None:
        if batch:  # every part is durable already
            self._write_part(batch, first)

    def _write_part(self, part: list[Sealed], first: int) -> None:
        made = [to_document(at, sealed, self.fields, self._values) for at, sealed in enumerate(part, first)]
        for value in (value for _, large in made for value in large):
            self._retried(partial(self._put_large, value=value))
        documents = [document for document, _ in made]
        self._retried(lambda database: insert_missing(database[self._partial], documents))
        self._sent += len(part)
        self._sent_bytes += sum(min(sealed.size, DOCUMENT_BYTES) for sealed in part)

    def _put_large(self, database: Any, value: LargeValue) -> None:
        bucket = values_collection(self._name)
        file, chunks = large_value_files(value, self._values)
        by_file = [("files_id", pymongo.ASCENDING), ("n", pymongo.ASCENDING)]
        database[f"{bucket}.chunks"].create_index(by_file, unique=True)
        insert_missing(database[f"{bucket}.chunks"], chunks)
        database[f"{bucket}.files"].replace_one({"_id": file["_id"]}, file, upsert=True)

    def _save_note(self, note: JSON) -> None:
        change = {"$set": {"note": canonical_json(note)}}
        self._retried(lambda database: self._metas(database).update_one({"_id": self._identity}, change))

    def _metas(self, database: Any) -> Any:
        return database[meta_collection(self._name)]

    def _publish(self, meta: Meta) -> None:
        self._retried(self._check_own)
        check_large(self._retried, values_collection(self._name), self._values, self.url)
        check_arrived(lambda read: self._retried(lambda database: read(database[self._partial])), meta, self.url)
        row = {**meta_to_row(meta), "values": self._values, "document_bytes": self._document_bytes()}
        own, change = {"_id": self._identity}, {"$set": row}
        # Beside the plan, without which a writer could not be resumed if the rename failed.
        self._retried(lambda database: self._metas(database).update_one(own, change, upsert=True))
        self._retried(self._rename)
        self._retried(lambda database: self._clean_up(database, row))
        self._ticket.close()

    def _check_own(self, database: Any) -> None:
        if identity_of(database, self._partial) != self._identity:
            raise StoredsError(
                f"{self.url}: another writer replaced {self._partial!r} while this one was writing; nothing was published"
            )

    def _document_bytes(self) -> int:
        """Return what a document takes, on average over those sent from here; readers cut batches by it."""
        return -(-self._sent_bytes // self._sent) if self._sent else GUESSED_BYTES

    def _rename(self, database: Any) -> None:
        target = identity_of(database, self._name)
        if target == self._identity:
            return  # an earlier attempt, whose answer was lost, did it
        self._check_own(database)
        self._replaced = target, self._entry(database, target).get("values")
        try:
            database[self._partial].rename(self._name, dropTarget=self._overwrite)
        except OperationFailure:
            target = identity_of(database, self._name)
            if target == self._identity:
                return
            if self._overwrite or target is None:
                raise
            raise StoreExistsError(f"{self.url} appeared while it was being written; nothing was replaced") from None

    def _clean_up(self, database: Any, row: Mapping[str, Any]) -> None:
        published = identity_of(database, self._name)
        if published != self._identity and _is_uuid(self._identity):
            return  # another writer has replaced it already
        self._metas(database).replace_one({"_id": published}, {"_id": published, **row}, upsert=True)
        replaced, values = self._replaced
        for identity in {replaced, self._identity} - {published, None}:
            self._metas(database).delete_one({"_id": identity})
        if values is not None:
            self._remove_values(database, values)

    def _remove_values(self, database: Any, values: str) -> None:
        files = database[f"{values_collection(self._name)}.files"]
        stale = [row["_id"] for row in files.find({"metadata.build": values}, {"_id": True})]
        for start in range(0, len(stale), _IDS):
            ids = {"$in": stale[start : start + _IDS]}
            database[f"{values_collection(self._name)}.chunks"].delete_many({"files_id": ids})
            files.delete_many({"_id": ids})

    def _discard(self) -> None:
        try:
            self._remove_own()
        finally:
            self._ticket.close()

    def _remove_own(self) -> None:
        with self._database() as database:
            if identity_of(database, self._partial) != self._identity:
                return  # another writer has begun anew, and that one's is not ours to remove
            database[self._partial].drop()
            self._remove_values(database, self._values)
            self._metas(database).delete_one({"_id": self._identity})

    def _suspend(self) -> None:
        self._ticket.close()


def _is_uuid(identity: Any) -> bool:
    return not isinstance(identity, str)  # mongomock has names alone


def _durable(database: Any) -> Any:
    try:
        # From the primary, whatever the URL prefers: a secondary need not have yet what the majority has.
        return database.with_options(write_concern=_DURABLE, read_preference=ReadPreference.PRIMARY)
    except NotImplementedError:  # mongomock, which loses nothing either
        return database


def _check_index(index: Sequence[str], fields: Mapping[str, Any], url: str) -> tuple[str, ...]:
    names = (index,) if isinstance(index, str) else tuple(index)
    for name in names:
        if name not in fields:
            raise ConfigError(f"{url}: index: there is no field {name!r}; {suggest(name, fields, 'fields')}")
        if fields[name].is_blob:
            raise ConfigError(
                f"{url}: index: field {name!r} is of kind {fields[name].kind}, which nobody looks up by value"
            )
    return names
