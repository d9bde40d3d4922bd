"""pack, convert, verify and info; no operation replaces a store that it reads, whatever name it is given."""

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
import numpy as np
import pytest
import xxhash
from torch.utils.data import ConcatDataset, Dataset, Subset

import storeds
from _damaged import PICTURES
from _damaged import write as write_damaged
from _packing import storeds_command
from make_store import make_store
from mask_files import write
from photographs import jpeg
from storeds import StoreDataset, errors
from storeds.records.meta import meta_from_text, meta_to_text

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb", "memory")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path / "tree", {f"class{n % 2}/{n}.jpg": n for n in range(6)})


OPERATIONS = {"pack": storeds.pack, "convert": storeds.convert, "repair": storeds.repair}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_existing_target_is_replaced_only_on_request(tmp_path: Path, operation: Any) -> None:
    source, url = f"hdf5://{tmp_path}/a.h5", f"lmdb://{tmp_path}/b.lmdb"
    write_damaged(source, {"whole": PICTURES["whole"], "no end": PICTURES["no end"]})
    first = operation(source, url)
    with pytest.raises(errors.StoreExistsError, match="overwrite"):
        operation(source, url)
    assert storeds.info(url).build == first.build
    again = operation(source, url, overwrite=True)
    assert (again.id, again.build != first.build) == (first.id, True)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_bad_record_is_named_and_nothing_is_published(operation: Any, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    write_damaged(url, {"first": PICTURES["whole"], "second": PICTURES["no end"]})
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["records/image/data"][50] ^= 1
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


@pytest.mark.parametrize(("engine", "workers"), [("hdf5", 2), ("mongodb", 1)])
def test_verify_reports_kind_and_share_of_damage(make_engine_url: MakeUrl, engine: str, workers: int | None) -> None:
    url = make_engine_url(engine)
    write_damaged(url)
    report = storeds.verify(url, workers=workers)
    reported = {str(finding.key): finding for finding in (*report.findings, *report.notes)}
    expected = {key: picture.reported for key, picture in PICTURES.items() if picture.reported}
    assert {key: finding.kind for key, finding in reported.items()} == expected
    assert [finding.key for finding in report.notes] == ["trailing"]
    for key, finding in reported.items():
        assert (list(PICTURES)[finding.position or 0], finding.image) == (key, "image")
        assert PICTURES[key].recovered in (None, finding.recovered) or finding.kind == "too_large"
    assert report.images == sum(picture.is_readable for picture in PICTURES.values())
    assert [reported[key].format for key in ("half a png", "page", "empty")] == ["PNG", "HTML", "empty"]
    assert "more than max_pixels=134,217,728" in reported["huge"].message


@pytest.mark.parametrize(("check", "examined"), [(True, 11), (False, 13)])
def test_verify_skips_pictures_with_the_verdict_intact(check: bool, examined: int, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    write_damaged(url, check=check)
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
        ("column and its checksum", ["column"] * 3, "label"),
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
def test_info_describes_a_store_and_its_leftovers(tree: Path, make_engine_url: MakeUrl, engine: str) -> None:
    url, unpublished = make_engine_url(engine), make_engine_url(engine)
    meta = storeds.pack(tree, url)
    found = storeds.info(url)
    assert (found.backend, found.layout, found.count, found.id, found.build) == (
        engine,
        "storeds/1",
        6,
        meta.id,
        meta.build,
    )
    kinds = {"image": "image", "label": "int", "key": "str", "image_finding": "str", "image_recovered": "float"}
    assert found.fields == [{"name": name, "kind": kind} for name, kind in kinds.items()]
    assert found.attrs == {"classes": ["class0", "class1"]}
    assert found.bytes is None or found.bytes > sum(path.stat().st_size for path in tree.rglob("*.jpg"))
    assert (found.leftovers, found.advice) == (None, [])
    assert found.handle or engine == "memory"
    if engine == "memory":
        return
    for each in (url, unpublished):
        storeds.open_writer(each, {"x": "int"}, overwrite=True).suspend()
    assert "partial" in str(storeds.info(url).leftovers)
    with pytest.raises(errors.StoreNotFoundError, match=r"interrupted write.*resume=True"):
        storeds.info(unpublished)


def test_info_advises_against_chunks_and_networks(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    storeds.pack(tree, url)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        labels = file["records/label"][()]
        del file["records/label"]
        file["records"].create_dataset("label", data=labels, chunks=(2,), compression="gzip")
    found = storeds.info(url)
    assert found.handle["reads"] == "through libhdf5"
    assert "convert makes them flat" in found.advice[0]
    monkeypatch.setattr("storeds._utils.file_systems.file_system_of", lambda path: ("nfs4", "/"))
    assert any("network file system (nfs4)" in line for line in storeds.info(url).advice)


TAKES_A_STORE: dict[str, Callable[[Any, Path], Any]] = {
    "open_backend": lambda store, _: storeds.open_backend(store).close(),
    "open_backend of a list": lambda store, _: storeds.open_backend([store]).close(),
    "StoreDataset": lambda store, _: storeds.StoreDataset(store)[0],
    "info": lambda store, _: storeds.info(store),
    "verify": lambda store, _: storeds.verify(store),
    "stats": lambda store, _: storeds.ops.stats(store),
    "show": lambda store, _: storeds.ops.show(store),
    "bench": lambda store, _: storeds.ops.bench(store, workers=[0], seconds=0.001),
    "export": lambda store, out: storeds.export(store, out / "export", format="folder", overwrite=True),
    "convert": lambda store, out: storeds.convert(store, out / "out.h5", overwrite=True),
    "repair": lambda store, out: storeds.repair(store, out / "out.h5", overwrite=True),
    "pack": lambda store, out: storeds.pack(store, out / "out.h5", overwrite=True),
    "convert to": lambda store, out: storeds.convert(out / "out.h5", store, overwrite=True),
    "repair to": lambda store, out: storeds.repair(out / "out.h5", store, overwrite=True),
    "pack to": lambda store, out: storeds.pack(out / "out.h5", store, overwrite=True),
}


def printed(path: Path) -> str:
    """Return the URL that storeds prints of a store."""
    return f"{'hdf5' if path.suffix == '.h5' else 'lmdb'}://{path}"


NAMES = [
    *((Path, "a.lmdb"), (str, "a?b.lmdb"), (printed, "a?b=c&d.h5"), (Path, "a?b?.h5")),
    *((str, "a#b c.h5"), (printed, "a%20b@c:d&e.h5"), (printed, "ä?ö.lmdb"), (str, "a?b=c&d.h5")),
]


@pytest.mark.parametrize(("form", "name"), NAMES)
def test_every_function_takes_the_same_names_of_stores(
    tmp_path: Path, name: str, form: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "stores").mkdir()
    path = tmp_path / "stores" / name
    store = form(path)
    new = path.with_name(f"new{path.suffix}")
    make_store({"image": "image", "key": "str"}, [{"image": jpeg(0), "key": "a"}], new)
    new.rename(path)  # since a new store gets no name that ends like options
    assert storeds.info(store).url == printed(path)
    for function in TAKES_A_STORE.values():
        function(store, tmp_path)
    assert os.listdir(tmp_path / "stores") == [name]


# No operation replaces a store that it reads, whatever name or view of it is given

REFUSED = "itself, which writing would replace"


def write_store(url: str) -> str:
    make_store({"image": "image", "label": "int"}, ({"image": jpeg(n), "label": n % 2} for n in range(4)), url)
    return storeds.info(url).build


class Wrapper(Dataset[Any]):
    """A data set of a user that changes the samples of another one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


SOURCES: dict[str, Callable[[str], Any]] = {
    "url": lambda url: url,
    "backend": storeds.open_backend,
    "dataset": StoreDataset,
    "selected": lambda url: StoreDataset(url, where={"label": 1}),
    "joined": lambda url: StoreDataset([url]),
    "selected of joined": lambda url: StoreDataset([url], where={"label": 1}),
    "subset": lambda url: Subset(StoreDataset(url), [0, 2]),
    "concatenated": lambda url: ConcatDataset([StoreDataset(url), StoreDataset(url)]),
    "wrapped": lambda url: Wrapper(Subset(StoreDataset(url), [0])),
}


@pytest.mark.parametrize(
    ("operation", "engine"),
    [(storeds.pack, "lmdb"), (storeds.convert, "hdf5"), (storeds.repair, "mongodb"), (storeds.convert, "memory")],
)
def test_a_store_is_never_its_own_target(make_engine_url: MakeUrl, operation: Any, engine: str) -> None:
    url, other = make_engine_url(engine), make_engine_url(engine)
    build, _ = write_store(url), write_store(other)
    for source in (url, [url], [other, url]):
        if operation is not storeds.pack or source is url:  # pack joins data sets, see below
            with pytest.raises(errors.ConfigError, match=REFUSED):
                operation(source, url, overwrite=True)
    assert (storeds.info(url).build, storeds.info(url).leftovers) == (build, None)


@pytest.mark.parametrize("source", SOURCES)
def test_pack_finds_the_store_inside_its_source(tmp_path: Path, source: str) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    build = write_store(url)
    with pytest.raises(errors.ConfigError, match=REFUSED):
        storeds.pack(SOURCES[source](url), url, overwrite=True)
    assert storeds.info(url).build == build
    assert storeds.pack(SOURCES[source](url), f"hdf5://{tmp_path}/b.h5").count > 0


def test_a_link_to_the_source_is_the_source(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    build = write_store(url)
    (tmp_path / "link.lmdb").symlink_to(tmp_path / "a.lmdb")
    (tmp_path / "folder").symlink_to(tmp_path)
    os.link(tmp_path / "a.lmdb", tmp_path / "hard.h5")
    commands = (["pack", "--max-side", "16"], ["convert"], ["repair"])
    for target, (command, *options) in itertools.product(("link.lmdb", "folder/a.lmdb", "hard.h5"), commands):
        shown = storeds_command(command, url, tmp_path / target, "--overwrite", *options, code=2)
        assert REFUSED in " ".join(shown.split())
    assert storeds.info(url).build == build


def test_a_file_of_another_tool_is_not_replaced_either(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = np.zeros((6, 8, 8, 3), np.uint8), np.arange(6)
    before = path.read_bytes()
    for operation in (storeds.pack, storeds.convert):
        with pytest.raises(errors.ConfigError, match=REFUSED):
            operation(str(path), f"hdf5://{path}", overwrite=True)
    assert path.read_bytes() == before


def test_a_collection_of_another_tool_is_not_replaced_either(mongodb_database: str, database: Any) -> None:
    url, things = f"{mongodb_database}/things", database["things"]
    things.insert_many([{"label": n} for n in range(3)])
    before = list(things.find())
    for operation in (storeds.pack, storeds.convert):
        with pytest.raises(errors.StoreExistsError, match="no store"):
            operation(url, url, overwrite=True, layout="query")
    assert list(things.find()) == before
