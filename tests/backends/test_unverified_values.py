"""Values that no checksum covers, damaged: they cost no more than the records that they belong to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

import storeds
from conftest import with_path
from storeds.errors import FormatError, RecordError

Sizes = dict[str, list[int]]
MIB = 1 << 20
ADVISED = 1 << 17  # bytes of one piece of advice
COUNT = 48


def write(url: str, sizes: list[int]) -> list[bytes]:
    """Write a record of each size, and return the blobs."""
    noise = np.random.default_rng(0).bytes(max(sizes))
    blobs = [at.to_bytes(2, "big") + noise[:size] for at, size in enumerate(sizes)]
    with storeds.open_writer(url, {"blob": "bytes", "label": "int"}) as writer:
        writer.append({"blob": blob, "label": at} for at, blob in enumerate(blobs))
    return blobs


def read(url: str) -> list[Any]:
    with storeds.open_backend(url) as backend:
        return [
            each if isinstance(each, RecordError) else each["blob"] for each in backend.get_many(range(len(backend)))
        ]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    """Collect the sizes in bytes of each pread, and of each advice to the kernel."""
    sizes: Sizes = {"pread": [], "advice": []}
    pread, advise = os.pread, os.posix_fadvise

    def counted_pread(descriptor: int, size: int, offset: int) -> bytes:
        sizes["pread"].append(size)
        return pread(descriptor, size, offset)

    def counted_advise(descriptor: int, offset: int, size: int, advice: int) -> None:
        sizes["advice"].append(size)
        advise(descriptor, offset, size, advice)

    monkeypatch.setattr(os, "pread", counted_pread)
    monkeypatch.setattr(os, "posix_fadvise", counted_advise)
    return sizes


# LMDB: the places in `_pages`, and the sizes of columns


def low_noise(pages: Any) -> Any:
    return pages >> 24 << 24 | np.random.default_rng(1).integers(0, 1 << 24, len(pages))


def one_bit(bit: int) -> Callable[[Any], Any]:
    def flip(pages: Any) -> Any:
        pages.view("<u8")[5] ^= np.uint64(1 << bit)
        return pages

    return flip


PLACES: dict[str, Callable[[Any], Any]] = {
    **{f"bit {bit}": one_bit(bit) for bit in (3, 23, 24, 63)},
    "sizes are noise": low_noise,
    "all is noise": lambda pages: np.frombuffer(np.random.default_rng(2).bytes(pages.nbytes), "<i8"),
    "exchanged": lambda pages: pages[::-1].copy(),
    "all claim everything": lambda pages: pages | (1 << 24) - 1,
}


@pytest.mark.parametrize(("damage", "size"), [(name, (9000, 300_000)[at % 2]) for at, name in enumerate(PLACES)])
def test_damaged_places_of_lmdb_cost_little(tmp_path: Path, calls: Sizes, damage: str, size: int) -> None:
    path = tmp_path / "x.lmdb"
    blobs = write(f"lmdb://{path}", [size] * COUNT)
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=3, map_size=1 << 28) as env:
        columns = env.open_db(b"columns")
        with env.begin(write=True, db=columns) as txn:
            pages = np.frombuffer(txn.get(b"_pages") or b"", "<i8").copy()
            txn.put(b"_pages", PLACES[damage](pages).tobytes())
    assert read(f"lmdb://{path}") == blobs
    assert sum(calls["advice"]) <= COUNT * max(ADVISED, size + 2 * 4096)
    assert len(calls["advice"]) <= COUNT * max(1, -(-size // ADVISED))


@pytest.mark.parametrize(
    ("name", "size"), [("label", 64 * MIB), ("label", 8), ("key", 0), ("key.offsets", 7), ("key.offsets", 64 * MIB)]
)
def test_a_column_of_lmdb_of_another_size_is_not_copied(tmp_path: Path, name: str, size: int) -> None:
    path = tmp_path / "x.lmdb"
    with storeds.open_writer(f"lmdb://{path}", {"key": "str", "label": "int"}) as writer:
        writer.append({"key": f"key {at}", "label": at} for at in range(COUNT))
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=3, map_size=1 << 28) as env:
        columns = env.open_db(b"columns")
        with env.begin(write=True, db=columns) as txn:
            txn.put(name.encode(), bytes(size))
    field = name.partition(".")[0]
    with storeds.open_backend(path) as backend:
        with pytest.raises(FormatError, match=rf"{path}: column '{name}' has {size} bytes, and its records have \d+"):
            backend.column(field)  # type: ignore[attr-defined]  # not in the protocol
        assert len(backend.column("label" if field == "key" else "key")) == COUNT  # type: ignore[attr-defined]


# HDF5: offsets, and the ranges of the stamp


def offsets_of(path: Path) -> tuple[int, Any]:
    """Return where in the file the offsets lie, and their values."""
    with h5py.File(path) as file:
        dataset = file["records/blob/offsets"]
        return dataset.id.get_offset(), dataset[:]


def spoil_offsets(path: Path, edit: Callable[[Any], object]) -> None:
    start, offsets = offsets_of(path)
    edit(offsets)
    with open(path, "r+b") as raw:
        raw.seek(start)
        raw.write(offsets.tobytes())


def put(at: int, value: Callable[[Any], int]) -> Callable[[Any], None]:
    def edit(offsets: Any) -> None:
        offsets[at] = value(offsets)

    return edit


def offset_noise(offsets: Any) -> None:
    offsets[10:40] = np.random.default_rng(5).integers(0, offsets[-1], 30)


OFFSETS: dict[str, tuple[Callable[[Any], None], set[int]]] = {
    "a bit up": (put(20, lambda o: o[20] + (1 << 23)), {19, 20}),
    "to the end": (put(20, lambda o: o[-1]), {19, 20}),
    "to the beginning": (put(20, lambda o: 0), {19, 20}),
    "negative": (put(20, lambda o: -o[20]), {19, 20}),
    "the first": (put(0, lambda o: 1 << 40), {0}),
    "the last": (put(COUNT, lambda o: 0), {COUNT - 1}),
    "the last but one": (put(COUNT - 1, lambda o: 0), {COUNT - 2, COUNT - 1}),
    "noise": (offset_noise, set(range(9, 40))),
}


@pytest.mark.parametrize(
    ("damage", "size"), [(name, (200_000, MIB + 200_000)[at % 2]) for at, name in enumerate(OFFSETS)]
)
def test_damaged_offsets_of_hdf5_cost_little(tmp_path: Path, calls: Sizes, damage: str, size: int) -> None:
    path = tmp_path / "x.h5"
    blobs = write(f"hdf5://{path}", [size] * COUNT)
    edit, lost = OFFSETS[damage]
    spoil_offsets(path, edit)
    found = read(f"hdf5://{path}")
    assert {at for at, each in enumerate(found) if isinstance(each, RecordError)} == lost
    assert all(found[at] == blobs[at] for at in range(COUNT) if at not in lost)
    # Only its seal shows that a record ends a few records too late. All records together claim no more than the file.
    most = COUNT // 4 if damage == "noise" else 6
    assert max(calls["pread"]) <= max(MIB, most * (size + 2))
    assert sum(calls["pread"]) < 4 * path.stat().st_size


# MongoDB: the mean size of records, and the number of parts of a large value


def test_damaged_sizes_of_mongodb_cost_no_more_than_their_record(mongodb_database: str, database: Any) -> None:
    url = with_path(mongodb_database, "sizes")
    blobs = write(url, [9000] * COUNT)
    for mean in (None, 0, -1, 1 << 62, "x", 1.5, [3]):
        database["sizes"].update_one({"_id": "meta"}, {"$set": {"_mean_bytes": mean}})
        assert read(url) == blobs
    database["sizes"].insert_one({"_id": f"part/{7:016x}/blob/0", "_data": b"x"})
    for parts in (1 << 40, 2000, -3, 0, True):
        database["sizes"].update_one({"_id": 7}, {"$set": {"blob": {"_parts": parts}}})
        found = read(url)
        assert isinstance(found.pop(7), RecordError)
        assert found == blobs[:7] + blobs[8:]
