"""Foreign collections with something wrong in them: one clear error, or the error in the place of the record."""

from __future__ import annotations

import datetime
import pickle
import re
import socket
from pathlib import Path
from typing import Any, cast

import gridfs
import numpy as np
import pytest
from bson import Binary, Int64, ObjectId
from test_foreign_mongodb import IMAGES, database, fill_named, selected, write_index

import storeds
from conftest import with_path
from storeds import errors
from storeds.layouts.mongodb import GridfsLayout, NamedLayout, QueryLayout

__all__ = ["database"]


def reasons(found: list[Any]) -> list[str]:
    return [record.reason if isinstance(record, errors.RecordError) else "" for record in found]


def test_names_that_are_missing_are_listed_or_skipped(
    database: Any, mongodb_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, names = with_path(mongodb_database, "named"), fill_named(database)
    absent = [f"gone{n}.jpg" for n in range(12)]
    index = write_index(tmp_path / "i.json", [*absent, *names[:3], names[1]], list(range(16)))
    with pytest.raises(errors.FormatError, match=r"12 of the 15 names.*'gone0.jpg'.*'gone9.jpg' and 2 more; missing="):
        NamedLayout(url, index=index)
    with NamedLayout(url, index=index, missing="skip") as backend:
        assert backend.column("label").tolist() == [12, 13, 14, 15]
        assert backend.column("key").tolist() == [*names[:3], names[1]]
    assert "12 of the 15 names" in caplog.text
    none = write_index(tmp_path / "none.json", absent, absent)
    with pytest.raises(errors.FormatError, match="12 of the 12 names"):
        NamedLayout(url, index=none, missing="skip")


def test_names_with_several_documents_are_listed(
    database: Any, mongodb_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, names = with_path(mongodb_database, "named"), fill_named(database, lambda n: n)
    database.named.insert_one({"_id": -1, "img_name": names[4], "bson_img": IMAGES[9]})
    index = write_index(tmp_path / "i.json", names, [0] * len(names))
    with pytest.raises(errors.FormatError, match=rf"1 names have several documents: '{names[4]}'; duplicates="):
        NamedLayout(url, index=index)
    with NamedLayout(url, index=index, duplicates="first") as backend:
        assert backend.get_many([4]) == [{"key": names[4], "image": IMAGES[9], "label": 0}]
    assert "1 names have several documents" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"path_list": ["a", "b", "c"], "label_list": [1]}', "path_list has 3 names and label_list 1 labels"),
        ('{"path_list": ["a"], "labels": [1]}', "missing required field `label_list`"),
        ('{"path_list": ["a", 5], "label_list": [1, 2]}', r"Expected `str`, got `int` - at `\$\.path_list\[1\]`"),
        ('{"path_list": ["\\ud800"], "label_list": [1]}', "expected a JSON object"),
        ('{"path_list": [], "label_list": []}', "of length >= 1"),
        ('["a"]', "got `array`"),
        ('{"path_list"', "truncated"),
    ],
)
def test_a_malformed_index_raises_config_error(
    text: str, message: str, database: Any, mongodb_database: str, tmp_path: Path
) -> None:
    fill_named(database)
    (tmp_path / "i.json").write_text(text)
    with pytest.raises(errors.ConfigError, match=message):
        NamedLayout(with_path(mongodb_database, "named"), index=str(tmp_path / "i.json"))


def test_a_missing_index_or_field(database: Any, mongodb_database: str, tmp_path: Path) -> None:
    url, names = with_path(mongodb_database, "named"), fill_named(database)
    with pytest.raises(errors.StoreNotFoundError, match="no index at"):
        NamedLayout(url, index=str(tmp_path / "none.json"))
    with pytest.raises(errors.StoreNotFoundError, match="no index at"):
        storeds.StoreDataset(url, index=str(tmp_path / "none.json"))
    with pytest.raises(errors.StoreNotFoundError, match="no document matches the query"):
        storeds.StoreDataset(url, query={"img_name": "none"})
    index = write_index(tmp_path / "i.json", names[:2], ["cat", "dog"])
    for option in ("name_field", "data_field"):
        wrong: dict[str, Any] = {option: "img"}
        with pytest.raises(errors.ConfigError, match=rf"'img'.*{option}.*_id, img_name, bson_img"):
            NamedLayout(url, index=index, **wrong)
    with pytest.raises(errors.ConfigError, match="'img_name'.*holds str instead of bytes"):
        NamedLayout(url, index=index, data_field="img_name")
    with pytest.raises(errors.StoreNotFoundError, match="did you mean 'named'"):
        NamedLayout(with_path(mongodb_database, "name"), index=index)
    with pytest.raises(errors.ConfigError, match="unknown option 'indx'"):
        NamedLayout(url, indx=index)
    with NamedLayout(url, index=index) as backend:
        assert backend.column("label").tolist() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("labels", "kind"),
    [([1.5, 2], "float"), ([True, False], "bool"), ([[1, 2], [3, 4]], "array"), ([{"a": 1}, None], "json")],
)
def test_labels_of_other_kinds(
    labels: list[Any], kind: str, database: Any, mongodb_database: str, tmp_path: Path
) -> None:
    index = write_index(tmp_path / "i.json", fill_named(database)[:2], labels)
    with NamedLayout(with_path(mongodb_database, "named"), index=index) as backend:
        assert backend.meta.fields["label"].kind == kind
        found = [record["label"] for record in backend.get_many([0, 1])]  # type: ignore[index]
        assert [value.tolist() if kind == "array" else value for value in found] == labels


