"""Makes sure that what a writer sends to MongoDB arrives, once, whatever happens to the primary meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pymongo.errors import BulkWriteError, OperationFailure

from storeds._seals import SEAL
from storeds._verdicts import stored_fields
from storeds.backends._mongodb_documents import DocumentSeals
from storeds.backends._mongodb_find import NO_UUID
from storeds.errors import StoredsError
from storeds.protocols import Meta
from storeds.record import ContentHash

__all__ = ["arrived_digests", "check_arrived", "check_large", "count_documents", "insert_fenced", "insert_missing"]

_DUPLICATE = 11000
_PAGE = 50_000
_FILES = 1000


def insert_missing(collection: Any, documents: Sequence[Mapping[str, Any]]) -> None:
    """Insert `documents`, of which earlier attempts may have inserted some; raises PyMongo's OperationFailure."""
    try:
        collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        _check_failures([*error.details["writeErrors"], *error.details["writeConcernErrors"]])


def insert_fenced(collection: Any, documents: Sequence[Mapping[str, Any]], identity: Any) -> bool:
    """Do the same, if the collection still has this UUID and this name; False if the server cannot compare UUIDs.

    All documents go into one command, so they may take 16 MiB together.
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
    """Yield the checksums of records 0, 1, …, up to the first that is not there, or that another writer sent."""
    for position, row in enumerate(collection.find({}, {SEAL: True}).sort("_id", 1)):
        digest = seals.digest(row, position) if row["_id"] == position else None
        if digest is None:
            return
        yield digest


def count_documents(collection: Any, expected: int) -> int:
    """Return how many documents there are; at once where the server's own estimate is what was expected."""
    if collection.estimated_document_count() == expected:
        return expected
    return int(collection.count_documents({}))  # the estimate may be off after a crash


def check_arrived(read: Callable[[Callable[[Any], Any]], Any], meta: Meta, seals: DocumentSeals, url: str) -> None:
    """Raise StoredsError unless exactly the records of `meta` have arrived, each from this writer.

    Parameters
    ----------
    read : callable
        Gives the collection to a function and returns what that returns, repeating it as need be.
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
    if content.finish(stored_fields(meta), meta.attrs) != meta.id:
        raise StoredsError(f"{url}: the checksums that arrived are not those that were sent; nothing was published")


def check_large(read: Callable[[Callable[[Any], Any]], Any], bucket: str, build: str, url: str) -> None:
    """Raise StoredsError unless every large value of a build has arrived whole in a GridFS bucket.

    Parameters
    ----------
    read : callable
        Gives the database to a function and returns what that returns, repeating it as need be.
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
    """Return how many parts there are of each GridFS file."""
    group = {"_id": "$files_id", "parts": {"$sum": 1}}
    found = database[name].aggregate([{"$match": {"files_id": {"$in": ids}}}, {"$group": group}])
    return {row["_id"]: row["parts"] for row in found}


def _page(collection: Any, start: int, stop: int, seals: DocumentSeals) -> list[bytes]:
    query = {"_id": {"$gte": start, "$lt": stop}}
    rows = collection.find(query, {SEAL: True}).sort("_id", 1)
    return [digest for row in rows if (digest := seals.digest(row, row["_id"])) is not None]
