"""Batches of arrays: the same values as record by record."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import storeds
from storeds import StoreDataset, StoreLoader, collate, errors
from storeds.protocols import SupportsBatchArrays
from storeds.readers import ArrayReader
from storeds.records.columns import read_arrays
from storeds.testing import assert_same

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
