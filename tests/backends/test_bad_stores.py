"""Damage: whatever a store's file has become, a user gets its records or an error of ours that says what to do."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

import storeds
from damage import KINDS, Damage, Truth, build, columns, read, records, survey, value_of
from shares import share
from storeds.errors import (
    ConfigError,
    FormatError,
    RecordError,
    StoredsError,
    StoreNotFoundError,
    UnavailableError,
)
from storeds.records.fields import meta_to_text

SCHEMES = ("lmdb", "hdf5")
SUFFIX = {"lmdb": ".lmdb", "hdf5": ".h5"}
Store = tuple[str, Path, Truth]


@pytest.fixture(scope="module", params=SCHEMES)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Twenty records of every kind."""
    return _build(request.param, tmp_path_factory.mktemp("small"), 20, 100)


@pytest.fixture(scope="module", params=SCHEMES)
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Sixty records with images of 40 KiB."""
    return _build(request.param, tmp_path_factory.mktemp("large"), 60, 40 << 10)


def _build(scheme: str, folder: Path, count: int, size: int) -> Store:
    path = folder / f"store{SUFFIX[scheme]}"
    return scheme, path, build(f"{scheme}://{path}", count, size)


@pytest.fixture
def copy(small: Store, tmp_path: Path) -> Store:
    """The small store, for a test to spoil."""
    scheme, path, truth = small
    return scheme, Path(shutil.copy(path, tmp_path)), truth


def write(url: str, labels: Sequence[int], **options: Any) -> None:
    with storeds.open_writer(url, {"image": "image", "label": "int"}, **options) as writer:
        writer.append({"image": bytes([label]), "label": label} for label in labels)


def labels(backend: Any) -> list[int]:
    return [record["label"] for record in read(backend)]


def everything(url: str) -> tuple[list[Any], dict[str, Any]]:
    with storeds.open_backend(url) as backend:
        return [value_of(record) for record in read(backend)], columns(backend)


FEW = 400
"""Bytes and lengths of one store that `make test` tries; `make test-full` tries all of them."""

# Any byte, any length: survey() fails on wrong data, on exceptions that are not ours, on a crash and on a hang


def test_a_flipped_bit_in_hdf5_metadata_is_noticed(tmp_path: Path) -> None:
    for count, size in ((20, 100), (60, 40 << 10)):
        scheme, path, truth = _build("hdf5", tmp_path, count, size)
        outcomes = survey(scheme, path, truth, [Damage(at, at % 8) for at in share(_hdf5_metadata(path), FEW)])
        assert set(outcomes) <= {"FormatError", "intact"}
        assert outcomes.get("intact", 0) <= 8  # they only say that a checksum follows
        path.unlink()


def test_a_flipped_bit_in_hdf5_values_costs_a_record_or_a_column(tmp_path: Path) -> None:
    scheme, path, truth = _build("hdf5", tmp_path, 20, 100)
    values = sorted(set(range(path.stat().st_size)) - set(_hdf5_metadata(path)))
    values = share((at for at in values if at < 4096 or at % 23 == 0), FEW)
    outcomes = survey(scheme, path, truth, [Damage(at, at % 8) for at in values])
    assert set(outcomes) == {"some records"}


def test_a_small_store_cut_short_at_any_length_is_noticed(small: Store) -> None:
    scheme, path, truth = small
    size = path.stat().st_size
    lengths = [n for n in range(size - 1, -1, -1) if n < 8192 or n >= size - 4096 or n % 13 == 0]
    outcomes = survey(scheme, path, truth, [Damage(n) for n in share(lengths, FEW)])
    # Behind the end of an HDF5 file is its stamp: without it nothing is missing.
    assert set(outcomes) <= {"FormatError", "intact"}
    assert outcomes.get("intact", 0) < (400 if scheme == "hdf5" else 1)


def test_a_large_store_cut_short_is_noticed(large: Store) -> None:
    scheme, path, truth = large
    size = path.stat().st_size
    near_ends = [n for n in range(size) if n < 8192 or n >= size - 4096]
    lengths = sorted({*near_ends, *range(0, size, 7919)}, reverse=True)
    outcomes = survey(scheme, path, truth, [Damage(n) for n in share(lengths, FEW)])
    assert set(outcomes) <= {"FormatError", "intact"}
    assert outcomes.get("intact", 0) < (400 if scheme == "hdf5" else 1)


def _hdf5_metadata(path: Path) -> list[int]:
    """Return every byte that is no dataset's value."""
    values = bytearray(path.stat().st_size)
    with h5py.File(path) as file:
        datasets: list[h5py.Dataset] = []
        file.visititems(lambda name, thing: datasets.append(thing) if isinstance(thing, h5py.Dataset) else None)
        for dataset in datasets:
            start = dataset.id.get_offset()
            if start is not None:
                values[start : start + dataset.nbytes] = b"\1" * dataset.nbytes
    return [at for at, is_value in enumerate(values) if not is_value]


