"""Photographs out of the page cache. Nothing else may use the disk of ``--work``."""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._common import Result, Run, entry, figure, ratio
from benchmarks.photos import jpegs
from storeds import StoreDataset, StoreLoader, open_backend, open_writer
from storeds.plugins import POOL

BATCH = 64
Pass = Callable[[], object]


def evict(folder: Path) -> None:
    """Take all files out of the page cache; nobody may have them mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(way: Pass) -> tuple[float, int]:
    """Return the seconds, and the bytes that this process and its children that have ended read from disks."""
    before, start = _blocks(), time.perf_counter()
    way()
    return time.perf_counter() - start, 512 * (_blocks() - before)


def _blocks() -> int:
    return sum(resource.getrusage(who).ru_inblock for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def store_ways(url: str, values: Sequence[bytes], order: list[int]) -> Iterator[tuple[str, float | None, Pass]]:
    """Write a store, and yield each way to read it with the least speed cold ÷ warm."""
    with open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append({"image": value, "label": at} for at, value in enumerate(values))
    engine = url.partition(":")[0]

    def raw() -> None:
        with open_backend(url) as backend:
            for start in range(0, len(order), BATCH):
                found: list[Any] = backend.get_many(order[start : start + BATCH], ["image"])
                if found[0]["image"] != values[order[start]]:
                    raise AssertionError(f"{url} gives other bytes")
        POOL.close_all()  # nothing stays mapped

    yield f"{engine}, get_many of {BATCH}", None, raw
    dataset: Any = StoreDataset(url, transform=[{"name": "RandomResizedCrop", "size": 224}, "ToTensor"])
    loader = StoreLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=2)

    def epoch() -> None:
        if sorted(label for _, labels in loader for label in labels.tolist()) != list(range(len(values))):
            raise AssertionError(f"{url}: an epoch without some photographs")

    yield f"{engine}, StoreLoader, 2 workers", 0.9, epoch


@entry(
    "cold",
    "Whole shuffled epochs and single batches out of the page cache, against warm ones; bytes read from the disk",
    needs="an idle disk",
)
def cold(run: Run) -> Iterator[Result]:
    for what, long, full in (("40 KiB", 500, 12_000), ("380 KiB", 2000, 2500)):
        values = jpegs(run.count(full, BATCH), long)
        order = list(range(len(values)))
        random.Random(0).shuffle(order)
        for engine in ("lmdb", "hdf5"):
            with run.subfolder() as folder:
                for name, least, way in store_ways(f"{engine}://{folder}/photos", values, order):
                    yield from cold_against_warm(run, f"{what}: {name}", folder, way, sum(map(len, values)), least)


def cold_against_warm(run: Run, name: str, folder: Path, way: Pass, size: int, least: float | None) -> Iterator[Result]:
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    amounts = []
    for _ in range(run.rounds):
        evict(folder)
        seconds, read = timed(way)
        if read < 0.9 * size:
            raise AssertionError(f"{name}: only {read} bytes came from the disk, so the files were not evicted")
        times["cold"].append(seconds)
        times["warm"].append(timed(way)[0])
        amounts.append(read / size)
    yield ratio(f"{name}, speed cold ÷ warm", times["warm"], times["cold"], least=least)
    yield figure(f"{name}, bytes read ÷ bytes of the values", "ratio", amounts, most=1.1)
