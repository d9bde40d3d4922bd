"""How long a foreign LMDB store of a million keys takes to open, first and later, and what it costs a worker in memory.

Run as ``python -m benchmarks.foreign_lmdb``. Each opening is timed in a fresh process, its imports done before the clock
starts: `open_backend`, and the last record read. The first opening finds the keys and writes the index file.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from benchmarks._common import Result, Spread, parser, report

JPEG = b"\xff\xd8\xff\xe0" + bytes(12)
FIRST_SECONDS, LATER_SECONDS, PRIVATE_MIB, PICKLED_BYTES = 5.0, 0.2, 20.0, 2048
READS = 20_000


def keyed(path: Path, count: int) -> None:
    """Write keys as those of an image set, each with a few bytes under it."""
    entries = ((b"train/class_%04d/img_%08d.jpg" % (at // 1000, at), JPEG) for at in range(count))
    _put(path, entries)


def pickled(path: Path, count: int) -> None:
    """Write pickled pairs under numbers, with ``__keys__`` and ``__len__``."""
    keys = [b"%d" % at for at in range(count)]
    _put(path, ((key, pickle.dumps((JPEG, at))) for at, key in enumerate(keys)))
    _put(path, [(b"__keys__", pickle.dumps(keys)), (b"__len__", pickle.dumps(count))])


def _put(path: Path, entries: Any) -> None:
    env = lmdb.open(str(path), map_size=1 << 34, sync=False, lock=False)
    with env.begin(write=True) as txn:
        for key, value in entries:
            txn.put(key, value)
    env.sync(True)
    env.close()


def private_mib() -> float:
    """Return the memory that belongs to this process alone; pages of mapped files are the page cache's."""
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (size,) = (line.split()[1] for line in rollup if line.startswith("Anonymous:"))
    return int(size) / 1024


def time_opening(url: str, layout: str) -> None:
    """Print, as JSON, the seconds that this process takes to open `url` and read its last record."""
    from storeds.stores import open_backend, scheme_of

    scheme_of(url, writing=False)
    import storeds.layouts.lmdb_images
    import storeds.layouts.lmdb_pickled  # noqa: F401

    start = time.perf_counter()
    with open_backend(url, layout=layout) as backend:
        (record,) = backend.get_many([len(backend) - 1])
    assert isinstance(record, dict)
    print(json.dumps({"seconds": time.perf_counter() - start}))


def measure_worker(pickled_at: str) -> None:
    """Print, as JSON, by how much reading at random makes this process's private memory grow."""
    import numpy as np

    backend = pickle.loads(Path(pickled_at).read_bytes())
    asked = np.random.default_rng(0).integers(0, len(backend), (READS // 100, 100))
    before = private_mib()
    for batch in asked:
        backend.get_many(batch)
    print(json.dumps({"mib": private_mib() - before}))


def in_fresh_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.foreign_lmdb", *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def measure(layout: str, count: int, rounds: int, work: Path) -> Iterator[Result]:
    path = work / layout
    {"keyed": keyed, "pickled": pickled}[layout](path, count)
    url = f"lmdb://{path}"
    first = []
    for number in range(rounds):
        os.environ["STOREDS_CACHE"] = str(work / f"cache-{layout}-{number}")
        first.append(in_fresh_process("--time", url, "--layout", layout)["seconds"])
    later = [in_fresh_process("--time", url, "--layout", layout)["seconds"] for _ in range(rounds)]
    for what, seconds, limit in (("first", first, FIRST_SECONDS), ("later", later, LATER_SECONDS)):
        spread = Spread.of(seconds)
        yield Result(f"{layout}: {what} opening of {count:,} records", "s", spread, f"< {limit}", spread.median < limit)
    from storeds import open_backend

    with open_backend(url, layout=layout) as backend:
        backend.get_many([0])
        state = work / f"{layout}.pickle"
        state.write_bytes(pickle.dumps(backend))
    size = state.stat().st_size
    yield Result(f"{layout}: pickled backend", "bytes", Spread.of([size]), f"< {PICKLED_BYTES}", size < PICKLED_BYTES)
    grown = Spread.of([in_fresh_process("--worker", str(state))["mib"] for _ in range(rounds)])
    yield Result(
        f"{layout}: private memory of a worker grows by",
        "MiB",
        grown,
        f"< {PRIVATE_MIB}",
        grown.median < PRIVATE_MIB,
        f"after {READS:,} random reads; index and store are mapped, so all workers share their pages",
    )


def main() -> int:
    options = parser(__doc__ or "", "foreign_lmdb.json")
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--layouts", nargs="+", choices=("keyed", "pickled"), default=["keyed", "pickled"])
    options.add_argument("--layout", help="for --time")
    options.add_argument("--time", metavar="URL", help="time one opening in this process and print it as JSON")
    options.add_argument("--worker", metavar="FILE", help="unpickle a backend, read, and print the memory as JSON")
    given = options.parse_args()
    if given.time:
        time_opening(given.time, given.layout)
        return 0
    if given.worker:
        measure_worker(given.worker)
        return 0
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        results = [
            result for layout in given.layouts for result in measure(layout, given.records, given.rounds, Path(folder))
        ]
    setup = {
        "records": given.records,
        "record": "16 bytes under a key of 30 characters, or a pickled pair of them and a number",
        "rounds": given.rounds,
        "process": "fresh for every round; imports done before the clock starts",
        "page_cache": "warm: the store was written just before; no I/O is timed",
    }
    met = report("Opening a foreign LMDB store", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
