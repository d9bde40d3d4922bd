"""Compares reading photographs that are out of the page cache with reading them again, warm.

Run as ``python -m benchmarks.cold --work DIR``, where DIR is on the disk to measure, and nothing else uses that disk. Before
each cold pass, the files are evicted by ``posix_fadvise(DONTNEED)``, and the benchmark fails if that had no effect. Passes
cold and warm take turns. Hugging Face datasets takes part where it is installed.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._common import Result, Spread, parser, report
from benchmarks.packing import crops
from storeds import StoreDataset, StoreLoader, open_backend, open_writer
from storeds.registry import BACKENDS
from storeds.transforms import Compose, RandomResizedCrop, ToTensor

BATCH, WORKERS = 64, 2
PHOTOS = {"40 KiB": ((500, 375), 90, 12_000), "380 KiB": ((1900, 1425), 94, 2_500)}  # size, quality, how many
ENGINES = ("lmdb", "hdf5")
EPOCH, BYTES = 0.9, 1.1

Pass = Callable[[], object]


def blobs(size: tuple[int, int], quality: int, count: int) -> list[bytes]:
    """Return JPEGs of one size; each has bytes of its own, which a reader can check."""
    images = crops(size, quality)
    marks = (b"\xff\xd8\xff\xfe\x00\x0a" + at.to_bytes(8, "big") for at in range(count))  # a comment of 8 bytes
    return [mark + images[at % len(images)][2:] for at, mark in enumerate(marks)]


def evict(folder: Path) -> None:
    """Take all files out of the page cache; nobody may have them mapped."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def bytes_read() -> int:
    """Return what this process, and its children that have ended, read from disks."""
    return 512 * sum(resource.getrusage(who).ru_inblock for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def timed(run: Pass) -> tuple[float, int]:
    before, start = bytes_read(), time.perf_counter()
    run()
    return time.perf_counter() - start, bytes_read() - before


def store_passes(url: str, values: Sequence[bytes]) -> Iterator[tuple[str, Pass]]:
    """Write a store, and yield the ways to read it."""
    with open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append({"image": value, "label": at} for at, value in enumerate(values))
    engine = url.partition(":")[0]
    order = shuffled(len(values))

    def raw() -> None:
        with open_backend(url) as backend:
            for start in range(0, len(order), BATCH):
                backend.get_many(order[start : start + BATCH], ["image"])
        BACKENDS.get(engine).pool.close_all()  # nothing stays mapped

    with open_backend(url) as backend:
        found = [record["image"] for record in backend.get_many(order[:256])]
    if found != [values[at] for at in order[:256]]:
        raise AssertionError(f"{url} gives other bytes")
    BACKENDS.get(engine).pool.close_all()
    yield f"{engine}, get_many of {BATCH}", raw
    transform = Compose([RandomResizedCrop(224), ToTensor()])
    dataset: Any = StoreDataset(url, transform=transform)
    loader = StoreLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS)

    def epoch() -> None:
        count = sum(len(labels) for _, labels in loader)
        if count != len(values):
            raise AssertionError(f"{url}: an epoch of {count} photographs")

    yield f"{engine}, StoreLoader, {WORKERS} workers", epoch


def hf_passes(folder: Path, values: Sequence[bytes]) -> Iterator[tuple[str, Pass]]:
    """Yield how Hugging Face datasets reads batches out of its memory-mapped Arrow files, if it is installed."""
    try:
        import datasets
    except ImportError:
        return
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"image": list(values)}).save_to_disk(str(folder))
    order = shuffled(len(values))

    def raw() -> None:
        arrow = datasets.load_from_disk(str(folder))
        for start in range(0, len(order), BATCH):
            _ = arrow[order[start : start + BATCH]]["image"]

    if datasets.load_from_disk(str(folder))[order[:BATCH]]["image"] != [values[at] for at in order[:BATCH]]:
        raise AssertionError("HF datasets gives other bytes")
    yield f"HF datasets, batches of {BATCH}", raw


def shuffled(count: int) -> list[int]:
    order = list(range(count))
    random.Random(0).shuffle(order)
    return order


def measure(
    what: str, folder: Path, values: Sequence[bytes], ways: Iterator[tuple[str, Pass]], rounds: int
) -> Iterator[Result]:
    size = sum(map(len, values))
    for name, run in ways:
        ratios, speeds, amounts = [], [], []
        for _ in range(rounds):
            evict(folder)
            cold, read = timed(run)
            warm, _ = timed(run)
            if read < 0.9 * size:
                raise AssertionError(f"{name}: only {read} bytes came from the disk, so the files were not evicted")
            ratios.append(warm / cold)
            speeds.append((cold, warm))
            amounts.append(read / size)
        cold, warm = (sorted(times)[rounds // 2] / len(values) * 1e6 for times in zip(*speeds, strict=True))
        is_epoch = "StoreLoader" in name
        ratio = Spread.of(ratios)
        wanted = f"≥ {EPOCH}" if is_epoch else ""
        detail = f"{cold:,.0f} µs cold, {warm:,.0f} µs warm each"
        yield Result(
            f"{what}: {name}, speed cold ÷ warm", "ratio", ratio, wanted, not is_epoch or ratio.median >= EPOCH, detail
        )
        amount = Spread.of(amounts)
        ours = not name.startswith("HF")
        target = f"≤ {BYTES}" if ours else ""
        yield Result(
            f"{what}: {name}, bytes read ÷ bytes of values", "ratio", amount, target, not ours or amount.median <= BYTES
        )


def main() -> int:
    options = parser(__doc__ or "", "cold.json")
    options.add_argument("--scale", type=float, default=1.0, help="share of the photographs")
    options.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    given = options.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as work:
        for what, (size, quality, count) in PHOTOS.items():
            values = blobs(size, quality, max(BATCH, int(count * given.scale)))
            for engine in given.engines:
                with folder_in(work) as folder:
                    ways = store_passes(f"{engine}://{folder}/photos", values)
                    results.extend(measure(what, folder, values, ways, given.rounds))
            with folder_in(work) as folder:
                results.extend(measure(what, folder, values, hf_passes(folder, values), given.rounds))
    setup = {
        "batch": BATCH,
        "workers": WORKERS,
        "order": "shuffled",
        "rounds": given.rounds,
        "page_cache": "evicted, then warm",
    }
    met = report("Photographs out of the page cache", results, setup, given.out)
    return 1 if given.check and not met else 0


@contextlib.contextmanager
def folder_in(work: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=work) as folder:
        yield Path(folder)


if __name__ == "__main__":
    raise SystemExit(main())