def test_kinds_are_inferred_and_each_value_is_checked(database: Any, mongodb_database: str) -> None:
    day, id = datetime.datetime(2020, 1, 2), ObjectId()
    whole = {"jpg": Binary(IMAGES[0], 2), "raw": b"\0\1", "n": Int64(3), "x": 1.5, "yes": True, "text": "é"}
    whole |= {"box": [1, 2, 3], "poly": [[1.0, 2.0]], "tags": ["a"], "doc": {"at": day, "nan": float("nan")}, "id": id}
    database.kinds.insert_many({"_id": n, **whole, "day": day} for n in range(3))
    database.kinds.update_one({"_id": 1}, {"$set": {"n": "3", "box": [1, 2]}, "$unset": {"text": 1}})
    url = with_path(mongodb_database, "kinds")
    columns = {name: name for name in (*whole, "day")}
    columns["day"] = columns.pop("day")
    with QueryLayout(url, query={"_id": {"$ne": 1}}, columns=columns) as backend:
        kinds = {name: field.kind for name, field in backend.meta.fields.items()}
        assert list(kinds.values()) == [
            "image",
            "bytes",
            "int",
            "float",
            "bool",
            "str",
            "array",
            "array",
            "json",
            "json",
            "str",
            "str",
        ]
        first = backend.get_many([1])[0]
        assert isinstance(first, dict)
        assert type(first["jpg"]) is bytes
        assert np.array_equal(first.pop("box"), [1, 2, 3])
        assert np.array_equal(first.pop("poly"), [[1.0, 2.0]])
        assert first["doc"] == {"at": {"$date": "2020-01-02T00:00:00Z"}, "nan": {"$numberDouble": "NaN"}}
        assert (first["id"], first["day"]) == (str(id), "2020-01-02T00:00:00")
        assert selected(backend, {"id": str(id), "n": [3, 10**400], "text": ["é", "\ud800"]}) == [0, 1]
    forced = {"n": {"path": "n", "kind": "int"}, "text": "text", "box": {"path": "box", "kind": "json"}}
    with QueryLayout(url, columns=forced) as backend:
        assert backend.get_many([0]) == [{"n": 3, "text": "é", "box": [1, 2, 3]}]
        assert reasons(backend.get_many([0, 1], ("n",))) == ["", "field 'n' of its document is not int: found str"]
        assert reasons(backend.get_many([1], ("text",))) == ["its document has no field 'text', or null in it"]
        with pytest.raises(errors.RecordError, match="record 1"):
            backend.column("n")


def test_queries_and_columns_that_find_nothing(database: Any, mongodb_database: str) -> None:
    database.any.insert_many({"payload": {"jpg": IMAGES[0]}, "split": "train"} for n in range(2))
    url = with_path(mongodb_database, "any")
    with pytest.raises(errors.StoreNotFoundError, match=r'matches the query {"split": "test"}.*payload.jpg'):
        QueryLayout(url, query='{"split": "test"}')
    with pytest.raises(errors.ConfigError, match=r"'payload.jpeg'; did you mean 'payload.jpg'\? The fields.*split"):
        QueryLayout(url, columns={"image": "payload.jpeg"})
    with pytest.raises(errors.ConfigError, match="rejects the query.*\\$nope"):
        QueryLayout(url, query={"$nope": 1})
    for wrong in ({"query": "[1]"}, {"query": "{"}, {"columns": "{}"}, {"columns": {"Image": "x"}}):
        with pytest.raises(errors.ConfigError, match=next(iter(wrong))):
            QueryLayout(url, **wrong)
    for place in (5, "a..b", {"path": "a", "kind": "film"}, {"kind": "int"}):
        with pytest.raises(errors.ConfigError, match=r"columns.*image"):
            QueryLayout(url, columns={"image": place})
    database.create_collection("empty")
    with pytest.raises(errors.StoreNotFoundError, match="'empty' is empty"):
        QueryLayout(with_path(mongodb_database, "empty"))
    with pytest.raises(errors.StoreNotFoundError, match="no collection 'none'"):
        QueryLayout(with_path(mongodb_database, "none"))


