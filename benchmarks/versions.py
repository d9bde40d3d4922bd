"""Versioned stores: what an edit costs, and how fast a version of many members, or with edits, is read."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import storeds
from benchmarks._common import Result, Run, entry, figure
from benchmarks.folders import epoch, loader
from benchmarks.packing import write_tree
from benchmarks.photos import jpegs
from storeds import ops

_FIELDS = {"image": "image", "label": "int", "key": "str"}
_SUFFIX = {"lmdb": "lmdb", "hdf5": "h5"}


def members(engine: str, folder: Path, count: int, blobs: list[bytes]) -> str:
    """Write a versioned store of `count` equal members, and return its URL."""
    url = f"{engine}://{folder}/"
    paths = [folder / "members" / f"part{at:04}.{_SUFFIX[engine]}" for at in range(count)]
    for path, numbers in zip(paths, np.array_split(np.arange(len(blobs)), count), strict=True):
        with storeds.open_writer(f"{engine}://{path}", _FIELDS) as writer:
            writer.append([{"image": blobs[at], "label": at % 100, "key": f"{at:08}"} for at in numbers.tolist()])
    ops.merge(url, *paths)
    return url


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@entry("versions", "Versioned stores: edits and appends, many members, and epochs over them, against one file")
def versions(run: Run) -> Iterator[Result]:
    blobs = jpegs(run.count(20_000, 400), 500)
    for engine in _SUFFIX:
        with run.subfolder() as folder:
            url = members(engine, folder / "one", 1, blobs)
            yield from edits(engine, folder / "one", url, len(blobs))
            single = epoch(loader(f"{url}?version=1"))
            yield run.compare(
                f"{engine}: an epoch of a version with 1 % edits ÷ without",
                epoch(loader(url)),
                single,
                least=0.95,
                seconds=0,
            )
            for count in (16, 256):
                many = members(engine, folder / str(count), min(count, len(blobs)), blobs)
                title = f"{engine}: an epoch of {count} members ÷ one file"
                yield run.compare(title, epoch(loader(many)), single, least=0.9, seconds=0)
                positions = np.random.default_rng(0).permutation(len(blobs)).tolist()
                with storeds.open_backend(many) as ours, storeds.open_backend(f"{url}?version=1") as plain:
                    title = f"{engine}: reading records of {count} members without decoding ÷ one file"
                    yield run.compare(title, partial(read, ours, positions), partial(read, plain, positions))


def read(backend: Any, positions: list[int]) -> None:
    for start in range(0, len(positions), 64):
        backend.get_many(positions[start : start + 64])


def edits(engine: str, folder: Path, url: str, count: int) -> Iterator[Result]:
    """Yield the seconds and the bytes of changes of 1 % of the records."""
    chosen = [f"{at:08}" for at in np.random.default_rng(1).permutation(count)[: 2 * max(count // 100, 1)].tolist()]
    changes: dict[str, dict[str, Any]] = {
        "relabelling": {"set": {key: {"label": 7} for key in chosen[::2]}},
        "dropping": {"drop": chosen[1::2]},
    }
    for what, change in changes.items():
        before, began = size_of(folder), time.perf_counter()
        storeds.edit(url, **change)
        yield figure(f"{engine}: {what} 1 % of {count:,} records", "s", [time.perf_counter() - began], most=2)
        yield figure(f"{engine}: {what} 1 %: bytes written ÷ the store's", "", [(size_of(folder) - before) / before])
    last = ops.log(url)[0]
    path = folder / "versions" / f"{last.number + 1:08}.json"
    many = replace(last, number=last.number + 1, members=last.members * 10_000)
    path.write_text(many.to_text())
    began = time.perf_counter()
    storeds.open_backend(url).close()
    yield figure(f"{engine}: opening a version of 10,000 members", "s", [time.perf_counter() - began], most=0.3)
    path.unlink()


@entry("parts", "Packing 4,000 photographs in two parts at once, against one process")
def parts(run: Run) -> Iterator[Result]:
    root, count = run.folder / "photos", run.count(4000, 200)
    write_tree(root, count, 500)
    numbers = iter(range(10_000))

    def pack(of: int) -> None:
        url = f"lmdb://{run.folder}/store{next(numbers)}/"
        # One thread each: two parts are as many threads as cores, as on two machines of one.
        command = [Path(sys.executable).with_name("storeds"), "pack", str(root), url, "--workers", "1", "--json"]
        started = [
            subprocess.Popen([*command, "--part", f"{number + 1}/{of}"], stdout=subprocess.DEVNULL)
            for number in range(of)
        ]
        if any(process.wait() for process in started):
            raise AssertionError("a part failed")
        if ops.commit(url).count != count:
            raise AssertionError("a part has other records")

    yield run.compare("two parts at once ÷ one", partial(pack, 2), partial(pack, 1), least=1.6, count=count, seconds=0)
