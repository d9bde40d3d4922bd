"""The conformance kit over every engine, and what is particular to one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import mongomock
import numpy as np
import pytest
import torch
from mongomock.store import ServerStore

import storeds
from storeds.backends import View, select
from storeds.records.arrays import read_arrays
from storeds.testing import BackendTests, MakeUrl

MakeEngineUrl = Callable[[str], str]


class TestMemory(BackendTests):
    cross_process = False

    @pytest.fixture
    def make_url(self, make_engine_url: MakeEngineUrl) -> MakeUrl:
        return lambda: make_engine_url("memory")


class TestLmdb(BackendTests):
    @pytest.fixture
    def make_url(self, make_engine_url: MakeEngineUrl) -> MakeUrl:
        return lambda: make_engine_url("lmdb")


class TestHdf5(BackendTests):
    @pytest.fixture
    def make_url(self, make_engine_url: MakeEngineUrl) -> MakeUrl:
        return lambda: make_engine_url("hdf5")


class TestMongodb(BackendTests):
    @pytest.fixture
    def make_url(self, make_engine_url: MakeEngineUrl) -> MakeUrl:
        return lambda: make_engine_url("mongodb")


_SERVER = ServerStore()  # type: ignore[no-untyped-call]


def mock_client(uri: str) -> Any:
    """Return a client of one server that lives as long as this process."""
    return mongomock.MongoClient(uri, _store=_SERVER)


class TestMongomock(BackendTests):
    cross_process = False
    options = {"client_factory": mock_client}

    @pytest.fixture
    def make_url(self, tmp_path: Path) -> MakeUrl:
        numbers = itertools.count()
        return lambda: f"mongodb://mocked/{tmp_path.parent.name}_{tmp_path.name}/store{next(numbers)}"


def test_append_takes_one_record_or_many_and_a_tensor_is_a_label() -> None:
    with storeds.open_writer("memory://appended", {"label": "int"}, overwrite=True) as writer:
        assert writer.append({"label": 0}) == 1
        assert writer.append([{"label": torch.tensor(1)}, {"label": np.uint8(2)}]) == 2
    with storeds.open_backend("memory://appended") as backend:
        assert [record["label"] for record in backend.get_many([0, 1, 2])] == [0, 1, 2]  # type: ignore[index]


COUNT = 6
NO_INTEGERS: list[Any] = [
    *([1.7], [1.0], [0, 1.0], np.array([1.5]), [float("nan")], ["1"], "12", [None]),
    *([True], [0, True], [np.True_, 1], np.array([True]), np.array([1, True], object)),
    *([[0, 1]], [[0], [1, 2]], [[]], np.zeros((1, 1), int), 1, np.array(1), {0: 1}),
]
OUTSIDE: list[Any] = [[-1], [0, COUNT], [1 << 63], [1 << 70], np.array([COUNT], "u8"), range(7)]
TAKEN: list[Any] = [[], (), [3, 1, 3], (1, 0), range(2), np.array([2, 0], "u1"), [np.int64(1), 2], [torch.tensor(2)]]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """All kinds of backends of six records with a label."""
    folder = tmp_path_factory.mktemp("views")
    urls = [f"memory://{folder.name}", f"lmdb://{folder}/a.lmdb", f"hdf5://{folder}/a.h5"]
    for url in urls:
        with storeds.open_writer(url, {"label": "int"}) as writer:
            writer.append({"label": at} for at in range(COUNT))
    with h5py.File(folder / "b.h5", "w") as file:
        file["label"], file["x"] = np.arange(COUNT), np.zeros((COUNT, 3))
    found: list[Any] = [storeds.open_backend(each) for each in [*urls, str(folder / "b.h5")]]
    selected = [select(each, {"label": [*range(COUNT)]}) for each in found]
    halves = [select(found[1], {"label": [*part]}) for part in (range(3), range(3, COUNT))]
    return [*found, *selected, View(halves)]


@pytest.mark.parametrize("number", range(9))
def test_positions_are_refused_and_taken_alike(views: list[Any], number: int) -> None:
    backend = views[number]
    reads = [backend.get_many, lambda asked: read_arrays(backend, asked, ["label"])]
    for read in reads:
        for asked in NO_INTEGERS:
            with pytest.raises(TypeError, match="positions must be a sequence of integers"):
                read(asked)
        for asked in OUTSIDE:
            with pytest.raises(IndexError, match=r"position -?\d+ is outside \[0, 6\) of "):
                read(asked)
    for asked in TAKEN:
        expected = [int(at) for at in asked]
        assert [record["label"] for record in backend.get_many(asked)] == expected
        assert read_arrays(backend, asked, ["label"])["label"].tolist() == expected
