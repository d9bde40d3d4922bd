"""Random reads in batches, per engine, against the plain loop one would write without storeds.

Run as ``python -m benchmarks.reading``. Records are about 40 KiB (image bytes, label, key); every batch is kept until
the next one is there, as a training loop does; checksums are on, as always. The plain loops check nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pymongo

from benchmarks._common import FIELDS, Result, compare, make_records, parser, report
from storeds import open_backend, open_writer
from storeds.errors import RecordError

Read = Callable[[list[int]], list[Any]]
Records = list[dict[str, Any]]
Ways = tuple[Read, tuple[Read, ...]]  # ours, and the plain loops in the order of `ENGINES`


@contextmanager
def lmdb_ways(records: Records, work: Path) -> Iterator[Ways]:
    """One transaction a batch; ``get`` copies each value out."""
    path = work / "store.lmdb"
    write(f"lmdb://{path}", records)
    bare = work / "bare.lmdb"
    shutil.copy(path, bare)  # LMDB opens one file only once in a process
    env = lmdb.open(str(bare), subdir=False, readonly=True, lock=False, readahead=False, meminit=False, max_dbs=3)
    values = env.open_db(b"records", create=False)

    def plain(positions: list[int]) -> list[Any]:
        with env.begin(db=values) as txn:
            return [txn.get(position.to_bytes(8, "big")) for position in positions]

    with open_backend(f"lmdb://{path}") as backend:
        yield backend.get_many, (plain,)
    env.close()


@contextmanager
def hdf5_ways(records: Records, work: Path) -> Iterator[Ways]:
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

        def by_item(positions: list[int]) -> list[Any]:
            return [items[position] for position in positions]

        def by_slice(positions: list[int]) -> list[Any]:
            return [flat[ends[position] : ends[position + 1]] for position in positions]

        yield backend.get_many, (by_item, by_slice)


@contextmanager
def mongodb_ways(records: Records, work: Path) -> Iterator[Ways]:
    """``find_one`` by ``_id``, and one ``$in`` a batch put in order, on the same collection of the same server."""
    from storeds.testing.mongod import run_mongod

    with run_mongod(work / "mongod") as server:
        url = f"{server}/bench/images"
        write(url, records)
        with pymongo.MongoClient(server) as client, open_backend(url) as backend:
            collection = client["bench"]["images"]

            def one_by_one(positions: list[int]) -> list[Any]:
                return [collection.find_one({"_id": position}) for position in positions]

            def at_once(positions: list[int]) -> list[Any]:
                found = list(collection.find({"_id": {"$in": positions}}))
                by_position = {document["_id"]: document for document in found}
                return [by_position[position] for position in positions]

            yield backend.get_many, (one_by_one, at_once)


ENGINES = {
    "lmdb": (lmdb_ways, {"bare py-lmdb loop": 0.8}),
    "hdf5": (hdf5_ways, {"h5py variable-length items": 9.0, "h5py slices, offsets in memory": 2.0}),
    "mongodb": (mongodb_ways, {"find_one per item": 7.0, "bare PyMongo $in loop": 0.9}),
}


def write(url: str, records: Records) -> None:
    with open_writer(url, FIELDS) as writer:
        writer.append(records)


def one_pass(read: Read, batches: list[list[int]]) -> Callable[[], None]:
    def run() -> None:
        kept: list[Any] = []
        for batch in batches:
            kept = read(batch)
        del kept

    return run


def check_same(read: Read, records: Records) -> None:
    """Raise unless what is timed is also right."""
    for position, found in enumerate(read(list(range(len(records))))):
        if isinstance(found, RecordError) or found != records[position]:
            raise AssertionError(f"position {position} came back as {found!r:.100}")


def measure(
    engine: str, records: Records, batches: list[list[int]], rounds: int, seconds: float, work: Path
) -> list[Result]:
    make, targets = ENGINES[engine]
    work.mkdir(parents=True, exist_ok=True)
    results = []
    with make(records, work) as (ours, plain):
        check_same(ours, records)
        for read, (name, target) in zip(plain, targets.items(), strict=True):
            ratio, mine, theirs = compare(
                one_pass(ours, batches), one_pass(read, batches), rounds=rounds, seconds=seconds
            )
            rates = f"{len(records) / mine.median:,.0f} against {len(records) / theirs.median:,.0f} records/s"
            met = ratio.median >= target
            results.append(Result(f"{engine} ÷ {name}", "ratio", ratio, f"≥ {target:g}", met, rates))
    return results


def main() -> int:
    options = parser(__doc__ or "", "reading.json")
    options.add_argument("--records", type=int, default=4000)
    options.add_argument("--size", type=int, default=40 * 1024, help="mean bytes of an image")
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--seconds", type=float, default=0.5, help="least time of each measurement")
    options.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    given = options.parse_args()
    records = make_records(given.records, given.size)
    order = np.random.default_rng(1).permutation(given.records).tolist()
    batches = [order[at : at + given.batch] for at in range(0, len(order), given.batch)]
    results = []
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        for engine in given.engines:
            work = Path(folder) / engine
            results += measure(engine, records, batches, given.rounds, given.seconds, work)
            shutil.rmtree(work)
    setup = {
        "records": given.records,
        "image_bytes": {"mean": given.size, "spread": "± 25 %, uniform", "content": "random, incompressible"},
        "batch": given.batch,
        "order": "one random permutation, the same for both",
        "rounds": given.rounds,
        "checksums": "on",
        "page_cache": "warm: everything was written and read once just before; no I/O is timed",
    }
    met = report("Random reads, batches kept", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
