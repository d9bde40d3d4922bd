"""Measures opening a foreign LMDB store of a million keys, the memory of its workers, and the unpickling of arrays.

Run as ``python -m benchmarks.foreign_lmdb``. A fresh process times each opening after its imports: `open_backend`, and
reading the last record. The first opening finds the keys and writes the index file. Unpickling is compared with
``pickle.loads``; see docs/decisions/0026-what-describes-a-foreign-lmdb.md.
"""

from __future__ import annotations

import contextlib
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
READS, BATCH = 25_600, 256


def keyed(path: Path, count: int) -> None:
    """Write keys of an image data set with a few bytes each."""
    entries = ((b"train/class_%04d/img_%08d.jpg" % (at // 1000, at), JPEG) for at in range(count))
    _put(path, entries)


def pickled(path: Path, count: int) -> None:
    """Write pickled pairs under numbers, and ``__keys__`` and ``__len__``."""
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


def private_mib(store: str) -> dict[str, float]:
    """Return the private memory of this process (USS) in MiB, in three parts.

    ``anonymous`` is the heap. ``store`` and ``other`` are pages of mapped files that no other process maps at the moment.
    They are page cache: the kernel can free them, and workers that read the same pages share them.
    """
    sizes = {"anonymous": 0, "store": 0, "other": 0}
    part = "other"
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):  # the head of a mapping: addresses, rights, offset, device, inode, path
            path = " ".join(values[4:])
            part = "store" if path.startswith(store) else "other" if path.startswith("/") else "anonymous"
        elif name in ("Private_Clean:", "Private_Dirty:"):
            sizes["anonymous" if name == "Private_Dirty:" else part] += int(values[0])
    return {name: size / 1024 for name, size in sizes.items()}


def time_opening(url: str, layout: str) -> None:
    """Print as JSON the seconds that this process needs to open `url` and read its last record."""
    from storeds.backends.opening import open_backend, scheme_of

    scheme_of(url, writing=False)
    import storeds.layouts.lmdb  # noqa: F401  # so that no import is timed

    start = time.perf_counter()
    with open_backend(url, layout=layout) as backend:
        (record,) = backend.get_many([len(backend) - 1])
    assert isinstance(record, dict)
    print(json.dumps({"seconds": time.perf_counter() - start}))


def measure_worker(pickled_at: str, store: str, seed: int) -> None:
    """Read random batches; then, for every line of input, print as JSON how much the private memory has grown."""
    import numpy as np

    backend = pickle.loads(Path(pickled_at).read_bytes())
    asked = np.random.default_rng(seed).integers(0, len(backend), (READS // BATCH, BATCH))
    before = private_mib(store)
    start = time.perf_counter()
    for batch in asked:
        backend.get_many(batch)
    seconds = (time.perf_counter() - start) / len(asked)
    print("read", flush=True)
    for _ in sys.stdin:
        grown = {name: size - before[name] for name, size in private_mib(store).items()}
        print(json.dumps({**grown, "seconds": seconds}), flush=True)


def run_workers(count: int, state: Path, store: Path) -> list[dict[str, float]]:
    """Return the figures of `count` workers, measured after all have read and while all are running."""
    command = [sys.executable, "-m", "benchmarks.foreign_lmdb", "--worker", str(state), "--store", str(store), "--seed"]
    with contextlib.ExitStack() as running:
        workers = [
            running.enter_context(
                subprocess.Popen([*command, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for seed in range(count)
        ]
        for worker in workers:
            _ask(worker, "")
        return [json.loads(_ask(worker, "now\n")) for worker in workers]


def _ask(worker: subprocess.Popen[str], line: str) -> str:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(line)
    worker.stdin.flush()
    return worker.stdout.readline()


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
    yield from measure_memory(layout, rounds, state, path)


def measure_memory(layout: str, rounds: int, state: Path, store: Path) -> Iterator[Result]:
    """Measure workers: two at once, and one that reads the store alone."""
    parts = ("anonymous", "store", "other")
    pairs = [max(sum(run[part] for part in parts) for run in run_workers(2, state, store)) for _ in range(rounds)]
    alone = [run for _ in range(rounds) for run in run_workers(1, state, store)]
    ours = [run["anonymous"] + run["other"] for run in alone]
    for what, found, detail in (
        ("each of two workers", pairs, f"USS, all of it, after {READS:,} random reads of each"),
        ("a worker alone, the store's pages apart,", ours, f"USS after {READS:,} random reads"),
    ):
        grown = Spread.of(found)
        name = f"{layout}: private memory of {what} grows by"
        yield Result(name, "MiB", grown, f"< {PRIVATE_MIB}", grown.median < PRIVATE_MIB, detail)
    mapped = Spread.of([run["store"] for run in alone])
    detail = "page cache that LMDB maps; private while one process alone reads the store"
    yield Result(f"{layout}: the store's pages in a worker alone", "MiB", mapped, "none", True, detail)
    batch = Spread.of([run["seconds"] * 1000 for run in alone])
    yield Result(f"{layout}: random batch of {BATCH}", "ms", batch, "none", True, "16 bytes a record, nothing decoded")


def measure_unpickling(rounds: int) -> Iterator[Result]:
    """Time arrays of one shape, and of many shapes."""
    import numpy as np

    from storeds.layouts.codecs import unpickle

    for name, sizes in (("one shape", [32] * 500), ("500 shapes", range(16, 516))):
        values = [pickle.dumps((np.zeros((size, 32), np.uint8), 1)) for size in sizes]
        found, plain = [], []
        for _ in range(rounds):
            for times, load in ((found, unpickle), (plain, pickle.loads)):
                start = time.perf_counter()
                for value in values:
                    load(value)
                times.append((time.perf_counter() - start) / len(values) * 1e6)
        detail = f"pickle.loads: {Spread.of(plain).median:.1f} us"
        yield Result(f"unpickling an array, {name}", "us", Spread.of(found), "none", True, detail)


def main() -> int:
    options = parser(__doc__ or "", "foreign_lmdb.json")
    options.add_argument("--records", type=int, default=1_000_000)
    options.add_argument("--layouts", nargs="+", choices=("keyed", "pickled"), default=["keyed", "pickled"])
    options.add_argument("--layout", help="for --time")
    options.add_argument("--time", metavar="URL", help="time one opening in this process and print it as JSON")
    options.add_argument(
        "--worker", metavar="FILE", help="unpickle a backend, read, and print the memory as JSON at every line of input"
    )
    options.add_argument("--store", metavar="PATH", help="for --worker: whose pages to count apart")
    options.add_argument("--seed", type=int, default=0, help="for --worker: which records")
    given = options.parse_args()
    if given.time:
        time_opening(given.time, given.layout)
        return 0
    if given.worker:
        measure_worker(given.worker, given.store, given.seed)
        return 0
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        results = [
            result for layout in given.layouts for result in measure(layout, given.records, given.rounds, Path(folder))
        ]
        results += measure_unpickling(given.rounds)
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
