"""Damage: whatever a store's file has become, a user gets its records or an error of ours that says what to do."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

import storeds
from _writing import in_fork
from damage import Damage, Truth, build, columns, read, survey, value_of
from shares import FULL, SEED, share
from storeds.errors import ConfigError, FormatError, RecordError, StoredsError, StoreNotFoundError, UnavailableError
from storeds.plugins import POOL
from storeds.records.meta import meta_from_text, meta_to_text

SUFFIX = {"lmdb": ".lmdb", "hdf5": ".h5"}
FEW, COPIES = 60, 1000 if FULL else 8
"""Bytes, lengths or page numbers of one store, and damaged copies, that `make test` tries; `make test-full` tries all."""
Store = tuple[str, Path, Truth]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Store]:
    """Return a function: engine, size of an image → a store of twenty records of every kind, written once."""
    stores: dict[tuple[str, int], Store] = {}

    def find(engine: str, size: int) -> Store:
        if (engine, size) not in stores:
            path = tmp_path_factory.mktemp("built") / f"store{SUFFIX[engine]}"
            stores[engine, size] = engine, path, build(f"{engine}://{path}", 20, size)
        return stores[engine, size]

    return find


@pytest.fixture
def copied(built: Callable[[str, int], Store], tmp_path: Path) -> Callable[[str], tuple[Path, Truth]]:
    """Return a function: engine → a copy of the store with small images, for a test to spoil, and its truth."""

    def copy(engine: str) -> tuple[Path, Truth]:
        _, path, truth = built(engine, 100)
        return Path(shutil.copy(path, tmp_path)), truth

    return copy


Copied = Callable[[str], tuple[Path, Truth]]


@pytest.fixture(autouse=True)
def no_handles_left() -> Iterator[None]:
    yield
    POOL.close_all()
    assert len(POOL) == 0


def everything(path: Path) -> tuple[list[Any], dict[str, Any]]:
    with storeds.open_backend(path) as backend:
        return list(map(value_of, read(backend))), columns(backend)


# survey() fails on wrong data, on exceptions that are not ours, on a crash and on a hang


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]


def flips(at: Iterable[int]) -> list[Damage]:
    return [Damage(f"a flip of byte {each}", partial(flipped, at=each, bit=each % 8)) for each in share(at, FEW)]


def metadata_flips(path: Path) -> list[Damage]:
    return flips(at for at, is_value in enumerate(_is_value(path)) if not is_value)


def value_flips(path: Path) -> list[Damage]:
    return flips(at for at, is_value in enumerate(_is_value(path)) if is_value and (at < 4096 or at % 23 == 0))


def _is_value(path: Path) -> bytes:
    """Return 1 for each byte of a file that is a dataset's value."""
    values = bytearray(path.stat().st_size)
    with h5py.File(path) as file:
        datasets: list[h5py.Dataset] = []
        file.visititems(lambda name, thing: datasets.append(thing) if isinstance(thing, h5py.Dataset) else None)
        for dataset in datasets:
            start = dataset.id.get_offset()
            if start is not None:
                values[start : start + dataset.nbytes] = b"\1" * dataset.nbytes
    return bytes(values)


def cuts(path: Path) -> list[Damage]:
    size = path.stat().st_size
    lengths = share((at for at in range(size) if at < 8192 or at >= size - 4096 or at % 997 == 0), FEW)
    return [Damage(f"a cut at {at}", lambda data, at=at: data[:at]) for at in lengths]  # type: ignore[misc]


def ranges(path: Path) -> list[Damage]:
    return [Damage(f"ranges {seed}", partial(spoilt, seed=seed)) for seed in range(SEED, SEED + COPIES)]


