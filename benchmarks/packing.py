"""Packing a folder of photos, against ``cp -r`` and ``insert_many``."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._common import Result, Run, entry, ratio
from benchmarks.photos import jpegs
from storeds import open_backend, pack

_INSERTED = 100  # documents per insert_many, about 4 MiB; more are slower


def write_tree(root: Path, count: int, long: int) -> None:
    """Write `count` JPEGs, in one folder per class."""
    for at, blob in enumerate(jpegs(count, long)):
        path = root / f"class_{at // 1000:04}/image_{at:08}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob)


def check_same(url: str, root: Path) -> None:
    """Raise unless the store at `url` has a record for each file below `root`, with its bytes."""
    with open_backend(url) as backend:
        if len(backend) != sum(1 for _ in root.rglob("*.jpg")):
            raise AssertionError(f"{url} has {len(backend)} records")
        for record in backend.get_many(range(0, len(backend), 100)):
            if isinstance(record, Exception) or record["image"] != (root / record["key"]).read_bytes():
                raise AssertionError(f"{url}: other bytes than those of the file: {record!r:.100}")


def in_turn(run: Run, ways: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Return the seconds of all ways, in another order each round, after one round that fills caches."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(run.rounds + 1):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            seconds = ways[name]()
            if number:
                times[name].append(seconds)
    return times


def timed(action: Callable[[], object], target: Path) -> float:
    """Return the seconds for `action`, which creates `target`, and a sync, so that all is on disk; remove `target`."""
    sync = ["sync", "--file-system", str(target.parent)]
    subprocess.run(sync, check=True)
    start = time.perf_counter()
    action()
    subprocess.run(sync, check=True)
    seconds = time.perf_counter() - start
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    return seconds


@entry(
    "packing",
    "Packing 20,000 photos of about 40 KiB into LMDB and HDF5, against ``cp -r`` of the tree, to the disk of --work",
)
def packing(run: Run) -> Iterator[Result]:
    tree, copy = run.folder / "photos", run.folder / "copy"
    count = run.count(20_000, 100)
    write_tree(tree, count, 500)
    targets = {
        f"{engine}://{run.folder}/photos.{engine}": run.folder / f"photos.{engine}" for engine in ("lmdb", "hdf5")
    }
    for url, path in targets.items():
        pack(tree, url)
        check_same(url, tree)
        path.unlink()

    def cp() -> object:
        return subprocess.run(["cp", "-r", str(tree), str(copy)], check=True)

    ways: dict[str, Callable[[], float]] = {"cp": lambda: timed(cp, copy)}
    for url, path in targets.items():
        ways[url] = partial(timed, partial(pack, tree, url), path)
    times = in_turn(run, ways)
    for url in targets:
        rates = f"{count / min(times[url]):,.0f} against {count / min(times['cp']):,.0f} photos/s"
        yield ratio(f"{url.partition(':')[0]}: pack ÷ cp -r", times["cp"], times[url], least=0.5, detail=rates)


@entry(
    "packing_mongodb",
    "Packing photos into MongoDB, against a loop that reads files and calls ``insert_many`` for 100 at a time",
)
def packing_mongodb(run: Run) -> Iterator[Result]:
    import pymongo

    from storeds.testing.mongod import run_mongod

    tree, count = run.folder / "photos", run.count(5000, 100)
    write_tree(tree, count, 500)
    paths = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.jpg"))
    with run_mongod(run.folder / "mongod") as server, pymongo.MongoClient[dict[str, Any]](server) as client:
        url = f"{server}/packed/photos"

        def insert() -> None:
            for start in range(0, len(paths), _INSERTED):
                documents = [
                    {"_id": at, "image": (tree / path).read_bytes(), "label": at // 1000, "key": path}
                    for at, path in enumerate(paths[start : start + _INSERTED], start)
                ]
                client["bare"]["photos"].insert_many(documents, ordered=False)

        def spent(action: Callable[[], object], database: str) -> float:
            client.drop_database(database)
            start = time.perf_counter()
            action()
            return time.perf_counter() - start

        pack(tree, url)
        check_same(url, tree)
        times = in_turn(
            run, {"pack": lambda: spent(lambda: pack(tree, url), "packed"), "insert": lambda: spent(insert, "bare")}
        )
    yield ratio("mongodb: pack ÷ insert_many", times["insert"], times["pack"], least=0.2)
