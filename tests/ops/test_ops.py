"""pack, convert, verify and info, as functions."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import pytest
import xxhash

import storeds
from _damaged import PICTURES, write
from photographs import jpeg
from storeds import errors
from storeds.ops import Progress
from storeds.records.fields import meta_from_text, meta_to_text

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb", "memory")
TREE = {
    "zebra/b.jpg": jpeg(0),
    "zebra/a.JPEG": jpeg(1),
    "zebra/deep/er/c.png": jpeg(2),
    "apple/10.jpg": jpeg(3),
    "apple/9.jpg": jpeg(4),
    "apple/notes.txt": b"no image",
    "ähre/é.webp": jpeg(5),
}
# What torchvision's ImageFolder gives: classes by name, then folders, then files, each in plain string order.
ORDER = [
    ("apple/10.jpg", 0),
    ("apple/9.jpg", 0),
    ("zebra/a.JPEG", 1),
    ("zebra/b.jpg", 1),
    ("zebra/deep/er/c.png", 1),
    ("ähre/é.webp", 2),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in TREE.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return tmp_path / "tree"


@pytest.mark.parametrize("engine", ENGINES)
def test_pack_keeps_imagefolders_order_labels_and_bytes(tree: Path, make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    seen: list[Progress] = []
    meta = storeds.pack(tree, url, progress=seen.append)
    assert meta.attrs == {"classes": ["apple", "zebra", "ähre"]}
    with storeds.open_backend(url) as backend:
        records: list[Any] = backend.get_many(range(len(backend)))
    assert [(record["key"], record["label"]) for record in records] == ORDER
    assert [record["image"] for record in records] == [TREE[key] for key, _ in ORDER]
    assert (seen[-1].done, seen[-1].total) == (6, 6)
    assert seen[-1].bytes == sum(len(TREE[key]) for key, _ in ORDER)


OPERATIONS = {"pack": storeds.pack, "convert": storeds.convert, "repair": storeds.repair}
# `pack` refuses pictures of which nothing can be read.
READABLE = {key: picture for key, picture in PICTURES.items() if picture.is_readable}


def many(url: str, copies: int = 6) -> str:
    """Write a store of whole and damaged pictures."""
    write(url, {f"{key} {n}": picture for n in range(copies) for key, picture in READABLE.items()})
    return url


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_existing_target_is_replaced_only_on_request(tmp_path: Path, operation: Any) -> None:
    source, url = many(f"hdf5://{tmp_path}/a.h5", 1), f"lmdb://{tmp_path}/b.lmdb"
    first = operation(source, url)
    with pytest.raises(errors.StoreExistsError, match="overwrite"):
        operation(source, url)
    assert storeds.info(url).build == first.build
    again = operation(source, url, overwrite=True)
    assert again.id == first.id
    assert again.build != first.build


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("engine", ENGINES[:3])
def test_an_interrupted_run_resumes_to_the_same_id_and_report(
    engine: str, operation: Any, error: BaseException, make_engine_url: MakeUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeds.ops.common._BATCH", 10)
    monkeypatch.setattr("storeds.ops.packing._CHUNK_ITEMS", 10)
    source, url = many(make_engine_url("memory")), make_engine_url(engine)
    whole, seen = operation(source, make_engine_url(engine)), list[Progress]()

    def interrupt(state: Progress) -> None:
        if state.done > 20:
            raise error

    with pytest.raises(type(error)):
        operation(source, url, commit_every=4, progress=interrupt)
    with pytest.raises(errors.StoreExistsError, match="resume=True"):
        operation(source, url)
    with pytest.raises(errors.ConfigError, match="cannot be resumed"):
        operation(many(make_engine_url("memory"), 7), url, resume=True)
    resumed = operation(source, url, resume=True, progress=seen.append)
    assert len(seen) < storeds.info(source).count // 10  # it goes on, and does not begin again
    assert [getattr(resumed, name) for name in REPORTED if hasattr(resumed, name)] == [
        getattr(whole, name) for name in REPORTED if hasattr(whole, name)
    ]


REPORTED = ("id", "count", "fast_crops", "findings", "restarts", "kinds", "beyond")


EVERY_KIND = {
    "image": "image",
    "blob": "bytes",
    "text": "str",
    "number": "int",
    "real": "float",
    "flag": "bool",
    "vector": {"kind": "array", "dtype": "float32", "shape": [3]},
    "ragged": {"kind": "array", "dtype": "int16", "shape": [None, 2]},
    "extra": "json",
}


def every_kind(number: int) -> dict[str, Any]:
    import numpy as np

    return {
        "image": jpeg(number),
        "blob": bytes(number),
        "text": "é\0" * number,
        "number": -number,
        "real": number / 3,
        "flag": number % 2 == 0,
        "vector": np.arange(3, dtype="f4") * number,
        "ragged": np.ones((number, 2), "i2"),
        "extra": {"n": [number, None, "x"]},
    }


@pytest.mark.share(6)
@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(ENGINES, 2)))
def test_convert_keeps_id_order_attrs_and_every_kind(make_engine_url: MakeUrl, source: str, target: str) -> None:
    src, dst = make_engine_url(source), make_engine_url(target)
    with storeds.open_writer(src, EVERY_KIND) as writer:
        writer.append(every_kind(number) for number in range(9))
        meta = writer.publish({"classes": ["a", "b"], "note": {"deep": [1, 2.5, None]}})
    copied = storeds.convert(src, dst)
    assert (copied.id, copied.count, copied.attrs) == (meta.id, meta.count, meta.attrs)
    assert list(copied.fields) == [*EVERY_KIND, "image_finding", "image_recovered"]
    with storeds.open_backend(src) as before, storeds.open_backend(dst) as after:
        assert str(before.get_many(range(9))) == str(after.get_many(range(9)))
    report = storeds.verify(dst)
    assert (report.ok, report.count, report.images, report.id) == (True, 9, 9, meta.id)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_bad_record_is_named_and_nothing_is_published(operation: Any, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    write(url, {"first": PICTURES["whole"], "second": PICTURES["no end"]})
    spoil_image(tmp_path / "a.h5")
    with pytest.raises(errors.RecordError, match="(?s)record 0 .*checksum"):
        operation(url, f"lmdb://{tmp_path}/b.lmdb")
    assert os.listdir(tmp_path) == ["a.h5"]
    (finding, _) = storeds.verify(url).findings
    assert (finding.kind, finding.position) == ("record", 0)


def test_a_copy_with_another_id_than_its_source_is_an_error(tree: Path, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    storeds.pack(tree, url)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        meta, extra = meta_from_text(file.attrs["meta"], url)
        file.attrs["meta"] = meta_to_text(meta, **{**extra, "id": "0" * 16})
    with pytest.raises(errors.FormatError, match="the source is damaged"):
        storeds.convert(url, f"lmdb://{tmp_path}/b.lmdb")
    role = {"label": "label"}  # gives the copy another id in any case
    assert storeds.convert(url, f"lmdb://{tmp_path}/c.lmdb", roles=role).count == 6


def spoil_image(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["records/image/data"][50] ^= 1


@pytest.mark.parametrize(("engine", "workers"), [("lmdb", 0), ("hdf5", 2), ("mongodb", 1), ("memory", None)])
def test_verify_reports_kind_and_share_of_every_damage(
    make_engine_url: MakeUrl, engine: str, workers: int | None
) -> None:
    url = make_engine_url(engine)
    write(url)
    report = storeds.verify(url, workers=workers)
    reported = {finding.key: finding for finding in (*report.findings, *report.notes)}
    assert {key: finding.kind for key, finding in reported.items()} == {
        key: picture.reported for key, picture in PICTURES.items() if picture.reported
    }
    assert [finding.key for finding in report.notes] == ["trailing"]
    for key, finding in reported.items():
        assert finding.key is not None
        assert (list(PICTURES)[finding.position or 0], finding.image) == (key, "image")
        expected = PICTURES[finding.key].recovered
        assert expected in (None, finding.recovered) or finding.kind == "too_large"
    assert report.images == sum(picture.is_readable for picture in PICTURES.values())
    assert {reported[key].format for key in ("half a png", "page", "empty")} == {"PNG", "HTML", "empty"}
    assert "claims more pixels than storeds allocates" in reported["huge"].message


@pytest.mark.parametrize(("check", "examined"), [(True, 11), (False, 13)])
def test_verify_skips_pictures_with_the_verdict_intact(check: bool, examined: int, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    write(url, check=check)
    report = storeds.verify(url, workers=0)
    assert report.examined == examined  # all but what is too large to be read
    assert report.kinds == dict(Counter(each.reported for each in PICTURES.values() if each.reported))


def spoil(path: Path, changed: str) -> None:
    """Change one thing in a native LMDB store of six records."""
    values = bytes(48)
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=3) as env, env.begin(write=True) as txn:
        records, columns, metas = (env.open_db(name, txn=txn) for name in (b"records", b"columns", b"meta"))
        meta, body = meta_from_text(txn.get(b"meta", db=metas) or b"", str(path))
        checksums = dict(body["columns"])
        if changed == "id":
            meta = dataclasses.replace(meta, id="0" * 32)
        if "column" in changed:
            txn.put(b"label", values, db=columns)
        if changed == "column and its checksum":
            checksums["label"] = xxhash.xxh3_64_hexdigest(values)
        if changed == "records":
            first, second = (bytes(txn.get(n.to_bytes(8, "big"), db=records) or b"") for n in (0, 1))
            txn.put((0).to_bytes(8, "big"), second, db=records)
            txn.put((1).to_bytes(8, "big"), first, db=records)
        txn.put(b"meta", meta_to_text(meta, columns=checksums, salt=body["salt"]).encode(), db=metas)


@pytest.mark.parametrize(
    ("changed", "kinds", "message"),
    [
        ("column", ["column"], "label"),
        ("column and its checksum", ["column"] * 4, "label"),
        ("id", ["id"], "content id"),
        ("records", ["record", "record"], "belongs to position 1"),
    ],
)
def test_verify_compares_columns_and_id_with_records(
    tree: Path, tmp_path: Path, changed: str, kinds: list[str], message: str
) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    storeds.pack(tree, url)
    spoil(tmp_path / "a.lmdb", changed)
    report = storeds.verify(url)
    assert [finding.kind for finding in report.findings] == kinds
    assert message in report.findings[0].message


@pytest.mark.parametrize("engine", ENGINES)
def test_info_describes_a_store(tree: Path, make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    meta = storeds.pack(tree, url)
    found = storeds.info(url)
    assert (found.backend, found.count, found.id, found.build) == (engine, 6, meta.id, meta.build)
    assert found.layout == "storeds/1"
    assert found.fields == [
        {"name": "image", "kind": "image"},
        {"name": "label", "kind": "int"},
        {"name": "key", "kind": "str"},
        {"name": "image_finding", "kind": "str"},
        {"name": "image_recovered", "kind": "float"},
    ]
    assert found.attrs == {"classes": ["apple", "zebra", "ähre"]}
    assert found.bytes is None or found.bytes > sum(len(TREE[key]) for key, _ in ORDER)
    assert found.leftovers is None
    assert found.advice == []
    assert found.handle or engine == "memory"


def test_info_advises_against_chunked_datasets_and_network_file_systems(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    storeds.pack(tree, url)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        labels = file["records/label"][()]
        del file["records/label"]
        file["records"].create_dataset("label", data=labels, chunks=(2,), compression="gzip")
    found = storeds.info(url)
    assert found.handle["reads"] == "through libhdf5"
    assert "convert makes them flat" in found.advice[0]
    monkeypatch.setattr("storeds._utils.locations.file_system", lambda path: "nfs4")
    assert any("network file system (nfs4)" in line for line in storeds.info(url).advice)


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_info_lists_what_an_interrupted_writer_left(tree: Path, make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    storeds.pack(tree, url)
    writer = storeds.open_writer(url, {"x": "int"}, overwrite=True)
    writer.append([{"x": 1}])
    writer.suspend()
    assert "partial" in str(storeds.info(url).leftovers)


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_info_of_an_unpublished_store_names_the_leftovers(make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    storeds.open_writer(url, {"x": "int"}).suspend()
    with pytest.raises(errors.StoreNotFoundError, match=r"interrupted write.*resume=True"):
        storeds.info(url)
