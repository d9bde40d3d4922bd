"""Measures how long a large store takes to open, and the size of what a DataLoader worker receives.

Run as ``python -m benchmarks.opening``. Each opening is timed in a fresh process, its imports done before the clock
starts and reported apart: `open_backend`, and the last record read.
"""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._common import FIELDS, Result, Spread, parser, report

ENGINES = {"lmdb": ".lmdb", "hdf5": ".h5"}
OPEN_SECONDS, PICKLED_BYTES = 0.25, 8192


def small_records(count: int) -> Iterator[dict[str, Any]]:
    for at in range(count):
        yield {"image": at.to_bytes(16, "big"), "label": at % 1000, "key": f"class_{at % 1000:04}/{at:08}.jpg"}


def write(engine: str, count: int, work: Path) -> str:
    # Names of equal length, so that only the count can make one pickle larger than the other.
    url = f"{engine}://{work}/{count:07}{ENGINES[engine]}"
    from storeds import open_writer

    with open_writer(url, FIELDS, commit_every=50_000) as writer:
        writer.append(small_records(count))
    return url


def time_opening(url: str) -> None:
    """Print, as JSON, the seconds that this process takes to import and to open and read `url`."""
    start = time.perf_counter()
    from storeds.backends.opening import open_backend

    importlib.import_module(f"storeds.backends.{url.partition(':')[0]}")
    imported = time.perf_counter()
    with open_backend(url) as backend:
        last = len(backend) - 1
        (record,) = backend.get_many([last])
    opened = time.perf_counter()
    assert isinstance(record, dict)
    assert record["image"] == last.to_bytes(16, "big")
    print(json.dumps({"import": imported - start, "open": opened - imported}))


def in_fresh_process(url: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.opening", "--time", url]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def pickled_sizes(url: str) -> dict[str, int]:
    """Return the pickled size of what leads to `url`, after a read."""
    from storeds import open_backend

    with open_backend(url) as backend:
        backend.get_many([0])
        sizes = {"backend": len(pickle.dumps(backend))}
    from storeds import StoreDataset

    dataset = StoreDataset(url, decode="bytes")
    dataset[0]
    return {**sizes, "dataset": len(pickle.dumps(dataset))}


def measure(engine: str, count: int, rounds: int, work: Path) -> Iterator[Result]:
    small, large = write(engine, 10, work), write(engine, count, work)
    in_fresh_process(large)
    found = [in_fresh_process(large) for _ in range(rounds)]
    opening = Spread.of([seconds["open"] for seconds in found])
    imports = Spread.of([seconds["import"] for seconds in found])
    yield Result(
        f"{engine}: open {count:,} records, read the last",
        "s",
        opening,
        f"< {OPEN_SECONDS}",
        opening.median < OPEN_SECONDS,
        f"imports, not counted: {imports.median:.2f} s",
    )
    few = pickled_sizes(small)
    for what, size in pickled_sizes(large).items():
        yield Result(
            f"{engine}: pickled {what} of {count:,} records",
            "bytes",
            Spread.of([size]),
            f"< {PICKLED_BYTES}, ≤ that of 10",
            size < PICKLED_BYTES and size <= few[what],
            f"of 10 records: {few[what]}",
        )


def main() -> int:
    options = parser(__doc__ or "", "opening.json")
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    options.add_argument("--time", metavar="URL", help="time one opening in this process and print it as JSON")
    given = options.parse_args()
    if given.time:
        time_opening(given.time)
        return 0
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        results = [
            result for engine in given.engines for result in measure(engine, given.records, given.rounds, Path(folder))
        ]
    setup = {
        "records": given.records,
        "record": "16 bytes, a label, a key of 23 characters",
        "rounds": given.rounds,
        "process": "fresh for every round; imports done before the clock starts",
        "page_cache": "warm: the store was written and opened once just before; no I/O is timed",
    }
    met = report("Opening a large store", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
