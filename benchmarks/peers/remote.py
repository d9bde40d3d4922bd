"""One library's epochs over a store in S3, in a process of its own: seconds to the first batch, of the first epoch, of the second.

Run as ``python -m benchmarks.peers.remote NAME URL CACHE``. Samples are arrays of bytes, which nothing decodes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

BATCH, WORKERS = 64, 2
_LIBRARIES = {"mosaicml_streaming": "streaming", "litdata": "litdata"}


def storeds_by_member(url: str, cache: str) -> Iterable[Any]:
    return _storeds(url, cache, block_size="member")


def storeds_shuffled(url: str, cache: str) -> Iterable[Any]:
    return _storeds(url, cache)


def _storeds(url: str, cache: str, **how: Any) -> Iterable[Any]:
    import storeds

    dataset = storeds.StoreDataset(url, reader="array", fields=["x", "number"], stage=cache, seed=0)
    return storeds.StoreLoader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, **how
    )


def local(url: str, cache: str) -> Iterable[Any]:
    """Return the loader of a store on this machine."""
    import storeds

    dataset = storeds.StoreDataset(url, reader="array", fields=["x", "number"], seed=0)
    return storeds.StoreLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)


def mosaicml_streaming(url: str, cache: str) -> Iterable[Any]:
    import streaming  # type: ignore[import-not-found,unused-ignore]

    dataset = streaming.StreamingDataset(remote=url, local=cache, shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
    return streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)  # type: ignore[no-any-return,unused-ignore]


def litdata(url: str, cache: str) -> Iterable[Any]:
    import litdata as library  # type: ignore[import-not-found,unused-ignore]
    from litdata.streaming import downloader  # type: ignore[import-not-found,unused-ignore]

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for a server without TLS
    options = {
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "region_name": os.environ["AWS_REGION"],
    }
    dataset = library.StreamingDataset(
        url, cache_dir=cache, shuffle=True, drop_last=False, storage_options=options, max_cache_size="100GB"
    )
    return library.StreamingDataLoader(  # type: ignore[no-any-return,unused-ignore]
        dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
    )


def write_mds(folder: str, count: int, size: int) -> None:
    _make_torchvision_importable()
    import streaming

    from benchmarks.staging import row

    with streaming.MDSWriter(out=folder, columns={"x": "ndarray:uint8", "number": "int"}, size_limit=1 << 26) as writer:
        for number in range(count):
            writer.write({"x": row(number, size), "number": number})


def write_chunks(folder: str, count: int, size: int) -> None:
    import functools

    _make_torchvision_importable()
    import litdata as library

    from benchmarks.staging import chunk

    library.optimize(
        fn=functools.partial(chunk, size=size),
        inputs=list(range(count)),
        output_dir=folder,
        chunk_bytes="64MB",
        num_workers=1,
    )


def _make_torchvision_importable() -> None:
    import benchmarks.peers._torchvision  # noqa: F401


def _import(name: str) -> None:
    """Import a library, with torch."""
    if name in _LIBRARIES:
        _make_torchvision_importable()
        importlib.import_module(_LIBRARIES[name])
    else:
        from storeds import StoreDataset, StoreLoader  # noqa: F401


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print there
    name, *arguments = sys.argv[1:]
    if name.startswith("write_"):
        globals()[name](arguments[0], int(arguments[1]), int(arguments[2]))
        return
    make: Callable[[str, str], Iterable[Any]] = globals()[name]
    _import(name)  # which is not part of what is measured
    times, counts, began = [], [], time.perf_counter()
    batches = make(*arguments)
    for _ in range(2):
        count = 0
        for batch in batches:
            if not times:
                times.append(time.perf_counter() - began)
            count += len(batch["number"] if isinstance(batch, dict) else batch[-1])
        times.append(time.perf_counter() - began)
        counts.append(count)
        began = time.perf_counter()
    print(json.dumps({"first": times[0], "epochs": times[1:], "counts": counts}), file=answers, flush=True)


if __name__ == "__main__":
    main()
