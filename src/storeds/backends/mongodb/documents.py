"""Converts records to MongoDB documents and back; documents refer to GridFS for values that are too large."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xxhash
from bson import Binary, Int64

from storeds.backends.writer import EncodedRecord
from storeds.protocols import Field, Record
from storeds.records.codec import SEAL, Places

__all__ = [
    "DOCUMENT_BYTES",
    "GUESSED_BYTES",
    "DocumentSeals",
    "LargeValue",
    "from_document",
    "large_value_files",
    "references",
    "to_document",
]

DOCUMENT_BYTES = 15 << 20  # below MongoDB's 16 MiB, with room for names
GUESSED_BYTES = 64 << 10  # assumed for a document of unknown size
CHUNK_BYTES = 255 * 1024  # GridFS's default
_REFERENCE = "_gridfs"
_SUM = 8  # bytes
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class LargeValue:
    """A value to store in GridFS under `id`."""

    id: str
    data: bytes


def to_document(
    position: int, sealed: EncodedRecord, fields: Mapping[str, Field], build: str, seals: DocumentSeals
) -> tuple[dict[str, Any], list[LargeValue]]:
    """Return the document of a record, and the large values that it refers to."""
    document: dict[str, Any] = {"_id": Int64(position)}
    for name, field in fields.items():
        document[name] = _to_bson(field, sealed.stored[name])
    document[SEAL] = seals.make(sealed, position)
    large: list[LargeValue] = []
    size = sealed.size
    for name in sorted(fields, key=lambda name: -_weight(document[name])):
        if size <= DOCUMENT_BYTES:
            break
        size -= _weight(document[name])
        document[name], value = _refer(document[name], f"{build}/{position}/{name}")
        large.append(value)
    return document, large


class DocumentSeals:
    """Creates and verifies the seals of the documents of one store.

    A document's seal begins with the record's checksum and the record's seal, 8 bytes each. An 8-byte checksum follows
    for each field that is not a blob, so that fields read without the record are verified. It is only valid for this
    record of this store.

    Parameters
    ----------
    fields : mapping of str to Field
        In declared order.
    places : Places
        The store's positions.
    """

    def __init__(self, fields: Mapping[str, Field], places: Places) -> None:
        self._places = places
        small = [name for name, field in fields.items() if not field.is_blob]
        self._at = {name: 2 * _SUM + _SUM * number for number, name in enumerate(small)}
        self._size = 2 * _SUM + _SUM * len(small)

    def make(self, sealed: EncodedRecord, position: int) -> Binary:
        """Return the seal of a record."""
        seal = self._places.seal(sealed.digest, position)
        sums = (self._sum(sealed.stored[name], position) for name in self._at)
        return Binary(b"".join((sealed.digest, seal, *sums)))

    def _sum(self, value: Any, position: int) -> bytes:
        return xxhash.xxh3_64_digest(_encode(value), self._places.salt ^ position)

    def digest(self, document: Mapping[str, Any], position: int) -> bytes | None:
        """Return the checksum of the record at `position`, or None if this document has no seal for that position."""
        seal = document.get(SEAL)
        if not isinstance(seal, bytes) or len(seal) != self._size:
            return None
        digest = bytes(seal[:_SUM])
        return digest if self._places.seal(digest, position) == seal[_SUM : 2 * _SUM] else None

    def check_record(self, seal: Any, digest: bytes, position: int) -> None:
        """Raise ValueError unless `seal` is that of the record at `position` with checksum `digest`."""
        self._check_size(seal)
        fault = self._places.fault(int.from_bytes(seal[_SUM : 2 * _SUM], "big"), digest, position)
        if fault is not None:
            raise ValueError(fault)

    def check_values(self, seal: Any, stored: Record, position: int) -> None:
        """Raise ValueError unless `seal` holds the checksums of these small values of the record at `position`."""
        self._check_size(seal)
        for name, value in stored.items():
            at = self._at[name]
            if seal[at : at + _SUM] != self._sum(value, position):
                raise ValueError(
                    f"field {name!r} does not match its checksum: somebody changed it, or the document is of another record"
                )

    def _check_size(self, seal: Any) -> None:
        if not isinstance(seal, bytes) or len(seal) != self._size:
            raise ValueError("its document has no complete seal")


def _to_bson(field: Field, value: Any) -> Any:
    if field.kind == "int":
        return Int64(value)
    if field.kind == "array":
        return {"dtype": field.dtype, "shape": [Int64(size) for size in value.shape], "data": value.tobytes()}
    return value


def _weight(value: Any) -> int:
    if isinstance(value, dict):
        value = value["data"]
    if isinstance(value, str):
        return len(value.encode())
    return len(value) if isinstance(value, bytes) else 0


def _refer(value: Any, id: str) -> tuple[Any, LargeValue]:
    if isinstance(value, dict):
        return {**value, "data": {_REFERENCE: id}}, LargeValue(id, value["data"])
    return {_REFERENCE: id}, LargeValue(id, value.encode() if isinstance(value, str) else value)


def large_value_files(value: LargeValue, build: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the GridFS file document and the chunk documents of a large value."""
    file = {
        "_id": value.id,
        "length": Int64(len(value.data)),
        "chunkSize": CHUNK_BYTES,
        "uploadDate": datetime.datetime.now(datetime.UTC),
        "filename": value.id,
        "metadata": {"build": build},
    }
    starts = range(0, len(value.data), CHUNK_BYTES)
    chunks = [
        {"_id": f"{value.id}/{n}", "files_id": value.id, "n": n, "data": value.data[at : at + CHUNK_BYTES]}
        for n, at in enumerate(starts)
    ]
    return file, chunks


