"""Decoding alone: simplejpeg over bytes that lie in memory, on so many threads; no crop, no batch."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import simplejpeg

from benchmarks.peers._job import Epoch, Job
from benchmarks.photos import listed

PACKAGES = ("simplejpeg",)
SETTINGS = "decode_jpeg of whole photos to RGB, exact, a pool of threads"


def prepare(job: Job) -> None:
    """There is nothing to write."""


def epochs(job: Job) -> Epoch:
    blobs = [path.read_bytes() for path in listed(job.photos)]
    parts = [range(at, min(at + job.batch, len(blobs))) for at in range(0, len(blobs), job.batch)]
    pool = ThreadPoolExecutor(job.options["threads"])

    def decoded(part: range) -> tuple[list[Any], range]:
        return [simplejpeg.decode_jpeg(blobs[number]) for number in part], part

    def epoch() -> Iterable[tuple[Any, Any]]:
        return pool.map(decoded, parts)

    return epoch
