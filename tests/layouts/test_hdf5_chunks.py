"""Chunked HDF5 datasets: the values that h5py reads, isolated damage, a bounded cache.

Imports private modules, because backends do not show what they ask libhdf5 for.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import traceback
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storeds import open_backend
from storeds.backends.hdf5.rows import Rows
from storeds.errors import FormatError, RecordError, UnavailableError
from storeds.layouts.hdf5.chunks import _GzipSlices
from storeds.layouts.hdf5.files import Address, ForeignOptions, Hdf5Files
from storeds.layouts.hdf5.values import raw_rows

FILTERS: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    {"shuffle": True},
    {"fletcher32": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf"},
]
DTYPES: list[Any] = [
    "u1",
    "<i2",
    ">i4",
    "<f4",
    ">f8",
    "<c16",
    "?",
    "S5",
    "V3",
    [("n", ">i2"), ("name", "S4"), ("x", "<f8", (2,))],
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.h5"


@contextlib.contextmanager
def rows_of(path: Path, axis: int = 0, **options: Any) -> Iterator[Rows]:
    with contextlib.closing(Hdf5Files(str(path), f"hdf5://{path}", ForeignOptions(**options))) as files:
        dataset = files.dataset(Address("x"))
        yield raw_rows(files, dataset, dataset.dtype, axis=axis)


def write(path: Path, data: Any, chunks: int | tuple[int, ...], **how: Any) -> None:
    with h5py.File(path, "w", userblock_size=how.pop("userblock_size", 0), libver=how.pop("libver", None)) as file:
        shape = (chunks, *data.shape[1:]) if isinstance(chunks, int) else chunks
        file.create_dataset("x", data=data, chunks=shape, **how)


def noise(*shape: int, dtype: str = "u1") -> Any:
    """Values that hardly compress."""
    return np.random.default_rng(0).integers(0, 128, shape).astype(dtype)


def one_by_one(rows: Rows) -> list[bytes]:
    return rows.read([(at, at + 1) for at in range(rows.count)])


def fletcher32(data: bytes) -> bytes:
    words = np.frombuffer(data.ljust(len(data) + len(data) % 2, b"\0"), ">u2").astype(np.uint64)
    low = int(words.sum()) % 65535
    return ((int(words.cumsum().sum()) % 65535) << 16 | low).to_bytes(4, "little")


def overwrite(path: Path, chunk: int) -> None:
    """Overwrite a chunk where it lies in the file, behind libhdf5's back."""
    found: list[Any] = []
    with h5py.File(path) as file:
        file["x"].id.chunk_iter(found.append)
    place = sorted(found)[chunk]
    with path.open("r+b") as stream:
        stream.seek(place.byte_offset)
        stream.write(b"\x55" * place.size)


def check_records(backend: Any, positions: Sequence[int], data: Any, bad: range) -> None:
    for at, record in zip(positions, backend.get_many(positions), strict=True):
        assert isinstance(record, RecordError) == (at in bad)
        assert isinstance(record, RecordError) or (record["x"] == data[at]).all()


