"""Batches of arrays: the same values as record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import storeds
from make_store import make_store
from storeds import StoreDataset, StoreLoader, collate, errors
from storeds.readers import ElementReader, array
from storeds.records.arrays import read_arrays
from storeds.testing import assert_same
from wrapped_reader import WrappedReader

N = 40
NONE = np.empty((0, 4), "i2")
FIELDS: dict[str, Any] = {
    **{"x": {"kind": "array", "dtype": "float32", "shape": [3, 2]}, "label": "int", "weight": "float", "good": "bool"},
    "none": {"kind": "array", "dtype": "int16", "shape": [0, 4]},
}
RECORDS: list[dict[str, Any]] = [
    {"x": np.full((3, 2), at, "f4"), "label": at * 1000 - 7, "weight": at / 3, "good": at % 3 == 0, "none": NONE}
    for at in range(N)
]
ASKED = [7, 0, 39, 7, 12, 1, 0, 22]


def one_by_one(fields: Any = ()) -> WrappedReader:
    """Read the same, by a class of which nobody knows that."""
    return WrappedReader(array(fields))


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """URL of a native HDF5 store of numbers alone."""
    return write(f"hdf5://{tmp_path}/numbers.h5")


def write(url: str, records: list[Any] = RECORDS) -> str:
    make_store(FIELDS, records, url)
    return url


def pair(url: Any, **how: Any) -> tuple[StoreDataset, StoreDataset]:
    """Return a dataset whose batches are arrays, and one that makes each sample by itself."""
    plain: Any = one_by_one
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


def batches(dataset: StoreDataset, collate_fn: Any) -> list[Any]:
    return list(StoreLoader(dataset, batch_size=7, collate_fn=collate_fn))


class TestDatasets:
    """Samples and batches that are read as columns equal those that are made record by record."""

    @pytest.mark.parametrize("as_dict", [False, True])
    def test_of_one_store(self, tmp_path: Path, as_dict: bool) -> None:
        for engine, fields in (("hdf5", ["label", "index", "x"]), ("lmdb", None)):
            stacked, plain = pair(write(f"{engine}://{tmp_path}/{engine}"), as_dict=as_dict, fields=fields)
            assert_equal(list(stacked.__getitems__(ASKED)), list(plain.__getitems__(ASKED)))
            for listed in ([3, 1], (3, -1), range(4), np.array([1, 1]), slice(5, 2, -1), [], slice(0, 0)):
                assert_equal(stacked[listed], plain[listed])
            assert_equal(batches(stacked, default_collate), batches(plain, default_collate))

    def test_a_store_loader_builds_no_samples(self, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise AssertionError("a sample was built")

        stacked, plain = pair(numbers, as_dict=True)
        expected = batches(plain, collate)
        monkeypatch.setattr(ElementReader, "build", refuse)
        assert_equal(batches(stacked, collate), expected)


# MessagePack stores integers between these in different numbers of bytes.
BOUNDS = [-(2**63), -(2**31), -(2**15), -(2**7), -(2**5), 0, 2**7, 2**8, 2**16, 2**32, 2**63]
INTEGERS = sorted({n for bound in BOUNDS for n in (bound - 1, bound) if -(2**63) <= n < 2**63})


@pytest.mark.parametrize("size", [3, 3000])
@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_numbers_of_any_size_stand_beside_arrays(tmp_path: Path, engine: str, size: int) -> None:
    fields: dict[str, Any] = {
        "low": "int",
        "x": {"kind": "array", "dtype": "uint16", "shape": [size]},
        "high": "int",
        "at": "float",
        "is": "bool",
    }
    records: list[dict[str, Any]] = [
        {
            "low": low,
            "x": np.full(size, place, "u2"),
            "high": high,
            "at": [np.nan, -0.0, 1e308][place % 3],
            "is": place % 2 > 0,
        }
        for place, (low, high) in enumerate((low, high) for low in INTEGERS for high in INTEGERS)
    ]
    url = f"{engine}://{tmp_path}/store"
    make_store(fields, records, url)
    short = [at for at, record in enumerate(records) if all(-32 <= record[name] < 128 for name in ("low", "high"))]
    with storeds.open_backend(url) as backend:
        for asked in (short[::-1] + short[:3], range(len(records)), [5]):
            found = read_arrays(backend, asked)
            for name, values in found.items():
                expected = np.array([records[at][name] for at in asked], {"low": "i8", "high": "i8"}.get(name))
                assert values.dtype == expected.dtype
                assert values.tobytes() == expected.tobytes()


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

    @pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
    def test_policies_count_the_same(self, damaged: str, on_error: str) -> None:
        found, counted = [], []
        for dataset in pair(damaged, on_error=on_error, seed=3):
            for asked in ([1, 12, 2], [3, 4], [30, 12]):
                try:
                    found.append(list(dataset.__getitems__(asked)))
                except errors.RecordError as error:
                    found.append([str(error)])
            report = dataset.report().to_json()
            counted.append({name: report[name] for name in report if name not in ("first", "last", "events")})
        assert_equal(found[:3], found[3:])
        assert counted[0] == counted[1]

    def test_a_record_that_is_known_to_be_bad_is_not_read_again(
        self, damaged: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = storeds.StoreDataset(damaged, reader="array", fields=["x"], on_error="skip")
        kind: Any = type(dataset.backend)
        calls, get_many = [], kind.get_many

        def noted(self: Any, positions: Any, /, fields: Any = None) -> Any:
            calls.append(list(positions))
            return get_many(self, positions, fields)

        monkeypatch.setattr(kind, "get_many", noted)
        assert isinstance(dataset.__getitems__([1, 12, 2])[1], storeds.Skipped)
        assert calls[-1] == [1, 2]


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

    @pytest.mark.parametrize("asked", [ASKED, [], list(range(N - 1, -1, -1)) * 5], ids=len)
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
