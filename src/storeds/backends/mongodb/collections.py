"""Names the collections of a MongoDB store, and identifies and removes what interrupted writers left."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from storeds._utils.text import counted
from storeds.records.fields import NATIVE

__all__ = [
    "Partial",
    "buckets_of",
    "find_partial",
    "identities_of",
    "identity_of",
    "meta_collection",
    "partial_collection",
    "remove_values",
    "remove_values_from",
    "stale_parts",
    "sweep",
    "values_collection",
]


def meta_collection(name: str) -> str:
    """Return the collection that holds the meta of collection `name`."""
    return f"{name}.meta"


def values_collection(name: str) -> str:
    """Return the GridFS bucket that holds the large values of collection `name`."""
    return f"{name}.values"


def partial_collection(name: str, token: str) -> str:
    """Return the collection in which the writer with this token builds collection `name`."""
    return f"{name}.partial.{token}"


def buckets_of(collections: Iterable[str]) -> list[str]:
    """Return the GridFS buckets among these collections, without those of native stores' large values."""
    names = set(collections)
    buckets = (name.removesuffix(".files") for name in names if name.endswith(".files"))
    return sorted(name for name in buckets if f"{name}.chunks" in names and not _holds_values(name, names))


def _holds_values(bucket: str, collections: Iterable[str]) -> bool:
    store = bucket.removesuffix(".values")
    return bucket == values_collection(store) and meta_collection(store) in collections


def identity_of(database: Any, name: str) -> Any:
    """Return an id that differs from that of a later collection of the same name, or None if it does not exist.

    The id is the collection's UUID, which a rename keeps. A server without UUIDs (mongomock) gives the name instead.
    """
    return identities_of(database, f"^{re.escape(name)}$").get(name)


def identities_of(database: Any, pattern: str) -> dict[str, Any]:
    """Return name → identity (see `identity_of`) of the collections whose names match a regular expression."""
    try:
        listed = list(database.list_collections(filter={"name": {"$regex": pattern}}))
    except NotImplementedError:
        return {name: f"name:{name}" for name in database.list_collection_names() if re.search(pattern, name)}
    return {row["name"]: row["info"].get("uuid", f"name:{row['name']}") for row in listed}  # a view has no UUID


_IDS = 10_000  # in one command
# A collection of that name, or a bucket, may hold documents of other programs.
_OURS = {"values": {"$exists": True}, "$or": [{"plan": {"$exists": True}}, {"layout": NATIVE}]}
_PART_ID = re.compile("[0-9a-f]{32}/[0-9]+/")
_UNFINISHED = {"token": "", "plan": "", "note": "", "adopted": ""}  # keys of an entry only while its store is written


@dataclass(frozen=True)
class Partial:
    """An interrupted write that can be continued: its collection and its entry in the meta collection."""

    collection: str
    identity: Any
    entry: dict[str, Any]


@dataclass(frozen=True)
class _State:
    target: Any
    partials: dict[str, Any]
    entries: dict[Any, dict[str, Any]]
    chosen: Partial | None

    @property
    def live(self) -> set[Any]:
        """The identities of the collections in use."""
        chosen = self.chosen.identity if self.chosen else None
        return {self.target, chosen} - {None}

    @property
    def builds(self) -> list[str]:
        """The builds whose large values are in use."""
        used = [self.entries.get(identity, {}) for identity in self.live]
        return [build for entry in used if entry for build in (entry["values"], *entry.get("adopted", ()))]

    @property
    def stale_values(self) -> dict[str, Any]:
        """The query for large values that no store and no writer uses."""
        return {"metadata.build": {"$type": "string", "$nin": self.builds}}


def _inspect(database: Any, name: str) -> _State:
    found = identities_of(database, rf"^{re.escape(name)}(\.partial\.[0-9a-f]{{12}})?$")
    target = found.pop(name, None)
    entries = {row["_id"]: row for row in database[meta_collection(name)].find(_OURS)}
    whole = [
        Partial(collection, identity, entries[identity])
        for collection, identity in found.items()
        if "plan" in entries.get(identity, {})
    ]
    return _State(target, found, entries, whole[0] if whole else None)


def find_partial(database: Any, name: str) -> Partial | None:
    """Return the interrupted write of the store `name` that can be continued, or None."""
    return _inspect(database, name).chosen


def stale_parts(database: Any, name: str) -> list[str]:
    """Describe, in words, what interrupted writers of the store `name` left."""
    state = _inspect(database, name)
    stale = [f"collection {collection}" for collection in sorted(state.partials)]
    orphans = len(state.entries.keys() - state.live)
    if orphans:
        stale.append(f"{counted(orphans, 'entry', 'entries')} of replaced stores in {meta_collection(name)}")
    if database[f"{values_collection(name)}.files"].find_one(state.stale_values):
        stale.append(f"large values of replaced stores in {values_collection(name)}")
    return stale


def sweep(database: Any, name: str, *, keep_partial: bool) -> Partial | None:
    """Remove everything of the store `name` except the published collection and, if `keep_partial`, a partial write.

    Returns the kept partial write. Only the holder of the store's lease may call it.
    """
    state = _inspect(database, name)
    if not keep_partial:
        state = _State(state.target, state.partials, state.entries, None)
    for collection, identity in state.partials.items():
        if identity not in state.live:
            database[collection].drop()
    metas = database[meta_collection(name)]
    metas.delete_many({"_id": {"$in": [identity for identity in state.entries if identity not in state.live]}})
    if "plan" in state.entries.get(state.target, {}):  # its writer died just after publishing
        metas.update_one({"_id": state.target}, {"$unset": _UNFINISHED})
    remove_values(database, name, state.stale_values)
    _remove_orphans(database, name)
    return state.chosen


def remove_values(database: Any, name: str, query: dict[str, Any]) -> None:
    """Remove the large values of the store `name` that match `query`."""
    files, chunks = (database[f"{values_collection(name)}.{part}"] for part in ("files", "chunks"))
    _delete(chunks, "files_id", ids := [row["_id"] for row in files.find(query, {"_id": True})])
    _delete(files, "_id", ids)


def remove_values_from(database: Any, name: str, build: str, position: int) -> None:
    """Remove the large values of a build that belong to records at `position` or later."""
    files = database[f"{values_collection(name)}.files"]
    ids = [row["_id"] for row in files.find({"metadata.build": build}, {"_id": True})]
    remove_values(database, name, {"_id": {"$in": [id for id in ids if int(id.split("/")[1]) >= position]}})


def _remove_orphans(database: Any, name: str) -> None:
    """Remove chunks of large values whose writer died before it wrote the file document."""
    files, chunks = (database[f"{values_collection(name)}.{part}"] for part in ("files", "chunks"))
    known = {row["_id"] for row in files.find({}, {"_id": True})}
    # Sort by the key of GridFS's index, so that the server scans the index and reads no chunk.
    grouped = chunks.aggregate([{"$sort": {"files_id": 1}}, {"$group": {"_id": "$files_id"}}])
    found = (row["_id"] for row in grouped)
    _delete(chunks, "files_id", [id for id in found if id not in known and _PART_ID.match(str(id))])


def _delete(collection: Any, key: str, ids: Collection[Any]) -> None:
    ids = list(ids)
    for start in range(0, len(ids), _IDS):
        collection.delete_many({key: {"$in": ids[start : start + _IDS]}})