def references(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ids of all large values that `documents` refer to."""
    found = []
    for document in documents:
        if dict not in map(type, document.values()):
            continue
        for value in document.values():
            if not isinstance(value, dict):
                continue
            inner = value.get("data", value)
            if isinstance(inner, dict) and _REFERENCE in inner:
                found.append(inner[_REFERENCE])
    return found


def from_document(document: Mapping[str, Any], fields: Mapping[str, Field], large: Mapping[str, bytes]) -> Record:
    """Return the stored record of a document; raises ValueError with the reason."""
    record: Record = {}
    for name, field in fields.items():
        if name not in document:
            raise ValueError(f"its document has no field {name!r}")
        value = document[name]
        if type(value) is _PLAIN.get(field.kind):  # the fast path for most values
            record[name] = value
        else:
            record[name] = _from_bson(name, field, value, large)
    return record


def _from_bson(name: str, field: Field, value: Any, large: Mapping[str, bytes]) -> Any:
    try:
        if isinstance(value, dict):
            value = _resolve(value, large)
        return _FROM_BSON[field.kind](value, field)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"field {name!r} of its document is not of kind {field.kind} ({error})") from None


def _resolve(value: Mapping[str, Any], large: Mapping[str, bytes]) -> Any:
    if _REFERENCE in value:
        if value[_REFERENCE] not in large:
            raise ValueError(f"its large value {value[_REFERENCE]} is missing from GridFS")
        return large[value[_REFERENCE]]
    return {key: _resolve(item, large) if isinstance(item, dict) else item for key, item in value.items()}


_NUMBERS: dict[str, type] = {"int": int, "float": float, "bool": bool}


def _number(value: Any, field: Field) -> Any:
    kind = _NUMBERS[field.kind]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"found {type(value).__name__}")
    return kind(value)


def _text(value: Any, field: Field) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"found {type(value).__name__}")
    return value


def _blob(value: Any, field: Field) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"found {type(value).__name__}")
    return bytes(value)  # PyMongo returns subtypes other than 0 as bson.Binary


def _array(value: Any, field: Field) -> Any:
    return np.frombuffer(value["data"], field.dtype).reshape([int(size) for size in value["shape"]]).copy()


# Kinds whose BSON type needs no conversion.
_PLAIN = {"image": bytes, "bytes": bytes, "str": str, "json": str, "int": int, "float": float, "bool": bool}

_FROM_BSON = {
    "image": _blob,
    "bytes": _blob,
    "str": _text,
    "json": _text,
    "int": _number,
    "float": _number,
    "bool": _number,
    "array": _array,
}
