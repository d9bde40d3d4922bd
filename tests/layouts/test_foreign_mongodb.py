"""Collections that other tools wrote, read against the truth: in order and out of it, in workers, and converted."""

from __future__ import annotations

import io
import json
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gridfs
import numpy as np
import pymongo
import pytest
import xxhash
from bson import ObjectId
from PIL import Image
from pymongo import monitoring

import storeds
from _processes import loader
from _verdicts import unjudged
from conftest import with_path
from storeds import StoreDataset, errors
from storeds.layouts.mongodb import GridfsLayout, NamedLayout, QueryLayout
from storeds.layouts.mongodb.backend import MongodbLayout
from storeds.records.columns import check_where, matching_positions

Truth = list[tuple[str, int]]
"""Of each record: the hash of its image, and its label."""
COUNT = 24


class Commands(monitoring.CommandListener):
    """Notes the commands that clients send."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.sent.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


COMMANDS = Commands()
monitoring.register(COMMANDS)


def image(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (12, 10 + number, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


IMAGES = [image(number) for number in range(COUNT)]


def digest(blob: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(blob)


@pytest.fixture
def database(mongodb: str, mongodb_database: str) -> Iterator[Any]:
    name = mongodb_database.rpartition("/")[2].partition("?")[0]
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(mongodb)
    with client:
        yield client[name]


def write_index(path: Path, names: Sequence[Any], labels: Sequence[Any]) -> str:
    path.write_text(json.dumps({"path_list": names, "label_list": labels}), encoding="utf-8")
    return str(path)


def fill_named(database: Any, ids: Callable[[int], Any] = lambda n: ObjectId()) -> list[str]:
    names = [f"фото/{n:03}.jpg" for n in range(COUNT)]
    order = np.random.default_rng(0).permutation(COUNT).tolist()
    database.named.insert_many({"_id": ids(n), "img_name": names[n], "bson_img": IMAGES[n]} for n in order)
    return names


def open_named(database: Any, base: str, tmp_path: Path) -> tuple[NamedLayout, Truth]:
    names = fill_named(database)
    order = [*range(COUNT - 1, -1, -1), 5, 5]  # a user's list may name one twice
    index = write_index(tmp_path / "train.json", [names[n] for n in order], [n * 7 % 5 for n in range(len(order))])
    truth = [(digest(IMAGES[n]), at * 7 % 5) for at, n in enumerate(order)]
    return NamedLayout(with_path(base, "named"), index=index), truth


def open_query(database: Any, base: str, tmp_path: Path) -> tuple[QueryLayout, Truth]:
    database.any.insert_many(
        {"split": "val" if n % 3 == 0 else "train", "payload": {"jpg": IMAGES[n]}, "meta": {"class": n % 4}}
        for n in range(COUNT)
    )
    columns = {"image": "payload.jpg", "label": "meta.class", "key": "_id"}
    backend = QueryLayout(with_path(base, "any"), query={"split": "train"}, columns=columns)
    return backend, [(digest(IMAGES[n]), n % 4) for n in range(COUNT) if n % 3]


def open_gridfs(database: Any, base: str, tmp_path: Path) -> tuple[GridfsLayout, Truth]:
    bucket = gridfs.GridFSBucket(database, "photos", chunk_size_bytes=300)  # several chunks a file
    for n in range(COUNT):
        bucket.upload_from_stream_with_id(n, f"{n}.jpg", IMAGES[n], metadata={"class": n % 4})
    backend = GridfsLayout(with_path(base, "photos"), columns={"label": "metadata.class"})
    return backend, [(digest(IMAGES[n]), n % 4) for n in range(COUNT)]


def selected(backend: MongodbLayout[Any], where: dict[str, Any]) -> list[int]:
    return matching_positions(backend, check_where(where, backend.meta.fields, backend.url)).tolist()


OPENERS: dict[str, Callable[[Any, str, Path], tuple[MongodbLayout[Any], Truth]]] = {
    "named": open_named,
    "query": open_query,
    "gridfs": open_gridfs,
}
COSTS = {"named": ["find"], "query": ["find"], "gridfs": ["find", "find"]}


def hashes(backend: Any, positions: Sequence[int]) -> Truth:
    return [(digest(record["image"]), record["label"]) for record in backend.get_many(positions, ("image", "label"))]


@pytest.mark.share(2)
@pytest.mark.parametrize("layout", OPENERS)
def test_every_layout_reads_and_converts_in_every_mode(
    layout: str, database: Any, mongodb_database: str, tmp_path: Path
) -> None:
    backend, truth = OPENERS[layout](database, mongodb_database, tmp_path)
    assert backend._connection.ref.entry is None  # a parent holds nothing when workers start
    assert (len(backend), backend.meta.layout, backend.meta.fields["image"].kind) == (len(truth), layout, "image")

    shuffled = np.random.default_rng(1).permutation(len(truth)).tolist()
    orders: list[Any] = [range(len(truth)), shuffled, [3, 0, 3, 3, len(truth) - 1, 0], [np.int64(2)], []]
    for order in orders:
        COMMANDS.sent.clear()
        assert hashes(backend, order) == [truth[at] for at in order]
        assert COMMANDS.sent == (COSTS[layout] if order else [])

    labels = backend.column("label")
    assert labels.dtype == np.int64
    assert labels.tolist() == [label for _, label in truth]
    keys = [record["key"] for record in backend.get_many(range(len(truth)), ("key",))]  # type: ignore[index]
    assert backend.column("key").tolist() == keys
    selected = StoreDataset(backend, where={"label": [1, 3], "key": keys[:10]}, decode="bytes")
    assert [(digest(blob), label) for blob, label in selected[:]] == [row for row in truth[:10] if row[1] in (1, 3)]

    dataset = StoreDataset(backend, fields=("image", "label", "index"), decode="bytes")
    assert len(pickle.dumps(dataset)) < 4000
    rows = sorted(row for _, batch in loader(dataset, "spawn") for row in batch)
    assert [(blob, label) for _, blob, label in rows] == truth
    backend.close()
    with pytest.raises(errors.ClosedError):
        backend.get_many([0])
    with pytest.raises(errors.ClosedError):
        backend.column("label")


OPTIONS: dict[str, dict[str, Any]] = {
    "named": {},
    "query": {"query": '{"split": "train"}', "columns": {"image": "payload.jpg", "label": "meta.class", "key": "_id"}},
    "gridfs": {"columns": '{"label": "metadata.class"}'},
}


@pytest.mark.parametrize("layout", OPENERS)
def test_a_converted_store_has_the_same_records_and_verifies(
    layout: str, database: Any, mongodb_database: str, tmp_path: Path
) -> None:
    backend, truth = OPENERS[layout](database, mongodb_database, tmp_path)
    options = OPTIONS[layout] or {"index": tmp_path / "train.json"}
    url = with_path(mongodb_database, backend.url.rpartition("/")[2])
    target = f"lmdb://{tmp_path}/copy.lmdb"
    storeds.convert(url, target, layout=layout, options=options)
    assert storeds.verify(target, workers=0).ok
    with storeds.open_backend(target) as copy:
        assert hashes(copy, range(len(copy))) == truth
        assert unjudged(copy.get_many([2, 0])) == backend.get_many([2, 0])
    by_url = StoreDataset(url, layout=layout, options=options, decode="bytes")
    assert [(digest(blob), label) for blob, label in by_url[:]] == truth
    found = storeds.open_backend(url, **options)  # by what is there
    assert (found.meta.layout, found.meta.id) == (layout, backend.meta.id)


def test_a_bucket_is_found_by_its_name_alone(
    database: Any, mongodb_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_gridfs(database, mongodb_database, Path())[0].close()
    url = with_path(mongodb_database, "photos")
    with caplog.at_level(logging.INFO, "storeds"), storeds.open_backend(url) as backend:
        assert backend.meta.layout == "gridfs"
    assert "layout 'gridfs': there are the collections photos.files and photos.chunks" in caplog.text
    blobs = [record[0] for record in StoreDataset(url, fields=("image",), decode="bytes")[:]]
    assert blobs == IMAGES
    found = storeds.info(url)
    assert (found.layout, found.count) == ("gridfs", COUNT)
    assert "photos.files" in str(found.recognised)


def test_a_collection_comes_before_a_bucket_of_its_name(database: Any, mongodb_database: str) -> None:
    open_gridfs(database, mongodb_database, Path())[0].close()
    url = with_path(mongodb_database, "photos")
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    with storeds.open_backend(url) as backend:
        assert backend.meta.layout == "storeds/1"
    with storeds.open_backend(url, layout="gridfs") as backend:
        assert len(backend) == COUNT
    database.photos.drop()
    database.photos.insert_one({"bson_img": IMAGES[0]})
    with pytest.raises(
        errors.ConfigError, match=r"layout='query'\)  # 1 record (.|\n)*layout='gridfs'\)  # 24 records"
    ):
        storeds.open_backend(url)


@pytest.mark.parametrize(
    "make", [lambda n: n * 10**12 - 5, lambda n: f"é{n}", lambda n: [7, "x", {"a": n}, 1.5][n % 4]]
)
def test_ids_of_any_type(make: Callable[[int], Any], database: Any, mongodb_database: str, tmp_path: Path) -> None:
    database.ids.insert_many(
        {"_id": {"n": n, "id": id} if isinstance(id := make(n), (dict, float)) or make(n + 4) == id else id, "x": n}
        for n in range(8)
    )
    in_order = [row["x"] for row in database.ids.find({}).sort("_id", 1)]
    with QueryLayout(with_path(mongodb_database, "ids")) as backend:
        assert backend.column("x").tolist() == in_order
        assert backend.get_many([7, 0, 7]) == [{"x": in_order[at]} for at in (7, 0, 7)]
        assert selected(backend, {"x": [5, 2]}) == sorted(map(in_order.index, (5, 2)))


def test_an_unpickled_layout_without_an_index_file_resolves_again_and_detects_changes(
    database: Any, mongodb_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOREDS_CACHE", "/proc/nowhere")
    backend, truth = open_query(database, mongodb_database, tmp_path)
    assert hashes(pickle.loads(pickle.dumps(backend)), [4, 1]) == [truth[4], truth[1]]
    other = pickle.loads(pickle.dumps(backend))
    database.any.insert_one({"split": "train"})
    assert hashes(backend, [2]) == [truth[2]]  # what was opened stays
    with pytest.raises(errors.UnavailableError, match="has changed since it was opened"):
        other.get_many([0])


def test_ids_and_builds(database: Any, mongodb_database: str, tmp_path: Path) -> None:
    first, _ = open_named(database, mongodb_database, tmp_path)
    again = NamedLayout(with_path(mongodb_database, "named"), index=tmp_path / "train.json")
    assert (again.meta.id, again.meta.build) == (first.meta.id, first.meta.build)
    rows = list(database.named.find())
    database.named.drop()
    database.named.insert_many(rows)
    replaced = NamedLayout(with_path(mongodb_database, "named"), index=tmp_path / "train.json")
    assert replaced.meta.id == first.meta.id
    assert replaced.meta.build != first.meta.build
    with pytest.raises(errors.UnavailableError, match="replaced or dropped"):
        first.get_many([0])