class TestSameValues:
    """For any filters, chunk shapes, dtypes and rows."""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_as_h5py_reads_them(self, path: Path, data: st.DataObject) -> None:
        draw = data.draw
        how, dtype = draw(st.sampled_from(FILTERS)), draw(st.sampled_from(DTYPES))
        count, per_chunk = draw(st.integers(1, 40)), draw(st.integers(1, 17))
        inner: tuple[int, ...] = draw(st.sampled_from([(), (3,), (4, 2)]))
        grows, splits_rows = draw(st.booleans()), draw(st.booleans())
        size = np.dtype(dtype).itemsize * int(np.prod(inner))
        raw = np.random.default_rng(count).integers(1, 5, count * size, "u1")
        values = raw.view("?" if dtype == "?" else dtype).reshape(count, *inner)
        chunks = (per_chunk if grows else min(per_chunk, count), *((2,) * len(inner) if splits_rows else inner))
        libver = draw(st.sampled_from(["earliest", "latest"]))
        write(path, values, chunks, libver=libver, **how, maxshape=(None, *inner) if grows else None)
        edges = draw(st.lists(st.integers(0, count), max_size=12).map(sorted))
        spans = list(zip(edges[::2], edges[1::2], strict=False))
        at = draw(st.lists(st.integers(0, count - 1), max_size=20))
        kept = draw(st.sampled_from([0, 64, 8 << 20]))
        with h5py.File(path) as file, rows_of(path, cache_bytes=kept) as rows:
            expected = file["x"][()]
            for ranges in (spans, [(one, one + 1) for one in sorted(at)], [(0, count)]):
                assert rows.read(ranges) == [expected[start:stop].tobytes() for start, stop in ranges]

    def test_unwritten_chunks_hold_the_fill_value(self, path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (12, 2), "<i2", chunks=(3, 2), fillvalue=7, compression="gzip")[3:6] = 1
        with rows_of(path) as rows:
            assert np.frombuffer(b"".join(one_by_one(rows)), "<i2").tolist() == [7] * 6 + [1] * 6 + [7] * 12

    @pytest.mark.parametrize(
        ("count", "how", "dtype"),
        [
            (20, {}, h5py.string_dtype()),
            (20_000, {"compression": "gzip", "shuffle": True}, h5py.string_dtype()),
            (20_000, {}, h5py.vlen_dtype("u1")),
            (20, FILTERS[1], h5py.vlen_dtype("<f8")),
            (20, FILTERS[-1], h5py.vlen_dtype("u1")),
        ],
        ids=["texts", "texts-gzip-shuffle", "bytes", "floats-gzip", "bytes-lzf"],
    )
    def test_items_of_variable_length(self, path: Path, count: int, how: dict[str, Any], dtype: Any) -> None:
        items = ["é" * (at % 7) if h5py.check_string_dtype(dtype) else np.arange(at % 7) for at in range(count)]
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("x", (count + 30,), dtype, chunks=(count - 3,) if how else None, **how)
            dataset[:count] = np.array([*items, None], object)[:-1]  # the rest is never written
        with open_backend(path, columns={"x": "x[]"}) as store:
            for at in (0, 5, count - 2, count - 1, count + 29):
                (record,) = store.get_many([at])
                expected = items[at] if at < count else items[0]
                found = record["x"]  # type: ignore[index]
                assert found == expected if isinstance(expected, str) else np.array_equal([*found], expected)


class TestDamage:
    """A damaged chunk makes its own records bad, and no others."""

    @pytest.mark.parametrize(
        ("how", "cache_bytes"),
        [*zip((FILTERS[1], *FILTERS[3:]), (0, 8 << 20, 0, 8 << 20), strict=True)],
        ids=["gzip", "fletcher32", "gzip+shuffle+fletcher32", "lzf"],
    )
    def test_overwritten_chunk(self, path: Path, how: dict[str, Any], cache_bytes: int) -> None:
        data = noise(20, 7, 5, dtype="<i2") // 64  # of few values, so that lzf compresses them
        write(path, data, 4, **how)
        overwrite(path, 2)
        with open_backend(path, layout="parallel", cache_bytes=cache_bytes) as backend:
            for positions in (range(20), [19, 9, 0, 8, 7]):
                check_records(backend, positions, data, bad=range(8, 12))

    @pytest.mark.parametrize(("how", "per_chunk"), [(FILTERS[1], 1), (FILTERS[4], 4)], ids=["gzip", "all filters"])
    def test_chunk_that_inflates_to_too_few_bytes(self, path: Path, how: dict[str, Any], per_chunk: int) -> None:
        """HDF5 2.0 returns stray memory for it."""
        data = noise(8, 60, 50, dtype="<i2")
        write(path, data, per_chunk, **how)
        short = zlib.compress(bytes(100))
        with h5py.File(path, "a") as file:
            file["x"].id.write_direct_chunk((4, 0, 0), short + fletcher32(short) if "fletcher32" in how else short)
            file["y"] = np.arange(8)
        with open_backend(path) as backend:
            for positions in (range(8), [5], [4], [7, 4, 0]):
                check_records(backend, positions, data, bad=range(4, 4 + per_chunk))
            with pytest.raises(FormatError, match="column 'x' cannot be read"):
                backend.column("x")  # type: ignore[attr-defined]

    def test_an_error_keeps_no_tracebacks_of_earlier_ones(self, path: Path) -> None:
        write(path, noise(8, 60), 2, compression="gzip")
        overwrite(path, 1)
        lengths = []
        with open_backend(path, layout="parallel") as backend:
            for _ in range(3):
                with pytest.raises(FormatError) as raised:
                    backend.column("x")  # type: ignore[attr-defined]
                assert raised.value.__context__ is not None
                lengths.append(len(traceback.extract_tb(raised.value.__context__.__traceback__)))
        assert len(set(lengths)) == 1

    @pytest.mark.parametrize("how", FILTERS[:2], ids=["plain", "gzip"])
    def test_file_truncated_while_open(self, path: Path, how: dict[str, Any]) -> None:
        write(path, noise(20, 100_000), 4, **how)
        with open_backend(path, layout="parallel") as backend:
            assert isinstance(backend.get_many([0])[0], dict)
            os.truncate(path, path.stat().st_size // 2)
            with pytest.raises(UnavailableError, match=r"a\.h5 was cut short"):
                backend.get_many([0, 19])  # libhdf5 returns zeros from behind the end


_BOMB = 100 << 20
_READ_BOMBS = """
import resource, sys, storeds
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
import storeds.layouts.hdf5, torch
before = peak()
for path in sys.argv[1:]:
    try:
        with storeds.open_backend(path, columns={"x": "x[]"}) as store:
            (record,) = store.get_many([0])
        print(type(record).__name__ if isinstance(record, Exception) else record["x"])
    except storeds.errors.StoredsError as error:
        print(type(error).__name__)
print(peak() - before)
"""


def bomb(path: Path, raw: bytes, mask: int = 0, filters: Sequence[int] = (), **how: Any) -> str:
    """Write a dataset of four rows with one chunk that inflates to more than its size."""
    with h5py.File(path, "w") as file:
        if filters:
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_chunk((4, 8))
            for code in filters:
                properties.set_filter(code, h5py.h5z.FLAG_MANDATORY, (1,))
            space = h5py.h5s.create_simple((4, 8))
            dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, properties))
        else:
            how = {"dtype": "u1", "shape": (4, 8), "chunks": how.get("shape", (4, 8))} | how
            dataset = file.create_dataset("x", **how)
        dataset.id.write_direct_chunk((0,) * dataset.ndim, raw, mask)
    return str(path)