# What is no store at all


def test_a_missing_path_names_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.lmdb").touch()
    (tmp_path / "data" / "val.lmdb").touch()
    file = tmp_path / "data" / "val.lmdb"
    for prefix in ("lmdb://", "hdf5://", ""):
        with pytest.raises(StoreNotFoundError, match=rf"no store at .*: {tmp_path}/data holds train.lmdb, val.lmdb$"):
            storeds.open_backend(f"{prefix}{tmp_path}/data/test.lmdb")
        with pytest.raises(
            StoreNotFoundError, match=rf"no store at .*: {tmp_path}/dta is not there; {tmp_path} holds data$"
        ):
            storeds.open_backend(f"{prefix}{tmp_path}/dta/deep/er/test.lmdb")
        with pytest.raises(StoreNotFoundError, match=rf"{file} is no folder; {tmp_path}/data holds"):
            storeds.open_backend(f"{prefix}{file}/test.lmdb")
        with pytest.raises(StoreNotFoundError, match="name too long"):
            storeds.open_backend(f"{prefix}{tmp_path}/{'x' * 300}.lmdb")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreNotFoundError, match="/empty is empty$"):
        storeds.open_backend(tmp_path / "empty" / "x.h5")
    for at in range(20):
        (tmp_path / "empty" / f"{at:02}").touch()
    with pytest.raises(StoreNotFoundError, match="holds 00, 01, 02, 03, 04, 05, 06, 07, …$"):
        storeds.open_backend(tmp_path / "empty" / "x.h5")


def test_a_dangling_link_is_missing(tmp_path: Path) -> None:
    (tmp_path / "x.h5").symlink_to(tmp_path / "nowhere.h5")
    with pytest.raises(StoreNotFoundError, match=r"holds x\.h5"):
        storeds.open_backend(tmp_path / "x.h5")


def _folder(path: Path) -> None:
    path.mkdir()


