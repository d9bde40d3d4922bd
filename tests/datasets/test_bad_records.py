"""Bad records among good ones of a batch: each is an error in its place, whatever the others are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import mongomock
import pytest
from bson import Binary, Int64

from _foreign_lmdb import encoded, pickled
from _verdicts import unjudged
from make_store import make_store
from storeds import open_backend
from storeds.errors import RecordError

FIELDS = {"image": "image", "label": "int", "key": "str", "score": "float", "good": "bool", "note": "json"}
RECORDS: list[dict[str, Any]] = [
    {"image": bytes([at]) * 500, "label": at, "key": f"sample {at}", "score": at / 3, "good": at > 3, "note": [at]}
    for at in range(8)
]


# LMDB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.lmdb"
    make_store(FIELDS, RECORDS, f"lmdb://{path}")
    return path


def put(path: Path, position: int, change: Callable[[bytes], bytes]) -> None:
    """Change one record behind the store's back."""
    with lmdb.open(str(path), subdir=False, max_dbs=3, lock=False) as env:
        records = env.open_db(b"records", create=False)
        with env.begin(write=True, db=records) as txn:
            key = position.to_bytes(8, "big")
            sealed = txn.get(key)
            assert sealed is not None
            txn.put(key, change(sealed))


def test_bad_lmdb_records_are_errors_in_their_places(path: Path) -> None:
    put(path, 2, lambda sealed: sealed.replace(b"\2\2\2\2", b"\2\2\0\2", 1))
    put(path, 5, lambda sealed: sealed[: len(sealed) // 2])
    asked = random.Random(0).choices(range(8), k=40)
    with open_backend(f"lmdb://{path}") as backend:
        found = unjudged(backend.get_many(asked))
    for at, record in zip(asked, found, strict=True):
        if at in (2, 5):
            assert isinstance(record, RecordError)
            assert record.position == at
        else:
            assert record == RECORDS[at]
    says = {record.position: str(record) for record in found if isinstance(record, RecordError)}
    assert "its checksum does not match its bytes" in says[2]
    assert "not the msgpack map of its fields" in says[5]
    assert all(f"lmdb://{path}" in text for text in says.values())


@pytest.mark.parametrize(("foreign", "batch"), [(False, 1), (True, 7), (False, 400)])
def test_a_damaged_page_of_lmdbs_spoils_its_own_record_alone(tmp_path: Path, foreign: bool, batch: int) -> None:
    records: list[Any] = [{"image": encoded(at) + bytes([at % 251]) * 9000, "label": at} for at in range(400)]
    path = tmp_path / "store"
    if foreign:
        pickled(path, [(record["image"], record["label"]) for record in records])
    else:
        make_store({"image": "image", "label": "int"}, records, f"lmdb://{path}")
    file = path / "data.mdb" if foreign else path
    data = bytearray(file.read_bytes())
    damaged = (
        [7, 8, 30] if foreign else [57, 60, 399]
    )  # none of those that are looked at when a foreign store is opened
    for at in damaged:
        page = data.find(records[at]["image"]) // 4096 * 4096
        data[page : page + 16] = b"\xff" * 16
    file.write_bytes(data)
    with open_backend(path, layout="pickled") if foreign else open_backend(f"lmdb://{path}") as backend:
        starts = range(0, 400, batch)
        found = [one for at in starts for one in unjudged(backend.get_many(range(at, min(at + batch, 400))))]
    bad = {at: one for at, one in enumerate(found) if isinstance(one, RecordError)}
    assert list(bad) == damaged
    assert not any("BAD_TXN" in str(error) for error in bad.values())
    assert all(at in bad or one == records[at] for at, one in enumerate(found))


# MongoDB

_NAMES = itertools.count()


class Mocked:
    """One collection of mongomock with a published store in it."""

    def __init__(self) -> None:
        self.client: Any = mongomock.MongoClient()
        self.url = f"mongodb://mocked/bad/store{next(_NAMES)}"
        make_store(FIELDS, RECORDS, self.url, client_factory=self)

    def __call__(self, uri: str) -> Any:
        return self.client

    def change(self, position: int, values: dict[str, Any], remove: tuple[str, ...] = ()) -> None:
        collection = self.client["bad"][self.url.rpartition("/")[2]]
        document = {**collection.find_one({"_id": position}), **values}
        for name in remove:
            del document[name]
        collection.replace_one({"_id": position}, document)

    def read(self) -> list[Any]:
        with open_backend(self.url, client_factory=self) as backend:
            return list(backend.get_many(range(8), list(FIELDS)))


@pytest.fixture
def mocked() -> Mocked:
    return Mocked()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image": "text"}, "field 'image' of its document is not of kind image (found str)"),
        ({"image": {"_parts": 2}}, "a part of its field 'image' is missing from the collection"),
        ({"image": {"_parts": "x"}}, "field 'image' of its document is not of kind image (found dict)"),
        ({"label": "3"}, "field 'label' of its document is not of kind int (found str)"),
        ({"label": True}, "field 'label' of its document is not of kind int (found bool)"),
        ({"key": 3}, "field 'key' of its document is not of kind str (found int)"),
        ({"score": 1}, "field 'score' of its document is not of kind float (found int)"),
        ({"good": 1}, "field 'good' of its document is not of kind bool (found int)"),
        ({"note": [3]}, "field 'note' of its document is not of kind json (found list)"),
        ({"label": 4}, "its checksum does not match its bytes"),
        ({"_seal": b"12345678"}, "it has no seal"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_bad_mongodb_document_is_an_error_in_its_place(mocked: Mocked, values: dict[str, Any], says: str) -> None:
    mocked.change(3, values)
    found = mocked.read()
    assert isinstance(found[3], RecordError)
    assert says in str(found[3])
    assert mocked.url in str(found[3])
    assert found[:3] + found[4:] == RECORDS[:3] + RECORDS[4:]


@pytest.mark.parametrize("name", ["image", "label", "_seal"])
def test_a_mongodb_document_that_lacks_something_is_an_error(mocked: Mocked, name: str) -> None:
    mocked.change(3, {}, remove=(name,))
    says = "it has no seal" if name == "_seal" else f"its document has no field '{name}'"
    assert says in str(mocked.read()[3])


def test_values_of_other_bson_types_that_mean_the_same_are_read(mocked: Mocked) -> None:
    mocked.change(3, {"label": 3, "image": Binary(RECORDS[3]["image"], 128), "more": [1, 2]})
    mocked.change(4, {"label": Int64(4)})
    assert mocked.read() == RECORDS
