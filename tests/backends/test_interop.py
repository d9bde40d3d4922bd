"""The native formats without storeds: plain lmdb, h5py and PyMongo read what it wrote, and it reads what they wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from make_store import make_store
from plain_formats import ATTRS, ENGINES, READ, WRITE, check, checksum, content_id, database_of, declared, stored_row
from storeds import open_backend, open_writer
from storeds.protocols import Backend
from storeds.testing import FIELDS, frozen, make_records

MakeUrl = Callable[[str], str]


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_libraries_read_what_storeds_wrote(make_engine_url: MakeUrl, engine: str) -> None:
    url, records = make_engine_url(engine), make_records(24)
    writer = open_writer(url, FIELDS, commit_every=7)
    writer.append(records)
    meta = writer.publish(ATTRS)
    body, rows, sums = READ[engine](url)
    expected = [stored_row(record, FIELDS) for record in records]
    assert frozen(rows) == frozen(expected)
    assert sums == [checksum(row) for row in expected]
    assert body["fields"] == declared(FIELDS)
    assert (body["attrs"], body["count"], body["layout"]) == (ATTRS, 24, "storeds/1")
    assert body["id"] == content_id(declared(FIELDS), sums) == meta.id
    assert body["check"] == check(body)


@pytest.mark.parametrize(
    ("engine", "storage"),
    [
        ("lmdb", {}),
        ("hdf5", {}),
        ("hdf5", {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}),
        ("mongodb", {}),
    ],
    ids=["lmdb", "hdf5", "hdf5-gzip", "mongodb"],
)
def test_storeds_reads_what_plain_libraries_wrote(
    make_engine_url: MakeUrl, engine: str, storage: dict[str, Any]
) -> None:
    url, records = make_engine_url(engine), make_records(24)
    WRITE[engine](url, [stored_row(record, FIELDS) for record in records], declared(FIELDS), **storage)
    reference = make_engine_url("memory")
    writer = open_writer(reference, FIELDS)
    writer.append(records)
    meta = writer.publish(ATTRS)
    with open_backend(url) as backend, open_backend(reference) as expected:
        assert backend.meta.id == meta.id
        assert_equal_backends(backend, expected)


def assert_equal_backends(got: Backend, expected: Backend) -> None:
    positions = [*range(len(expected))[::-1], 3, 3]
    assert frozen(got.get_many(positions)) == frozen(expected.get_many(positions))
    for name in ("number", "real", "flag", "box", "wave", "hollow"):
        assert frozen(got.get_many([4, 1], [name])) == frozen(expected.get_many([4, 1], [name]))
        assert frozen(got.column(name)) == frozen(expected.column(name))  # type: ignore[attr-defined]
    for name in ("text", "image_finding"):
        assert got.column(name).tolist() == expected.column(name).tolist()  # type: ignore[attr-defined]


def test_a_user_queries_mongodb_by_label(make_engine_url: MakeUrl) -> None:
    url = make_engine_url("mongodb")
    with open_writer(url, {"image": "image", "label": "int", "score": "float", "good": "bool"}) as writer:
        writer.append({"image": b"%d" % at, "label": at % 3, "score": at / 2, "good": at > 5} for at in range(9))
    with database_of(url) as (database, name):
        assert [row["image"] for row in database[name].find({"label": 2}).sort("_id", 1)] == [b"2", b"5", b"8"]
        assert database[name].count_documents({"score": {"$gte": 3.5}, "good": True}) == 2


def test_values_larger_than_a_document_lie_in_parts(make_engine_url: MakeUrl) -> None:
    url, big = make_engine_url("mongodb"), 20 << 20
    fields = {"blob": "bytes", "text": "str", "frames": {"kind": "array", "dtype": "uint16", "shape": [None, 1024]}}
    frames = np.arange(big // 2, dtype="u2").reshape(-1, 1024)
    records = [
        {"blob": b"small", "text": "small", "frames": frames[:2]},
        {"blob": b"\xff\xd8" * (big // 2), "text": "", "frames": frames[:0]},
        {"blob": b"", "text": "é" * (big // 2), "frames": frames},
    ]
    make_store(fields, records, url)
    with open_backend(url) as backend:
        assert frozen(backend.get_many([2, 0, 1, 2])) == frozen([records[at] for at in (2, 0, 1, 2)])
        assert frozen(backend.get_many([1], ["blob"])) == frozen([{"blob": records[1]["blob"]}])
        assert backend.describe().bytes > 3 * big  # type: ignore[attr-defined]
    with database_of(url) as (database, name):
        assert database.list_collection_names() == [name]
        documents = {row["_id"]: row for row in database[name].find()}

    def parts(position: int, field: str) -> bytes:
        count = documents[position][field]["_parts"]
        return b"".join(documents[f"part/{position:016x}/{field}/{number}"]["_data"] for number in range(count))

    assert parts(1, "blob") == records[1]["blob"]
    assert parts(2, "text").decode() == records[2]["text"]
    assert parts(2, "frames") == frames.tobytes()
    assert documents[2]["frames"] == {"dtype": "<u2", "shape": list(frames.shape), "_parts": 2}
    assert documents[2]["text"] == {"_text": True, "_parts": 2}
