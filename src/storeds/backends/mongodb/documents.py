"""Converts packed records to the documents of a store's collection, and back.

A store is one collection, so that one rename publishes all of it. A number as ``_id`` is a record's position. The meta has
``_id`` `META`, and a value that is too large for a document lies in parts with ``_id`` from `parts_from` on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from bson import Int64

from storeds.protocols import Field
from storeds.records.codec import SEAL, encode

__all__ = [
    "BUILD",
    "COUNT",
    "DOCUMENTS",
    "MEAN_BYTES",
    "META",
    "META_TEXT",
    "NOTE",
    "RECORDS",
    "TIME",
    "WRITER",
    "packed_map",
    "part_ids",
    "partials_of",
    "parts_from",
    "resolve",
    "seal_of",
    "sealed_of",
    "to_documents",
]

META = "meta"
# Names in the document of the meta, and others that it has while the store is written.
META_TEXT, BUILD, MEAN_BYTES, DOCUMENTS = "_meta", "_build", "_mean_bytes", "_documents"
NOTE, COUNT, WRITER = "_note", "_count", "_writer"
TIME = "_time"  # of the last change of the meta
RECORDS = {"_id": {"$gte": 0}}  # a comparison with a number matches numbers only
_PARTS, _TEXT, _DATA = "_parts", "_text", "_data"
_LARGE = 15 << 20  # bytes of a document and of a part: below MongoDB's 16 MiB, with room for names
_MOST_PARTS = (1 << 32) // _LARGE + 1  # of a value, which msgpack limits to 4 GiB
_SEAL_BYTES = 8
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


def partials_of(name: str, collections: Iterable[str]) -> list[str]:
    """Return those of the collections in which a writer builds, or built, the store `name`."""
    form = re.compile(rf"{re.escape(name)}\.partial\.[0-9a-f]{{12}}")
    return sorted(filter(form.fullmatch, collections))


def parts_from(position: int) -> dict[str, Any]:
    """Return the query for the parts of values of the records from `position` on."""
    return {"_id": {"$gte": f"part/{position:016x}", "$lt": "part0"}}  # 0 follows / in ASCII


def _ids(position: int, name: str, count: int) -> list[str]:
    return [f"part/{position:016x}/{name}/{number}" for number in range(count)]


def to_documents(position: int, sealed: bytes) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the documents of a packed record with its seal, first those of large values, and about how many bytes each has."""
    packed = sealed[:-_SEAL_BYTES]
    document = {"_id": Int64(position), **{name: _to_bson(value) for name, value in _decode(packed).items()}}
    document[SEAL] = Int64(int.from_bytes(sealed[-_SEAL_BYTES:], "big", signed=True))
    size = len(packed)
    data = {name: _data_of(value) for name, value in document.items()} if size > _LARGE else {}
    for name in sorted(data, key=lambda name: -len(data[name])):
        if size <= _LARGE:
            break
        size -= len(data[name])
        starts = range(0, len(data[name]), _LARGE)
        for id, start in zip(_ids(position, name, len(starts)), starts, strict=True):
            part = data[name][start : start + _LARGE]
            yield {"_id": id, _DATA: part}, len(part)
        value = document[name]
        kept = {_TEXT: True} if isinstance(value, str) else {}
        if isinstance(value, dict):
            kept = {"dtype": value["dtype"], "shape": value["shape"]}
        document[name] = {**kept, _PARTS: len(starts)}
    yield document, size


def _to_bson(value: Any) -> Any:
    if type(value) is int:
        return Int64(value)
    if type(value) is list:
        dtype, shape, data = value
        return {"dtype": dtype, "shape": list(map(Int64, shape)), "data": data}
    return value


def _data_of(value: Any) -> bytes:
    """Return what parts hold of a value: nothing of a number."""
    if isinstance(value, dict):
        value = value["data"]
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else b""


def part_ids(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ``_id`` of every part of the documents' values."""
    return [
        id
        for document in documents
        if dict in map(type, document.values())  # most documents have none
        for name, value in _large(document)
        for id in _ids(document["_id"], name, value[_PARTS])
    ]


def _large(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if type(value) is dict and isinstance(value.get(_PARTS), int) and 0 < value[_PARTS] <= _MOST_PARTS:
            yield name, value


def resolve(document: dict[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Put the values that lie in parts into the document; raises ValueError with the reason."""
    for name, value in list(_large(document)):
        try:
            data = b"".join(parts[id][_DATA] for id in _ids(document["_id"], name, value[_PARTS]))
        except KeyError as error:
            raise ValueError(f"a part of its field {name!r} is missing from the collection: {error}") from None
        if "dtype" in value:
            document[name] = {"dtype": value["dtype"], "shape": value.get("shape"), "data": data}
        else:
            document[name] = data.decode() if _TEXT in value else data


def packed_map(document: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the map of these fields that `RecordCodec.pack` packs; raises ValueError with the reason."""
    found = {}
    for name, field in fields.items():
        if name not in document:
            raise ValueError(f"its document has no field {name!r}")
        value, kind = document[name], field.kind
        if type(value) is not _TYPES[kind]:
            value = _from_bson(value)
            if type(value) is not _TYPES[kind]:
                raise ValueError(
                    f"field {name!r} of its document is not of kind {kind} (found {type(document[name]).__name__})"
                )
        found[name] = value
    return found


_TYPES = {
    "image": bytes,
    "bytes": bytes,
    "str": str,
    "json": str,
    "int": int,
    "float": float,
    "bool": bool,
    "array": list,
}


def _from_bson(value: Any) -> Any:
    if isinstance(value, Int64):
        return int(value)
    if isinstance(value, bytes):
        return bytes(value)  # PyMongo returns subtypes other than 0 as bson.Binary
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "data"}:
        return [value["dtype"], list(map(_from_bson, value["shape"])), value["data"]]
    return value


def seal_of(document: Mapping[str, Any]) -> bytes:
    """Return the seal in a document, 8 big-endian bytes; raises ValueError if there is none."""
    seal = document.get(SEAL)
    if not isinstance(seal, int):
        raise ValueError("it has no seal")
    return seal.to_bytes(_SEAL_BYTES, "big", signed=True)


def sealed_of(document: Mapping[str, Any]) -> bytes:
    """Return the packed record of a document that `to_documents` returned, with its seal; raises ValueError or TypeError."""
    record = {name: _from_bson(value) for name, value in document.items() if name not in ("_id", SEAL)}
    return encode(record) + seal_of(document)
