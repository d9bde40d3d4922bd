"""Chunks read without libhdf5: the same bytes as through it, isolated damage, no remaining threads.

Imports private modules, because backends do not show which rows libhdf5 read, and which threads helped.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import multiprocessing
import os
import pickle
import threading
import time
import tracemalloc
import weakref
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from _foreign_hdf5 import PARALLEL
from storeds import StoreDataset
from storeds.backends.hdf5.rows import Rows
from storeds.errors import RecordError
from storeds.layouts.hdf5 import ParallelHdf5
from storeds.layouts.hdf5 import chunks as chunks_module
from storeds.layouts.hdf5.chunks import ChunkedRows, _ChunkCache, parallel_map
from storeds.layouts.hdf5.elements import element_field
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files
from storeds.layouts.hdf5.values import raw_rows
from storeds.protocols import Field

DEADLINE = 60
IMAGE = (64, 64, 3)

FILTERS: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    {"shuffle": True},
    {"fletcher32": True},
    {"compression": "gzip", "shuffle": True},
    {"compression": "gzip", "fletcher32": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf"},
]
DTYPES = ["u1", "<i2", ">i4", "<f4", ">f8", "<c16", "?", "S5", "V3", [("n", ">i2"), ("name", "S4"), ("x", "<f8", (2,))]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.h5"


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this process has four CPUs, and that no thread has read yet."""
    monkeypatch.setattr(chunks_module, "_readers", {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


@pytest.fixture
def by_library(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges of rows that libhdf5 reads."""
    asked: list[tuple[int, int]] = []
    load = ChunkedRows._load_by_library

    def note(self: ChunkedRows, start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return load(self, start, stop)

    monkeypatch.setattr(ChunkedRows, "_load_by_library", note)
    return asked


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of decompressed chunks."""
    sizes: list[int] = []
    inflate = chunks_module._inflate

    def note(data: bytes, size: int) -> bytes:
        sizes.append(size)
        return inflate(data, size)

    monkeypatch.setattr(chunks_module, "_inflate", note)
    return sizes


@contextlib.contextmanager
def rows_of(path: Path, **options: Any) -> Iterator[Rows]:
    with Hdf5Files(str(path), f"hdf5://{path}", ForeignOptions(**options)) as files:
        dataset = files.dataset("x")
        yield raw_rows(files, dataset, dataset.dtype)


def write(path: Path, data: Any, per_chunk: int, libver: str = "earliest", **how: Any) -> None:
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("x", data=data, chunks=(per_chunk, *data.shape[1:]), **how)


def images(count: int) -> Any:
    return np.random.default_rng(0).integers(0, 24, (count, *IMAGE), "u1")


def stored(path: Path) -> list[Any]:
    """The chunks' addresses in the file."""
    found: list[Any] = []
    with h5py.File(path) as file:
        file["x"].id.chunk_iter(found.append)
    return sorted(found)


def one_by_one(rows: Rows) -> list[bytes]:
    return rows.read([(at, at + 1) for at in range(rows.count)])


class TestSameBytes:
    """For any filters, chunk shapes, dtypes and rows."""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        how=st.sampled_from(FILTERS),
        dtype=st.sampled_from(DTYPES),
        count=st.integers(1, 40),
        per_chunk=st.integers(1, 17),
        inner=st.sampled_from([(), (3,), (4, 2)]),
        libver=st.sampled_from(["earliest", "latest"]),
        grows=st.booleans(),
        draw=st.data(),
    )
    def test_as_h5py_reads_them(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        how: dict[str, Any],
        dtype: Any,
        count: int,
        per_chunk: int,
        inner: tuple[int, ...],
        libver: str,
        grows: bool,
        draw: st.DataObject,
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "any.h5"
        size = np.dtype(dtype).itemsize * int(np.prod(inner))
        raw = np.random.default_rng(count).integers(1, 5, count * size, "u1")
        data = raw.view("?" if dtype == "?" else dtype).reshape(count, *inner)
        per_chunk = per_chunk if grows else min(per_chunk, count)
        write(path, data, per_chunk, libver, **how, maxshape=(None, *inner) if grows else None)
        edges = draw.draw(st.lists(st.integers(0, count), max_size=12).map(sorted))
        spans = list(zip(edges[::2], edges[1::2], strict=False))
        at = draw.draw(st.lists(st.integers(0, count - 1), max_size=20))
        with h5py.File(path) as file, rows_of(path) as rows:
            expected = file["x"][()]
            assert rows.read(spans) == [expected[start:stop].tobytes() for start, stop in spans]
            spans = [(one, one + 1) for one in sorted(at)]
            assert rows.read(spans) == [expected[start:stop].tobytes() for start, stop in spans]

    @pytest.mark.parametrize("per_chunk", [1, 4, 16])
    def test_in_any_order_and_with_duplicates(self, path: Path, per_chunk: int) -> None:
        data = np.random.default_rng(1).integers(0, 9, (50, 4, 3)).astype(">i2")
        write(path, data, per_chunk, compression="gzip", shuffle=True)
        with ParallelHdf5(str(path)) as backend:
            many = np.random.default_rng(2).integers(0, 50, 200).tolist()
            for asked in ([49, 0, 3, 3, 17, 0], list(range(50)), many):
                for at, record in zip(asked, backend.get_many(asked), strict=True):
                    assert isinstance(record, dict)
                    assert (record["x"] == data[at]).all()
            assert (backend.column("x") == data).all()

    def test_dataset_as_one_value(self, path: Path, by_library: list[Any]) -> None:
        data = np.random.default_rng(1).integers(0, 9, (600, 1000), "u1")
        write(path, data, 250, compression="gzip")
        with Hdf5Files(str(path), "hdf5://a", ForeignOptions()) as files:
            dataset = files.dataset("x")
            rows = raw_rows(files, dataset, dataset.dtype, whole=True)
            assert rows.read([(0, 1)]) == [data.tobytes()]
        assert by_library == []

    def test_row_vector_behind_a_user_block(self, path: Path, by_library: list[Any]) -> None:
        with h5py.File(path, "w", userblock_size=512) as file:
            file.create_dataset("x", data=np.arange(30).reshape(1, 30), chunks=(1, 10), compression="gzip")
        with Hdf5Files(str(path), "hdf5://a", ForeignOptions()) as files:
            dataset = files.dataset("x")
            rows = raw_rows(files, dataset, dataset.dtype, axis=1)
            assert np.frombuffer(b"".join(one_by_one(rows)), "<i8").tolist() == list(range(30))
        assert by_library == []

    @pytest.mark.parametrize("filters", list(itertools.permutations([1, 2, 3])), ids=str)
    def test_any_filter_order_and_filter_mask(
        self, path: Path, filters: tuple[int, ...], by_library: list[Any]
    ) -> None:
        data = np.random.default_rng(0).integers(0, 300, (8 * 6, 5)).astype("<i4")
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((6, 5))
        for code in filters:
            plan.set_filter(code, h5py.h5z.FLAG_OPTIONAL if code == 2 else 0, {1: (4,), 2: (), 3: ()}[code])
        with h5py.File(path, "w") as file:
            space = h5py.h5s.create_simple(data.shape)
            made = h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(data.dtype), space, plan)
            file["x"][:] = data
            for skipped in range(8):
                # Written by libhdf5 with the other filters alone, then kept with the mask that says so.
                alone = [code for bit, code in enumerate(filters) if not skipped >> bit & 1]
                made.write_direct_chunk((skipped * 6, 0), filtered(data[skipped * 6 :][:6], alone), skipped)
            expected = file["x"][()]
        assert (expected == data).all()
        with rows_of(path) as rows:
            assert one_by_one(rows) == [row.tobytes() for row in data]
        assert by_library == []

    def test_checksums_with_swapped_bytes(self, path: Path, by_library: list[Any]) -> None:
        data = np.random.default_rng(0).integers(0, 256, (4, 5), "u1")
        write(path, data, 2, fletcher32=True)
        with h5py.File(path, "r+") as file:
            _, chunk = file["x"].id.read_direct_chunk((0, 0))
            swapped = chunk[:-4] + bytes([chunk[-3], chunk[-4], chunk[-1], chunk[-2]])
            file["x"].id.write_direct_chunk((0, 0), swapped)
            assert (file["x"][()] == data).all()
        with rows_of(path) as rows:
            assert b"".join(one_by_one(rows)) == data.tobytes()
        assert by_library == []

    def test_checksums_without_numcodecs(
        self, path: Path, by_library: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(chunks_module, "find_spec", lambda _: None)
        write(path, images(4), 2, fletcher32=True)
        with rows_of(path) as rows:
            assert b"".join(one_by_one(rows)) == images(4).tobytes()
        assert by_library != []


def filtered(data: Any, filters: Sequence[int]) -> bytes:
    """Return one chunk as libhdf5 writes it with these filters."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk(data.shape)
    for code in filters:
        plan.set_filter(code, h5py.h5z.FLAG_OPTIONAL if code == 2 else 0, {1: (4,), 2: (), 3: ()}[code])
    with h5py.File("one chunk", "w", driver="core", backing_store=False) as file:
        space, kind = h5py.h5s.create_simple(data.shape), h5py.h5t.py_create(data.dtype)
        made = h5py.h5d.create(file.id, b"x", kind, space, plan)
        file["x"][:] = data
        chunk: bytes = made.read_direct_chunk((0,) * data.ndim)[1]
    return chunk


class TestReadByLibhdf5:
    """Chunks that storeds cannot read itself, or not faster."""

    def test_unwritten_chunks_hold_the_fill_value(self, path: Path, by_library: list[Any]) -> None:
        with h5py.File(path, "w") as file:
            made = file.create_dataset("x", (12, 2), "<i2", chunks=(3, 2), compression="gzip", fillvalue=7)
            made[3:6] = 1
        with rows_of(path) as rows:
            assert np.frombuffer(b"".join(one_by_one(rows)), "<i2").tolist() == [7] * 6 + [1] * 6 + [7] * 12
        assert by_library == [(0, 3), (6, 9), (9, 12)]

    @pytest.mark.parametrize("how", [{"shuffle": True}, {"fletcher32": True}, {"shuffle": True, "compression": "gzip"}])
    def test_last_chunk_that_may_be_unfiltered(self, path: Path, how: dict[str, Any], by_library: list[Any]) -> None:
        data = np.arange(100, 110, dtype="<i4")
        with h5py.File(path, "w", libver="latest") as file:
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_chunk((4,))
            made = {"shuffle": plan.set_shuffle, "fletcher32": plan.set_fletcher32, "compression": plan.set_deflate}
            for name in how:
                made[name]()
            dont_filter_partial_chunks(plan)
            h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(data.dtype), h5py.h5s.create_simple((10,)), plan)
            file["x"][:] = data
        with rows_of(path) as rows:
            assert b"".join(one_by_one(rows)) == data.tobytes()
        assert by_library == [(8, 10)]

    @pytest.mark.parametrize(
        ("chunks", "how"),
        [
            ((4, 2, 3), {"compression": "gzip"}),
            ((4, 4, 3), {"compression": "lzf"}),
            ((4, 4, 3), {"scaleoffset": 0}),
        ],
        ids=["rows-in-several-chunks", "lzf", "scaleoffset"],
    )
    def test_other_filters_and_chunks_that_split_rows(
        self, path: Path, chunks: tuple[int, ...], how: dict[str, Any], by_library: list[Any]
    ) -> None:
        data = np.random.default_rng(0).integers(0, 9, (10, 4, 3)).astype("<i4")
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=data, chunks=chunks, **how)
        with rows_of(path) as rows:
            assert one_by_one(rows) == [row.tobytes() for row in data]
        assert by_library != []

    @pytest.mark.parametrize("how", [{"compression": "gzip"}, {"shuffle": True}], ids=lambda how: next(iter(how)))
    def test_unfiltered_chunk_with_extra_bytes(self, path: Path, how: dict[str, Any], by_library: list[Any]) -> None:
        data = np.arange(30, dtype="<i4")
        write(path, data, 10, **how)
        with h5py.File(path, "r+") as file:
            file["x"].id.write_direct_chunk((10,), data[10:20].tobytes() + b"four", 1)
            assert (file["x"][()] == data).all()
        with rows_of(path) as rows:
            assert one_by_one(rows) == [row.tobytes() for row in data]
            assert rows.read([(5, 12)]) == [data[5:12].tobytes()]
        assert by_library == [(10, 20), (10, 12)]

    @pytest.mark.parametrize(("per_chunk", "pieces"), [(64, [(0, 1 << 18)]), (4095, [(0, 1 << 18)]), (4096, [])])
    def test_single_value_in_chunks_below_4_kib(
        self, path: Path, per_chunk: int, pieces: list[tuple[int, int]], by_library: list[Any]
    ) -> None:
        data = np.random.default_rng(0).integers(0, 9, 1 << 18, "u1")
        write(path, data, per_chunk, compression="gzip")
        with Hdf5Files(str(path), "hdf5://a", ForeignOptions()) as files:
            dataset = files.dataset("x")
            assert raw_rows(files, dataset, dataset.dtype, whole=True).read([(0, 1)]) == [data.tobytes()]
        assert by_library == pieces

    def test_dataset_above_256_mib_is_not_read_to_find_its_field(self, path: Path, by_library: list[Any]) -> None:
        with h5py.File(path, "w") as file:
            for number in range(2):
                shape = ((256 << 20) + 1 + number,)
                file.create_dataset(f"img_{number}", shape, "u1", chunks=(1 << 20,), compression="gzip")
        with Hdf5Files(str(path), "hdf5://a", ForeignOptions()) as files:
            assert element_field(files, ["img_0", "img_1"]) == Field("array", "|u1", (None,))
        assert by_library == []

    @pytest.mark.parametrize(("shape", "chunks", "axis"), [((1 << 14,), (1,), 0), ((1, 1 << 14), (1, 1), 1)])
    def test_one_call_reads_at_most_4096_chunks(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], chunks: tuple[int, ...], axis: int
    ) -> None:
        filled: list[tuple[int, int]] = []
        fill = ChunkedRows._fill

        def note(self: ChunkedRows, data: Any, start: int, stop: int) -> None:
            filled.append((start, stop))
            fill(self, data, start, stop)

        monkeypatch.setattr(ChunkedRows, "_fill", note)
        data = np.arange(1 << 14, dtype="<i4").reshape(shape)
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=data, chunks=chunks, compression="lzf")
        with Hdf5Files(str(path), "hdf5://a", ForeignOptions()) as files:
            dataset = files.dataset("x")
            rows = raw_rows(files, dataset, dataset.dtype, axis=axis)
            assert rows.read([(5, 10_000)]) == [data.tobytes()[20:40_000]]
        assert filled == [(5, 4101), (4101, 8197), (8197, 10_000)]

    def test_first_reads_before_addresses_are_looked_up(self, path: Path, by_library: list[Any]) -> None:
        data = np.arange(640, dtype="<i4")
        write(path, data, 1, compression="gzip")
        with rows_of(path) as rows:
            assert b"".join(one_by_one(rows)) == data.tobytes()
        assert by_library == [(at, at + 1) for at in range(9)]


def dont_filter_partial_chunks(plan: Any) -> None:
    """Call H5Pset_chunk_opts, which h5py does not wrap, in the libhdf5 that h5py loaded."""
    maps = {Path(word) for word in Path("/proc/self/maps").read_text().split() if "libhdf5" in word}
    # PyTables brings a libhdf5 of its own.
    library = ctypes.CDLL(
        str(next(path for path in sorted(maps) if "_hl" not in path.name and "tables" not in str(path)))
    )
    assert library.H5Pset_chunk_opts(ctypes.c_int64(plan.id), ctypes.c_uint(2)) >= 0


class TestDamage:
    """A damaged chunk makes its own records bad, and takes no more memory than a good one."""

    @pytest.mark.parametrize("how", FILTERS[1:7], ids=lambda how: "+".join(how))
    def test_changed_bytes(self, path: Path, how: dict[str, Any]) -> None:
        data = np.random.default_rng(0).integers(0, 9, (20, 7, 5)).astype("<i2")
        write(path, data, 4, **how)
        chunk = stored(path)[2]
        whole = bytearray(path.read_bytes())
        whole[chunk.byte_offset + chunk.size // 2] ^= 0x55
        path.write_bytes(whole)
        good = {row for row in range(20) if not 8 <= row < 12}
        with rows_of(path) as rows:
            got = one_by_one(rows)
            assert [row for row in good if got[row] == data[row].tobytes()] == sorted(good)
            if how != {"shuffle": True}:  # the one that notices nothing, here as in libhdf5
                assert got[8:12] == [b""] * 4
                assert rows.read([(0, 20), (4, 8), (11, 13)]) == [b"", data[4:8].tobytes(), b""]

    @pytest.mark.parametrize("how", [{}, {"compression": "gzip"}], ids=["plain", "gzip"])
    def test_file_truncated_while_open(self, path: Path, how: dict[str, Any]) -> None:
        data = np.random.default_rng(0).integers(0, 256, (20, 100), "u1")
        write(path, data, 4, **how)
        chunk = stored(path)[3]
        with rows_of(path, cache_bytes=0) as rows:
            assert rows.read([(0, 1)]) == [data[0].tobytes()]
            os.truncate(path, chunk.byte_offset + 150)
            got = one_by_one(rows)
            assert got[:12] == [row.tobytes() for row in data[:12]]
            assert [len(row) == 100 for row in got[12:]] == [how == {}] + [False] * 7

    @pytest.mark.parametrize("grown", [1001, 4_000_000])
    def test_chunk_decompresses_to_more_than_twice_its_size(self, path: Path, grown: int) -> None:
        write(path, np.ones((6, 500), "u1"), 2, compression="gzip")
        with h5py.File(path, "r+") as file:
            file["x"].id.write_direct_chunk((2, 0), zlib.compress(bytes(1000 + grown)))
        with rows_of(path) as rows:
            rows.read([(0, 1)])
            tracemalloc.start()
            got = one_by_one(rows)
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert [len(row) for row in got] == [500, 500, 0, 0, 500, 500]
        assert most < 200_000

    @pytest.mark.parametrize(
        "chunk", [zlib.compress(bytes(999)), zlib.compress(bytes(1000))[:-1], b"\0", bytes(900)], ids=str
    )
    def test_chunk_decompresses_to_less_than_its_size(self, path: Path, chunk: bytes) -> None:
        write(path, np.ones((6, 500), "u1"), 2, compression="gzip")
        with h5py.File(path, "r+") as file:
            file["x"].id.write_direct_chunk((2, 0), chunk)
        with rows_of(path) as rows:
            assert [len(row) for row in one_by_one(rows)] == [500, 500, 0, 0, 500, 500]

    @pytest.mark.parametrize("grown", [1, 1000])
    def test_chunk_decompresses_to_at_most_twice_its_size(self, path: Path, grown: int, by_library: list[Any]) -> None:
        data = np.random.default_rng(0).integers(0, 9, (6, 500), "u1")
        write(path, data, 2, compression="gzip")
        with h5py.File(path, "r+") as file:
            file["x"].id.write_direct_chunk((2, 0), zlib.compress(data[2:4].tobytes() + bytes(grown)))
        with rows_of(path) as rows:
            assert one_by_one(rows) == [row.tobytes() for row in data]
        assert by_library == [(2, 4)]

    def test_damage_found_by_several_threads(self, path: Path, many_cpus: None) -> None:
        data = images(64)
        write(path, data, 2, compression="gzip")
        with h5py.File(path, "r+") as file:
            file["x"].id.write_direct_chunk((30, 0, 0, 0), b"no zlib")
        with ParallelHdf5(str(path)) as backend:
            got = backend.get_many(range(64))
        assert [at for at, record in enumerate(got) if isinstance(record, RecordError)] == [30, 31]


class TestCache:
    """A batch decompresses each chunk once, and not again while it is cached."""

    def test_batch_decompresses_a_chunk_once(self, path: Path, inflated: list[int]) -> None:
        write(path, images(40), 8, compression="gzip")
        with rows_of(path, cache_bytes=0) as rows:
            rows.read([(0, 1), (2, 3), (7, 9), (10, 11), (39, 40)])
            assert inflated == [8 * 64 * 64 * 3] * 3

    def test_sequential_rows_decompress_a_chunk_once(self, path: Path, inflated: list[int]) -> None:
        write(path, images(40), 10, compression="gzip")
        with rows_of(path) as rows:
            for at in range(40):
                rows.read([(at, at + 1)])
            assert len(inflated) == 4

    def test_cache_holds_at_most_cache_bytes(self, path: Path, inflated: list[int]) -> None:
        write(path, images(40), 10, compression="gzip")
        size = 10 * 64 * 64 * 3
        for cache_bytes, expected in ((0, 8), (size - 1, 8), (size, 8), (4 * size - 1, 8), (4 * size, 4)):
            inflated.clear()
            with rows_of(path, cache_bytes=cache_bytes) as rows:
                for at in (0, 10, 20, 30) * 2:
                    rows.read([(at, at + 1)])
            assert len(inflated) == expected, cache_bytes

    def test_least_recently_used_chunk_is_evicted(self) -> None:
        kept = _ChunkCache(10)
        for chunk in (1, 2, 1, 3):
            if kept.get(chunk) is None:
                kept.put(chunk, bytes(5))
        assert [chunk in kept for chunk in (1, 2, 3)] == [True, False, True]

    def test_cache_is_freed_with_the_handle_and_not_pickled(self, path: Path) -> None:
        write(path, images(40), 10, compression="gzip")
        others = all_kept()
        backend = ParallelHdf5(str(path))
        backend.get_many(range(40))
        kept = [weakref.ref(thing) for thing in all_kept() if thing not in others]
        del others
        assert kept != []
        assert len(pickle.dumps(backend)) < 2048
        backend.close()
        assert [reference() for reference in kept] == [None] * len(kept)

    def test_unfiltered_chunks_read_only_the_rows(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, by_library: list[Any]
    ) -> None:
        data = images(40)
        write(path, data, 8)
        reads: list[int] = []
        pread = os.pread

        def note(descriptor: int, size: int, offset: int) -> bytes:
            reads.append(size)
            return pread(descriptor, size, offset)

        with rows_of(path) as rows:
            monkeypatch.setattr(os, "pread", note)
            spans = [(1, 2), (6, 7), (15, 17)]
            assert rows.read(spans) == [data[start:stop].tobytes() for start, stop in spans]
        assert sum(reads) == 4 * 64 * 64 * 3
        assert by_library == []


def all_kept() -> list[_ChunkCache]:
    return [thing for thing in gc.get_objects() if type(thing) is _ChunkCache]


class TestThreads:
    """Decompressing takes no libhdf5 lock, and helper threads end with the read."""

    def test_reading_does_not_wait_for_libhdf5s_lock(self, path: Path) -> None:
        data = images(20)
        write(path, data, 2, compression="gzip", shuffle=True, fletcher32=True)
        with rows_of(path, cache_bytes=0) as rows, ThreadPoolExecutor(2) as threads:
            one_by_one(rows)
            with h5py._objects.phil:
                found = [threads.submit(one_by_one, rows) for _ in range(2)]
                assert [result.result(DEADLINE) for result in found] == [[row.tobytes() for row in data]] * 2

    def test_concurrent_threads_read_the_same(self, path: Path, many_cpus: None) -> None:
        data = images(64)
        write(path, data, 4, compression="gzip")
        expected = [row.tobytes() for row in data]
        with rows_of(path, cache_bytes=10 * 4 * 64 * 64 * 3) as rows, ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: one_by_one(rows), range(24)))
        assert found == [expected] * 24

    def test_helper_threads_end_with_the_read(
        self, path: Path, many_cpus: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(path, images(64), 1, compression="gzip")
        started = note_threads(monkeypatch)
        before = threading.active_count()
        with ParallelHdf5(str(path)) as backend:
            backend.get_many(range(64))
            assert len(started) == 4
            assert threading.active_count() == before

    def test_small_reads_and_worker_processes_start_no_threads(
        self, path: Path, many_cpus: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(path, images(64), 1, compression="gzip")
        started = note_threads(monkeypatch)
        with rows_of(path) as rows:
            one_by_one(rows)
            started.clear()
            rows.read([(at, at + 1) for at in range(10)])
        with rows_of(path) as rows:
            monkeypatch.setattr(multiprocessing, "parent_process", multiprocessing.current_process)
            one_by_one(rows)
        assert started == []

    @pytest.mark.parametrize("helpers", [0, 1, 2])
    def test_large_chunks_start_fewer_threads(
        self, path: Path, many_cpus: None, monkeypatch: pytest.MonkeyPatch, helpers: int
    ) -> None:
        data = images(64)
        write(path, data, 4, compression="gzip")
        a_thread_holds = 3 * 4 * 64 * 64 * 3
        monkeypatch.setattr(chunks_module, "_MEMORY", (helpers + 1) * a_thread_holds - 1)
        started = note_threads(monkeypatch)
        with rows_of(path) as rows:
            assert one_by_one(rows) == [row.tobytes() for row in data]
        assert len(started) == (helpers + 1 if helpers else 0)

    def test_fork_while_threads_read(self, path: Path, many_cpus: None) -> None:
        data = images(64)
        write(path, data, 2, compression="gzip")
        with ParallelHdf5(str(path)) as backend, ThreadPoolExecutor(2) as threads:
            dataset = StoreDataset(backend, reader="array", as_dict=True)
            stop = threading.Event()

            def read() -> int:
                rounds = 0
                while not stop.is_set() or not rounds:
                    assert all((dataset[at]["x"].numpy() == data[at]).all() for at in (0, 63))
                    assert len(backend.get_many(range(64))) == 64
                    rounds += 1
                return rounds

            reading = [threads.submit(read) for _ in range(2)]
            try:
                for _ in range(3):
                    loader: Any = DataLoader(
                        dataset, batch_size=16, num_workers=2, multiprocessing_context="fork", collate_fn=list
                    )
                    found = [sample["x"].numpy() for batch in loader for sample in batch]
                    assert (np.stack(found) == data).all()
            finally:
                stop.set()
            assert all(result.result(DEADLINE) for result in reading)


def note_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every thread is added that a pool may start."""
    noted: list[int] = []
    make = ThreadPoolExecutor.__init__

    def note(self: ThreadPoolExecutor, count: int, *others: Any) -> None:
        noted.extend(range(count))
        make(self, count, *others)

    monkeypatch.setattr(ThreadPoolExecutor, "__init__", note)
    return noted


class TestParallelMap:
    """Jobs divided among threads."""

    @pytest.mark.parametrize("serial", [True, False])
    def test_results_keep_the_order_of_jobs(self, many_cpus: None, serial: bool) -> None:
        assert parallel_map(str, range(1000), serial=serial) == [str(at) for at in range(1000)]
        assert parallel_map(str, [], serial=serial) == []

    @pytest.mark.parametrize(("chunk", "helpers"), [(86, 0), (85, 1), (64, 1), (42, 2), (28, 3), (1, 3)])
    def test_threads_hold_at_most_256_mib(
        self, many_cpus: None, monkeypatch: pytest.MonkeyPatch, chunk: int, helpers: int
    ) -> None:
        started = note_threads(monkeypatch)
        assert parallel_map(str, range(9), serial=False, needs=3 * (chunk << 20)) == list(map(str, range(9)))
        assert len(started) == (helpers + 1 if helpers else 0)

    def test_jobs_run_in_several_threads_at_once(self, many_cpus: None) -> None:
        together = threading.Barrier(4, timeout=DEADLINE)
        parallel_map(lambda _: together.wait(), range(4), serial=False)

    def test_alternating_readers_share_the_cpus(self, many_cpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        started = note_threads(monkeypatch)

        def helpers() -> int:
            before = len(started)
            parallel_map(str, range(9), serial=False)
            return len(started) - before

        with ThreadPoolExecutor(1) as second, ThreadPoolExecutor(1) as third:
            found = [helpers()]
            for thread in (second, third):
                thread.submit(int).result()
                found.append(thread.submit(helpers).result())
            found.append(helpers())
            now += 2
            found.append(helpers())
        assert found == [4, 2, 0, 0, 4]

    def test_error_is_raised_after_all_threads_ended(self, many_cpus: None) -> None:
        together = threading.Barrier(4, timeout=DEADLINE)

        def fail(at: int) -> None:
            if together.wait() == 0:
                raise KeyError("one of four")

        before = threading.active_count()
        with pytest.raises(KeyError, match="one of four"):
            parallel_map(fail, range(4), serial=False)
        assert threading.active_count() == before

    def test_caller_does_all_work_without_threads(self, many_cpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert parallel_map(str, range(5), serial=False) == ["0", "1", "2", "3", "4"]


def test_one_read_serves_all_rows_of_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PARALLEL["chunked"](tmp_path / "a.h5")
    loads: list[tuple[int, int]] = []
    load = ChunkedRows._load

    def counted(self: ChunkedRows, start: int, stop: int) -> bytes | memoryview:
        loads.append((start, stop))
        return load(self, start, stop)

    monkeypatch.setattr(ChunkedRows, "_load", counted)
    with ParallelHdf5(str(tmp_path / "a.h5")) as backend:
        backend.get_many([11, 0, 4, 7, 2, 0], ["data"])
    assert loads == [(0, 5), (7, 8), (11, 12)]
