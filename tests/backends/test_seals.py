"""Records that moved or changed under their store: an error in their place, nothing wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import msgspec
import numpy as np
import pytest

import storeds
from _verdicts import unjudged
from damage import lmdb_nodes
from make_store import make_store
from plain_formats import database_of
from storeds import errors
from storeds.protocols import SupportsBatchArrays

MakeUrl = Callable[[str], str]
FIELDS = {"image": "image", "label": "int", "key": "str"}
COUNT = 60


def records(mark: bytes = b"x", count: int = COUNT) -> list[dict[str, Any]]:
    """Return records of equal sizes, of two pages of LMDB each, that say which they are."""
    return [{"image": mark + at.to_bytes(4, "big") * 1250, "label": at, "key": f"{at:06d}.jpg"} for at in range(count)]


def write(url: str, mark: bytes = b"x", count: int = COUNT) -> str:
    make_store(FIELDS, records(mark, count), url)
    return url


# What a failing disk, an update or a faulty tool does


def move(url: str, moves: dict[int, int], origin: str | None = None) -> None:
    """Put copies of records, seals and all, into the places of others: target → source, in `origin` or the same store."""
    engine, _, path = url.partition("://")
    source = (origin or url).partition("://")[2]
    if engine == "hdf5":
        with h5py.File(path) as file:
            group = file["records"]
            flat = [group[name] for name in group if isinstance(group[name], h5py.Dataset)]
            cut = [group[name] for name in group if isinstance(group[name], h5py.Group)]
            places = [(each.id.get_offset(), each.nbytes // len(each)) for each in flat]
            places += [(each["data"].id.get_offset(), int(each["offsets"][1])) for each in cut]
        data, before = bytearray(Path(path).read_bytes()), Path(source).read_bytes()
        for start, size in places:
            for to, at in moves.items():
                data[start + to * size : start + (to + 1) * size] = before[start + at * size : start + (at + 1) * size]
        Path(path).write_bytes(data)
    elif engine == "lmdb":
        with records_in(source) as txn:
            values = {to: txn.get(at.to_bytes(8, "big")) for to, at in moves.items()}
        with records_in(path) as txn:
            for to, value in values.items():
                txn.put(to.to_bytes(8, "big"), value)
    else:
        with database_of(url) as (database, name):
            found = {to: database[name].find_one({"_id": at}, {"_id": 0}) for to, at in moves.items()}
            for to, document in found.items():
                database[name].replace_one({"_id": to}, document)


@contextlib.contextmanager
def records_in(path: str) -> Iterator[Any]:
    """Give a transaction of the records of an LMDB store."""
    with lmdb.open(path, subdir=False, lock=False, max_dbs=3) as env:
        rows = env.open_db(b"records")
        with env.begin(write=True, db=rows) as txn:
            yield txn


def change_label(url: str, at: int, label: int, key: str) -> None:
    """Give one record another label and another key of equal length, in its row and in the columns, without a new seal."""
    engine, _, path = url.partition("://")
    if engine == "hdf5":
        with h5py.File(path) as file:
            group = file["records"]
            places = {
                group["label"].id.get_offset() + 8 * at: label.to_bytes(8, "little"),
                group["key/data"].id.get_offset() + int(group["key/offsets"][at]): key.encode(),
            }
        with open(path, "r+b") as raw:
            for place, data in places.items():
                raw.seek(place)
                raw.write(data)
    elif engine == "lmdb":
        with lmdb.open(path, subdir=False, lock=False, max_dbs=3) as env:
            rows, columns = (env.open_db(name) for name in (b"records", b"columns"))
            txn: Any
            with env.begin(write=True) as txn:
                value = txn.get(at.to_bytes(8, "big"), db=rows)
                row = msgspec.msgpack.decode(value[:-8]) | {"label": label, "key": key}
                txn.put(at.to_bytes(8, "big"), msgspec.msgpack.encode(row) + value[-8:], db=rows)
                labels = np.frombuffer(txn.get(b"label", db=columns), "<i8").copy()
                labels[at] = label
                txn.put(b"label", labels.tobytes(), db=columns)
                texts, ends = txn.get(b"key", db=columns), np.frombuffer(txn.get(b"key.offsets", db=columns), "<i8")
                txn.put(b"key", texts[: ends[at]] + key.encode() + texts[ends[at + 1] :], db=columns)
    else:
        with database_of(url) as (database, name):
            database[name].update_one({"_id": at}, {"$set": {"label": label, "key": key}})


def swapped(url: str, other: str) -> None:
    move(url, {0: 41, 41: 0})


def grafted(url: str, other: str) -> None:
    move(url, {2: 2}, write(other, b"y"))


def changed(url: str, other: str) -> None:
    change_label(url, 7, 20, "000020.jpg")


@pytest.mark.parametrize(
    ("damage", "bad", "engines"),
    [
        (swapped, {0: "belongs to position 41", 41: "belongs to position 0"}, ("lmdb", "hdf5", "mongodb")),
        (grafted, {2: "belongs to another store"}, ("lmdb", "hdf5")),
        (changed, {7: "checksum"}, ("lmdb", "hdf5", "mongodb")),
    ],
)
def test_a_moved_or_changed_record_is_an_error_in_its_place(
    make_engine_url: MakeUrl, damage: Callable[[str, str], None], bad: dict[int, str], engines: tuple[str, ...]
) -> None:
    for engine in engines:
        url = write(make_engine_url(engine))
        damage(url, make_engine_url(engine))
        with storeds.open_backend(url) as backend:
            found = unjudged(backend.get_many(range(COUNT)))
        for at, (one, expected) in enumerate(zip(found, records(), strict=True)):
            assert bad[at] in str(one) if at in bad else one == expected, (engine, at)
        assert {finding.position for finding in storeds.verify(url, workers=0).findings} >= set(bad)


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_a_changed_label_is_an_error_in_every_way_of_reading(make_engine_url: MakeUrl, engine: str) -> None:
    url, truth = write(make_engine_url(engine)), records()
    changed(url, "")
    backend: Any
    with storeds.open_backend(url) as backend:
        for fields in (["label"], ["key"], ["label", "key"], ["image", "label"], [*FIELDS]):
            found = backend.get_many(range(COUNT), fields)
            assert isinstance(found.pop(7), errors.RecordError)
            assert found == [{name: record[name] for name in fields} for record in truth[:7] + truth[8:]]
        for name in ("label", "key"):
            with pytest.raises(errors.StoredsError, match="does not match its checksum"):
                backend.column(name)
        if isinstance(backend, SupportsBatchArrays):
            with pytest.raises(errors.RecordError, match="record 7"):
                backend.get_arrays([3, 7], ["label"])
    for where in ({"label": 20}, {"label": 3}, {"key": "000007.jpg"}):
        with pytest.raises(errors.StoredsError, match="does not match its checksum"):
            storeds.StoreDataset(url, where=where)
    with pytest.raises(errors.StoredsError, match="does not match its checksum"):
        storeds.StoreDataset(url, decode="bytes").targets  # noqa: B018


def test_a_worker_killed_by_a_damaged_file_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deadly.lmdb"
    make_store({"image": "bytes"}, ({"image": bytes(1000)} for _ in range(200)), path)
    data = bytearray(path.read_bytes())
    (entry,) = [entry for entry, key, _ in lmdb_nodes(data) if key == (199).to_bytes(8, "big")]
    data[entry + 1] ^= 0x80  # the node seems to lie behind the end of the file
    path.write_bytes(data)
    dataset = storeds.StoreDataset(f"lmdb://{path}", reader="array", fields=["image"])
    with pytest.raises(RuntimeError, match=rf"(?s)worker.*storeds verify lmdb://{path}"):
        list(storeds.StoreLoader(dataset, batch_size=50, num_workers=1))
