"""Writes native MongoDB stores: into a temporary collection, renamed over the target in one step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern

from storeds._handles import Ticket
from storeds._meta import meta_to_row, new_build
from storeds._writer import COMMIT_EVERY, Sealed, StoreWriter
from storeds.backends._mongodb_client import CLIENTS, ClientFactory, ClientOpener, parse_location, pymongo_errors
from storeds.backends._mongodb_documents import large_value_files, to_document
from storeds.backends.base import BackendOptions, parse_options
from storeds.backends.mongodb import identity_of, meta_collection, partial_collection, values_collection
from storeds.errors import ConfigError, FormatError, StoredsError, StoreExistsError
from storeds.fields import fields_to_json
from storeds.protocols import JSON, Meta
from storeds.record import CHECKSUM, canonical_json

__all__ = ["MongodbWriter"]

_DURABLE = WriteConcern(w="majority", j=True)


class MongodbWriter(StoreWriter):
    """The `Writer` of ``mongodb://``; see `storeds.open_writer`.

    The collection ``<collection>.partial`` holds what is being written; its entry in ``<collection>.meta`` is keyed
    by the collection's UUID, which the rename carries along.
    """

    def __init__(
        self,
        url: str,
        fields: Mapping[str, Any],
        *,
        overwrite: bool = False,
        resume: bool = False,
        commit_every: int = COMMIT_EVERY,
        plan: JSON = None,
        client_factory: ClientFactory | None = None,
        **options: Any,
    ) -> None:
        parse_options(BackendOptions, {}, options, url)
        self._location = parse_location(url)
        super().__init__(self._location.url, fields, commit_every)
        self._name = self._location.collection
        self._partial = partial_collection(self._name)
        self._overwrite = overwrite
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
        with self._ticket.lease() as client, pymongo_errors(self._location):
            yield _durable(client[self._location.database])

    def _begin(self, database: Any, *, overwrite: bool, resume: bool) -> None:
        if identity_of(database, self._name) is not None and not overwrite:
            raise StoreExistsError(
                f"{self.url} exists; pass overwrite=True (--overwrite) to replace it, or choose another name"
            )
        found = identity_of(database, self._partial)
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

    def _start(self, database: Any) -> None:
        database[self._partial].drop()
        database.create_collection(self._partial)
        self._identity, self._values = identity_of(database, self._partial), new_build()
        entry = {"_id": self._identity, "plan": self._plan, "values": self._values}
        database[meta_collection(self._name)].replace_one({"_id": self._identity}, entry, upsert=True)

    def _entry(self, database: Any, identity: Any) -> dict[str, Any]:
        return database[meta_collection(self._name)].find_one({"_id": identity}) or {}

    def _take_over(self, database: Any, identity: Any) -> None:
        entry = self._entry(database, identity)
        if "plan" not in entry:
            raise FormatError(
                f"{self.url} cannot be resumed: {self._partial!r} has no entry in its meta; start anew with overwrite=True"
            )
        if entry["plan"] != self._plan:
            raise ConfigError(
                f"{self.url} cannot be resumed: it was begun with {entry['plan']}, now it is {self._plan}; "
                "use the same fields, or start anew with overwrite=True"
            )
        self._identity, self._values = identity, entry["values"]
        self.note = json.loads(entry.get("note", "null"))
        digests = [bytes(row[CHECKSUM]) for row in database[self._partial].find({}, {CHECKSUM: True}).sort("_id", 1)]
        self._resume_from(len(digests), digests)

    def _commit(self, batch: list[Sealed], first: int) -> None:
        made = [to_document(at, sealed, self.fields, self._values) for at, sealed in enumerate(batch, first)]
        with self._database() as database:
            for _, large in made:
                for value in large:
                    self._put_large(database, *large_value_files(value, self._values))
            # In order, so that what a killed writer leaves is a prefix.
            database[self._partial].insert_many([document for document, _ in made], ordered=True)

    def _put_large(self, database: Any, file: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
        bucket = values_collection(self._name)
        database[f"{bucket}.chunks"].create_index(
            [("files_id", pymongo.ASCENDING), ("n", pymongo.ASCENDING)], unique=True
        )
        database[f"{bucket}.chunks"].delete_many({"files_id": file["_id"]})
        database[f"{bucket}.chunks"].insert_many(chunks)
        database[f"{bucket}.files"].replace_one({"_id": file["_id"]}, file, upsert=True)

    def _save_note(self, note: JSON) -> None:
        with self._database() as database:
            metas = database[meta_collection(self._name)]
            metas.update_one({"_id": self._identity}, {"$set": {"note": canonical_json(note)}})

    def _publish(self, meta: Meta) -> None:
        with self._database() as database:
            self._check_complete(database, meta)
            metas = database[meta_collection(self._name)]
            row = {**meta_to_row(meta), "values": self._values}
            # Beside the plan, without which a writer could not be resumed if the rename failed.
            metas.update_one({"_id": self._identity}, {"$set": row}, upsert=True)
            self._rename(database)
            published = identity_of(database, self._name)
            metas.replace_one({"_id": published}, {"_id": published, **row}, upsert=True)
            self._remove_stale(database, published)
        self._ticket.close()

    def _check_complete(self, database: Any, meta: Meta) -> None:
        if identity_of(database, self._partial) != self._identity:
            raise StoredsError(
                f"{self.url}: another writer replaced {self._partial!r} while this one was writing; nothing was published"
            )
        arrived = database[self._partial].count_documents({})
        if arrived != meta.count:
            raise StoredsError(
                f"{self.url}: {meta.count} records were sent and {arrived} arrived; nothing was published"
            )

    def _rename(self, database: Any) -> None:
        try:
            database[self._partial].rename(self._name, dropTarget=self._overwrite)
        except OperationFailure:
            if self._overwrite or identity_of(database, self._name) is None:
                raise
            raise StoreExistsError(f"{self.url} appeared while it was being written; nothing was replaced") from None

    def _remove_stale(self, database: Any, published: Any) -> None:
        database[meta_collection(self._name)].delete_many({"_id": {"$ne": published}})
        files = database[f"{values_collection(self._name)}.files"]
        stale = [row["_id"] for row in files.find({"metadata.build": {"$ne": self._values}}, {"_id": True})]
        if stale:
            database[f"{values_collection(self._name)}.chunks"].delete_many({"files_id": {"$in": stale}})
            files.delete_many({"_id": {"$in": stale}})

    def _discard(self) -> None:
        try:
            with self._database() as database:
                database[self._partial].drop()
                published = identity_of(database, self._name)
                metas = database[meta_collection(self._name)]
                metas.delete_many({"_id": {"$ne": published}})
                self._values = (metas.find_one({"_id": published}) or {}).get("values", "")
                self._remove_stale(database, published)
        finally:
            self._ticket.close()

    def _suspend(self) -> None:
        self._ticket.close()


def _durable(database: Any) -> Any:
    try:
        return database.with_options(write_concern=_DURABLE)
    except NotImplementedError:  # mongomock, which loses nothing either
        return database
