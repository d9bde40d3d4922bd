"""Compares packing a folder of photos with ``cp -r`` and ``insert_many``, and measures memory and ``fast_crops``.

Run as ``python -m benchmarks.packing``; ``--scale 0.1`` for a quick look, ``--work /dev/shm`` for a file system in memory.
The photos are crops of real ones, each file with its own bytes. Comparisons with ``cp -r`` include a sync, so that both
have everything on disk. The MongoDB server is a real one on this machine.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pymongo
import skimage.data
from PIL import Image

from benchmarks._common import Result, Spread, parser, report
from storeds import open_backend, pack
from storeds.testing.mongod import run_mongod

ENGINES = {"lmdb": ".lmdb", "hdf5": ".h5", "mongodb": ""}
FILES = ("lmdb", "hdf5")
PHOTOS, SMALL = 20_000, 200_000
WORKERS = (0, 2)
COPY_SPEED, INSERT_SPEED, MEMORY_MIB = 0.5, 0.7, 600
MARKED = {(500, 375): (400, 90, 1.03), (2000, 1500): (60, 94, 1.02)}  # size → photos, quality, largest growth
_INSERTED = 100  # documents per insert_many, about 4 MiB; more are slower
_DISTINCT = 512  # encoded crops; a comment makes the bytes of each file unique
_PER_FOLDER = 1000
_SAMPLE_SECONDS = 0.05
_MIB = 1 << 20


def crops(size: tuple[int, int], quality: int) -> list[bytes]:
    """Return JPEGs of random parts of scikit-image's photographs."""
    rng = np.random.default_rng(0)
    photos = [Image.fromarray(getattr(skimage.data, name)()) for name in ("astronaut", "coffee", "rocket", "chelsea")]
    # Photos that are too small for a crop are scaled up.
    scales = [max(1.0, 1.2 * size[0] / photo.width, 1.2 * size[1] / photo.height) for photo in photos]
    large = [
        photo.resize((round(photo.width * by), round(photo.height * by)))
        for photo, by in zip(photos, scales, strict=True)
    ]
    encoded = []
    for at in range(_DISTINCT):
        photo = large[at % len(large)]
        left, top = (int(rng.integers(most + 1)) for most in (photo.width - size[0], photo.height - size[1]))
        buffer = io.BytesIO()
        photo.crop((left, top, left + size[0], top + size[1])).save(buffer, "JPEG", quality=quality)
        encoded.append(buffer.getvalue())
    return encoded


def write_images(root: Path, count: int, images: Sequence[bytes]) -> list[str]:
    """Write `count` JPEGs into one folder per class below `root`; return their paths."""
    paths = []
    for at in range(count):
        path = f"class_{at // _PER_FOLDER:04}/image_{at:08}.jpg"
        if at % _PER_FOLDER == 0:
            (root / path).parent.mkdir(parents=True)
        comment = f"image {at:08}".encode()
        segment = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
        image = images[at % len(images)]
        (root / path).write_bytes(image[:2] + segment + image[2:])
        paths.append(path)
    return paths


def check_same(url: str, root: Path, count: int) -> None:
    """Raise unless the store at `url` has `count` records whose sampled bytes equal the files below `root`."""
    with open_backend(url) as backend:
        if len(backend) != count:
            raise AssertionError(f"{url} has {len(backend)} records, not {count}")
        for position, record in enumerate(backend.get_many(range(0, count, 100))):
            if isinstance(record, Exception) or record["image"] != (root / record["key"]).read_bytes():
                raise AssertionError(f"position {100 * position} was read as {record!r:.100}")


@dataclass(frozen=True)
class Memory:
    """Bytes of memory with shared pages divided among their users: all, and without pages of files."""

    all: int = 0
    own: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.all + other.all, self.own + other.own)


def tree_memory(root: int) -> Memory:
    """Return the memory of process `root` and its descendants."""
    parents = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    tree, fresh = {root}, {root}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        tree |= fresh
    return sum(map(_memory, tree), Memory())


def _memory(process: int) -> Memory:
    try:
        rows = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it has just ended
        return Memory()
    found = {name: int(value.split()[0]) * 1024 for name, _, value in (row.partition(":") for row in rows)}
    return Memory(found["Pss"], found["Pss_Anon"]) if found else Memory()


