"""Reading and writing HDF5 at file offsets: the bytes of the file, and errors where bytes are not there any more."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import storeds
from make_store import make_store
from storeds.backends.hdf5.rows import FlatRows, gather, read_ranges
from storeds.backends.hdf5.stamp import open_hdf5_file
from storeds.errors import RecordError
from storeds.records.arrays import read_arrays

OFFSET, SIZE = 13, 18 << 20  # bytes; a smaller dataset is soon read as a whole


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, bytes]:
    path = tmp_path_factory.mktemp("rows") / "file"
    data = np.random.default_rng(0).bytes(SIZE)
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY), data


ROWS = st.sampled_from(
    [(1, SIZE), (8, SIZE // 8), (24, 5000), (5000, SIZE // 5000), (20_000, SIZE // 20_000), (0, 900)]
)


@example((8, SIZE // 8), 2, [*range(0, 30_000, 99)])
@example((24, 5000), 1, [*range(900, 1500, 3)] * 9)
@given(ROWS, st.integers(1, 2), st.lists(st.integers(0, 10**9), max_size=300))
def test_rows_in_any_order_have_the_bytes_of_the_file(
    noise: tuple[int, bytes], rows: tuple[int, int], wide: int, drawn: list[int]
) -> None:
    descriptor, data = noise
    size, count = rows
    flat = FlatRows(descriptor, OFFSET, size, count - 1)
    first = np.array(drawn, np.int64) % (count - wide)
    expected = [data[OFFSET + at * size : OFFSET + (at + wide) * size] for at in first.tolist()]
    for _ in range(2):  # the second time, a small dataset is in memory
        found = gather(flat, first, wide)
        assert found.shape == (len(first), wide * size)
        assert list(map(bytes, found)) == read_ranges(flat, first, first + wide) == expected


# Each process reads while its file is cut short and written again, again and again.
CUT = """
    import os, sys, threading, numpy, storeds
    from storeds.errors import RecordError, RecordError
    from storeds.records.arrays import read_arrays

    path, names = sys.argv[1], ["x"]
    whole, running = open(path, "rb").read(), True

    def cut():
        with open(path, "r+b") as file:
            while running:
                file.truncate(4096)
                os.pwrite(file.fileno(), whole, 0)

    with storeds.open_backend(path) as backend:
        positions = numpy.random.default_rng(0).permutation(len(backend))
        truth = backend.get_many(positions.tolist(), names)
        arrays = read_arrays(backend, positions, names)
        thread = threading.Thread(target=cut)
        thread.start()
        bad = 0
        while not bad:
            for record, expected in zip(backend.get_many(positions.tolist(), names), truth):
                if isinstance(record, RecordError):
                    assert f"of hdf5://{path}" in str(record) and "record " in str(record)
                    bad += 1
                elif "native" in path:
                    assert all((record[name] == expected[name]).all() for name in names)
            try:
                read = read_arrays(backend, positions, names)
                assert "foreign" in path or all((read[name] == arrays[name]).all() for name in names)
            except RecordError:
                bad += 1
        running = False
        thread.join()
        read = read_arrays(backend, positions, names)
        assert all((read[name] == arrays[name]).all() for name in names)
