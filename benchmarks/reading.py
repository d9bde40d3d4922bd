"""Random reads in batches, per engine, against the plain loops that one would write without storeds.

Every batch is kept until the next one is there, as a training loop does. Checksums are on; the plain loops check nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pymongo

from benchmarks._common import Result, Run, entry
from storeds import StoreDataset, collate, open_backend, open_writer
from storeds.records.arrays import read_arrays

FIELDS = {"image": "image", "label": "int", "key": "str"}

Read = Callable[[Any], Any]
Ways = tuple[Read, dict[str, tuple[Read, float]]]  # ours; the plain loops by name, each with the least ratio


@contextmanager
def lmdb_ways(records: Sequence[dict[str, Any]], work: Path) -> Iterator[Ways]:
    """One transaction a batch; ``get`` copies each value out."""
    path, bare = work / "store.lmdb", work / "bare.lmdb"
    write(f"lmdb://{path}", records)
    shutil.copy(path, bare)  # LMDB opens one file only once in a process
    env = lmdb.open(str(bare), subdir=False, readonly=True, lock=False, readahead=False, meminit=False, max_dbs=3)
    values = env.open_db(b"records", create=False)

    def plain(positions: list[int]) -> list[Any]:
        with env.begin(db=values) as txn:
            return [txn.get(position.to_bytes(8, "big")) for position in positions]

    with open_backend(f"lmdb://{path}") as backend:
        yield backend.get_many, {"bare py-lmdb loop": (plain, 0.5)}
    env.close()


@contextmanager
def hdf5_ways(records: Sequence[dict[str, Any]], work: Path) -> Iterator[Ways]:
    """Images alone, without label and key: items of a variable-length dataset, and slices of a flat one."""
    path, bare = work / "store.h5", work / "bare.h5"
    write(f"hdf5://{path}", records)
    arrays = [np.frombuffer(record["image"], np.uint8) for record in records]
    ends = np.cumsum([0, *map(len, arrays)]).tolist()
    with h5py.File(bare, "w") as file:
        items = file.create_dataset("items", (len(records),), h5py.vlen_dtype(np.uint8))
        for at, array in enumerate(arrays):
            items[at] = array
        file["flat"] = np.concatenate(arrays)
    with h5py.File(bare, "r") as file, open_backend(f"hdf5://{path}") as backend:
        items, flat = file["items"], file["flat"]
        by_item: Read = lambda positions: [items[at] for at in positions]  # noqa: E731
        by_slice: Read = lambda positions: [flat[ends[at] : ends[at + 1]] for at in positions]  # noqa: E731
        yield (
            backend.get_many,
            {"h5py variable-length items": (by_item, 4.0), "h5py slices, offsets in memory": (by_slice, 0.7)},
        )


@contextmanager
def mongodb_ways(records: Sequence[dict[str, Any]], work: Path) -> Iterator[Ways]:
    """``find_one`` by ``_id``, and one ``$in`` a batch put in order, on the same collection of the same server."""
    from storeds.testing.mongod import run_mongod

    with run_mongod(work / "mongod") as server:
        url = f"{server}/bench/images"
        write(url, records)
        with pymongo.MongoClient[Any](server) as client, open_backend(url) as backend:
            collection = client["bench"]["images"]

            def at_once(positions: list[int]) -> list[Any]:
                found = {each["_id"]: each for each in collection.find({"_id": {"$in": positions}})}
                return [found[position] for position in positions]

            one_by_one: Read = lambda positions: [collection.find_one({"_id": at}) for at in positions]  # noqa: E731
            yield (
                backend.get_many,
                {"find_one per item": (one_by_one, 4.0), "bare PyMongo $in loop": (at_once, 0.75)},
            )


def write(url: str, records: Sequence[dict[str, Any]]) -> None:
    with open_writer(url, FIELDS) as writer:
        writer.append(records)


def one_pass(read: Read, batches: Sequence[Any]) -> Callable[[], None]:
    def run() -> None:
        kept: Any = None
        for batch in batches:
            kept = read(batch)
        del kept

    return run


@entry(
    "reading",
    "Random reads of records of 40 KiB in batches of 64, by engine, against plain loops",
)
def reading(run: Run) -> Iterator[Result]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(30 << 10, 50 << 10, run.count(4000, 64)).tolist()
    records = [
        {"image": rng.bytes(size), "label": at % 1000, "key": f"class_{at % 1000:04}/image_{at:08}.jpg"}
        for at, size in enumerate(sizes)
    ]
    order = rng.permutation(len(records)).tolist()
    batches = [order[at : at + 64] for at in range(0, len(order), 64)]
    for engine, ways in (("lmdb", lmdb_ways), ("hdf5", hdf5_ways), ("mongodb", mongodb_ways)):
        with run.subfolder() as work, ways(records, work) as (ours, plain):
            if [{name: record[name] for name in FIELDS} for record in ours(list(range(len(records))))] != records:
                raise AssertionError(f"{engine} gives other records than were written")
            for name, (read, least) in plain.items():
                mine, theirs = one_pass(ours, batches), one_pass(read, batches)
                yield run.compare(f"{engine} ÷ {name}", mine, theirs, least=least, count=len(order), seconds=0.5)


LEAST = {
    "a contiguous dataset, as arrays": 2.0,
    "a contiguous dataset, as tensors": 0.4,
    "a native store, as arrays": 0.6,
}


@contextmanager
def array_ways(rows: int, width: int, work: Path) -> Iterator[dict[str, Read]]:
    path, native, flat = work / "rows.h5", work / "native.h5", work / "rows.npy"
    data = np.random.default_rng(0).standard_normal((rows, width)).astype("f4")
    np.save(flat, data)
    mapped = np.load(flat, mmap_mode="r")
    with h5py.File(path, "w") as file:
        file["data"] = data
    with open_writer(f"hdf5://{native}", {"data": {"kind": "array", "dtype": "f4", "shape": [width]}}) as writer:
        writer.append({"data": row} for row in data)
    dataset = StoreDataset(str(path), layout="parallel", reader="array", fields=["data"])
    with h5py.File(path) as file, open_backend(str(native)) as ours, dataset.backend as foreign:
        selected = file["data"]
        yield {
            "h5py": lambda batch: selected[np.sort(batch)],
            "NumPy's memory map": lambda batch: mapped[np.sort(batch)],
            "a contiguous dataset, as arrays": lambda batch: read_arrays(foreign, batch, ("data",))["data"],
            "a contiguous dataset, as tensors": lambda batch: collate(dataset.__getitems__(batch.tolist()))[0].numpy(),
            "a native store, as arrays": lambda batch: read_arrays(ours, batch, ("data",))["data"],
        }


@entry(
    "arrays",
    "Random batches of rows of numbers out of HDF5, against sorted indices by h5py, and into a memory map of NumPy",
)
def arrays(run: Run) -> Iterator[Result]:
    rows, rng = run.count(20_000, 2000), np.random.default_rng(1)
    for width in (128, 1024):
        with run.subfolder() as work, array_ways(rows, width, work) as reads:
            plain = {name: reads.pop(name) for name in ("h5py", "NumPy's memory map")}
            for size in (64, 256, 1024):
                batches = [rng.choice(rows, size, replace=False) for _ in range(20)]
                for name, read in reads.items():
                    if not np.array_equal(read(batches[0])[np.argsort(batches[0])], plain["h5py"](batches[0])):
                        raise AssertionError(f"{name}: other rows than h5py gives")
                    # A memory map checks nothing, and a file that is cut short ends its process.
                    for other, least in (("h5py", LEAST[name]), ("NumPy's memory map", None)):
                        title = f"{name}: {size} rows of {width} float32 ÷ {other}, sorted"
                        ours, theirs = one_pass(read, batches), one_pass(plain[other], batches)
                        yield run.compare(title, ours, theirs, least=least, count=20 * size)
