"""Random batches of rows as arrays, out of HDF5, against the sorted selection that h5py's documentation advises.

Run as ``python -m benchmarks.arrays``. A batch is a NumPy array of positions; each is kept until the next one is there.
h5py gives its rows in ascending order; storeds gives them in the order asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks._common import Result, compare, parser, report
from storeds import StoreDataset, collate, open_backend, open_writer
from storeds.records.columns import read_arrays

Read = Callable[[Any], Any]
_WAYS = {
    "arrays": "a contiguous dataset, as arrays",
    "tensors": "a contiguous dataset, as a batch of tensors",
    "native": "a native store, checksums on, as arrays",
}
_TARGETS = {("arrays", 128, 256): 30.0, ("arrays", 128, 1024): 30.0}


@contextmanager
def ways(rows: int, width: int, work: Path) -> Iterator[dict[str, Read]]:
    """Yield the ways to read one data set: a function of positions for each."""
    path, native = work / f"rows{width}.h5", work / f"native{width}.h5"
    data = np.random.default_rng(0).standard_normal((rows, width)).astype("f4")
    with h5py.File(path, "w") as file:
        file["data"] = data
    with open_writer(f"hdf5://{native}", {"data": {"kind": "array", "dtype": "f4", "shape": [width]}}) as writer:
        writer.append({"data": row} for row in data)
    dataset = StoreDataset(str(path), reader="array", fields=["data"])
    with h5py.File(path) as file, open_backend(str(path)) as foreign, open_backend(str(native)) as ours:
        selected = file["data"]
        yield {
            "h5py": lambda batch: selected[np.sort(batch)],
            "arrays": lambda batch: read_arrays(foreign, batch, ("data",))["data"],
            "tensors": lambda batch: collate(dataset.__getitems__(batch.tolist()))[0].numpy(),
            "native": lambda batch: read_arrays(ours, batch, ("data",))["data"],
        }
    dataset.close()


def one_pass(read: Read, batches: list[Any]) -> Callable[[], None]:
    def run() -> None:
        kept: Any = None
        for batch in batches:
            kept = read(batch)
        del kept

    return run


def check_same(reads: dict[str, Read], batch: Any) -> None:
    """Raise unless what is timed is also right."""
    expected = reads["h5py"](batch)
    for name, read in reads.items():
        found = read(batch)
        if name != "h5py" and not np.array_equal(found[np.argsort(batch)], expected):
            raise AssertionError(f"{name} gives other rows than h5py")


def measure(reads: dict[str, Read], width: int, size: int, given: Any) -> Iterator[Result]:
    rng = np.random.default_rng(size)
    batches = [rng.choice(given.rows, size, replace=False) for _ in range(20)]
    check_same(reads, batches[0])
    theirs = one_pass(reads["h5py"], batches)
    for way, words in _WAYS.items():
        ratio, mine, bare = compare(one_pass(reads[way], batches), theirs, rounds=given.rounds, seconds=given.seconds)
        target = _TARGETS.get((way, width, size), 1.0)
        rows = len(batches) * size / 1e6
        rates = f"{mine.median / rows:.3f} against {bare.median / rows:.2f} µs a row"
        name = f"{words}: {size} rows of {width} float32 ÷ h5py, sorted"
        yield Result(name, "ratio", ratio, f"≥ {target:g}", ratio.median >= target, rates)


def main() -> int:
    options = parser(__doc__ or "", "arrays.json")
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--widths", type=int, nargs="+", default=[128, 1024])
    options.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024])
    options.add_argument("--seconds", type=float, default=0.3, help="least time of each measurement")
    given = options.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        for width in given.widths:
            with ways(given.rows, width, Path(folder)) as reads:
                for size in given.batches:
                    results.extend(measure(reads, width, size, given))
    setup = {
        "rows": given.rows,
        "dtype": "float32",
        "order": "random positions without repetition, the same for all",
        "rounds": given.rounds,
        "page_cache": "warm: everything was written just before; no I/O is timed",
    }
    met = report("Random batches as arrays", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