def spoilt(data: bytes, seed: int) -> bytes:
    """Return `data` with one to three ranges flipped, zeroed, exchanged or copied."""
    spoilt, chance = bytearray(data), random.Random(seed)
    for _ in range(chance.randint(1, 3)):
        size = chance.choice([1, 8, 64, 512, 4096])
        a, b = (chance.randrange(len(data) - size) // size * size for _ in range(2))
        first, second = bytes(spoilt[a : a + size]), bytes(spoilt[b : b + size])
        kind = chance.choice(["bit", "zero", "exchange", "copy"])
        if kind == "bit":
            spoilt[a] ^= 1 << chance.randrange(8)
        else:
            spoilt[a : a + size] = bytes(size) if kind == "zero" else second
        if kind == "exchange":
            spoilt[b : b + size] = first
    return bytes(spoilt)


@pytest.mark.parametrize(
    ("engine", "size", "damage", "outcome", "intact"),
    [
        ("hdf5", 100, metadata_flips, "FormatError", 8),  # a byte that only says that a checksum follows
        ("hdf5", 100, value_flips, "some records", 0),
        ("hdf5", 100, cuts, "FormatError", 399),  # behind the end of a file is its stamp: without it nothing is missing
        ("lmdb", 40 << 10, cuts, "FormatError", 0),
    ],
)
def test_damage_of_any_byte_and_length_is_noticed(
    built: Callable[[str, int], Store],
    engine: str,
    size: int,
    damage: Callable[[Path], list[Damage]],
    outcome: str,
    intact: int,
) -> None:
    _, path, truth = built(engine, size)
    outcomes = survey(engine, path, truth, damage(path))
    assert outcome in outcomes
    # One flag in the header says that a writer is there, or died.
    assert outcomes.pop("UnavailableError", 0) <= (damage is metadata_flips)
    assert set(outcomes) <= {outcome, "intact"}
    assert outcomes.get("intact", 0) <= intact


# LMDB maps its file, so damage of its inner pages may end the process by a signal.
SIGNALS = [-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT]


@pytest.mark.parametrize(("engine", "may_die_of"), [("hdf5", []), ("lmdb", SIGNALS)])
def test_damage_of_several_places_harms_nothing(engine: str, may_die_of: list[int], tmp_path: Path) -> None:
    path = tmp_path / "whole"
    truth = build(f"{engine}://{path}", 400, 20)
    print(survey(engine, path, truth, ranges(path), may_die_of=may_die_of))


# Paths that are not stores


def test_a_missing_path_names_what_is_there(tmp_path: Path) -> None:
    for folder, count in (("empty", 0), ("full", 20)):
        (tmp_path / folder).mkdir()
        for at in range(count):
            (tmp_path / folder / f"{at:02}").touch()
    for missing, says in {
        "full/x.h5": f"{tmp_path}/full holds 00, 01, 02, 03, 04, 05, 06, 07, …$",
        "empty/x.h5": "/empty is empty$",
        "fll/deep/er/x.h5": f"{tmp_path}/fll is not there; {tmp_path} holds empty, full$",
        "full/00/x.h5": f"{tmp_path}/full/00 is no folder; {tmp_path}/full holds",
        f"{'x' * 300}.lmdb": "name too long",
    }.items():
        for prefix in ("lmdb://", ""):
            with pytest.raises(StoreNotFoundError, match=says):
                storeds.open_backend(f"{prefix}{tmp_path}/{missing}")


NO_FILE = "is not a regular file"
NO_MAGIC = "neither an LMDB nor an HDF5 nor a tar file.*`storeds pack`"
WRONG: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "folder": (Path.mkdir, "is a folder", "a folder without data.mdb.*`storeds pack`"),
    "pipe": (os.mkfifo, NO_FILE, NO_FILE),
    "text": (lambda path: path.write_text("a text\n" * 2000), "14000 bytes.*does not begin as one", NO_MAGIC),
    "empty": (Path.touch, "0 bytes.*does not begin as one", NO_MAGIC),
}
"""What is at a path: how it gets there, and what errors say for a path with and without a store's suffix."""


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_store_is_named(what: str, tmp_path: Path) -> None:
    make, says, says_of_any = WRONG[what]
    for suffix in ("", *SUFFIX.values()):
        make(tmp_path / f"x{suffix}")
    urls = [f"{engine}://{tmp_path}/x{suffix}" for engine, suffix in SUFFIX.items()]
    for url in (*urls, f"{tmp_path}/x.lmdb", f"{tmp_path}/x.h5", f"{tmp_path}/x"):
        with pytest.raises(FormatError, match=says if "." in url else says_of_any) as caught:
            storeds.open_backend(url)
        assert url.rpartition("://")[2] in str(caught.value)


@pytest.mark.parametrize("engine", SUFFIX)
def test_a_bare_path_opens_as_what_the_file_is(copied: Copied, engine: str) -> None:
    path, truth = copied(engine)
    for name in ("plain", f"x{SUFFIX[engine]}", "lies.h5", "lies.lmdb", "x.bin"):
        path = path.rename(path.with_name(name))
        with storeds.open_backend(path) as backend:
            assert (backend.url, backend.meta) == (f"{engine}://{path}", truth.meta)
    other = "hdf5" if engine == "lmdb" else "lmdb"
    says = rf"is not an {other} store.* is a store of {engine}; write {engine}:// instead"
    with pytest.raises(FormatError, match=says):
        storeds.open_backend(f"{other}://{path}")