def test_a_view_is_a_collection_too(database: Any, mongodb_database: str) -> None:
    database.all.insert_many({"_id": n, "x": n} for n in range(6))
    database.command("create", "odd", viewOn="all", pipeline=[{"$match": {"x": {"$mod": [2, 1]}}}])
    with QueryLayout(with_path(mongodb_database, "odd")) as backend:
        assert backend.get_many([2, 0]) == [{"x": 5}, {"x": 1}]


def test_deleted_documents_give_record_errors(database: Any, mongodb_database: str, tmp_path: Path) -> None:
    names = fill_named(database)
    index = write_index(tmp_path / "i.json", names, [0] * len(names))
    with NamedLayout(with_path(mongodb_database, "named"), index=index) as backend:
        database.named.delete_one({"img_name": names[2]})
        database.named.update_one({"img_name": names[3]}, {"$unset": {"bson_img": 1}})
        before, gone, lacking = backend.get_many([1, 2, 3])
        assert before == {"key": names[1], "image": IMAGES[1], "label": 0}
        assert isinstance(gone, errors.RecordError)
        assert (gone.position, gone.key, gone.reason) == (2, names[2], "its document is gone from the collection")
        assert isinstance(lacking, errors.RecordError)
        assert "no field 'bson_img'" in str(lacking)


