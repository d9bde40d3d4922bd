"""How long large stores take to open in a fresh process, and how small what a DataLoader worker receives is."""

from __future__ import annotations

import importlib
import os
import pickle
import time
from collections.abc import Iterator

from benchmarks._common import Result, Run, entry, figure, in_fresh_process

JPEG = b"\xff\xd8\xff\xe0" + bytes(12)


def write_native(url: str, count: int) -> None:
    from storeds import open_writer

    with open_writer(url, {"image": "image", "label": "int", "key": "str"}, commit_every=50_000) as writer:
        writer.append({"image": JPEG, "label": at % 1000, "key": f"{at % 1000:04}/{at:08}.jpg"} for at in range(count))


def write_keyed(url: str, count: int) -> None:
    """Write keys of an image data set, as another tool does."""
    import lmdb

    with lmdb.open(url.removeprefix("lmdb://"), map_size=1 << 34, sync=False, lock=False) as env:
        with env.begin(write=True) as txn:
            for at in range(count):
                txn.put(b"train/class_%04d/img_%08d.jpg" % (at // 1000, at), JPEG)
        env.sync(True)


def seconds_to_open(url: str, layout: str | None, module: str) -> float:
    """Return the seconds that this process needs to open `url` and read its last record, with the imports done."""
    from storeds.backends.opening import open_backend, scheme_of

    scheme_of(url, writing=False)
    importlib.import_module(module)
    start = time.perf_counter()
    with open_backend(url, layout=layout) as backend:
        (record,) = backend.get_many([len(backend) - 1])
    seconds = time.perf_counter() - start
    if not isinstance(record, dict) or record["image"] != JPEG:
        raise AssertionError(f"the last record is {record!r:.100}")
    return seconds


def pickled_sizes(url: str, layout: str | None) -> dict[str, int]:
    """Return the pickled sizes of a backend and a dataset, after a read."""
    from storeds import StoreDataset, open_backend

    with open_backend(url, layout=layout) as backend:
        backend.get_many([0])
        dataset = StoreDataset(backend, decode="bytes")
        _ = dataset[0]
        return {"backend": len(pickle.dumps(backend)), "dataset": len(pickle.dumps(dataset))}


@entry(
    "opening",
    "Opening a store of a million records and reading the last, in a fresh process; pickled sizes",
)
def opening(run: Run) -> Iterator[Result]:
    native = "storeds.backends"
    os.environ["STOREDS_CACHE"] = str(run.folder / "cache")  # keys of foreign stores, found at the first opening
    for kind, write, layout, module, most in (
        ("lmdb", write_native, None, f"{native}.lmdb", 0.25),
        ("hdf5", write_native, None, f"{native}.hdf5", 0.25),
        ("lmdb", write_keyed, "keyed", "storeds.layouts.lmdb", 0.2),
    ):
        title = f"{kind}, {layout or 'native'}"
        # Names of equal length, so that only the count can make one pickle larger.
        small, large = (f"{kind}://{run.folder}/{write.__name__}-{size}.{kind}" for size in ("few.", "many"))
        write(small, 10)
        write(large, run.count(1_000_000, 100))
        found = [in_fresh_process(seconds_to_open, large, layout, module) for _ in range(run.rounds)]
        yield figure(f"{title}: opening, the last record read", "s", found, most=most)
        few = pickled_sizes(small, layout)
        for what, size in pickled_sizes(large, layout).items():
            yield figure(f"{title}: pickled {what}", "bytes", [size], most=8192, detail=f"of 10 records: {few[what]}")