def test_the_suffix_of_a_bare_path_to_write_selects_the_engine(tmp_path: Path) -> None:
    for suffix, engine in ((".mdb", "lmdb"), (".H5", "hdf5"), (".hdf5", "hdf5"), (".he5", "hdf5")):
        write(f"{tmp_path}/x{suffix}", [1])
        with storeds.open_backend(tmp_path / f"x{suffix}") as backend:
            assert backend.url == f"{engine}://{tmp_path}/x{suffix}"
    with pytest.raises(ConfigError, match=r"cannot tell the engine; write lmdb://… or hdf5://…, or .*\.lmdb"):
        write(str(tmp_path / "x.bin"), [1])


@pytest.mark.parametrize("url", ["lmdb://{}", "{}"])
def test_an_unreadable_file_or_folder_is_said_to_be_so(url: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # which everybody may enter, unlike pytest's
        path = Path(folder, "x.lmdb")
        write(f"lmdb://{path}", [1])

        def open_as_nobody(error: type[Exception], says: str) -> None:
            if os.getuid() == 0:
                os.setresuid(65534, 65534, 65534)
            with pytest.raises(error, match=says):
                storeds.open_backend(url.format(path))

        os.chmod(folder, 0o755)
        path.chmod(0)
        in_fork(partial(open_as_nobody, UnavailableError, "Permission denied"))
        path.unlink()
        os.chmod(folder, 0o311)
        in_fork(partial(open_as_nobody, StoreNotFoundError, r"cannot be listed \(Permission denied\)"))


# Stores that somebody changed


def edit_lmdb(path: Path, database: bytes | None, edit: Callable[[Any], object]) -> None:
    """Call `edit` in a write transaction whose default is this database."""
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=4, map_size=1 << 24) as env:
        at = None if database is None else env.open_db(database)
        with env.begin(write=True, db=at) as txn:
            edit(txn)


def edit_hdf5(path: Path, edit: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "r+") as file:
        edit(file)


def edit_meta(path: Path, edit: Callable[[str], Any]) -> None:
    if path.suffix == ".lmdb":
        edit_lmdb(path, b"meta", lambda txn: txn.put(b"meta", edit(txn.get(b"meta").decode()).encode()))
    else:
        edit_hdf5(path, lambda file: file.attrs.update(meta=edit(file.attrs.pop("meta"))))


def replaced(old: str, new: str) -> Callable[[Path], None]:
    """Return an edit of the meta's text."""
    return partial(edit_meta, edit=lambda text: text.replace(old, new))


def meta_is(value: Any) -> Callable[[Path], None]:
    return partial(edit_meta, edit=lambda _: value)


def newer(path: Path) -> None:
    with storeds.open_backend(path) as backend:
        text = meta_to_text(dataclasses.replace(backend.meta, layout="storeds/2"))
    meta_is(text)(path)


def dataset_is(name: str, value: Any) -> Callable[[Path], None]:
    """Return an edit that deletes a dataset, and stores `value`, or what it returns for the old one, in its place."""

    def edit(file: h5py.File) -> None:
        old = file.pop(f"records/{name}")
        new = value(old) if callable(value) else value
        if new is not None:
            file[f"records/{name}"] = new

    return partial(edit_hdf5, edit=edit)


def elsewhere(path: Path) -> str:
    """Write a file with numbers beside a store, and return its path."""
    with h5py.File(path.with_name("secret.h5"), "w") as file:
        file["label"] = file["g/label"] = np.arange(20)
    return str(path.with_name("secret.h5"))


