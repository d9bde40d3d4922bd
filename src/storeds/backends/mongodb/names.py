"""Names the collections that one MongoDB store consists of, and tells one of them from a later one of the same name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["buckets_of", "identities_of", "identity_of", "meta_collection", "partial_collection", "values_collection"]


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
    """Return the GridFS buckets that these collections make, without those of native stores' large values."""
    names = set(collections)
    buckets = (name.removesuffix(".files") for name in names if name.endswith(".files"))
    return sorted(name for name in buckets if f"{name}.chunks" in names and not _holds_values(name, names))


def _holds_values(bucket: str, collections: Iterable[str]) -> bool:
    store = bucket.removesuffix(".values")
    return bucket == values_collection(store) and meta_collection(store) in collections


def identity_of(database: Any, name: str) -> Any:
    """Return what tells this collection from a later one of the same name, or None when it does not exist.

    That is its UUID, which a rename carries along. A server without UUIDs (mongomock) gives its name instead.
    """
    return identities_of(database, f"^{re.escape(name)}$").get(name)


def identities_of(database: Any, pattern: str) -> dict[str, Any]:
    """Return name → identity, see `identity_of`, of the collections whose names match a regular expression."""
    try:
        listed = list(database.list_collections(filter={"name": {"$regex": pattern}}))
    except NotImplementedError:
        return {name: f"name:{name}" for name in database.list_collection_names() if re.search(pattern, name)}
    return {row["name"]: row["info"].get("uuid", f"name:{row['name']}") for row in listed}  # a view has no UUID
