"""Rows gathered from a file: the same bytes as one by one, in few reads, and none that are not there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storeds.backends.hdf5 import FlatRows, gather

OFFSET = 13


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, bytes]:
    path = tmp_path_factory.mktemp("rows") / "file"
    data = np.random.default_rng(0).bytes(200_000)
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY), data


@example(8, 2, list(range(0, 30_000, 99)))
@example(24, 1, list(range(8_000, 8_600, 3)))
@given(
    st.sampled_from([1, 8, 24, 5000]),
    st.integers(1, 2),
    st.lists(st.integers(0, 30_000), min_size=1, max_size=300, unique=True),
)
def test_it_gives_what_is_there_and_tells_what_is_not(
    noise: tuple[int, bytes], size: int, wide: int, first: list[int]
) -> None:
    descriptor, data = noise
    first.sort()
    found, whole = gather(FlatRows(descriptor, OFFSET, size, 10**9, None), np.array(first), wide)
    assert found.shape == (len(first), wide * size)
    for at, row, good in zip(first, found, whole, strict=True):
        expected = data[OFFSET + at * size : OFFSET + (at + wide) * size]
        assert good == (len(expected) == wide * size)
        assert row.tobytes() == (expected if good else bytes(wide * size))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that the size of every read is added to."""
    reads: list[int] = []
    pread = os.pread

    def note(descriptor: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", note)
    return reads


def test_neighbours_are_read_at_once(noise: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor, _ = noise
    reads = counted(monkeypatch)
    for first in ([0, 1, 5, 400, 20_000, 20_001], [*range(0, 401, 2), 20_000, 20_001]):
        gather(FlatRows(descriptor, 0, 8, 10**6, None), np.array(first), 1)
        assert reads == [401 * 8, 2 * 8]
        reads.clear()


def test_no_read_is_larger_than_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long"
    path.write_bytes(bytes(4 << 20))
    reads = counted(monkeypatch)
    descriptor = os.open(path, os.O_RDONLY)
    found, whole = gather(FlatRows(descriptor, 0, 8, 10**6, None), np.arange(0, 1 << 19, 16))
    os.close(descriptor)
    assert whole.all()
    assert found.shape == (1 << 15, 8)
    assert max(reads) <= (1 << 20) + 8
