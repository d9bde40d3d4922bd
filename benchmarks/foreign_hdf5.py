"""Compare random batches of compressed images from a foreign HDF5 file with loops written in h5py.

Run as ``python -m benchmarks.foreign_hdf5``. As in PatchCamelyon, the file has one dataset of images, chunked and compressed
with gzip. Everything runs on one CPU, as in a worker process of a DataLoader: libhdf5's lock serialises threads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks._common import Result, compare, parser, report
from benchmarks.photos import pictures
from storeds import open_backend
from storeds.protocols import Array, SupportsBatchArrays

TARGET = 0.95
SIDE = 64

Read = Callable[[list[int]], Any]


def make_images(count: int) -> Array:
    """Return random windows of photographs."""
    rng, sources = np.random.default_rng(0), [np.asarray(picture.convert("RGB")) for picture in pictures().values()]
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for at in range(count):
        source = sources[at % len(sources)]
        top, left = rng.integers(0, source.shape[0] - SIDE), rng.integers(0, source.shape[1] - SIDE)
        images[at] = source[top : top + SIDE, left : left + SIDE]
    return images


def check_same(read: Read, images: Array) -> None:
    """Raise AssertionError unless `read` returns the right images."""
    if not np.array_equal(read(list(range(len(images)))), images):
        raise AssertionError("the images read differ from those written")


def plain_loops(dataset: h5py.Dataset) -> dict[str, Read]:
    """Return the loops of tutorials: one item at a time, and a sorted list of positions for each batch."""

    def by_item(positions: list[int]) -> Any:
        return [dataset[position] for position in positions]

    def by_list(positions: list[int]) -> Any:
        ascending, places = np.unique(positions, return_inverse=True)
        return dataset[ascending][places]

    return {"h5py by item": by_item, "h5py by sorted list": by_list}


def one_by_one(read: Read, batches: list[list[int]]) -> Callable[[], None]:
    def run() -> None:
        for batch in batches:
            read(batch)

    return run


def on_one_cpu(run: Callable[[], None]) -> Callable[[], None]:
    """Run a pass on one CPU, as a worker process of a DataLoader does."""
    cpus = os.sched_getaffinity(0)

    def bound() -> None:
        os.sched_setaffinity(0, {min(cpus)})
        try:
            run()
        finally:
            os.sched_setaffinity(0, cpus)

    return bound


def measure(
    images: Array, per_chunk: int, batches: list[list[int]], rounds: int, seconds: float, path: Path
) -> Iterator[Result]:
    with h5py.File(path, "w") as file:
        chunk = (per_chunk, *images.shape[1:])
        dataset = file.create_dataset("image", data=images, chunks=chunk, compression="gzip")
        stored = dataset.id.get_storage_size() / images.nbytes
    with h5py.File(path) as file, open_backend(path, layout="parallel") as backend:
        assert isinstance(backend, SupportsBatchArrays)
        arrays: SupportsBatchArrays = backend

        def read_batch(positions: list[int]) -> Array:
            return arrays.get_arrays(positions, ["image"])["image"]

        check_same(read_batch, images)
        run = on_one_cpu(one_by_one(read_batch, batches))
        for name, read in plain_loops(file["image"]).items():
            baseline = on_one_cpu(one_by_one(read, batches))
            ratio, ours, theirs = compare(run, baseline, rounds=rounds, seconds=seconds)
            count = sum(map(len, batches))
            rates = f"{count / ours.median:,.0f} against {count / theirs.median:,.0f} images/s"
            title = f"storeds ÷ {name}, chunks of {per_chunk}"
            detail = f"{rates}; compressed to {stored:.0%}"
            yield Result(title, "ratio", ratio, f"≥ {TARGET:g}", ratio.median >= TARGET, detail)


def main() -> int:
    options = parser(__doc__ or "", "foreign_hdf5.json")
    options.add_argument("--images", type=int, default=4000)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--batches", type=int, default=20, help="batches of one pass")
    options.add_argument("--per-chunk", nargs="+", type=int, default=[1, 16], help="images in each chunk")
    options.add_argument("--seconds", type=float, default=0.5, help="minimum time of each measurement")
    given = options.parse_args()
    images = make_images(given.images)
    rng = np.random.default_rng(1)
    batches = [rng.choice(given.images, given.batch, replace=False).tolist() for _ in range(given.batches)]
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        results = [
            result
            for per_chunk in given.per_chunk
            for result in measure(
                images, per_chunk, batches, given.rounds, given.seconds, Path(folder) / f"{per_chunk}.h5"
            )
        ]
    setup = {
        "images": given.images,
        "image": f"{SIDE} × {SIDE} × 3 uint8, windows of photographs, gzip level 4",
        "batch": given.batch,
        "batches": given.batches,
        "order": "random, the same for both, and in every pass",
        "rounds": given.rounds,
        "page_cache": "warm: the file was written and read once just before; no I/O is timed",
    }
    met = report("Compressed images of a foreign HDF5 file", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
