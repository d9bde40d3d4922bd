"""An independent implementation of the native formats, with msgspec, xxhash, json and the libraries of the engines only.

It follows `docs/format.md` and shares no code with storeds. It reads a store into plain values, and writes one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import lmdb
import msgspec
import numpy as np
import pymongo
import xxhash
from bson import Int64

from storeds.testing import FIELDS

__all__ = [
    "ATTRS",
    "ENGINES",
    "READ",
    "WRITE",
    "check",
    "checksum",
    "content_id",
    "database_of",
    "declared",
    "stored_row",
]

Row = dict[str, Any]  # stored values: JSON is text, an array is [dtype, shape, bytes]

ENGINES = ("lmdb", "hdf5", "mongodb")
ATTRS: dict[str, Any] = {"classes": ["cat", "dög"], "made by": {"z": None, "a": [1.5, True]}}
SALT = 0x1234567890ABCDEF
SCALARS = {"int": "<i8", "float": "<f8", "bool": "?"}


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def declared(fields: Row = FIELDS) -> list[Row]:
    rows = []
    for name, spec in fields.items():
        row = {"name": name, **({"kind": spec} if isinstance(spec, str) else spec)}
        if row["kind"] == "array":
            row["dtype"] = np.dtype(row["dtype"]).newbyteorder("<").str
        rows.append(row)
    return rows


def stored_row(record: Row, fields: Row = FIELDS) -> Row:
    row = {}
    for field in declared(fields):
        value = record[field["name"]]
        if field["kind"] == "json":
            value = canonical(value)
        elif field["kind"] == "array":
            value = [field["dtype"], list(value.shape), np.ascontiguousarray(value, field["dtype"]).tobytes()]
        row[field["name"]] = value
    return row


def checksum(row: Row) -> bytes:
    return xxhash.xxh3_64_digest(msgspec.msgpack.encode(row))


def seal(row: Row, at: int, salt: int = SALT) -> int:
    return int.from_bytes(checksum(row), "big") ^ salt ^ at


def columns_of(rows: list[Row], fields: list[Row]) -> dict[str, bytes]:
    """Return the columns of a store, by the names that its meta gives them."""
    columns: dict[str, bytes] = {}
    for field in fields:
        values = [row[field["name"]] for row in rows]
        if field["kind"] in SCALARS:
            columns[field["name"]] = np.array(values, SCALARS[field["kind"]]).tobytes()
        elif field["kind"] == "str":
            texts = [value.encode() for value in values]
            columns[field["name"]] = b"".join(texts)
            columns[f"{field['name']}.offsets"] = _offsets(texts).tobytes()
    return columns


def column_sums(rows: list[Row], fields: list[Row]) -> Row:
    """Return the checksums of the columns of a store, as its meta has them."""
    return {name: xxhash.xxh3_64_hexdigest(data) for name, data in columns_of(rows, fields).items()}


def content_id(fields: list[Row], checksums: list[bytes]) -> str:
    head = canonical({"attrs": ATTRS, "fields": fields}).encode()
    return xxhash.xxh3_128_hexdigest(head + xxhash.xxh3_128_digest(b"".join(checksums)))


def meta_of(rows: list[Row], fields: list[Row], **extra: Any) -> Row:
    body = {
        "attrs": ATTRS,
        "build": "0123456789abcdef" * 2,
        "count": len(rows),
        "fields": fields,
        "id": content_id(fields, [checksum(row) for row in rows]),
        "layout": "storeds/1",
        "salt": f"{SALT:016x}",
        **extra,
    }
    return {**body, "check": check(body)}


def check(body: Row) -> str:
    return xxhash.xxh3_64_hexdigest(canonical({key: body[key] for key in body if key != "check"}).encode())


@contextmanager
def database_of(url: str) -> Iterator[tuple[Any, str]]:
    """Parse the URL of a store. The last segment of its path is the collection."""
    place, mark, options = url.partition("?")
    place, _, name = place.rpartition("/")
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(f"{place}{mark}{options}")
    with client:
        yield client.get_default_database(), name


# Readers: URL → (meta, stored rows, checksums).


def read_lmdb(url: str) -> tuple[Row, list[Row], list[bytes]]:
    path = url.removeprefix("lmdb://")
    with lmdb.open(path, subdir=False, readonly=True, lock=False, max_dbs=3) as env:
        records, columns, meta = (env.open_db(name, create=False) for name in (b"records", b"columns", b"meta"))
        with env.begin() as txn:
            pairs, column, metas = (dict(txn.cursor(each)) for each in (records, columns, meta))
            page_size = txn.stat(records)["psize"]
    data = Path(path).read_bytes()
    for value, pages in zip(pairs.values(), np.frombuffer(column.pop(b"_pages"), "<i8").tolist(), strict=True):
        begin, count = pages >> 24, pages & 0xFFFFFF
        assert value in data[begin * page_size : (begin + count) * page_size]
        assert (count - 1) * page_size < 16 + len(value)
    assert list(metas) == [b"meta"]
    body = json.loads(metas[b"meta"])

    assert list(pairs) == [at.to_bytes(8, "big") for at in range(len(pairs))]
    rows = [msgspec.msgpack.decode(value[:-8]) for value in pairs.values()]
    assert all(value[:-8] == msgspec.msgpack.encode(row) for value, row in zip(pairs.values(), rows, strict=True))
    assert {name.decode(): data for name, data in column.items()} == columns_of(rows, body["fields"])
    assert body["columns"] == column_sums(rows, body["fields"])
    return body, rows, _unsealed((int.from_bytes(value[-8:], "big") for value in pairs.values()), body)


def _unsealed(seals: Iterable[int], body: Row) -> list[bytes]:
    return [(found ^ int(body["salt"], 16) ^ at).to_bytes(8, "big") for at, found in enumerate(seals)]


def read_hdf5(url: str) -> tuple[Row, list[Row], list[bytes]]:
    with h5py.File(url.removeprefix("hdf5://")) as file:
        assert set(file) == {"records"}
        assert set(file.attrs) == {"layout", "meta"}
        body = json.loads(file.attrs["meta"])
        assert file.attrs["layout"] == body["layout"]
        group = file["records"]
        rows = [
            {field["name"]: _hdf5_value(group[field["name"]], field, at) for field in body["fields"]}
            for at in range(body["count"])
        ]
        assert body["columns"] == column_sums(rows, body["fields"])
        return body, rows, _unsealed(group["_seal"][:].tolist(), body)


def _hdf5_value(node: Any, field: Row, at: int) -> Any:
    kind = field["kind"]
    if kind in SCALARS:
        return node[at].item()
    if isinstance(node, h5py.Dataset):
        value = np.asarray(node[at])
        return [value.dtype.str, list(value.shape), value.tobytes()]
    start, stop = node["offsets"][at : at + 2]
    data = node["data"][start:stop].tobytes()
    if kind == "array":
        return [field["dtype"], node["shapes"][at].tolist(), data]
    return data if kind in ("image", "bytes") else data.decode()


def read_mongodb(url: str) -> tuple[Row, list[Row], list[bytes]]:
    with database_of(url) as (database, name):
        (found,) = database[name].find({"_id": {"$type": "string"}})
        documents = list(database[name].find({"_id": {"$type": "number"}}).sort("_id", 1))
    assert set(found) == {"_id", "_meta", "_build", "_mean_bytes", "_documents", "_time"}
    body = json.loads(found["_meta"])
    fields = {field["name"]: field for field in body["fields"]}
    assert (found["_id"], found["_build"]) == ("meta", body["build"])
    assert [document["_id"] for document in documents] == list(range(len(documents)))
    assert all(list(document) == ["_id", *fields, "_seal"] for document in documents)
    rows = [{name: _mongodb_value(document[name], field) for name, field in fields.items()} for document in documents]
    assert body["columns"] == column_sums(rows, body["fields"])
    return body, rows, _unsealed((document["_seal"] % 2**64 for document in documents), body)


def _mongodb_value(value: Any, field: Row) -> Any:
    if field["kind"] == "int":
        assert type(value) is Int64
        return int(value)
    if field["kind"] == "array":
        return [value["dtype"], [int(size) for size in value["shape"]], value["data"]]
    return value


# Writers: stored rows → a store under the URL.


def write_lmdb(url: str, rows: list[Row], fields: list[Row]) -> None:
    columns = columns_of(rows, fields)
    path = url.removeprefix("lmdb://")
    with lmdb.open(path, subdir=False, lock=False, max_dbs=3, map_size=1 << 26) as env:
        databases = {name: env.open_db(name) for name in (b"records", b"columns", b"meta")}
        with env.begin(write=True) as txn:
            for at, row in enumerate(rows):
                sealed = msgspec.msgpack.encode(row) + seal(row, at).to_bytes(8, "big")
                txn.put(at.to_bytes(8, "big"), sealed, db=databases[b"records"])
            for name, data in columns.items():
                txn.put(name.encode(), data, db=databases[b"columns"])
            text = canonical(meta_of(rows, fields, columns=column_sums(rows, fields)))
            txn.put(b"meta", text.encode(), db=databases[b"meta"])


def _offsets(blobs: list[bytes]) -> Any:
    return np.cumsum([0, *map(len, blobs)], dtype="<i8")


def write_hdf5(url: str, rows: list[Row], fields: list[Row], **storage: Any) -> None:
    with h5py.File(url.removeprefix("hdf5://"), "w") as file:
        file.attrs["layout"] = "storeds/1"
        file.attrs["meta"] = canonical(meta_of(rows, fields, columns=column_sums(rows, fields)))
        group = file.create_group("records")

        def put(name: str, array: Any) -> None:
            group.create_dataset(name, data=array, **(storage if array.size else {}))

        put("_seal", np.array([seal(row, at) for at, row in enumerate(rows)], "<u8"))
        for field in fields:
            name, values = field["name"], [row[field["name"]] for row in rows]
            if field["kind"] in SCALARS:
                put(name, np.array(values, SCALARS[field["kind"]]))
            elif field["kind"] == "array" and None not in field["shape"]:
                flat = np.frombuffer(b"".join(data for _, _, data in values), field["dtype"])
                put(name, flat.reshape(len(rows), *field["shape"]))
            else:
                blobs = [_blob(value) for value in values]
                put(f"{name}/data", np.frombuffer(b"".join(blobs), "u1"))
                put(f"{name}/offsets", _offsets(blobs))
                if field["kind"] == "array":
                    put(f"{name}/shapes", np.array([shape for _, shape, _ in values], "<i8"))


def _blob(value: Any) -> bytes:
    if isinstance(value, list):
        value = value[2]
    return value.encode() if isinstance(value, str) else value


def write_mongodb(url: str, rows: list[Row], fields: list[Row]) -> None:
    with database_of(url) as (database, name):
        for at, row in enumerate(rows):
            seal_of_row = seal(row, at)
            document = {"_id": Int64(at), **row, "_seal": Int64(seal_of_row - (seal_of_row >> 63 << 64))}
            for field in fields:
                value = row[field["name"]]
                if field["kind"] == "array":
                    value = {"dtype": value[0], "shape": [Int64(size) for size in value[1]], "data": value[2]}
                document[field["name"]] = Int64(value) if field["kind"] == "int" else value
            database[name].insert_one(document)
        body = meta_of(rows, fields, columns=column_sums(rows, fields))
        more = {"_build": body["build"], "_mean_bytes": 1000, "_documents": len(rows) + 1}
        database[name].insert_one({"_id": "meta", "_meta": canonical(body), **more})


READ = {"lmdb": read_lmdb, "hdf5": read_hdf5, "mongodb": read_mongodb}
WRITE: dict[str, Callable[..., None]] = {"lmdb": write_lmdb, "hdf5": write_hdf5, "mongodb": write_mongodb}
