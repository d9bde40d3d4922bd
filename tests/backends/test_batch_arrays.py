"""Batches of arrays: the same values as record by record, from mapped files too, and no crash when a file is cut short."""

from __future__ import annotations

import functools
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.utils.data import DataLoader, default_collate

import storeds
from storeds import StoreDataset, StoreLoader, collate, errors
from storeds.backends.hdf5 import FileMap, FlatRows, RecordDigests, gather, gather_any, read_spans
from storeds.protocols import SupportsBatchArrays
from storeds.readers import ArrayReader
from storeds.records import RecordCodec, checksum, parse_fields, read_arrays
from storeds.testing import assert_same, contents

N = 40
FIELDS: dict[str, Any] = {
    "x": {"kind": "array", "dtype": "float32", "shape": [3, 2]},
    "label": "int",
    "weight": "float",
    "good": "bool",
    "point": {"kind": "array", "dtype": "uint8", "shape": []},
    "none": {"kind": "array", "dtype": "int16", "shape": [0, 4]},
}
RECORDS: list[dict[str, Any]] = [
    {
        "x": np.full((3, 2), at, "f4"),
        "label": at * 1000 - 7,
        "weight": at / 3,
        "good": at % 3 == 0,
        "point": np.array(at, "u1"),
        "none": np.empty((0, 4), "i2"),
    }
    for at in range(N)
]
ASKED = [7, 0, 39, 7, 12, 1, 0, 22]


class OneByOne(ArrayReader):
    """Reads the same, in a class of which nobody knows that."""


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """URL of a native HDF5 store of numbers alone."""
    return write(f"hdf5://{tmp_path}/numbers.h5")


def write(url: str, records: list[Any] = RECORDS) -> str:
    with storeds.open_writer(url, FIELDS) as writer:
        writer.append(records)
    return url


def pair(url: Any, **how: Any) -> tuple[StoreDataset, StoreDataset]:
    """Return a dataset whose batches are arrays, and one that makes each sample by itself."""
    plain: Any = OneByOne
    return StoreDataset(url, reader="array", **how), StoreDataset(url, reader=plain, **how)


def assert_equal(one: Any, other: Any) -> None:
    """Fail unless both are equal in structure, types and values."""
    assert type(one) is type(other) or (isinstance(one, tuple | dict) and isinstance(one, type(other)))
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_equal(list(one.values()), list(other.values()))
    else:
        assert one == other


