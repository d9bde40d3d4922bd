"""Names the collections that one MongoDB store consists of, and tells one of them from a later one of the same name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["buckets_of", "identity_of", "meta_collection", "partial_collection", "values_collection"]


def meta_collection(name: str) -> str:
    """Return the collection that holds the meta of collection `name`."""
    return f"{name}.meta"


def values_collection(name: str) -> str:
    """Return the GridFS bucket that holds the large values of collection `name`."""
    return f"{name}.values"


def partial_collection(name: str) -> str:
    """Return the collection in which a writer builds collection `name`."""
    return f"{name}.partial"


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
    try:
        listed = list(database.list_collections(filter={"name": name}))
    except NotImplementedError:
        return f"name:{name}" if name in database.list_collection_names() else None
    if not listed:
        return None
    return listed[0]["info"].get("uuid", f"name:{name}")  # a view has none
