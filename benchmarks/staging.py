"""Stores in S3: training from a link of 100 MB/s and from a fast one, beside peers, and what a copy costs."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import obstore
from obstore.store import from_url
from tests.support.s3_server import BreakingProxy, environment, run_s3

import storeds
from benchmarks._common import Result, Run, child, entry, figure
from storeds import ops
from storeds.testing import run_mongod

_LINK = 100e6  # bytes a second
_SIZE = 20_000  # bytes of a sample
_OF_MEMBER = 3200  # samples: 64 MB


def row(number: int, size: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, size, np.uint8)


def chunk(number: int, size: int) -> dict[str, Any]:
    return {"x": row(number, size), "number": number}


def write(folder: Path, count: int) -> None:
    """Write a versioned store of members of 64 MB."""
    fields: dict[str, Any] = {"x": {"kind": "array", "dtype": "uint8", "shape": [_SIZE]}, "number": "int"}
    for first in range(0, count, _OF_MEMBER):
        path = folder / f"members/{first:08}.lmdb"
        with storeds.open_writer(f"lmdb://{path}", fields) as writer:
            writer.append(chunk(number, _SIZE) for number in range(first, min(first + _OF_MEMBER, count)))
    ops.merge(f"lmdb://{folder}/", *sorted((folder / "members").iterdir()))


def upload(folder: Path, name: str) -> int:
    """Put the files below a folder into the bucket, and return their bytes."""
    bucket, total = from_url("s3://bucket", client_options={"allow_http": True}), 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            obstore.put(bucket, f"{name}/{path.relative_to(folder)}", path)
            total += path.stat().st_size
    return total


@entry(
    "staging",
    "Training from S3 on loopback, 20 kB samples in members of 64 MB, two workers; with the link at 100 MB/s, and free",
)
def staging(run: Run) -> Iterator[Result]:
    count, peers = run.count(10 * _OF_MEMBER, _OF_MEMBER), run.options.get("python")
    with run.subfolder() as folder, run_s3(folder) as port, BreakingProxy(port) as proxy:
        os.environ.update(environment(port), S3_ENDPOINT_URL=environment(port)["AWS_ENDPOINT_URL"])
        write(folder / "store", count)
        sizes = {"storeds": upload(folder / "store", "store")}
        entrants = {
            "storeds, by member": ("storeds_by_member", "store"),
            "storeds, shuffled": ("storeds_shuffled", "store"),
        }
        if peers is not None:
            for name, writer, target in (
                ("mosaicml_streaming", "write_mds", "mds"),
                ("litdata", "write_chunks", "chunks"),
            ):
                child(peers, "remote", writer, folder / target, count, _SIZE)
                sizes[name] = upload(folder / target, target)
                entrants[name] = name, target
        run.setup["bytes"] = sizes
        on_disk = [
            child(sys.executable, "remote", "local", f"lmdb://{folder}/store/", "")["epochs"][1]
            for _ in range(run.rounds)
        ]
        yield figure("an epoch from the local store, shuffled", "s", on_disk)
        for rate in (_LINK, None):
            proxy.rate = rate
            found = environment(proxy.port if rate else port)
            os.environ.update(found, S3_ENDPOINT_URL=found["AWS_ENDPOINT_URL"])
            yield from of_link(run, folder, entrants, count, sizes["storeds"], rate, statistics.median(on_disk))
        yield from of_mongodb(run, folder)


def of_link(
    run: Run,
    folder: Path,
    entrants: Mapping[str, tuple[str, str]],
    count: int,
    size: int,
    rate: float | None,
    on_disk: float,
) -> Iterator[Result]:
    """Measure all entrants, and a copy, over one link."""
    link, found = "100 MB/s" if rate else "free", defaultdict[str, list[dict[str, Any]]](list)
    downloads, copies = list[float](), list[float]()
    for number in range(run.rounds):
        for name, (function, target) in entrants.items():
            cache = folder / f"cache{number}"
            python = sys.executable if name.startswith("storeds") else run.options["python"]
            try:
                found[name].append(child(python, "remote", function, f"s3://bucket/{target}/", cache))
            except subprocess.CalledProcessError:  # peers fail at times; the table says how often
                if name.startswith("storeds"):
                    raise
            shutil.rmtree(cache, ignore_errors=True)
        downloads.append(download(folder / "download"))
        copies.append(timed_copy(folder / "copy"))
    two_members = 2 * _OF_MEMBER * size / count / rate if rate else None
    for name, each in found.items():
        if any(one["counts"] != [count, count] for one in each):
            raise AssertionError(f"{name} gave {each[0]['counts']} samples")
        detail = "" if len(each) == run.rounds else f"{run.rounds - len(each)} of {run.rounds} runs failed"
        most = two_members if "by member" in name else None
        yield figure(f"{name}: first batch, {link}", "s", [one["first"] for one in each], most=most, detail=detail)
        for at, which in enumerate(("first", "second")):
            yield figure(f"{name}: {which} epoch, {link}", "s", [one["epochs"][at] for one in each])
    bound = max(size / rate if rate else 0, on_disk)
    ratios = [bound / one["epochs"][0] for one in found["storeds, by member"]]
    yield figure(f"min(link, disk) ÷ first epoch by member, {link}", "ratio", ratios, least=0.8 if rate else None)
    ratios = [a / b for a, b in zip(downloads, copies, strict=True)]
    yield figure(f"storeds stage ÷ the library's own download, {link}", "ratio", ratios, least=0.8)


def download(folder: Path) -> float:
    """Download the members as the client library does alone; return the seconds."""
    bucket = from_url("s3://bucket/store", client_options={"allow_http": True})
    folder.mkdir()
    began = time.perf_counter()
    for each in obstore.list(bucket, "members").collect():
        with open(folder / Path(each["path"]).name, "wb") as file:
            for part in obstore.get(bucket, each["path"]).stream(min_chunk_size=8 << 20):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return seconds


def timed_copy(folder: Path) -> float:
    began = time.perf_counter()
    ops.stage("s3://bucket/store/", folder)
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return seconds


def of_mongodb(run: Run, folder: Path) -> Iterator[Result]:
    """Compare the second epoch of a staged collection with a store of LMDB."""
    with run_mongod(folder / "mongod") as uri:
        url, count = f"{uri}/db/train", min(run.count(2 * _OF_MEMBER, 640), 2 * _OF_MEMBER)
        fields: dict[str, Any] = {"x": {"kind": "array", "dtype": "uint8", "shape": [_SIZE]}, "number": "int"}
        for each in (url, f"lmdb://{folder}/same.lmdb"):
            with storeds.open_writer(each, fields) as writer:
                writer.append(chunk(number, _SIZE) for number in range(count))
        ways = [("storeds_shuffled", url), ("local", f"lmdb://{folder}/same.lmdb")]
        times = [
            [child(sys.executable, "remote", name, each, folder / "of_mongodb")["epochs"][1] for name, each in ways]
            for _ in range(run.rounds)
        ]
        yield figure("MongoDB staged: second epoch ÷ that of LMDB", "ratio", [b / a for a, b in times], least=0.95)