def external(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["records/label"]
        file.create_dataset("records/label", (20,), "<i8", external=[(elsewhere(path), 0, 160)])


def virtual(path: Path) -> None:
    layout = h5py.VirtualLayout((20,), "<i8")
    layout[:] = h5py.VirtualSource(elsewhere(path), "label", (20,))
    with h5py.File(path, "r+") as file:
        del file["records/label"]
        file.create_virtual_dataset("records/label", layout)


def linked(name: str, link: Callable[[str], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file["other"] = np.arange(20)
            del file[name]
            file[name] = link(elsewhere(path))

    return edit


UNREADABLE = "meta is unreadable"
MISMATCH = "does not match its checksum"
LINK, ELSEWHERE = "is a link to elsewhere", "keeps its bytes in other files"
OF_BOTH: list[tuple[Callable[[Path], None], str]] = [
    (replaced('"count":20', '"count":19'), MISMATCH),
    (replaced("cat", "cow"), MISMATCH),
    (replaced('"kind":"int"', '"kind":"uint"'), "meta is unreadable .*unknown kind 'uint'"),
    *[(meta_is(text), UNREADABLE) for text in ('{"a":1', "[]", "[" * 50_000)],
    (newer, "layout 'storeds/2' is newer than this storeds.*upgrade"),
]
OF_HDF5: list[tuple[Callable[[Path], None], str]] = [
    (meta_is([1, 2]), UNREADABLE),
    *[
        (dataset_is(name, lambda old: old[:-1]), f"dataset records/{name} is .*expected")
        for name in ("label", "fixed", "_seal", "image/offsets", "ragged/shapes")
    ],
    *[(dataset_is(name, None), rf"/records/{name}(/\w+)? is missing") for name in ("label", "image/data", "_seal")],
    *[(dataset_is(name, np.zeros(20, ">c8")), f"records/{name}") for name in ("label", "image", "image/offsets")],
    (
        lambda path: edit_hdf5(path, lambda file: file.pop("records/label") and file.create_group("records/label")),
        "records/label is not a dataset",
    ),
    (linked("records/label", lambda path: h5py.ExternalLink(path, "label")), f"/records/label {LINK}"),
    (linked("records/label", lambda path: h5py.SoftLink("/other")), f"/records/label {LINK}"),
    (linked("records", lambda path: h5py.ExternalLink(path, "g")), f"/records {LINK}"),
    (virtual, ELSEWHERE),
    (external, ELSEWHERE),
]


@pytest.mark.parametrize(
    ("engine", "edit", "says"),
    [*(("lmdb", *case) for case in OF_BOTH), *(("hdf5", *case) for case in (*OF_BOTH, *OF_HDF5))],
)
def test_an_edited_store_is_refused(engine: str, copied: Copied, edit: Callable[[Path], None], says: str) -> None:
    path, _ = copied(engine)
    edit(path)
    with pytest.raises(FormatError, match=f"{path}.*{says}"):
        storeds.open_backend(path)


def test_lmdb_records_and_columns_that_were_changed(copied: Copied) -> None:
    path, truth = copied("lmdb")
    edit_lmdb(path, None, lambda txn: txn.put(b"more", b"x"))  # a tool that adds something
    assert everything(path) == (truth.records, truth.columns)

    key = (7).to_bytes(8, "big")
    edit_lmdb(path, b"records", lambda txn: txn.put(b"\0" * 7 + b"\x63", txn.pop(key)))
    edit_lmdb(path, b"columns", lambda txn: txn.put(b"label", bytes(160)) and txn.delete(b"name.offsets"))
    found, table = everything(path)
    assert re.search("record 7 .*missing", str(found[7]))
    assert found[:7] + found[8:] == truth.records[:7] + truth.records[8:]
    assert "column 'label' does not match its checksum" in str(table["label"])
    assert "column 'name.offsets' is missing" in str(table["name"])
    assert table["weight"] == truth.columns["weight"]

    edit_lmdb(path, b"records", lambda txn: txn.delete(b"\0" * 7 + b"\x63"))
    with pytest.raises(FormatError, match="19 records are there, its meta says 20"):
        storeds.open_backend(path)


def test_an_lmdb_store_whose_records_moved_in_the_file_reads_the_same(copied: Copied, tmp_path: Path) -> None:
    path, truth = copied("lmdb")

    def rewrite(txn: Any) -> None:  # `_pages` says where they were before, which is advice only
        for position in range(0, 20, 3):
            key = position.to_bytes(8, "big")
            txn.put(key, txn.pop(key))

    edit_lmdb(path, b"records", rewrite)
    with lmdb.open(str(path), subdir=False, lock=False) as env:
        env.copy(str(tmp_path / "compact.lmdb"), compact=True)
    for each in (path, tmp_path / "compact.lmdb"):
        assert everything(each) == (truth.records, truth.columns)
    edit_lmdb(path, b"columns", lambda txn: txn.put(b"_pages", b"no numbers"))
    assert everything(path) == (truth.records, truth.columns)


def test_an_lmdb_file_whose_main_database_is_damaged_is_refused(copied: Copied) -> None:
    path, _ = copied("lmdb")
    data = bytearray(path.read_bytes())
    for meta in (0, 4096):
        root = int.from_bytes(data[meta + 128 : meta + 136], "little")
        data[root * 4096 + 10] = 4  # a page of a large value
    path.write_bytes(data)
    for url in (path, f"lmdb://{path}"):
        with pytest.raises(FormatError, match="cannot be read by LMDB"):
            storeds.open_backend(url)


def test_an_hdf5_tool_that_adds_something_takes_the_stamp_away(copied: Copied) -> None:
    path, truth = copied("hdf5")
    edit_hdf5(path, lambda file: file.attrs.update(mine="a remark") or file.create_dataset("more", data=np.zeros(1000)))
    assert path.read_bytes()[-8:] != b"storeds\x02"
    assert everything(path) == (truth.records, truth.columns)


def test_a_damaged_chunk_costs_the_records_that_lie_in_it(copied: Copied) -> None:
    path, truth = copied("hdf5")
    with h5py.File(path, "r+") as file:  # as another tool chunks and compresses it
        starts = file["records/image/offsets"][:]
        for name, size in (("image/data", 256), ("label", 4), ("fixed", 4)):
            data = file.pop(f"records/{name}")[:]
            how = {"compression": "gzip", "fletcher32": True, "chunks": (size, *data.shape[1:])}
            file.create_dataset(f"records/{name}", data=data, **how)
        spoilt = [file["records/image/data"].id.get_chunk_info(3), file["records/label"].id.get_chunk_info(0)]
    assert everything(path) == (truth.records, truth.columns)
    with open(path, "r+b") as raw:
        for chunk in spoilt:
            raw.seek(chunk.byte_offset + chunk.size // 2)
            raw.write(b"\xff\xff")
    found, table = everything(path)
    for at, each in enumerate(found):
        if at < 4 or (starts[at] < 4 * 256 and starts[at + 1] > 3 * 256):
            assert isinstance(each, RecordError), at
        else:
            assert each == truth.records[at], at
    assert isinstance(table.pop("label"), FormatError)
    assert isinstance(table.pop("fixed"), RecordError)  # arrays have no checksum of their own
    assert table.items() <= truth.columns.items()


# Stores that change places


def write(url: str, labels: list[int], **options: Any) -> None:
    with storeds.open_writer(url, {"image": "image", "label": "int"}, **options) as writer:
        writer.append({"image": bytes([label]), "label": label} for label in labels)


def labels(backend: Any) -> list[int]:
    return [record["label"] for record in read(backend)]


@pytest.fixture(params=SUFFIX)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a store with labels 1, 2 and 3."""
    made = f"{request.param}://{tmp_path}/x{SUFFIX[request.param]}"
    write(made, [1, 2, 3])
    return made


def path_in(url: str) -> Path:
    return Path(url.partition("://")[2])


@pytest.mark.parametrize("content", [[7, 8, 9], [1, 2, 3]], ids=["other", "same"])
def test_a_reader_keeps_the_store_that_it_opened(url: str, content: list[int]) -> None:
    with storeds.open_backend(url) as backend:
        assert labels(backend) == [1, 2, 3]
        write(url, content, overwrite=True)
        assert labels(backend) == [1, 2, 3]
        assert backend.column("label").tolist() == [1, 2, 3]  # type: ignore[attr-defined]
        with storeds.open_backend(url) as fresh:
            assert labels(fresh) == content
            assert labels(backend) == [1, 2, 3]
            assert (fresh.meta.id == backend.meta.id) == (content == [1, 2, 3])
        POOL.close_all()
        for read_again in (labels, lambda backend: backend.column("label")):
            with pytest.raises(UnavailableError, match=r"was replaced while in use .*open it again"):
                read_again(backend)


def test_a_store_that_goes_before_it_is_read(url: str) -> None:
    with storeds.open_backend(url) as backend:
        path_in(url).write_bytes(b"x" * 5000)
        with pytest.raises(StoredsError, match="does not begin as one"):
            labels(backend)
        path_in(url).unlink()
        with pytest.raises(UnavailableError, match="was there when it was opened and is gone now"):
            labels(backend)


def test_live_backends_of_one_file_share_it_whatever_its_name_and_options(url: str) -> None:
    path, engine = path_in(url), url.partition(":")[0]
    soft, hard = path.with_name("soft"), path.with_name("hard")
    soft.symlink_to(path)
    os.link(path, hard)
    other: dict[str, Any] = {"readahead": True} if engine == "lmdb" else {"locking": "false"}
    with (
        storeds.open_backend(url) as first,
        storeds.open_backend(f"{engine}://{soft}") as second,
        storeds.open_backend(hard) as third,
        storeds.open_backend(url, **other) as fourth,
    ):
        for _ in range(2):
            assert [labels(each) for each in (first, second, third, fourth)] == [[1, 2, 3]] * 4
        assert len(POOL) == 1
        first.close()
        path.unlink()
        assert labels(second) == labels(third) == labels(fourth) == [1, 2, 3]


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


def test_opening_parses_the_meta_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()

    def parse(text: Any, of: str) -> Any:
        calls.append(of)
        return meta_from_text(text, of)

    monkeypatch.setattr("storeds.records.verifier.meta_from_text", parse)
    storeds.open_backend(url).close()
    assert calls == [url]