def _socket(path: Path) -> None:
    os.chdir(path.parent)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def _text(path: Path) -> None:
    path.write_text("just a text\n" * 1000)


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(100_000))


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (_folder, "is a folder"),
    "pipe": (os.mkfifo, "is not a regular file"),
    "socket": (_socket, "is not a regular file"),
    "text": (_text, "12000 bytes.*does not begin as one"),
    "zeros": (_zeros, "does not begin as one"),
    "empty": (Path.touch, "0 bytes.*does not begin as one"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_no_store_is_named(scheme: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, says = WRONG[what]
    path = tmp_path / f"x{SUFFIX[scheme]}"
    make(path)
    for url in (f"{scheme}://{path}", str(path)):
        with pytest.raises(FormatError, match=says) as caught:
            storeds.open_backend(url)
        assert str(path) in str(caught.value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", WRONG)
def test_a_bare_path_to_no_store_without_a_suffix(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    WRONG[what][0](tmp_path / "x")
    says = (
        "a folder without data.mdb.*`storeds pack`"
        if (tmp_path / "x").is_dir()
        else "neither an LMDB nor an HDF5 file.*`storeds pack`"
        if (tmp_path / "x").is_file()
        else "is not a regular file"
    )
    with pytest.raises(FormatError, match=says):
        storeds.open_backend(tmp_path / "x")


def test_another_engines_file_says_which(copy: Store) -> None:
    scheme, path, _ = copy
    other = "hdf5" if scheme == "lmdb" else "lmdb"
    with pytest.raises(
        FormatError, match=rf"is not an {other} store.* is a store of {scheme}; write {scheme}:// instead"
    ):
        storeds.open_backend(f"{other}://{path}")


def test_a_bare_path_opens_as_what_the_file_is(copy: Store) -> None:
    scheme, path, truth = copy
    for name in ("plain", f"x{SUFFIX[scheme]}", "lies.h5", "lies.lmdb", "x.bin"):
        moved = path.rename(path.with_name(name))
        with storeds.open_backend(moved) as backend:
            assert backend.url == f"{scheme}://{moved}"
            assert backend.meta == truth.meta
        path = moved


@pytest.mark.parametrize(("suffix", "scheme"), [(".mdb", "lmdb"), (".H5", "hdf5"), (".hdf5", "hdf5"), (".he5", "hdf5")])
def test_the_suffix_of_a_bare_path_to_write_selects_the_engine(suffix: str, scheme: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    write(str(path), [1])
    with storeds.open_backend(path) as backend:
        assert backend.url == f"{scheme}://{path}"
    with pytest.raises(ConfigError, match=r"cannot tell the engine; write lmdb://… or hdf5://…, or .*\.lmdb"):
        write(str(tmp_path / "x.bin"), [1])


def test_an_unknown_scheme_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown backend 'hdf'; did you mean 'hdf5'\? The backends are lmdb, hdf5"):
        storeds.open_backend(f"hdf://{tmp_path}/x.h5")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("url", ["{scheme}://{path}", "{path}"])
def test_an_unreadable_file_or_folder_is_said_to_be_so(scheme: str, url: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # which everybody may enter, unlike pytest's
        os.chmod(folder, 0o755)
        path = Path(folder, f"x{SUFFIX[scheme]}")
        write(f"{scheme}://{path}", [1])
        path.chmod(0)
        assert re.match("UnavailableError: .*Permission denied", _as_nobody(url.format(scheme=scheme, path=path)))
        path.unlink()
        os.chmod(folder, 0o311)
        reported = _as_nobody(url.format(scheme=scheme, path=path))
        assert re.match(r"StoreNotFoundError: .*cannot be listed \(Permission denied\)", reported)
        os.chmod(folder, 0o700)
        if os.getuid() == 0:
            assert re.match("UnavailableError: .*Permission denied", _as_nobody(url.format(scheme=scheme, path=path)))


def _as_nobody(url: str) -> str:
    """Return the error that an unprivileged process gets for `url`."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_open_as_nobody, args=(url, theirs))
    child.start()
    theirs.close()
    assert ours.poll(30)
    said = ours.recv()
    child.join()
    ours.close()
    return str(said)


def _open_as_nobody(url: str, pipe: Any) -> None:
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 65534)
    try:
        storeds.open_backend(url).close()
        pipe.send("opened")
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
    os._exit(0)


# Stores that somebody changed


def _lmdb_edit(path: Path, edit: Callable[[Any, Any], None]) -> None:
    env = lmdb.open(str(path), subdir=False, lock=False, max_dbs=4, map_size=1 << 24)
    with env.begin(write=True) as txn:
        edit(env, txn)
    env.close()


def test_an_lmdb_tool_that_adds_something_is_not_taken_for_damage(tmp_path: Path) -> None:
    _, path, truth = _build("lmdb", tmp_path, 20, 100)
    _lmdb_edit(path, lambda env, txn: txn.put(b"more", b"x"))
    assert everything(str(path)) == (truth.records, truth.columns)


def test_an_lmdb_store_whose_records_moved_in_the_file_reads_the_same(tmp_path: Path) -> None:
    _, path, truth = _build("lmdb", tmp_path, 20, 40 << 10)

    def rewrite(env: Any, txn: Any) -> None:  # it says of records where they were before, which is advice only
        database = env.open_db(b"records", txn=txn)
        for position in range(0, 20, 3):
            key = position.to_bytes(8, "big")
            txn.put(key, txn.pop(key, db=database), db=database)

    _lmdb_edit(path, rewrite)
    with lmdb.open(str(path), subdir=False, lock=False) as env:
        env.copy(str(tmp_path / "copy.lmdb"), compact=True)
    for each in (path, tmp_path / "copy.lmdb"):
        assert everything(str(each)) == (truth.records, truth.columns)


def test_lmdb_records_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    _, path, _ = _build("lmdb", tmp_path, 20, 100)

    def drop(env: Any, txn: Any) -> None:
        txn.delete((7).to_bytes(8, "big"), db=env.open_db(b"records", txn=txn))

    _lmdb_edit(path, drop)
    with pytest.raises(FormatError, match="19 records are there, its meta says 20"):
        storeds.open_backend(path)


def test_an_lmdb_record_under_another_key_is_missing_in_its_place(tmp_path: Path) -> None:
    _, path, truth = _build("lmdb", tmp_path, 20, 100)

    def move(env: Any, txn: Any) -> None:
        database = env.open_db(b"records", txn=txn)
        txn.put((99).to_bytes(8, "big"), txn.pop((7).to_bytes(8, "big"), db=database), db=database)

    _lmdb_edit(path, move)
    found, _ = everything(str(path))
    assert isinstance(found[7], RecordError)
    assert "record 7" in str(found[7])
    assert "missing" in str(found[7])
    assert found[:7] + found[8:] == truth.records[:7] + truth.records[8:]


def test_lmdb_columns_are_checked(tmp_path: Path) -> None:
    _, path, truth = _build("lmdb", tmp_path, 20, 100)

    def spoil(env: Any, txn: Any) -> None:
        database = env.open_db(b"columns", txn=txn)
        txn.put(b"label", bytes(160), db=database)
        txn.delete(b"name.offsets", db=database)

    _lmdb_edit(path, spoil)
    found, table = everything(str(path))
    assert found == truth.records
    assert "column 'label' does not match its checksum" in str(table["label"])
    assert "column 'name.offsets' is missing" in str(table["name"])
    assert table["weight"] == truth.columns["weight"]


@pytest.mark.parametrize("names", [[], [b"records"], [b"records", b"columns"], [b"records", b"columns", b"meta"]])
def test_an_lmdb_file_without_our_databases_is_no_store(tmp_path: Path, names: list[bytes]) -> None:
    def create(env: Any, txn: Any) -> None:
        for name in names:
            env.open_db(name, txn=txn)

    _lmdb_edit(tmp_path / "x.lmdb", create)
    with pytest.raises(FormatError, match=r"storeds\.open_writer"):
        storeds.open_backend(tmp_path / "x.lmdb")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda text: text.replace('"count":20', '"count":19'), "does not match its checksum"),
        (lambda text: text.replace("cat", "cow"), "does not match its checksum"),
        (lambda text: text.replace('"kind":"int"', '"kind":"str"'), "does not match its checksum"),
        (lambda text: text.replace('"kind":"int"', '"kind":"uint"'), "meta is unreadable .*unknown kind 'uint'"),
        (lambda text: text.replace('"check"', '"chack"'), "meta is unreadable"),
        (lambda text: text[:-1], "meta is unreadable"),
        (lambda text: "", "meta is unreadable"),
        (lambda text: "[]", "meta is unreadable"),
        (lambda text: "null", "meta is unreadable"),
        (lambda text: "[" * 100_000, "meta is unreadable"),
    ],
)
def test_edited_lmdb_meta_is_refused(tmp_path: Path, edit: Callable[[str], str], says: str) -> None:
    _, path, _ = _build("lmdb", tmp_path, 20, 10)

    def rewrite(env: Any, txn: Any) -> None:
        database = env.open_db(b"meta", txn=txn)
        before = txn.get(b"meta", db=database).decode()
        assert edit(before) != before
        txn.put(b"meta", edit(before).encode(), db=database)

    _lmdb_edit(path, rewrite)
    with pytest.raises(FormatError, match=f"{path}.*{says}"):
        storeds.open_backend(path)


def _rewrite_hdf5_meta(path: Path, edit: Callable[[Any], Any]) -> None:
    with h5py.File(path, "r+") as file:
        before = file.attrs["meta"]
        del file.attrs["meta"]
        file.attrs["meta"] = edit(before)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"count":20', '"count":19'),
        lambda text: text.replace('"label":"', '"label":"0'),
        lambda text: text.replace("cat", "cow"),
        lambda text: text[:-1],
        lambda text: np.bytes_(text.encode()[:-9]),
        lambda text: 3.5,
        lambda text: [1, 2],
    ],
)
def test_edited_hdf5_meta_is_refused(tmp_path: Path, edit: Callable[[Any], Any]) -> None:
    _, path, _ = _build("hdf5", tmp_path, 20, 10)
    _rewrite_hdf5_meta(path, edit)
    with pytest.raises(FormatError, match=f"{path}.*(does not match its checksum|meta is unreadable)"):
        storeds.open_backend(path)


def test_a_newer_format_says_to_upgrade(copy: Store) -> None:
    scheme, path, truth = copy
    newer = dataclasses.replace(truth.meta, layout="storeds/2")
    if scheme == "lmdb":
        text = meta_to_text(newer).encode()
        _lmdb_edit(path, lambda env, txn: txn.put(b"meta", text, db=env.open_db(b"meta", txn=txn)))
    else:
        _rewrite_hdf5_meta(path, lambda _: meta_to_text(newer))
    with pytest.raises(FormatError, match="layout 'storeds/2' is newer than this storeds.*upgrade storeds"):
        storeds.open_backend(path)


def _replace(file: h5py.File, name: str, values: Any, **options: Any) -> None:
    del file[name]
    file.create_dataset(name, data=values, **options)


@pytest.mark.parametrize(
    "name",
    ["label", "weight", "good", "fixed", "_seal", "name/offsets", "image/offsets", "ragged/shapes", "note/offsets"],
)
def test_hdf5_columns_of_different_length_are_refused(tmp_path: Path, name: str) -> None:
    _, path, _ = _build("hdf5", tmp_path, 20, 10)
    with h5py.File(path, "r+") as file:
        _replace(file, f"records/{name}", file[f"records/{name}"][:-1])
    with pytest.raises(FormatError, match=f"dataset records/{name} is .*expected"):
        storeds.open_backend(path)


@pytest.mark.parametrize("name", ["label", "image", "image/data", "image/offsets", "_seal"])
def test_hdf5_columns_that_are_missing_or_of_another_kind_are_refused(tmp_path: Path, name: str) -> None:
    _, path, _ = _build("hdf5", tmp_path, 20, 10)
    with h5py.File(path, "r+") as file:
        del file[f"records/{name}"]
    with pytest.raises(FormatError, match=rf"/records/{name}(/\w+)? is missing"):
        storeds.open_backend(path)
    with h5py.File(path, "r+") as file:
        file[f"records/{name}"] = np.zeros(20, ">c8")
    with pytest.raises(FormatError, match=f"records/{name}"):
        storeds.open_backend(path)
    with h5py.File(path, "r+") as file:
        del file[f"records/{name}"]
        file.create_group(f"records/{name}")
    with pytest.raises(FormatError, match=f"records/{name}"):
        storeds.open_backend(path)


def _secret_file(folder: Path) -> Path:
    path = folder / "secret.h5"
    with h5py.File(path, "w") as file:
        file["label"] = np.arange(20)
        file["g/label"] = np.arange(20)
    return path


def _external_link(file: h5py.File, elsewhere: Path) -> None:
    file["records/label"] = h5py.ExternalLink(str(elsewhere), "label")


def _soft_link(file: h5py.File, elsewhere: Path) -> None:
    file["other"] = np.arange(20)
    file["records/label"] = h5py.SoftLink("/other")


def _linked_group(file: h5py.File, elsewhere: Path) -> None:
    del file["records"]
    file["records"] = h5py.ExternalLink(str(elsewhere), "g")


def _virtual(file: h5py.File, elsewhere: Path) -> None:
    layout = h5py.VirtualLayout((20,), "<i8")
    layout[:] = h5py.VirtualSource(str(elsewhere), "label", (20,))
    file.create_virtual_dataset("records/label", layout)


def _external_storage(file: h5py.File, elsewhere: Path) -> None:
    file.create_dataset("records/label", (20,), "<i8", external=[(str(elsewhere), 0, 160)])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_external_link, "/records/label is a link to elsewhere"),
        (_soft_link, "/records/label is a link to elsewhere"),
        (_linked_group, "/records is a link to elsewhere"),
        (_virtual, "keeps its bytes in other files"),
        (_external_storage, "keeps its bytes in other files"),
    ],
)
def test_hdf5_that_reaches_into_other_files_is_refused(
    tmp_path: Path, spoil: Callable[[h5py.File, Path], None], says: str
) -> None:
    _, path, _ = _build("hdf5", tmp_path, 20, 10)
    elsewhere = _secret_file(tmp_path)
    with h5py.File(path, "r+") as file:
        del file["records/label"]
        spoil(file, elsewhere)
    with pytest.raises(FormatError, match=says):
        storeds.open_backend(path)


def test_an_hdf5_tool_that_adds_something_takes_the_stamp_away(tmp_path: Path) -> None:
    _, path, truth = _build("hdf5", tmp_path, 20, 100)
    stamped = path.stat().st_size
    with h5py.File(path, "r+") as file:
        file.attrs["mine"] = "a remark"
        file["thumbnails"] = np.zeros(1000)
    assert path.read_bytes()[-8:] != b"storeds\x02"
    assert path.stat().st_size > stamped
    assert everything(str(path)) == (truth.records, truth.columns)


@pytest.fixture
def rewritten(tmp_path: Path) -> tuple[Path, Truth]:
    """A store whose datasets another tool has chunked and compressed."""
    _, path, truth = _build("hdf5", tmp_path, 20, 100)
    other = tmp_path / "rewritten.h5"
    with h5py.File(path) as source, h5py.File(other, "w") as target:
        target.attrs.update(source.attrs)

        def rewrite(name: str, thing: Any) -> None:
            if isinstance(thing, h5py.Dataset) and thing.size:
                chunk = (min(len(thing), 256 if name.endswith("/data") else 4), *thing.shape[1:])
                made = target.create_dataset(name, data=thing[:], chunks=chunk, compression="gzip", fletcher32=True)
                made.attrs.update(thing.attrs)

        source.visititems(rewrite)
    return other, truth


def test_a_rewritten_hdf5_store_reads_the_same(rewritten: tuple[Path, Truth]) -> None:
    path, truth = rewritten
    assert everything(str(path)) == (truth.records, truth.columns)


def test_a_damaged_chunk_costs_the_records_that_lie_in_it(rewritten: tuple[Path, Truth]) -> None:
    path, truth = rewritten
    with h5py.File(path) as file:
        image = file["records/image/data"].id.get_chunk_info(3)
        label = file["records/label"].id.get_chunk_info(0)
        starts = file["records/image/offsets"][:]
    for chunk in (image, label):
        with open(path, "r+b") as raw:
            raw.seek(chunk.byte_offset + chunk.size // 2)
            raw.write(b"\xff\xff")
    found, table = everything(str(path))
    first, past = 3 * 256, 4 * 256
    for at, record in enumerate(found):
        if at < 4 or (starts[at] < past and starts[at + 1] > first):
            assert isinstance(record, RecordError), at
        else:
            assert record == truth.records[at], at
    assert isinstance(table.pop("label"), FormatError)
    assert isinstance(table.pop("fixed"), RecordError)  # arrays have no checksum of their own
    assert table.items() <= truth.columns.items()


def test_reads_that_the_kernel_cuts_up_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path, truth = _build("hdf5", tmp_path, 20, 100)
    with storeds.open_backend(path) as backend:
        backend.get_many([0])
        whole = os.pread
        monkeypatch.setattr(
            "storeds.backends.hdf5.rows.os.pread", lambda file, size, at: whole(file, min(size, 100), at)
        )
        assert [value_of(record) for record in read(backend)] == truth.records
        assert columns(backend) == truth.columns


# Stores that change places


@pytest.fixture(params=SCHEMES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a store with labels 1, 2 and 3."""
    made = f"{request.param}://{tmp_path}/x{SUFFIX[request.param]}"
    write(made, [1, 2, 3])
    return made


def path_in(url: str) -> Path:
    return Path(url.partition("://")[2])


@pytest.fixture(autouse=True)
def no_handles_left() -> Iterator[None]:
    yield
    for pool in _pools():
        pool.close_all()
        assert len(pool) == 0


def _pools() -> list[Any]:
    return [storeds.registry.BACKENDS.get(scheme).pool for scheme in SCHEMES]


def test_a_reader_keeps_the_store_that_it_opened(url: str) -> None:
    with storeds.open_backend(url) as backend:
        assert labels(backend) == [1, 2, 3]
        write(url, [7, 8, 9], overwrite=True)
        assert labels(backend) == [1, 2, 3]
        assert backend.column("label").tolist() == [1, 2, 3]  # type: ignore[attr-defined]
        with storeds.open_backend(url) as fresh:
            assert labels(fresh) == [7, 8, 9]
            assert labels(backend) == [1, 2, 3]
        for pool in _pools():
            pool.close_all()
        with pytest.raises(UnavailableError, match=r"was replaced while in use .*open it again"):
            labels(backend)
        with pytest.raises(UnavailableError, match="was replaced while in use"):
            backend.column("label")  # type: ignore[attr-defined]


def test_the_same_content_published_again_is_still_another_store(url: str) -> None:
    with storeds.open_backend(url) as backend:
        write(url, [1, 2, 3], overwrite=True)
        with storeds.open_backend(url) as fresh:
            assert fresh.meta.id == backend.meta.id
        with pytest.raises(UnavailableError, match="was replaced while in use"):
            labels(backend)


def test_a_store_that_is_deleted_is_unavailable(url: str) -> None:
    with storeds.open_backend(url) as backend:
        path_in(url).unlink()
        with pytest.raises(UnavailableError, match="was there when it was opened and is gone now"):
            labels(backend)


def test_a_store_that_is_spoilt_after_it_was_opened_says_so(url: str) -> None:
    with storeds.open_backend(url) as backend:
        path_in(url).write_bytes(b"x" * 5000)
        with pytest.raises(StoredsError, match="does not begin as one"):
            labels(backend)


@pytest.mark.parametrize(("scheme", "ours", "theirs"), [("lmdb", "readahead", True), ("hdf5", "locking", "false")])
def test_two_live_backends_of_one_file_may_have_different_options(
    tmp_path: Path, scheme: str, ours: str, theirs: Any
) -> None:
    url = f"{scheme}://{tmp_path}/x{SUFFIX[scheme]}"
    write(url, [1, 2, 3])
    with storeds.open_backend(url) as first, storeds.open_backend(url, **{ours: theirs}) as second:
        for _ in range(2):
            assert labels(first) == labels(second) == [1, 2, 3]
        assert sum(map(len, _pools())) == 1
        first.close()
        with storeds.open_backend(url, **{ours: theirs}) as third:
            assert labels(second) == labels(third) == [1, 2, 3]


def test_one_file_under_three_names(url: str) -> None:
    path = path_in(url)
    soft, hard = path.with_name("soft"), path.with_name("hard")
    soft.symlink_to(path)
    os.link(path, hard)
    scheme = url.partition(":")[0]
    with (
        storeds.open_backend(url) as first,
        storeds.open_backend(f"{scheme}://{soft}") as second,
        storeds.open_backend(hard) as third,
    ):
        assert labels(first) == labels(second) == labels(third) == [1, 2, 3]
        assert sum(map(len, _pools())) == 1
        first.close()
        path.unlink()
        assert labels(second) == labels(third) == [1, 2, 3]


def test_a_read_only_file_in_a_read_only_folder_opens(url: str) -> None:
    path = path_in(url)
    path.chmod(stat.S_IRUSR | stat.S_IROTH)
    path.parent.chmod(0o555)
    try:
        with storeds.open_backend(url) as backend:
            assert labels(backend) == [1, 2, 3]
        assert sorted(path.parent.iterdir()) == [path]
    finally:
        path.parent.chmod(0o755)


def test_every_kind_is_in_the_stores_that_are_damaged() -> None:
    kinds = {spec if isinstance(spec, str) else spec["kind"] for spec in KINDS.values()}
    assert kinds == set(storeds.protocols.KINDS)
    assert set(next(records(1, 1))) == set(KINDS)