def test_incomplete_gridfs_files_give_record_errors(
    database: Any, mongodb_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = gridfs.GridFSBucket(database, chunk_size_bytes=100)
    for n in range(6):
        bucket.upload_from_stream_with_id(f"id{n}", f"{n}", bytes([n]) * 250)
    bucket.upload_from_stream_with_id("id6", "5", b"newer")
    bucket.upload_from_stream_with_id("id7", "7", b"")
    files, chunks = database.fs.files, database.fs.chunks
    url = with_path(mongodb_database, "fs")
    with GridfsLayout(url, revisions="all") as every:
        assert len(every) == 8
    with GridfsLayout(url) as backend:
        assert "1 names have older files, 1 in all" in caplog.text
        assert backend.meta.fields["data"].kind == "bytes"
        assert backend.get_many([6, 0, 5]) == [
            {"key": "7", "data": b"", "metadata": {}},
            {"key": "0", "data": bytes(250), "metadata": {}},
            {"key": "5", "data": b"newer", "metadata": {}},
        ]
        chunks.delete_one({"files_id": "id1", "n": 1})
        chunks.delete_one({"files_id": "id2", "n": 2})
        chunks.update_one({"files_id": "id3", "n": 0}, {"$set": {"data": bytes(100)}})
        files.update_one({"_id": "id3"}, {"$set": {"md5": "0" * 32}})
        files.delete_one({"_id": "id4"})
        whole, hole, short, changed, gone = reasons(backend.get_many(range(5)))
        assert whole == ""
        assert hole == "chunk 1 of its file is missing from GridFS"
        assert short == "its file has 200 bytes in 2 chunks instead of 250"
        assert "MD5" in changed
        assert gone == "its document is gone from the collection"
    with pytest.raises(errors.ConfigError, match="cannot be called 'key'"):
        GridfsLayout(url, columns={"key": "filename"})
    with pytest.raises(errors.StoreNotFoundError, match="no document matches"):
        GridfsLayout(url, query={"filename": "9"})
    chunks.drop()
    with pytest.raises(errors.FormatError, match=r"not 'fs\.chunks'"):
        GridfsLayout(url)


def test_the_error_for_a_missing_collection_lists_all(database: Any, mongodb_database: str) -> None:
    gridfs.GridFSBucket(database).upload_from_stream("a", b"1")
    url = with_path(mongodb_database, "none")
    with pytest.raises(errors.StoreNotFoundError, match=r"has the collections fs\.chunks, fs\.files$"):
        storeds.open_backend(url)
    database.create_collection("pictures")
    with storeds.open_writer(with_path(mongodb_database, "ours"), {"b": "bytes"}) as writer:
        writer.append([{"b": bytes(17 << 20)}])
    with pytest.raises(errors.StoreNotFoundError, match=r"fs\.chunks, fs\.files, ours, pictures$"):
        storeds.open_backend(url)
    for no_bucket in ("half", "ours.values"):  # the latter holds large values of a native store
        with pytest.raises(errors.StoreNotFoundError, match="no store at"):
            storeds.open_backend(with_path(mongodb_database, no_bucket))


def test_the_error_for_an_unknown_bucket(database: Any, mongodb_database: str) -> None:
    database.create_collection("empty.files")
    database.create_collection("empty.chunks")
    url = with_path(mongodb_database, "empty")
    with pytest.raises(errors.StoredsError, match="no store at|is a GridFS bucket") as raised:
        storeds.open_backend(url)
    assert "interrupted" not in str(raised.value)
    storeds.open_writer(url, {"x": "int"}).suspend()
    with pytest.raises(errors.FormatError, match=r"'empty.partial.\w+' is an interrupted write"):
        storeds.open_backend(url)


def test_no_server_is_unavailable_and_no_password_is_shown(tmp_path: Path) -> None:
    index = write_index(tmp_path / "i.json", ["a"], [1])
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"mongodb://user:hunter2@127.0.0.1:{bound.getsockname()[1]}/db/c?serverSelectionTimeoutMS=200"
        for open_it in (
            QueryLayout,
            GridfsLayout,
            storeds.open_backend,
            lambda url: NamedLayout(url, index=index),
        ):
            with pytest.raises(errors.UnavailableError, match="cannot be reached") as raised:
                open_it(url)
            assert "hunter2" not in str(raised.value)


def test_the_error_for_an_unknown_collection_shows_its_content(database: Any, mongodb_database: str) -> None:
    database["numbers"].insert_many([{"a": 1}, {"b": 2}])
    with pytest.raises(errors.StoredsError, match=r"no field of its documents holds an image(.|\n)*\n  a = 1\n"):
        storeds.open_backend(f"{mongodb_database}/numbers")


def test_missing_elements_give_record_errors(database: Any, mongodb_database: str) -> None:
    database.pages.insert_many({"_id": n, "crops": [{"image": IMAGES[0], "n": k} for k in range(3)]} for n in range(2))
    with QueryLayout(
        with_path(mongodb_database, "pages"), columns={"image": "crops[].image", "n": "crops[].n"}
    ) as backend:
        assert [record["n"] for record in backend.get_many(range(6), ("n",)) if isinstance(record, dict)] == [
            0,
            1,
            2,
        ] * 2
        database.pages.update_one({"_id": 1}, {"$pop": {"crops": 1}})
        database.pages.update_one({"_id": 0}, {"$set": {"crops": "none"}})
        found = reasons(backend.get_many([4, 5, 0]))
    assert found == [
        "",
        "its document now has 2 elements in 'crops', and no element 2",
        "its document now has no list in 'crops', and no element 0",
    ]


def test_lists_of_documents_inside_documents_and_columns_of_them(database: Any, mongodb_database: str) -> None:
    page = {"name": "p", "found": {"crops": [{"image": IMAGES[n], "name": f"c{n}"} for n in range(3)], "by": "me"}}
    database.deep.insert_many([page, {"name": "q"}])
    url = with_path(mongodb_database, "deep")
    columns = {"image": "found.crops[].image", "page": "name"}
    with QueryLayout(url, columns=columns) as backend:
        assert pickle.loads(pickle.dumps(backend)).get_many([1]) == [{"image": IMAGES[1], "page": "p"}]
        assert backend.unread() == ["1 document without an element in 'found.crops'"]
    with pytest.raises(errors.ConfigError, match=r"no document has a list in 'found.crop' \(columns\); did you mean"):
        QueryLayout(url, columns={"image": "found.crop[].image"})
    for place, why in {
        "{}": "documents have fields, not names",
        "a[].b[]": r"one \[\] at most\n  a\[\]\.b\[\]\n       \^",
        "$a": "is not a dotted path",
    }.items():
        with pytest.raises(errors.ConfigError, match=why):
            QueryLayout(url, columns={"image": place})
    with pytest.raises(errors.ConfigError, match="of one list"):
        QueryLayout(url, columns={"image": "found.crops[].image", "x": "other[].x"})


def test_a_list_of_pictures_shows_the_line_that_reads_them(database: Any, mongodb_database: str) -> None:
    database.pages.insert_many({"page": n, "crops": [{"Image": IMAGES[n], "n": k} for k in range(3)]} for n in range(2))
    with pytest.raises(errors.ConfigError) as raised:
        storeds.open_backend(f"{mongodb_database}/pages")
    line = re.search(r"columns=(\{.*?\}) gives one record", str(raised.value))
    assert line is not None
    with storeds.open_backend(f"{mongodb_database}/pages", columns=eval(line[1])) as backend:
        assert backend.get_many([4]) == [{"image": IMAGES[1], "n": 1}]


def test_names_of_fields_are_in_lower_case(database: Any, mongodb_database: str) -> None:
    database.cased.insert_many({"Image": IMAGES[n], "Label": n} for n in range(3))
    image, label = storeds.StoreDataset(f"{mongodb_database}/cased", decode="bytes")[1]
    assert (image, label) == (IMAGES[1], 1)
    database.twice.insert_many({"Image": IMAGES[n], "image": IMAGES[0], "label": n} for n in range(3))
    with QueryLayout(f"{mongodb_database}/twice") as backend:
        assert "field 'image': not a valid field name, or one that is taken" in backend.unread()[0]


def test_labels_of_files_may_be_of_any_type(database: Any, mongodb_database: str) -> None:
    bucket = gridfs.GridFSBucket(database)
    ids = [bucket.upload_from_stream(name, IMAGES[n]) for n, name in enumerate(("a.jpg", "a.jpg", "b.jpg"))]
    url = with_path(mongodb_database, "fs")
    day = datetime.datetime(2026, 1, 2, 3, 4, 5)
    for kind, label, expected in (
        ("ids", ids[0], str(ids[0])),
        ("dates", day, "2026-01-02T03:04:05"),
        ("documents", {"a": [1]}, {"a": [1]}),
        ("lists", [1.5, 2.0], [1.5, 2.0]),
    ):
        database[kind].insert_many({"name": name, "label": label} for name in ("a.jpg", "b.jpg"))
        with GridfsLayout(url, labels=f"{kind}.label", labels_on="name", revisions="all") as backend:
            records = cast("list[dict[str, Any]]", backend.get_many(range(3), ["label"]))
            found = [
                record["label"].tolist() if hasattr(record["label"], "tolist") else record["label"]
                for record in records
            ]
        assert found == [expected] * 3, kind


def test_labels_that_cannot_be_joined(database: Any, mongodb_database: str) -> None:
    bucket = gridfs.GridFSBucket(database)
    ids = [bucket.upload_from_stream(f"{n}.jpg", IMAGES[n]) for n in range(3)]
    database.once.insert_many({"id": ids[n], "name": f"{n}.jpg", "label": n} for n in range(3))
    database.twice.insert_many({"name": f"{n % 3}.jpg", "label": n} for n in range(4))
    database.others.insert_many({"name": f"{n}.png", "label": n} for n in range(3))
    url = with_path(mongodb_database, "fs")
    name: dict[str, Any] = {"labels_on": "name"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"labels": "once.label"}, "needs labels_on=, the field of 'once' .* the fields '_id', 'id', 'name', 'label'"),
        ({"labels": "twice.label", **name}, "several documents of 'twice' .* file '0.jpg': 0 and 3"),
        ({"labels": "others.label", **name}, "3 of 3 files have no label in 'others.label'"),
        ({"labels": "once.class", **name}, r"no document of 'once' has the field 'class' \(labels\); the fields"),
        ({"labels": "once.label", "labels_on": "file"}, r"the field 'file' \(labels_on\)"),
        ({"labels": "other.label", **name}, "names no collection and a field in it.*did you mean 'others'"),
    ]
    for options, why in cases:
        with pytest.raises(errors.StoredsError, match=why):
            GridfsLayout(url, **options)
    with GridfsLayout(url, labels="once.label", labels_on="id") as backend:
        assert backend.column("label").tolist() == [0, 1, 2]


def test_unread_documents_and_fields_are_listed(database: Any, mongodb_database: str, tmp_path: Path) -> None:
    database.photos.insert_many({"img_name": f"{n}", "bson_img": IMAGES[n], "box": [n]} for n in range(3))
    index = write_index(tmp_path / "i.json", ["0", "1"], [0, 1])
    with NamedLayout(with_path(mongodb_database, "photos"), index=index) as backend:
        assert backend.unread() == ["field 'box'", "1 document that the index does not name"]