def test_no_chunk_inflates_to_more_than_its_size(tmp_path: Path) -> None:
    raw = zlib.compress(bytes(_BOMB))
    shuffle, deflate, nbit = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_NBIT
    checked = raw + bytes(4)
    paths = [
        bomb(tmp_path / "gzip.h5", raw, compression="gzip"),
        bomb(tmp_path / "checked.h5", checked, compression="gzip", fletcher32=True),
        bomb(tmp_path / "masked.h5", raw, 0b01, compression="gzip", shuffle=True),
        bomb(tmp_path / "twice.h5", zlib.compress(raw), filters=[deflate, deflate]),
        bomb(tmp_path / "after.h5", raw, filters=[deflate, shuffle]),
        bomb(tmp_path / "nbit.h5", raw, filters=[nbit, deflate]),
        bomb(tmp_path / "scale.h5", raw, compression="gzip", scaleoffset=2),
        bomb(tmp_path / "vlen.h5", raw, compression="gzip", dtype=h5py.vlen_dtype("u1"), shape=(4,)),
        bomb(tmp_path / "text.h5", raw, compression="gzip", dtype=h5py.string_dtype(), shape=(4,)),
    ]
    done = subprocess.run([sys.executable, "-c", _READ_BOMBS, *paths], capture_output=True, text=True)
    *seen, grown = done.stdout.splitlines()
    assert seen == ["RecordError"] * len(paths), done.stderr
    assert int(grown) < _BOMB >> 21  # MiB; a half of one bomb


@pytest.mark.parametrize("dtype", ["u1", h5py.string_dtype()], ids=["bytes", "texts"])
def test_values_that_were_never_written_take_no_memory(path: Path, dtype: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("rows", (1 << 34,), dtype, chunks=(1 << 24,), compression="gzip")
        if dtype == "u1":
            file.create_dataset("row", (2, 1 << 15, 1 << 15), dtype, chunks=(1, 1 << 12, 1 << 12))
    with open_backend(path, columns={"x": "rows[]"}) as store:
        tracemalloc.start()
        try:
            store.get_many([0, 1 << 33])
            with pytest.raises(FormatError, match="dataset /rows claims values of [0-9,]+ bytes, more than"):
                store.column("x")  # type: ignore[attr-defined]
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()
    if dtype == "u1":
        with pytest.raises(FormatError, match="dataset /row claims values of"):
            open_backend(path, columns={"x": "row[]"})


class TestCache:
    """A batch decompresses each chunk once, and not again while it is kept."""

    def test_chunks_of_videos_are_kept_too(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        data = noise(8, 20_000)
        with h5py.File(path, "w") as file:
            for name in ("a", "b"):
                file.create_dataset(f"{name}/frames", data=data, chunks=(4, 20_000), compression="gzip")
        asked, read = list[tuple[int, int]](), _GzipSlices.read

        def note(self: _GzipSlices, start: int, stop: int) -> Any:
            asked.append((start, stop))
            return read(self, start, stop)

        with open_backend(path) as backend:
            monkeypatch.setattr(_GzipSlices, "read", note)
            for at in (0, 9, 1, 10, 3):
                assert np.array_equal(backend.get_many([at])[0]["array"], data[at % 8])  # type: ignore[index]
        assert asked == [(0, 4), (0, 4)]