class TestDatasets:
    """Samples and batches that are read as columns equal those that are made record by record."""

    @pytest.mark.parametrize("engine", ["hdf5", "lmdb", "memory"])
    @pytest.mark.parametrize("as_dict", [False, True])
    @pytest.mark.parametrize("fields", [None, ["label", "index", "x"], ["index", "good"]], ids=str)
    def test_samples_and_batches_are_the_same(
        self, make_engine_url: Callable[[str], str], engine: str, as_dict: bool, fields: list[str] | None
    ) -> None:
        stacked, plain = pair(write(make_engine_url(engine)), as_dict=as_dict, fields=fields)
        batch: Any = stacked.__getitems__(ASKED)
        samples: Any = plain.__getitems__(ASKED)
        assert_equal(batch, samples)
        for collate_fn in (collate, default_collate):
            batches = [list(StoreLoader(each, batch_size=7, collate_fn=collate_fn)) for each in (stacked, plain)]
            assert_equal(*batches)

    @pytest.mark.parametrize("as_dict", [False, True])
    def test_a_store_loader_builds_no_samples(
        self, numbers: str, as_dict: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> None:
            raise AssertionError("a sample was built")

        expected = list(StoreLoader(pair(numbers, as_dict=as_dict)[1], batch_size=7))
        monkeypatch.setattr(ArrayReader, "build", refuse)
        assert_equal(list(StoreLoader(pair(numbers, as_dict=as_dict)[0], batch_size=7)), expected)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_padded_batches_are_the_same(self, numbers: str, workers: int) -> None:
        padded = functools.partial(collate, pad=[0])
        batches = [
            list(StoreLoader(each, batch_size=7, collate_fn=padded, num_workers=workers))
            for each in pair(numbers, fields=["x", "label"])
        ]
        assert_equal(*batches)

    def test_lists_of_samples_are_lists(self, numbers: str) -> None:
        stacked, plain = pair(numbers)
        for asked in ([3, 1], (3, -1), range(4), np.array([1, 1]), slice(5, 2, -1), [], slice(0, 0)):
            assert_equal(stacked[asked], plain[asked])
            assert type(stacked[asked]) is list

    @pytest.mark.parametrize("asked", [[40], [-41], [0, 2**70]], ids=str)
    def test_indices_outside_are_named(self, numbers: str, asked: list[int]) -> None:
        for dataset in pair(numbers):
            with pytest.raises(IndexError, match=str(asked[-1])):
                dataset.__getitems__(asked)

    @pytest.mark.parametrize("asked", [[1.0], ["1"], [None], torch.tensor([True, False]), [[0]]], ids=str)
    def test_what_is_no_index_is_refused(self, numbers: str, asked: Any) -> None:
        for dataset in pair(numbers):
            with pytest.raises(TypeError):
                dataset.__getitems__(asked)

    def test_any_iterable_of_integers_gives_a_batch(self, numbers: str) -> None:
        stacked, plain = pair(numbers)
        for asked in ([np.int64(3), -1], torch.tensor([2, 3]), (at for at in (4, 5)), [np.uint8(1), 2]):
            known = list(asked)
            assert_equal(list(stacked.__getitems__(iter(known))), plain.__getitems__(known))

    def test_a_sample_keeps_only_itself(self, numbers: str) -> None:
        sample = StoreDataset(numbers, reader="array", fields=["x"]).__getitems__(ASKED)[0]
        assert sample[0].untyped_storage().nbytes() == 3 * 2 * 4

    def test_fields_that_vary_in_shape_are_read_as_samples(self, make_engine_url: Callable[[str], str]) -> None:
        url = make_engine_url("hdf5")
        with storeds.open_writer(url, {"x": {"kind": "array", "dtype": "f4", "shape": [None]}, "n": "int"}) as writer:
            writer.append({"x": np.zeros(at, "f4"), "n": at} for at in range(9))
        stacked, plain = pair(url)
        assert_equal(stacked.__getitems__([1, 2]), plain.__getitems__([1, 2]))

    def test_selections_and_many_stores_pass_arrays_on(self, tmp_path: Path) -> None:
        urls = [write(f"hdf5://{tmp_path}/a.h5", RECORDS[:15]), write(f"lmdb://{tmp_path}/b.lmdb", RECORDS[15:])]
        every, _ = pair(urls)
        assert isinstance(every.backend, SupportsBatchArrays)
        for asked in ([14, 15, 3, 39, 15], [20, 16], [2]):
            assert_equal(list(every.__getitems__(asked)), pair(urls)[1].__getitems__(asked))
        some, samples = pair(urls, where={"good": True})
        assert_equal(list(some.__getitems__([3, 9, 1])), samples.__getitems__([3, 9, 1]))
        with pytest.raises(IndexError):
            read_arrays(some.view, [14])

    @pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # torch's, for its threads
    @pytest.mark.parametrize("start_method", ["fork", "spawn"])
    @pytest.mark.parametrize("collate_fn", [collate, default_collate, list])
    def test_workers_give_the_same_batches(self, numbers: str, start_method: str, collate_fn: Any) -> None:
        stacked, plain = pair(numbers)
        stacked.__getitems__(ASKED)
        loader = DataLoader(
            stacked, batch_size=7, num_workers=2, collate_fn=collate_fn, multiprocessing_context=start_method
        )
        assert_equal(list(loader), list(DataLoader(plain, batch_size=7, collate_fn=collate_fn)))


class TestBadRecords:
    """Reading arrays changes neither the errors nor the counts of bad records."""

    @pytest.fixture
    def damaged(self, numbers: str) -> str:
        path = numbers.removeprefix("hdf5://")
        with h5py.File(path) as file:
            dataset = file["records/x"]
            offset = dataset.id.get_offset()
        with open(path, "r+b") as bytes_of:
            for position in (12, 30):
                bytes_of.seek(offset + position * 24)
                bytes_of.write(b"\x77")
        return numbers

    def test_the_first_one_asked_for_is_raised(self, damaged: str) -> None:
        with storeds.open_backend(damaged) as backend:
            with pytest.raises(errors.RecordError, match="record 30 of .*checksum"):
                read_arrays(backend, [1, 30, 12, 5], ["x"])
            assert read_arrays(backend, [12, 30, 1, 2], ["label"])["label"].tolist() == [11993, 29993, 993, 1993]
            assert read_arrays(backend, [11, 13, 31, 29], ["x"])["x"][:, 0, 0].tolist() == [11, 13, 31, 29]

    def test_of_many_stores_too(self, damaged: str, tmp_path: Path) -> None:
        urls = [write(f"hdf5://{tmp_path}/first.h5"), damaged]
        raises = pytest.raises(errors.RecordError, match="record 70 of .*record 30 of ")
        with storeds.open_backend(urls) as backend, raises:
            read_arrays(backend, [70, 1, 52, 2], ["x"])

    @pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
    def test_policies_count_the_same(self, damaged: str, on_error: str) -> None:
        stacked, plain = pair(damaged, on_error=on_error, seed=3)
        outcomes = [outcome(dataset) for dataset in (stacked, plain)]
        assert_equal(*outcomes)
        assert counted(stacked) == counted(plain)


def outcome(dataset: StoreDataset) -> list[Any]:
    """Return what batches of a dataset with two bad records come to."""
    found: list[Any] = []
    for asked in ([1, 12, 2], [3, 4], [30, 12]):
        try:
            found.append(list(dataset.__getitems__(asked)))
        except errors.RecordError as error:
            found.append(str(error))
    return found


def counted(dataset: StoreDataset) -> Any:
    reported = dataset.report().to_json()
    return {name: value for name, value in reported.items() if name not in ("first", "last", "events")}


class TestForeign:
    """Files of other tools: their byte orders, bools of other values than 0 and 1, and numbers that no int holds."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "foreign.h5"
        with h5py.File(path, "w") as file:
            file["data"] = np.arange(N * 6, dtype=">f4").reshape(N, 2, 3)
            file["label"] = np.arange(N, dtype=">i2") - 5
            file["half"] = (np.arange(N) / 2).astype("f2")
            file["large"] = np.arange(N, dtype="u8")
            file["empty"] = np.empty((N, 0), "i4")
            file["mask"] = np.zeros((N, 2), bool)
            file["table"] = np.zeros(N, [("a", "<i4"), ("b", ">f8", (2,))])
            file.create_dataset("packed", data=np.arange(N * 2.0).reshape(N, 2), chunks=(7, 2), compression="gzip")
            offset = file["mask"].id.get_offset()
        with open(path, "r+b") as file:
            file.seek(offset + 7 * 2)
            file.write(b"\x02\x01")
        return path

    def columns(self) -> dict[str, str]:
        return {name: f"/{name}" for name in ("data", "label", "half", "large", "empty", "mask", "packed")}

    @pytest.mark.parametrize("asked", [ASKED, [3], [], list(range(N - 1, -1, -1)) * 5], ids=len)
    def test_arrays_equal_the_records(self, path: Path, asked: list[int]) -> None:
        with storeds.open_backend(path, layout="parallel") as backend:
            found = read_arrays(backend, asked)
            assert found["data"].dtype == np.dtype("f4")
            assert found["data"].dtype.isnative
            assert (found["label"].dtype.name, found["half"].dtype.name) == ("int64", "float64")
            for name, array in found.items():
                values = [record[name] for record in backend.get_many(asked)]  # type: ignore[index]  # none is bad
                assert array.flags.writeable
                assert_same(list(array) if array.ndim > 1 else array.tolist(), values)
            if 7 in asked:
                assert found["mask"][asked.index(7)].view("u1").tolist() == [1, 1]

    def test_a_number_beyond_int64_is_a_bad_record(self, path: Path) -> None:
        with h5py.File(path, "r+") as file:
            file["large"][9] = 2**63
        with storeds.open_backend(path, layout="parallel") as backend:
            assert read_arrays(backend, [8, 10, 11, 12], ["large"])["large"].tolist() == [8, 10, 11, 12]
            with pytest.raises(errors.RecordError, match="record 9 of .*int64"):
                read_arrays(backend, [8, 9, 10, 11], ["large"])


CUT = """
    import os, sys, storeds
    from storeds.records import read_arrays
    from storeds.errors import RecordError

    path, name = sys.argv[1:]
    with storeds.open_backend(path) as backend:
        batch = list(range(0, len(backend), 3))
        before = read_arrays(backend, batch, [name])[name]
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            data = file.read()
        os.truncate(path, 4096)
        try:
            read_arrays(backend, batch, [name])
        except RecordError as error:
            print("refused:", error)
        records = backend.get_many(batch)
        print("errors:", sum(isinstance(record, RecordError) for record in records), "of", len(records))
        with open(path, "r+b") as file:
            file.write(data)
        print("again:", bool((read_arrays(backend, batch, [name])[name] == before).all()))
"""


class TestMapping:
    """The mapping of a file: the same bytes as reads give, and none that are not there any more."""

    @pytest.mark.parametrize("layout", ["native", "foreign"])
    def test_a_file_cut_short_after_opening_is_an_error_and_no_crash(self, tmp_path: Path, layout: str) -> None:
        path, count = tmp_path / "cut.h5", 3000
        data = np.arange(count * 8, dtype="f4").reshape(count, 8)
        if layout == "native":
            fields = {"data": {"kind": "array", "dtype": "f4", "shape": [8]}, "label": "int"}
            with storeds.open_writer(f"hdf5://{path}", fields) as writer:
                writer.append({"data": row, "label": at} for at, row in enumerate(data))
        else:
            with h5py.File(path, "w") as file:
                file["data"], file["label"] = data, np.arange(count)
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(CUT), str(path), "data"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        refused, bad, again = done.stdout.splitlines()
        assert refused.startswith("refused: ")
        assert "cut short" in refused
        assert bad == "errors: 1000 of 1000" if layout == "native" else int(bad.split()[1]) > 900
        assert again == "again: True"

    @pytest.fixture
    def noise(self, tmp_path: Path) -> Iterator[tuple[int, bytes]]:
        path = tmp_path / "noise"
        path.write_bytes(np.random.default_rng(0).bytes(200_000))
        descriptor = os.open(path, os.O_RDONLY)
        yield descriptor, path.read_bytes()
        os.close(descriptor)

    @pytest.mark.parametrize(("size", "wide"), [(1, 1), (8, 1), (8, 2), (24, 1), (700, 1), (0, 1)])
    def test_mapped_rows_are_those_that_are_read(self, noise: tuple[int, bytes], size: int, wide: int) -> None:
        mapped, count = FileMap(noise[0]), 250
        rows = FlatRows(noise[0], 13, size, count + 1, mapped)
        plain = FlatRows(noise[0], 13, size, count + 1, None)
        drawn = np.random.default_rng(1).integers(0, count, 300)
        found, whole = gather(rows, np.unique(drawn), wide)
        expected, _ = gather(plain, np.unique(drawn), wide)
        assert_same(found, expected)
        assert whole.all()
        for each in (rows, plain):
            taken = gather_any(each, drawn)
            assert taken is not None
            assert taken.flags.writeable
            assert taken.tobytes() == b"".join(noise[1][13 + at * size : 13 + (at + 1) * size] for at in drawn)
        mapped.close()

    def test_mapped_spans_are_those_that_are_read(self, noise: tuple[int, bytes]) -> None:
        rows = FlatRows(noise[0], 5, 1, 150_000, FileMap(noise[0]))
        bounds = np.sort(np.random.default_rng(2).integers(0, 10_000, 200))
        bounds[50:60] = bounds[50]
        starts, stops = bounds[:-1], bounds[1:]
        expected = [noise[1][5 + start : 5 + stop] for start, stop in zip(starts, stops, strict=True)]
        assert read_spans(rows, starts, stops) == expected
        rows.mapped = None
        assert read_spans(rows, starts, stops) == expected

    @pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "fuseblk", "9p", "unknown"])
    def test_only_files_of_local_file_systems_are_mapped(
        self, noise: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        monkeypatch.setattr("storeds.backends.hdf5.rows.file_system", lambda _: kind)
        assert FileMap(noise[0]).bytes(0, 10) is None
        monkeypatch.setattr("storeds.backends.hdf5.rows.file_system", lambda _: "ext4")
        assert FileMap(noise[0]).bytes(0, 10) is not None

    def test_without_address_space_files_are_read(
        self, noise: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(mmap, "mmap", refuse)
        rows = FlatRows(noise[0], 0, 8, 1000, FileMap(noise[0]))
        taken = gather_any(rows, np.arange(9))
        assert taken is not None
        assert taken.tobytes() == noise[1][:72]

    def test_large_rows_are_read(self, noise: tuple[int, bytes]) -> None:
        mapped = FileMap(noise[0])
        assert FlatRows(noise[0], 0, 65_536, 3, mapped).take(np.array([2, 0, 1, 1])) is not None
        assert FlatRows(noise[0], 0, 65_537, 3, mapped).take(np.array([2, 0, 1, 1])) is None

    def test_rows_beyond_a_shorter_mapping_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "grown"
        path.write_bytes(b"a" * 8000)
        descriptor = os.open(path, os.O_RDONLY)
        mapped = FileMap(descriptor)
        assert mapped.bytes(0, 8000) is not None
        with path.open("ab") as file:
            file.write(b"b" * 8000)
        assert mapped.bytes(8000, 8000) is None
        taken = gather_any(FlatRows(descriptor, 8000, 8, 1000, mapped), np.arange(10))
        assert taken is not None
        assert taken.tobytes() == b"b" * 80
        os.close(descriptor)

    def test_a_closed_mapping_is_gone(self, noise: tuple[int, bytes]) -> None:
        mapped = FileMap(noise[0])
        rows = FlatRows(noise[0], 0, 8, 1000, mapped)
        assert rows.take(np.arange(9)) is not None
        assert "/noise" in Path("/proc/self/maps").read_text()
        mapped.close()
        assert "/noise" not in Path("/proc/self/maps").read_text()
        assert rows.take(np.arange(9)) is None

    def test_where_disks_are_waited_for_rows_are_announced(
        self, noise: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits, announced = iter(range(100)), list[tuple[int, int]]()
        rows = FlatRows(noise[0], 100, 1000, 50, FileMap(noise[0]))
        monkeypatch.setattr("storeds.backends.hdf5.rows._waits", lambda: next(waits))
        monkeypatch.setattr(os, "posix_fadvise", lambda _, *span: announced.append(span[:2]))
        rows.take(np.array([9, 3, 3, 4]))
        assert announced == []
        rows.take(np.array([9, 3, 3, 4]))
        assert announced == [(9100, 1000), (3100, 1000), (3100, 1000), (4100, 1000)]

    @pytest.mark.parametrize("layout", ["native", "foreign"])
    def test_a_forked_child_maps_again_and_the_parent_reads_on(self, tmp_path: Path, layout: str) -> None:
        path = tmp_path / "forked.h5"
        if layout == "native":
            write(f"hdf5://{path}")
        else:
            with h5py.File(path, "w") as file:
                file["x"] = np.stack([record["x"] for record in RECORDS])
        with storeds.open_backend(path) as backend:

            def read() -> bytes:
                return read_arrays(backend, ASKED, ["x"])["x"].tobytes()

            expected = read()
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    try:
                        inherited = "forked.h5" in Path("/proc/self/maps").read_text()
                        same = read() == expected
                        os._exit(0 if same and not inherited else 1)
                    finally:
                        os._exit(2)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                assert read() == expected
        assert "forked.h5" not in Path("/proc/self/maps").read_text()


class TestDigests:
    """Checksums without packing are those of packed records."""

    @given(contents())
    def test_of_any_record(self, content: tuple[dict[str, Any], list[Any]]) -> None:
        fields, records = parse_fields(content[0]), content[1]
        codec, digests = RecordCodec(fields), RecordDigests(fields)
        for stored in map(codec.canonical, records):
            assert digests.of_records([stored]) == [checksum(codec.pack(stored))]

    @pytest.mark.parametrize("size", [0, 255, 256, 65_535, 65_536, 70_000])
    @pytest.mark.parametrize("others", [1, 13, 14, 16], ids="and {} more".format)
    def test_of_large_values(self, size: int, others: int) -> None:
        declared = {
            "first": "bytes",
            **{f"n{at}": "int" for at in range(others)},
            "last": {"kind": "array", "dtype": "<f8", "shape": [None, 2]},
        }
        fields = parse_fields(declared)
        codec = RecordCodec(fields)
        stored = codec.canonical(
            {"first": bytes(size), **{f"n{at}": at * 99 for at in range(others)}, "last": np.ones((9000, 2))}
        )
        assert RecordDigests(fields).of_records([stored]) == [checksum(codec.pack(stored))]
