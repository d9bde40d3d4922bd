"""Names the collections that one MongoDB store consists of, and tells one of them from a later one of the same name."""

from __future__ import annotations

from typing import Any

__all__ = ["identity_of", "meta_collection", "partial_collection", "values_collection"]


def meta_collection(name: str) -> str:
    """Return the collection that holds the meta of collection `name`."""
    return f"{name}.meta"


def values_collection(name: str) -> str:
    """Return the GridFS bucket that holds the large values of collection `name`."""
    return f"{name}.values"


def partial_collection(name: str) -> str:
    """Return the collection in which a writer builds collection `name`."""
    return f"{name}.partial"


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
