"""Random patches of large arrays in HDF5 files and native stores, against h5py's own slices of the same arrays."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks._common import Result, Run, child, entry, figure, ratio
from benchmarks.peers import volumes as peers_volumes
from storeds import StoreDataset, StoreLoader, open_writer

_SIZE, _BATCH = 96, 4
_HOW: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks of 64³": {"chunks": (64, 64, 64)},
    "gzip": {"chunks": (64, 64, 64), "compression": "gzip", "compression_opts": 1},
}


def volumes(side: int) -> Iterator[tuple[str, Any]]:
    """Yield volumes that gzip makes half as large."""
    rng = np.random.default_rng(0)
    yield "uint8", rng.integers(0, 16, (side,) * 3, np.uint8)
    yield "float32", (rng.integers(0, 4096, (side // 2,) * 3) / 8).astype("f4")


def processor_time(way: Callable[[], object]) -> float:
    start = time.process_time()
    way()
    return time.process_time() - start


def slices(path: Path, starts: list[list[int]]) -> Callable[[], list[Any]]:
    """Return what reads a patch at each start as h5py does."""
    file = h5py.File(path)

    def read() -> list[Any]:
        return [file["raw"][tuple(slice(at, at + _SIZE) for at in start)] for start in starts]

    return read


@entry("patches", f"Random patches of {_SIZE}³ of a volume, against h5py's slice")
def patches(run: Run) -> Iterator[Result]:
    side, count = max(int(512 * min(run.scale, 1.0) ** (1 / 3)) // 64 * 64, 4 * 64), run.count(32, _BATCH)
    run.setup.update(side=side, patches=count)
    for dtype, volume in volumes(side):
        for name, how in _HOW.items():
            with run.subfolder() as folder:
                path = folder / "volume.h5"
                with h5py.File(path, "w") as file:
                    file.create_dataset("raw", data=volume, **how)
                fewer = max(count // 4, _BATCH) if "compression" in how else count
                yield from _results(run, f"{dtype}, {name}", path, fewer, path, layout="per_file")
                for engine in () if how else ("lmdb", "hdf5"):
                    url = f"{engine}://{folder}/native.{engine}"
                    field = {"kind": "array", "dtype": volume.dtype.str, "shape": list(volume.shape)}
                    with open_writer(url, {"raw": field}) as writer:
                        writer.append({"raw": volume})
                    yield from _results(run, f"{dtype}, native {engine}", url, count, path)


def _results(run: Run, name: str, source: Path | str, count: int, path: Path, **how: Any) -> Iterator[Result]:
    options = {"size": (_SIZE,) * 3, "per_record": count}
    dataset = StoreDataset(source, fields=["raw"], reader="patch", reader_options=options, seed=1, **how)
    theirs = slices(path, [position.tolist() for _, position in dataset[:]])
    for (ours, _), expected in zip(dataset[:], theirs(), strict=True):
        if not np.array_equal(ours, expected):
            raise AssertionError(f"{source} gives other patches")

    def in_steps_of(step: int) -> None:
        for at in range(0, count, step):
            dataset[at : at + step]

    ways: dict[str, Callable[[], object]] = {
        "h5py": theirs,
        "one by one": partial(in_steps_of, 1),
        f"batches of {_BATCH}": partial(in_steps_of, _BATCH),
    }
    times: dict[str, list[float]] = {each: [] for each in ways}
    for number in range(run.rounds):
        for each in ways if number % 2 else reversed(ways):
            times[each].append(processor_time(ways[each]))
    for each in [*ways][1:]:
        yield ratio(f"{name}, {each}: processor time", times["h5py"], times[each], least=1 / 1.3)
    loader = StoreLoader(dataset, batch_size=_BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    workers = partial(deque, loader, maxlen=0)
    yield run.compare(f"{name}, 2 workers, h5py in one process", workers, theirs, least=1.8, count=count)


@entry(
    "volumes",
    f"Epochs of {peers_volumes.PER_RECORD} random patches of {_SIZE}³ of each volume, beside torchio and MONAI",
)
def beside_peers(run: Run) -> Iterator[Result]:
    count, python = run.count(8), run.options.get("python")
    for number in range(count):
        raw = (np.random.default_rng(number).integers(0, 4096, (256,) * 3) / 8).astype("f4")
        with h5py.File(run.folder / f"{number}.h5", "w") as file:
            file["raw"], file["label"] = raw, (raw > 256).astype("u1")
    names = ["storeds", *(("torchio", "monai") if python else ())]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _, name in itertools.product(range(run.rounds), names):
        found = child(python if python and name != "storeds" else sys.executable, "volumes", name, run.folder)
        times[name].append(min(found["epochs"]))
    patches = count * peers_volumes.PER_RECORD
    for name, seconds in times.items():
        yield figure(f"{name}, 2 workers", "patches/s", [patches / each for each in seconds], least=1)
    for name in names[1:]:
        yield ratio(f"storeds ÷ {name}, the faster epochs of each", times[name], times["storeds"], least=1.0)
