"""Collections that other tools wrote, read against the truth in every mode, and what is wrong in them: one clear error each."""

from __future__ import annotations

import datetime
import functools
import logging
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gridfs
import numpy as np
import pytest
from bson import Binary, Int64, ObjectId
from pymongo import monitoring

import storeds
from _foreign_lmdb import records_of
from _foreign_mongodb import COUNT, IMAGES, MONGODB, NAMES, bucket, named, write_index
from _layout_case import lines_of
from conftest import with_path
from shares import FULL, SEED
from storeds import StoreDataset, errors
from storeds.records.where import check_where, matching_positions


class Commands(monitoring.CommandListener):
    """Notes the commands that clients send."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name != "endSessions":  # a client of an earlier test is collected
            self.sent.append(event.command_name)

    def succeeded(self, event: object) -> None:
        pass

    failed = succeeded


At = Callable[[str], str]
GRIDFS: Any = functools.partial(storeds.open_backend, layout="gridfs")
NAMED: Any = functools.partial(storeds.open_backend, layout="named")
QUERY: Any = functools.partial(storeds.open_backend, layout="query")
COMMANDS = Commands()
monitoring.register(COMMANDS)


@pytest.fixture
def at(mongodb_database: str) -> Callable[[str], str]:
    """Return the URL of a collection."""
    return lambda name: with_path(mongodb_database, name)


def selected(backend: Any, where: dict[str, Any]) -> list[int]:
    return cast("list[int]", matching_positions(backend, check_where(where, backend.meta.fields, backend.url)).tolist())


def reasons(found: list[Any]) -> list[str]:
    return [record.reason if isinstance(record, errors.RecordError) else "" for record in found]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an index has a relative path


@pytest.mark.parametrize(("layout", "commands"), [("named", 1), ("query", 1), ("gridfs", 2)])
def test_a_batch_is_few_commands(layout: str, commands: int, database: Any, at: At, tmp_path: Path) -> None:
    case = MONGODB[layout]
    truth = case.write(database, tmp_path)
    backend: Any = storeds.open_backend(at(case.url), **case.arguments)
    assert backend._ref.entry is None  # when workers start
    for order in ([*range(len(truth))], [3, 0, 3, 3, len(truth) - 1, 0], [np.int64(2)], []):
        COMMANDS.sent.clear()
        assert backend.get_many(order) == [truth[position] for position in order]
        assert COMMANDS.sent == ["find"] * (commands if order else 0)
    keys = [record["key"] for record in truth]
    dataset = StoreDataset(backend, where={"label": [1, 3], "key": keys[:10]}, decode="bytes")
    chosen = [record for record in truth if record["key"] in keys[:10] and record["label"] in (1, 3)]
    assert dataset[:] == [(record["image"], record["label"]) for record in chosen]
    dataset = StoreDataset(at(case.url), layout=layout, options={**case.arguments}, decode="bytes")
    assert dataset[:] == [(record["image"], record["label"]) for record in truth]
    backend.close()
    with pytest.raises(errors.ClosedError):
        backend.get_many([0])
    with pytest.raises(errors.ClosedError):
        backend.column("label")


def test_a_bucket_is_found_by_its_name(database: Any, at: At, caplog: pytest.LogCaptureFixture) -> None:
    bucket(database, Path())
    url = at("photos")
    with caplog.at_level(logging.INFO, "storeds"):
        assert [record[0] for record in StoreDataset(url, fields=("image",), decode="bytes")[:]] == IMAGES
    assert "layout 'gridfs': there are the collections photos.files and photos.chunks" in caplog.text
    found = storeds.info(url)
    assert (found.layout, found.count, "photos.files" in str(found.recognised)) == ("gridfs", COUNT, True)
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    with storeds.open_backend(url) as backend:
        assert backend.meta.layout == "storeds/1"
    with storeds.open_backend(url, layout="gridfs") as backend:
        assert len(backend) == COUNT
    database.photos.drop()
    database.photos.insert_one({"bson_img": IMAGES[0]})
    with pytest.raises(errors.ConfigError) as raised:
        storeds.open_backend(url)
    assert lines_of(raised.value) == [{"layout": "query"}, {"layout": "gridfs"}]


@pytest.mark.parametrize(
    "make", [lambda n: n * 10**12 - 5, lambda n: f"é{n}", lambda n: [7, "x", {"a": n}, 1.5][n % 4]]
)
def test_ids_of_any_type(make: Callable[[int], Any], database: Any, at: At) -> None:
    database.ids.insert_many(
        {"_id": {"n": n, "id": id} if isinstance(id := make(n), (dict, float)) or make(n + 4) == id else id, "x": n}
        for n in range(8)
    )
    in_order = [row["x"] for row in database.ids.find({}).sort("_id", 1)]
    with QUERY(at("ids")) as backend:
        assert backend.column("x").tolist() == in_order
        assert backend.get_many([7, 0, 7]) == [{"x": in_order[position]} for position in (7, 0, 7)]
        assert selected(backend, {"x": [5, 2]}) == sorted(map(in_order.index, (5, 2)))


def test_without_an_index_file_a_worker_resolves_again(
    database: Any, at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOREDS_CACHE", "/proc/nowhere")
    case = MONGODB["query"]
    truth = case.write(database, tmp_path)
    backend = QUERY(at(case.url), **case.arguments)
    assert pickle.loads(pickle.dumps(backend)).get_many([4, 1]) == [truth[4], truth[1]]
    other = pickle.loads(pickle.dumps(backend))
    database.any.insert_one({"split": "train"})
    assert backend.get_many([2]) == [truth[2]]  # what was opened stays
    with pytest.raises(errors.UnavailableError, match="has changed since it was opened"):
        other.get_many([0])


def test_ids_and_builds(database: Any, at: At, tmp_path: Path) -> None:
    options = MONGODB["named"].arguments
    named(database, tmp_path)
    first, again = NAMED(at("named"), **options), NAMED(at("named"), **options)
    assert (again.meta.id, again.meta.build) == (first.meta.id, first.meta.build)
    rows = list(database.named.find())
    database.named.drop()
    database.named.insert_many(rows)
    replaced = NAMED(at("named"), **options)
    assert (replaced.meta.id == first.meta.id, replaced.meta.build == first.meta.build) == (True, False)
    with pytest.raises(errors.UnavailableError, match="replaced or dropped"):
        first.get_many([0])


# Values and labels.


def test_kinds_are_inferred_and_each_value_is_checked(database: Any, at: At) -> None:
    day, id = datetime.datetime(2020, 1, 2), ObjectId()
    whole = {"jpg": Binary(IMAGES[0], 2), "raw": b"\0\1", "n": Int64(3), "x": 1.5, "yes": True, "text": "é"}
    whole |= {"box": [1, 2, 3], "poly": [[1.0, 2.0]], "tags": ["a"], "doc": {"at": day, "nan": float("nan")}, "id": id}
    database.kinds.insert_many({"_id": n, **whole, "day": day} for n in range(3))
    database.kinds.update_one({"_id": 1}, {"$set": {"n": "3", "box": [1, 2]}, "$unset": {"text": 1}})
    columns = {name: name for name in (*whole, "day")}
    with QUERY(at("kinds"), query={"_id": {"$ne": 1}}, columns=columns) as backend:
        kinds = " ".join(field.kind for field in backend.meta.fields.values())
        assert kinds == "image bytes int float bool str array array json json str str"
        first = cast("dict[str, Any]", backend.get_many([1])[0])
        assert type(first["jpg"]) is bytes
        assert (first["box"].tolist(), first["poly"].tolist()) == ([1, 2, 3], [[1.0, 2.0]])
        assert first["doc"] == {"at": {"$date": "2020-01-02T00:00:00Z"}, "nan": {"$numberDouble": "NaN"}}
        assert (first["id"], first["day"]) == (str(id), "2020-01-02T00:00:00")
        assert selected(backend, {"id": str(id), "n": [3, 10**400], "text": ["é", "\ud800"]}) == [0, 1]
    forced = {"n": {"path": "n", "kind": "int"}, "text": "text", "box": {"path": "box", "kind": "json"}}
    with QUERY(at("kinds"), columns=forced) as backend:
        assert backend.get_many([0]) == [{"n": 3, "text": "é", "box": [1, 2, 3]}]
        assert "'n' of its document is not int: found str (_id 1)" in reasons(backend.get_many([1], ("n",)))[0]
        assert reasons(backend.get_many([1], ("text",))) == ["its document has no field 'text', or null in it (_id 1)"]
        with pytest.raises(errors.RecordError, match="record 1"):
            backend.column("n")


def labels_of(backend: Any) -> list[Any]:
    found = [record["label"] for record in backend.get_many(range(len(backend)), ["label"])]
    return [label.tolist() if isinstance(label, np.ndarray) else label for label in found]


def test_labels_of_files_may_be_of_any_type(database: Any, at: At) -> None:
    """With all revisions of a name, too."""
    files = gridfs.GridFSBucket(database)
    ids = [files.upload_from_stream(name, IMAGES[n]) for n, name in enumerate(("a.jpg", "a.jpg", "b.jpg"))]
    for kind, label, expected in (
        ("ids", ids[0], str(ids[0])),
        ("dates", datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        ("documents", {"a": [1]}, {"a": [1]}),
        ("lists", [1.5, 2.0], [1.5, 2.0]),
    ):
        database[kind].insert_many({"name": name, "label": label} for name in ("a.jpg", "b.jpg"))
        with GRIDFS(at("fs"), labels=f"{kind}.label", labels_on="name", revisions="all") as backend:
            assert labels_of(backend) == [expected] * 3, kind


def test_lists_of_documents_and_columns_of_them(database: Any, at: At) -> None:
    page = {"name": "p", "found": {"crops": [{"image": IMAGES[n], "name": f"c{n}"} for n in range(3)], "by": "me"}}
    database.deep.insert_many([page, {"name": "q"}])
    with QUERY(at("deep"), columns={"image": "found.crops[].image", "page": "name"}) as backend:
        assert pickle.loads(pickle.dumps(backend)).get_many([1]) == [{"image": IMAGES[1], "page": "p"}]
        assert backend.unread() == ["1 document without an element in 'found.crops'"]
    database.pages.insert_many({"page": n, "crops": [{"Image": IMAGES[n], "n": k} for k in range(3)]} for n in range(2))
    with pytest.raises(errors.ConfigError) as raised:
        storeds.open_backend(at("pages"))
    line = re.search(r"columns=(\{.*?\}) gives one record", str(raised.value))
    assert line is not None
    with storeds.open_backend(at("pages"), columns=eval(line[1])) as found:
        assert found.get_many([4]) == [{"image": IMAGES[1], "n": 1}]


def test_names_of_fields_are_in_lower_case(database: Any, at: At) -> None:
    database.cased.insert_many({"Image": IMAGES[n], "Label": n} for n in range(3))
    assert StoreDataset(at("cased"), decode="bytes")[1] == (IMAGES[1], 1)
    database.twice.insert_many({"Image": IMAGES[n], "image": IMAGES[0], "label": n} for n in range(3))
    with QUERY(at("twice")) as backend:
        assert backend.get_many([1]) == [{"image": IMAGES[0], "image_2": IMAGES[1], "label": 1}]
        assert backend.unread() == []


def test_unread_parts_of_documents_are_reported(database: Any, at: At) -> None:
    database.photos.insert_many({"image": IMAGES[n], "label": n, **({"note": "x"} if n == 2 else {})} for n in range(6))
    database["photos.labels"].insert_many({"x": n} for n in range(3))
    assert storeds.info(at("photos")).unread == [
        "field 'note': absent in most records",
        "collection 'photos.labels': 3 documents",
    ]
    database.sparse.insert_many({"image": IMAGES[n], **{f"f{n}_{k}": k for k in range(3)}} for n in range(6))
    with pytest.raises(errors.ConfigError, match=r"18 of 19 fields: .* columns=\{'image': 'image'\} reads"):
        storeds.open_backend(at("sparse"))
    assert len(storeds.open_backend(at("sparse"), columns={"image": "image"})) == 6


@pytest.mark.parametrize("by", ["filename", "_id"])
def test_gridfs_files_with_labels_in_another_collection(by: str, database: Any, at: At) -> None:
    labels = {"labels": "annotations.info.class", "labels_on": "ref"}
    files = gridfs.GridFSBucket(database)
    ids = {f"{n}.jpg": files.upload_from_stream(f"{n}.jpg", IMAGES[n]) for n in range(5)}
    database.annotations.insert_many(
        {"ref": name if by == "filename" else id, "info": {"class": n % 2}} for n, (name, id) in enumerate(ids.items())
    )
    dataset = StoreDataset(at("fs"), options=labels, decode="bytes")
    assert (dataset[:], dataset.targets) == ([(IMAGES[n], n % 2) for n in range(5)], [0, 1, 0, 1, 0])
    database.annotations.delete_one({})
    with pytest.raises(errors.FormatError, match="1 of 5 files have no label .*: '0.jpg'; add them, or select"):
        storeds.open_backend(at("fs"), **labels)
    assert len(records_of(at("fs"), query={"filename": {"$ne": "0.jpg"}}, **labels)) == 4


# What is missing or damaged.


def test_names_that_are_missing_or_doubled(database: Any, at: At, tmp_path: Path) -> None:
    named(database, tmp_path)
    absent = [f"gone{n}.jpg" for n in range(12)]
    index = write_index(tmp_path / "i.json", [*absent, *NAMES[:3], NAMES[1]], list(range(16)))
    with pytest.raises(errors.FormatError, match=r"12 of the 15 names.*'gone0.jpg'.*'gone9.jpg' and 2 more; correct"):
        NAMED(at("named"), index=index)
    with NAMED(at("named"), index=write_index(tmp_path / "few.json", NAMES[:4], [0] * 4)) as backend:
        assert backend.unread() == ["20 documents that the index does not name"]
    database.named.insert_one({"_id": -1, "img_name": NAMES[4], "bson_img": IMAGES[9]})
    with pytest.raises(errors.FormatError, match=rf"1 of the 24 names .* have several documents: '{NAMES[4]}'"):
        NAMED(at("named"), index=write_index(tmp_path / "i.json", NAMES, [0] * COUNT))


def test_deleted_documents_and_elements_give_record_errors(database: Any, at: At, tmp_path: Path) -> None:
    named(database, tmp_path)
    index = write_index(tmp_path / "i.json", NAMES, [0] * COUNT)
    with NAMED(at("named"), index=index) as backend:
        database.named.delete_one({"img_name": NAMES[2]})
        database.named.update_one({"img_name": NAMES[3]}, {"$unset": {"bson_img": 1}})
        before, gone, lacking = backend.get_many([1, 2, 3])
        assert before == {"key": NAMES[1], "image": IMAGES[1], "label": 0}
        assert isinstance(gone, errors.RecordError)
        reason = "its document is gone from the collection (_id 2)"
        assert (gone.position, gone.key, gone.reason) == (2, NAMES[2], reason)
        assert "no field 'bson_img'" in str(lacking)
    database.pages.insert_many({"_id": n, "crops": [{"image": IMAGES[0], "n": k} for k in range(3)]} for n in range(2))
    columns = {"image": "crops[].image", "n": "crops[].n"}
    with QUERY(at("pages"), columns=columns) as pages:
        assert pages.column("n").tolist() == [0, 1, 2] * 2
        database.pages.update_one({"_id": 1}, {"$pop": {"crops": 1}})
        database.pages.update_one({"_id": 0}, {"$set": {"crops": "none"}})
        assert reasons(pages.get_many([4, 5, 0])) == [
            "",
            "its document now has 2 elements in 'crops', and no element 2 (_id 1)",
            "its document now has no list in 'crops', and no element 0 (_id 0)",
        ]


IDS: list[Any] = [ObjectId(), 7, "a/7.jpg", {"shard": 1, "n": 2}, 7]
FAULTS: dict[str, dict[str, Any]] = {
    "absent": {"$unset": {"label": 1}},
    "null": {"$set": {"label": None}},
    "another kind": {"$set": {"label": "cat"}},
    "a damaged picture": {"$set": {"image": IMAGES[0][:-40]}},
    "no picture": {"$set": {"image": b"?"}},
}


@pytest.mark.parametrize(("fault", "id"), [*zip(FAULTS, IDS, strict=True)], ids=[*FAULTS])
def test_every_message_about_a_record_names_its_id(database: Any, at: At, fault: str, id: Any) -> None:
    others = [{"_id": ObjectId(), "image": IMAGES[0], "label": n % 3} for n in range(30)]
    database.ids.insert_many([*others, {"_id": id, "image": IMAGES[0], "label": 1}])
    url, columns = at("ids"), {"image": "image", "label": {"path": "label", "kind": "int"}}
    dataset = storeds.StoreDataset(url, columns=columns, repair=False)
    position = [document["_id"] for document in database.ids.find().sort("_id", 1)].index(id)
    database.ids.update_one({"_id": id}, FAULTS[fault])
    with pytest.raises(errors.RecordError) as raised:
        dataset[position]
    messages = [str(raised.value)]
    with pytest.raises(errors.RecordError) as raised:
        storeds.StoreDataset([url, url], columns=columns, repair=False)[position + 31]
    messages.append(str(raised.value))
    named: list[Any] = [dataset.records, storeds.open_backend([url, url], columns=columns)]
    assert [each.place(position).name for each in named] == [f"_id {id!r}"] * 2
    found = storeds.verify(url, layout="query", options={"columns": columns}, workers=0).findings
    messages += [finding.message for finding in found if finding.position == position]
    if "picture" not in fault:
        with pytest.raises(errors.RecordError) as raised:
            storeds.StoreDataset(url, columns=columns).targets  # noqa: B018
        messages.append(str(raised.value))
    assert len(messages) >= 3
    assert all(f"(_id {id!r})" in message for message in messages), messages


BOXES: dict[str, Callable[[int], Any]] = {
    "in a list": lambda n: [{"bbox": [1.0, 2.0, 10.0, 8.0], "category": "cat"}] * (1 + n % 2),
    "none in some": lambda n: [{"bbox": [1.0, 2.0, 10.0, 8.0], "category": "cat"}] * (n % 2),
    "with attributes": lambda n: [{"bbox": [1, 2, 10, 8], "category": "cat", "of": {"vector": [0.5, 0.5]}}],
}


@pytest.mark.parametrize("sort", BOXES)
def test_lists_of_boxes_of_one_image_are_one_field(database: Any, at: At, sort: str) -> None:
    database.boxes.insert_many({"_id": n, "image": IMAGES[0], "objects": BOXES[sort](n)} for n in range(20))
    fields = {"image": "image", "boxes": "objects[].bbox", "labels": "objects[].category"}
    roles = {"boxes": {"role": "boxes", "format": "xywh"}, "labels": {"role": "labels", "classes": ["cat"]}}
    dataset = storeds.StoreDataset(at("boxes"), fields=fields, roles=roles)
    _, boxes, labels = dataset[1]
    count = len(BOXES[sort](1))
    assert (len(dataset), boxes.tolist(), labels.tolist()) == (20, [[1, 2, 10, 8]] * count, [0] * count)
    database.crops.insert_many({"_id": n, "objects": [{"crop": IMAGES[0], "box": [1, 2]}]} for n in range(4))
    with pytest.raises(errors.ConfigError, match=r"'objects\[\]\.crop'"):
        storeds.open_backend(at("crops"))


def test_classes_of_documents_need_no_list(database: Any, at: At) -> None:
    """Texts and numbers with gaps, in lists of lists too."""
    names, ids = ("dog", "cat", "emu"), (90, 1, 7)
    for n in range(9):
        pages = [{"objects": [{"bbox": [1.0, 2.0, 4.0, 8.0], "is": names[n % 3]}] * k} for k in range(3)]
        page = {"_id": n, "image": IMAGES[0], "name": names[n % 3], "id": ids[n % 3], "pages": pages}
        database.pages.insert_one(page)
    places = {"boxes": "pages[].objects[].bbox", "labels": "pages[].objects[].is", "n": "name", "i": "id"}
    fields = {"image": "image", **places}
    roles: dict[str, Any] = {name: {"role": "label", "classes": "distinct"} for name in ("n", "i")}
    roles |= {"labels": {"role": "labels", "classes": "distinct"}, "boxes": {"role": "boxes", "format": "xywh"}}
    dataset = storeds.StoreDataset(at("pages"), fields=fields, roles=roles)
    _, boxes, labels, name, id = dataset[3]
    assert (boxes.tolist(), labels.tolist(), name, id) == ([[1, 2, 4, 8]] * 3, [1] * 3, 1, 2)


def test_incomplete_gridfs_files_give_record_errors(database: Any, at: At, caplog: pytest.LogCaptureFixture) -> None:
    bucket = gridfs.GridFSBucket(database, chunk_size_bytes=100)
    for n in range(6):
        bucket.upload_from_stream_with_id(f"id{n}", f"{n}", bytes([n]) * 250)
    bucket.upload_from_stream_with_id("id6", "5", b"newer")
    bucket.upload_from_stream_with_id("id7", "7", b"")
    files, chunks = database.fs.files, database.fs.chunks
    with GRIDFS(at("fs"), revisions="all") as every:
        assert len(every) == 8
    with GRIDFS(at("fs")) as backend:
        assert "1 names have older files, 1 in all" in caplog.text
        assert backend.meta.fields["data"].kind == "bytes"
        expected = [("7", b""), ("0", bytes(250)), ("5", b"newer")]
        assert backend.get_many([6, 0, 5]) == [{"key": key, "data": data, "metadata": {}} for key, data in expected]
        chunks.delete_one({"files_id": "id1", "n": 1})
        chunks.delete_one({"files_id": "id2", "n": 2})
        chunks.update_one({"files_id": "id3", "n": 0}, {"$set": {"data": bytes(100)}})
        files.update_one({"_id": "id3"}, {"$set": {"md5": "0" * 32}})
        files.delete_one({"_id": "id4"})
        whole, hole, short, changed, gone = reasons(backend.get_many(range(5)))
        assert (whole, hole) == ("", "chunk 1 of its file is missing from GridFS (_id 'id1')")
        assert (short, "MD5" in changed) == ("its file has 200 bytes in 2 chunks instead of 250 (_id 'id2')", True)
        assert gone == "its document is gone from the collection (_id 'id4')"
    chunks.drop()
    with pytest.raises(errors.FormatError, match=r"not 'fs\.chunks'"):
        GRIDFS(at("fs"))


def fill(database: Any) -> None:
    """Write the collections that the refusals are about."""
    database.named.insert_many({"img_name": NAMES[n], "bson_img": IMAGES[n]} for n in range(3))
    database.any.insert_many({"payload": {"jpg": IMAGES[0]}, "split": "train"} for n in range(2))
    database.numbers.insert_many([{"a": 1}, {"b": 2}])
    database.deep.insert_one({"found": {"crops": [{"image": IMAGES[0]}]}})
    database.create_collection("empty")
    files = gridfs.GridFSBucket(database)
    ids = [files.upload_from_stream(f"{n}.jpg", IMAGES[n]) for n in range(3)]
    database.once.insert_many({"id": ids[n], "name": f"{n}.jpg", "label": n} for n in range(3))
    database.twice.insert_many({"name": f"{n % 3}.jpg", "label": n} for n in range(4))
    database.others.insert_many({"name": f"{n}.png", "label": n} for n in range(3))


INDEX = '{"path_list": ["фото/000.jpg"], "label_list": [1]}'
JOIN = {"labels_on": "name"}
Refusal = tuple[str | None, str, dict[str, Any], type[errors.StoredsError], str]
# The layout, the collection, the options (an index by its text), the class of the error, and words of it.
REFUSED: list[Refusal] = [
    *(
        ("named", "named", {"index": text}, errors.ConfigError, words)
        for text, words in (
            ('{"path_list": ["a", "b", "c"], "label_list": [1]}', "path_list has 3 names and label_list 1 labels"),
            ('{"path_list": ["a"], "labels": [1]}', "missing required field `label_list`"),
            ('{"path_list": ["a", 5], "label_list": [1, 2]}', r"Expected `str`, got `int` - at `\$\.path_list\[1\]`"),
            ('{"path_list"', "truncated"),
        )
    ),
    ("named", "named", {"index": "/none.json"}, errors.StoreNotFoundError, "no index at"),
    ("named", "named", {"index": INDEX, "data_field": "img"}, errors.ConfigError, "'img'.*data_field.*img_name, bson"),
    ("named", "named", {"index": INDEX, "data_field": "img_name"}, errors.ConfigError, "holds str instead of bytes"),
    ("named", "name", {"index": INDEX}, errors.StoreNotFoundError, "did you mean 'named'"),
    ("named", "named", {"indx": INDEX}, errors.ConfigError, "unknown option 'indx'"),
    (None, "named", {"query": {"img_name": "none"}}, errors.StoreNotFoundError, "no document matches the query"),
    (None, "numbers", {}, errors.StoredsError, r"no field of its documents holds an image(.|\n)*\n  a = 1\n"),
    ("query", "any", {"query": '{"split": "test"}'}, errors.StoreNotFoundError, 'query {"split": "test"}.*payload.jpg'),
    (
        "query",
        "any",
        {"columns": {"x": "payload.jpeg"}},
        errors.ConfigError,
        r"did you mean 'payload.jpg'\? The fields",
    ),
    ("query", "any", {"query": {"$nope": 1}}, errors.ConfigError, "rejects the query.*\\$nope"),
    *(("query", "any", {"query": wrong}, errors.ConfigError, "query") for wrong in ("[1]", "{")),
    *(
        ("query", "any", {"columns": {"image": place}}, errors.ConfigError, r"columns.*image")
        for place in ("a..b", "$a")  # layouts/test_patterns.py has what no engine takes
    ),
    ("query", "any", {"columns": {"image": "{}"}}, errors.ConfigError, "documents have fields, not names"),
    ("query", "any", {"columns": {"a": "a[].b[]"}}, errors.ConfigError, r"one \[\] at most\n  a\[\]\.b\[\]\n       \^"),
    ("query", "any", {"columns": {"a": "a[].x", "b": "b[].x"}}, errors.ConfigError, "of one list"),
    ("query", "deep", {"columns": {"a": "found.crop[].a"}}, errors.ConfigError, "no document has a list.*did you mean"),
    ("query", "empty", {}, errors.StoreNotFoundError, "'empty' is empty"),
    ("query", "none", {}, errors.StoreNotFoundError, "no collection 'none'"),
    ("gridfs", "fs", {"columns": {"key": "filename"}}, errors.ConfigError, "cannot be called 'key'"),
    ("gridfs", "fs", {"query": {"filename": "9"}}, errors.StoreNotFoundError, "no document matches"),
    *(
        ("gridfs", "fs", options, errors.StoredsError, words)
        for options, words in (
            ({"labels": "once.label"}, "needs labels_on=, the field of 'once' .* fields '_id', 'id', 'name', 'label'"),
            ({"labels": "twice.label", **JOIN}, "several documents of 'twice' .* file '0.jpg': 0 and 3"),
            ({"labels": "others.label", **JOIN}, "3 of 3 files have no label in 'others.label'"),
            ({"labels": "once.class", **JOIN}, r"no document of 'once' has the field 'class' \(labels\); the fields"),
            ({"labels": "once.label", "labels_on": "file"}, r"the field 'file' \(labels_on\)"),
            ({"labels": "other.label", **JOIN}, "names no collection and a field in it.*did you mean 'others'"),
        )
    ),
]


def test_refusals(database: Any, at: At, tmp_path: Path) -> None:
    fill(database)
    for layout, collection, options, kind, words in REFUSED:
        given = dict(options)
        if "index" in given and not given["index"].startswith("/"):
            (tmp_path / "i.json").write_text(given["index"], encoding="utf-8")
            given["index"] = str(tmp_path / "i.json")
        with pytest.raises(kind, match=words):
            storeds.open_backend(at(collection), layout=layout, **given)
    with GRIDFS(at("fs"), labels="once.label", labels_on="id") as backend:
        assert backend.column("label").tolist() == [0, 1, 2]


def mutated(value: Any, draw: random.Random) -> Any:
    """Return something else in place of a value of a document."""
    if isinstance(value, bytes) and draw.random() < 0.5:
        at = draw.randrange(len(value) + 1)
        return draw.choice([value[:at], value[:at] + draw.randbytes(3) + value[at:], b""])
    return draw.choice([None, 3, -(2**62), 2.5, "é\0", b"x", [], [1, [2]], {}, {"jpg": 3}, True, ObjectId(), Int64(5)])


@pytest.mark.parametrize("layout", MONGODB)
def test_mutated_stores_give_the_same_data_or_a_clear_error(layout: str, database: Any, at: At, tmp_path: Path) -> None:
    """In a full run, 200 times: documents get other values, or none, before the store is opened and after it."""
    case = MONGODB[layout]
    known = {record["image"] for record in case.write(database, tmp_path)}
    name, options = case.url, case.arguments
    draw = random.Random(f"{SEED} {layout}")
    database["photos.chunks"].drop_indexes()  # of which one refuses two chunks of one number
    collections = [database[f"{name}.files"], database[f"{name}.chunks"]] if layout == "gridfs" else [database[name]]
    for number in range(200 if FULL else 20):
        collection = draw.choice(collections)
        document = draw.choice(list(collection.find()))
        changed = dict(document)
        field = draw.choice([key for key in document if key != "_id"])
        if draw.random() < 0.2:
            del changed[field]
        else:
            changed[field] = mutated(document[field], draw)
        backend: Any = storeds.open_backend(at(name), layout=layout, **options) if number % 2 else None
        collection.replace_one({"_id": document["_id"]}, changed)
        try:
            backend = backend or storeds.open_backend(at(name), layout=layout, **options)
            with backend:
                found = backend.get_many(range(len(backend)))
            good = [row for row in found if not isinstance(row, errors.RecordError)]
            assert sum(row["image"] not in known for row in good if "image" in row) <= 3, changed
        except errors.StoredsError as error:
            assert "Traceback" not in str(error)
        collection.replace_one({"_id": document["_id"]}, document)


def test_a_name_with_a_dot_is_never_read_as_a_path(database: Any, at: At) -> None:
    fields = {"image": IMAGES[0], "label": 1, "x": 2, "a": {"b": b"nested"}}
    database.dotted.insert_many({**fields, "a.b": b"plain", "c": {"d.e": b"inside"}} for _ in range(3))
    with storeds.open_backend(at("dotted")) as backend:
        records: list[Any] = backend.get_many([0])
    assert records[0] == {"image": IMAGES[0], "label": 1, "x": 2, "a_b": b"nested"} | {
        name: value for name, value in records[0].items() if name.endswith(("_finding", "_recovered"))
    }
    assert [each[:11] for each in storeds.info(at("dotted")).unread] == ["field 'a.b'", "field 'c.d."]
