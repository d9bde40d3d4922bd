"""Reads of files that are out of the page cache, where the file system has one: the disk is read at once, and no more."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable
from typing import Any

import pytest

import storeds
from make_store import make_store

MakeUrl = Callable[[str], str]
COUNT, BATCH, PAGE = 256, 64, 4096


def usage() -> Any:
    return resource.getrusage(resource.RUSAGE_SELF)


@pytest.mark.parametrize("size", [60, 40_000])
@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_a_cold_batch_reads_its_pages_at_once(make_engine_url: MakeUrl, engine: str, size: int) -> None:
    url, chance = make_engine_url(engine), random.Random(3)
    path = url.removeprefix(f"{engine}://")
    count = COUNT * (1 if size > PAGE else 40)
    make_store({"blob": "bytes"}, ({"blob": chance.randbytes(size)} for _ in range(count)), url)
    order = chance.sample(range(count), 4 * BATCH)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    with storeds.open_backend(url) as backend:
        backend.get_many([0])
        before = usage()
        for start in range(0, len(order), BATCH):
            backend.get_many(order[start : start + BATCH])
        after = usage()
    pages = len(order) * -(-(size + 100) // PAGE)
    assert after.ru_majflt - before.ru_majflt < pages / 4
    assert (after.ru_inblock - before.ru_inblock) * 512 <= 1.2 * pages * PAGE