def peak_memory(source: Path, url: str, workers: int) -> Memory:
    """Pack in a fresh process and return the peak of each memory figure over it and its workers."""
    command = [sys.executable, "-m", "benchmarks.packing", "--pack", str(source), url, str(workers)]
    peak = Memory()
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            now = tree_memory(process.pid)
            peak = Memory(max(peak.all, now.all), max(peak.own, now.own))
            time.sleep(_SAMPLE_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return peak


def measure_memory(count: int, engines: Sequence[str], work: Path) -> Iterator[Result]:
    images = crops((40, 40), 90)
    paths = write_images(work / "small", count, images)
    manifest = work / "small" / "manifest.jsonl"
    with manifest.open("w") as file:
        for at, path in enumerate(paths):
            file.write(json.dumps({"path": path, "label": at % 1000, "source": f"camera {at % 7}"}) + "\n")
    mean = sum(map(len, images)) // len(images)
    for engine in engines:
        for workers in WORKERS:
            target = work / f"small{ENGINES[engine]}"
            start = time.perf_counter()
            found = peak_memory(manifest, f"{engine}://{target}", workers)
            peak, own = found.all / _MIB, found.own / _MIB
            seconds = time.perf_counter() - start
            check_same(f"{engine}://{target}", work / "small", count)
            detail = (
                f"{own:,.0f} MiB without pages of files; JPEGs of about {mean} bytes; {count / seconds:,.0f} records/s"
            )
            name = f"{engine}: peak memory, {count:,} records, workers={workers}"
            yield Result(name, "MiB", Spread.of([peak]), f"< {MEMORY_MIB}", peak < MEMORY_MIB, detail)
            target.unlink()


def sync(path: Path) -> None:
    """Flush the file system of `path`."""
    subprocess.run(["sync", "--file-system", str(path)], check=True)


def timed(action: Callable[[], object], target: Path) -> float:
    """Return the seconds for `action`, which creates `target`, and a sync; then remove `target`."""
    sync(target.parent)
    start = time.perf_counter()
    action()
    sync(target.parent)
    seconds = time.perf_counter() - start
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    return seconds


def measure_speed(count: int, engines: Sequence[str], rounds: int, work: Path) -> Iterator[Result]:
    tree, copy = work / "photos", work / "copy"
    write_images(tree, count, crops((500, 375), 90))
    volume = sum(file.stat().st_size for file in tree.rglob("*.jpg"))
    targets = {engine: work / f"photos{ENGINES[engine]}" for engine in engines}
    times: dict[str, list[float]] = {name: [] for name in ("cp", *engines)}

    def run(name: str) -> float:
        if name == "cp":
            return timed(lambda: subprocess.run(["cp", "-r", str(tree), str(copy)], check=True), copy)
        return timed(lambda: pack(tree, f"{name}://{targets[name]}"), targets[name])

    for engine in engines:
        pack(tree, f"{engine}://{targets[engine]}")
        check_same(f"{engine}://{targets[engine]}", tree, count)
        targets[engine].unlink()
    run("cp")  # puts all files into the page cache
    for number in range(rounds):
        names = list(times)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(run(name))
    for engine in engines:
        ratio = Spread.of([theirs / mine for mine, theirs in zip(times[engine], times["cp"], strict=True)])
        mine, theirs = (volume / Spread.of(times[name]).median / _MIB for name in (engine, "cp"))
        detail = f"{count:,} photos of {volume / count / 1024:.0f} KiB; {mine:,.0f} against {theirs:,.0f} MiB/s"
        met = ratio.median >= COPY_SPEED
        yield Result(f"{engine}: pack ÷ cp -r", "ratio", ratio, f"≥ {COPY_SPEED:g}", met, detail)


def cpu_seconds() -> float:
    """Return the processor time of this process and of the children that have ended."""
    used = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def picture_bytes(url: str) -> int:
    """Return the bytes of all pictures of a store."""
    with open_backend(url) as backend:
        found = backend.get_many(range(len(backend)), ("image",))
    return sum(0 if isinstance(record, Exception) else len(record["image"]) for record in found)


def measure_fast_crops(scale: float, rounds: int, work: Path) -> Iterator[Result]:
    """Pack photos of two sizes without and with ``fast_crops``, in turn."""
    for size, (most, quality, growth) in MARKED.items():
        count, tree, store = max(round(most * scale), 4), work / f"of-{size[0]}", work / "marked.lmdb"
        paths = write_images(tree, count, crops(size, quality))
        mean = sum((tree / path).stat().st_size for path in paths) / count / 1024
        times: dict[bool, list[float]] = {False: [], True: []}
        stored, restarts = {}, {}
        for number in range(rounds):
            for fast_crops in (False, True) if number % 2 else (True, False):
                before = cpu_seconds()
                packed = pack(tree, f"lmdb://{store}", fast_crops=fast_crops)
                times[fast_crops].append(1000 * (cpu_seconds() - before) / count)
                stored[fast_crops] = picture_bytes(f"lmdb://{store}")
                restarts = packed.restarts or restarts
                store.unlink()
        what = f"{count:,} photos of {size[0]} px, {mean:,.0f} KiB"
        ratio = stored[True] / stored[False]
        outcomes = ", ".join(f"{outcome} {number:,}" for outcome, number in restarts.items())
        name = f"fast_crops, {size[0]} px: size of the pictures ÷ without"
        yield Result(name, "ratio", Spread.of([ratio]), f"≤ {growth:g}", ratio <= growth, f"{what}; {outcomes}")
        with_markers, without = Spread.of(times[True]), Spread.of(times[False])
        detail = f"processor time a picture, of storeds and jpegtran; without fast_crops {without} ms"
        yield Result(f"fast_crops, {size[0]} px: packing", "ms", with_markers, "", True, detail)


def insert_files(collection: pymongo.collection.Collection[dict[str, Any]], tree: Path, paths: Sequence[str]) -> None:
    """Read the files and insert them with the fields that `pack` stores, but without checksums."""
    for start in range(0, len(paths), _INSERTED):
        documents = [
            {"_id": at, "image": (tree / path).read_bytes(), "label": at // _PER_FOLDER, "key": path}
            for at, path in enumerate(paths[start : start + _INSERTED], start)
        ]
        collection.insert_many(documents, ordered=False)


def measure_mongodb(count: int, rounds: int, work: Path) -> Iterator[Result]:
    tree = work / "photos"
    paths = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.jpg"))
    times: dict[str, list[float]] = {"pack": [], "insert": []}
    with run_mongod(work / "mongod") as server, pymongo.MongoClient[dict[str, Any]](server) as client:
        url = f"{server}/packed/photos"
        ways: dict[str, Callable[[], object]] = {
            "pack": lambda: pack(tree, url),
            "insert": lambda: insert_files(client["bare"]["photos"], tree, paths),
        }
        for number in range(rounds + 1):
            names = list(ways)[:: 1 if number % 2 else -1]
            for name in names:
                start = time.perf_counter()
                ways[name]()
                seconds = time.perf_counter() - start
                if number:  # the first round fills caches
                    times[name].append(seconds)
                elif name == "pack":
                    check_same(url, tree, count)
                client.drop_database("packed" if name == "pack" else "bare")
    ratio = Spread.of([theirs / mine for mine, theirs in zip(times["pack"], times["insert"], strict=True)])
    mine, theirs = (count / Spread.of(times[name]).median for name in ("pack", "insert"))
    detail = f"{mine:,.0f} against {theirs:,.0f} photos/s, {_INSERTED} in one insert_many, files read in the loop"
    met = ratio.median >= INSERT_SPEED
    yield Result("mongodb: pack ÷ insert_many", "ratio", ratio, f"≥ {INSERT_SPEED:g}", met, detail)


def main() -> int:
    options = parser(__doc__ or "", "packing.json")
    options.set_defaults(rounds=5)
    options.add_argument("--scale", type=float, default=1.0, help="share of the photos and small records to use")
    options.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    options.add_argument("--only", choices=("memory", "speed", "fast_crops"), help="run only this part")
    options.add_argument("--pack", nargs=3, metavar=("SOURCE", "URL", "WORKERS"), help="pack in this process and exit")
    given = options.parse_args()
    if given.pack:
        source, url, workers = given.pack
        pack(source, url, workers=int(workers))
        return 0
    files = [engine for engine in given.engines if engine in FILES]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        if given.only in (None, "speed"):
            photos = round(PHOTOS * given.scale)
            results += measure_speed(photos, files, given.rounds, Path(folder))
            if "mongodb" in given.engines:
                results += measure_mongodb(photos, given.rounds, Path(folder))
            shutil.rmtree(Path(folder) / "photos")
        if given.only in (None, "fast_crops"):
            results += measure_fast_crops(given.scale, given.rounds, Path(folder))
        if given.only in (None, "memory"):
            results += measure_memory(round(SMALL * given.scale), files, Path(folder))
    setup = {
        "scale": given.scale,
        "rounds": given.rounds,
        "speed": "storeds.pack of an ImageFolder tree, or cp -r of it, then sync --file-system; alternating in each round",
        "mongodb": "storeds.pack of the same tree, or insert_many (unordered, default write concern) of its bytes, alternating",
        "memory": f"PSS of a fresh process and all its children, summed, every {_SAMPLE_SECONDS} s; a JSONL manifest",
        "fast_crops": "storeds.pack of a folder without and with fast_crops=True, alternating in each round",
        "page_cache": "warm: the source was written and copied just before",
        "file_system": subprocess.run(
            ["stat", "--file-system", "--format=%T", given.work or tempfile.gettempdir()],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip(),
    }
    met = report("Packing", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
