"""Random reads in batches, per engine, against the plain loop one would write without storeds.

Run as ``python -m benchmarks.reading``. Records are about 40 KiB (image bytes, label, key); every batch is kept until
the next one is there, as a training loop does; checksums are on, as always.
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


@contextmanager
def lmdb_pair(records: Records, work: Path) -> Iterator[tuple[Read, Read]]:
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
        yield backend.get_many, plain
    env.close()


@contextmanager
def hdf5_pair(records: Records, work: Path) -> Iterator[tuple[Read, Read]]:
    """One item of a variable-length uint8 dataset at a time; it reads neither label nor key."""
    path, bare = work / "store.h5", work / "bare.h5"
    write(f"hdf5://{path}", records)
    with h5py.File(bare, "w") as file:
        images = file.create_dataset("images", (len(records),), h5py.vlen_dtype(np.uint8))
        for at, record in enumerate(records):
            images[at] = np.frombuffer(record["image"], np.uint8)
    with h5py.File(bare, "r") as file, open_backend(f"hdf5://{path}") as backend:
        images = file["images"]

        def plain(positions: list[int]) -> list[Any]:
            return [images[position] for position in positions]

        yield backend.get_many, plain


@contextmanager
def mongodb_pair(records: Records, work: Path) -> Iterator[tuple[Read, Read]]:
    """``find_one`` by ``_id``, on the same collection of the same server."""
    from storeds.testing.mongod import run_mongod

    with run_mongod(work / "mongod") as server:
        url = f"{server}/bench/images"
        write(url, records)
        with pymongo.MongoClient(server) as client, open_backend(url) as backend:
            collection = client["bench"]["images"]

            def plain(positions: list[int]) -> list[Any]:
                return [collection.find_one({"_id": position}) for position in positions]

            yield backend.get_many, plain


ENGINES = {
    "lmdb": (lmdb_pair, "bare py-lmdb loop", 0.5),
    "hdf5": (hdf5_pair, "h5py variable-length items", 3.0),
    "mongodb": (mongodb_pair, "find_one per item", 5.0),
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


def measure(engine: str, records: Records, batches: list[list[int]], rounds: int, seconds: float, work: Path) -> Result:
    pair, name, target = ENGINES[engine]
    work.mkdir(parents=True, exist_ok=True)
    with pair(records, work) as (ours, plain):
        check_same(ours, records)
        ratio, mine, theirs = compare(one_pass(ours, batches), one_pass(plain, batches), rounds=rounds, seconds=seconds)
    rates = f"{len(records) / mine.median:,.0f} against {len(records) / theirs.median:,.0f} records/s"
    return Result(f"{engine} ÷ {name}", "ratio", ratio, f"≥ {target:g}", ratio.median >= target, rates)


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
            results.append(measure(engine, records, batches, given.rounds, given.seconds, work))
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