"""


@pytest.mark.parametrize("layout", ["native", "foreign"])
def test_a_file_cut_short_under_a_reader_is_an_error_and_no_crash(tmp_path: Path, layout: str) -> None:
    path, count = tmp_path / f"{layout}.h5", 5000
    data = np.random.default_rng(1).random((count, 1024), "f4")
    if layout == "native":
        make_store({"x": {"kind": "array", "dtype": "f4", "shape": [1024]}}, ({"x": row} for row in data), path)
    else:
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = data, np.arange(count)
    command = [sys.executable, "-c", textwrap.dedent(CUT), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")


RECORDS: list[Any] = [{"blob": bytes([at]) * 3000, "label": at, "key": f"k{at}", "note": [at]} for at in range(50)]


def write(url: str, **how: Any) -> Any:
    return storeds.open_writer(url, {"blob": "bytes", "label": "int", "key": "str", "note": "json"}, **how)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with write(f"hdf5://{tmp_path}/store.h5") as writer:
        writer.append(RECORDS)
    return tmp_path / "store.h5"


def _failing_at(offset: int, pread: Callable[..., bytes]) -> Callable[..., bytes]:
    def fail(descriptor: int, size: int, at: int) -> bytes:
        if at <= offset < at + size:
            raise OSError(5, "Input/output error")
        return pread(descriptor, size, at)

    return fail


def test_a_bad_sector_costs_the_records_that_lie_in_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(store) as file:
        offset = file["records/blob/data"].id.get_offset()
    with storeds.open_backend(store) as backend, monkeypatch.context() as patched:
        backend.get_many([0])
        patched.setattr(os, "pread", _failing_at(offset + 7 * 3000, os.pread))
        found = backend.get_many(range(50))
        assert str(found[7]).startswith(
            f"record 7 (key 'k7') of hdf5://{store}: its bytes cannot be read: a bad sector"
        )
        assert found[:7] + found[8:] == RECORDS[:7] + RECORDS[8:]
        assert backend.column("label").tolist() == [*range(50)]  # type: ignore[attr-defined]
    with storeds.open_backend(store) as backend:
        assert backend.get_many([7]) == [RECORDS[7]]


@pytest.mark.parametrize("layout", ["native", "foreign"])
def test_a_bad_sector_and_a_short_read_cost_batches_of_arrays_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    data, path, failed = np.random.default_rng(0).random((300, 1500), "f4"), tmp_path / "store.h5", list[int]()
    if layout == "native":
        make_store({"x": {"kind": "array", "dtype": "f4", "shape": [1500]}}, ({"x": row} for row in data), path)
    else:
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = data, np.arange(len(data))
    with h5py.File(path) as file:
        offset = file["records/x" if layout == "native" else "x"].id.get_offset()
    asked: list[int] = (
        np.random.default_rng(1).permutation(len(data))[:60].tolist()
    )  # more of them would be kept in memory
    bad = asked[7]

    def fail(descriptor: int, buffers: list[memoryview], at: int) -> int:
        if at == offset + bad * 6000:
            failed.append(at)
            raise OSError(5, "Input/output error")
        return whole(descriptor, buffers, at)

    whole = os.preadv
    with storeds.open_backend(path) as backend:
        monkeypatch.setattr(os, "preadv", lambda file, buffers, at: whole(file, [buffers[0][:100]], at))
        assert read_arrays(backend, asked, ["x"])["x"].tobytes() == data[asked].tobytes()
        monkeypatch.setattr(os, "preadv", fail)
        assert read_arrays(backend, asked, ["x"])["x"].tobytes() == data[asked].tobytes()  # another read succeeds
        monkeypatch.setattr(os, "pread", _failing_at(offset + bad * 6000, os.pread))
        with pytest.raises(RecordError, match=f"record {bad} of "):
            read_arrays(backend, asked, ["x"])
    assert failed


def test_reads_that_the_kernel_cuts_up_are_put_together(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pread
    with storeds.open_backend(store) as backend, monkeypatch.context() as patched:
        backend.get_many([0])
        patched.setattr(os, "pread", lambda file, size, at: whole(file, min(size, 100), at))
        assert backend.get_many(range(50)) == RECORDS
        assert backend.column("key").tolist() == [f"k{at}" for at in range(50)]  # type: ignore[attr-defined]


def test_a_store_that_is_replaced_between_two_steps_of_opening_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("store", "other"):
        make_store({"name": "str"}, [{"name": name}], f"hdf5://{tmp_path}/{name}.h5")

    def replace_first(*arguments: Any) -> h5py.File:
        if (tmp_path / "other.h5").exists():
            os.replace(tmp_path / "other.h5", tmp_path / "store.h5")
        return open_hdf5_file(*arguments)

    monkeypatch.setattr("storeds.backends.hdf5.reading.open_hdf5_file", replace_first)
    with storeds.open_backend(f"hdf5://{tmp_path}/store.h5") as backend:
        assert backend.get_many([0]) == [{"name": "other"}]


@pytest.fixture
def interrupted(tmp_path: Path) -> tuple[str, Path]:
    """Return the URL and the log of a write of which five records are durable."""
    url = f"hdf5://{tmp_path}/store.h5"
    writer = write(url)
    writer.append(RECORDS[:5])
    writer.flush()
    writer.suspend()
    return url, tmp_path / ".store.h5.partial" / "log"


@pytest.mark.parametrize("torn", [b"\1", b"\xff" * 5000], ids=len)
def test_a_torn_write_to_the_log_is_forgotten(interrupted: tuple[str, Path], torn: bytes) -> None:
    url, log = interrupted
    with log.open("ab") as file:
        file.write(torn)
    with write(url, resume=True) as writer:
        assert writer.count == 5
        writer.append(RECORDS[5:])
    with storeds.open_backend(url) as backend:
        assert backend.get_many(range(50)) == RECORDS


MANY = """
    import gc, os, sys, tracemalloc, storeds
    from storeds.backends.hdf5 import rows

    rows._KEPT_IN_ALL //= 8
    storeds.open_backend(sys.argv[1]).close()  # imports what it needs

    def read(backend):
        for start in [*range(0, len(backend), 64)] * 6:
            backend.get_many([*range(start, min(start + 64, len(backend)))])

    tracemalloc.start()
    with storeds.open_backend(sys.argv[1]) as backend:
        read(backend)
        assert 6 << 20 < tracemalloc.get_traced_memory()[0] < 10 << 20
        preads, real = [], os.pread
        os.pread = lambda *call: preads.append(call) or real(*call)
        backend.get_many([*range(0, len(backend), 97)], ["label"])
        assert not preads  # numbers stay in memory, whatever else does
        os.pread = real
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] < 1 << 20
    with storeds.open_backend(sys.argv[1].replace("*", "11")) as backend:  # what was closed leaves room
        read(backend)
        assert 1 << 20 < tracemalloc.get_traced_memory()[0] < 3 << 20
"""


def test_a_process_keeps_a_bounded_part_of_many_files_in_memory(tmp_path: Path) -> None:
    blob, row = np.random.default_rng(3).bytes(1 << 14), np.random.default_rng(3).random(2048)
    fields = {"blob": "bytes", "label": "int", "row": {"kind": "array", "dtype": "f8", "shape": [2048]}}
    for number in range(12):
        make_store(fields, ({"blob": blob, "label": at, "row": row} for at in range(75)), f"{tmp_path}/{number:02}.h5")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MANY), f"{tmp_path}/*.h5"], capture_output=True, text=True, timeout=500
    )
    assert (done.returncode, done.stderr) == (0, "")
