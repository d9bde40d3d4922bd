"""Finds documents of a collection that must be the one that was opened; the server itself makes sure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pymongo.errors import OperationFailure

__all__ = ["NO_UUID", "guarded_find", "is_other_collection"]

_BATCH_SIZE = 100_000  # the server ends a reply at 16 MiB anyway
_OTHER_UUID = 361  # CollectionUUIDMismatch
NO_UUID = (40415, 323)  # an unknown field, before MongoDB 6.0; refused by a strict Stable API


def guarded_find(database: Any, command: Mapping[str, Any], identity: Any) -> Any:
    """Return a cursor over what a ``find`` command finds, or None if the server cannot compare UUIDs.

    Parameters
    ----------
    identity : optional
        The UUID of the collection that was opened, which the server compares in the same round trip (MongoDB 6.0 and
        later). None for any.

    Raises
    ------
    OperationFailure
        Whatever MongoDB refuses; `is_other_collection` tells whether it is another collection.
    """
    guarded = {**command, "batchSize": _BATCH_SIZE}
    if identity is not None:
        guarded["collectionUUID"] = identity
    if database.read_concern.level is not None:  # which PyMongo adds to its own commands alone
        guarded["readConcern"] = database.read_concern.document
    try:
        return database.cursor_command(guarded, read_preference=database.read_preference)
    except OperationFailure as error:
        if error.code in NO_UUID:
            return None
        raise


def is_other_collection(error: OperationFailure) -> bool:
    """Whether the collection of that name is no longer the one that was opened."""
    return error.code == _OTHER_UUID
