"""The conformance kit over every engine, and what is particular to one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mongomock
import numpy as np
import pytest
import torch
from mongomock.store import ServerStore

import storeds
from storeds.backends import select
from storeds.records.arrays import read_arrays
from storeds.testing import ArrayTests, BackendTests, MakeUrl, PickleTests, PublishTests, ReadTests, WriteTests

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


class TestMongomock(ReadTests, ArrayTests, WriteTests, PublishTests, PickleTests):
    """The same engine through a client factory."""

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


NO_INTEGERS: list[Any] = [
    *([1.7], [0, 1.0], np.array([1.5]), [float("nan")], "12", [None]),
    *([True], [np.True_, 1], np.array([True]), np.array([1, True], object)),
    *([[0], [1, 2]], [[]], np.zeros((1, 1), int), np.array(1), {0: 1}),
]


@pytest.mark.parametrize("engine", ["memory", "hdf5"])
def test_positions_are_integers(make_engine_url: MakeEngineUrl, engine: str) -> None:
    with storeds.open_writer(url := make_engine_url(engine), {"label": "int"}) as writer:
        writer.append({"label": at} for at in range(6))
    with storeds.open_backend(url) as backend, storeds.open_backend([url, url]) as both:
        stores: list[Any] = [backend, both, select(backend, {"label": [*range(6)]})]
        for each in stores:
            for asked in NO_INTEGERS:
                for read in (each.get_many, partial(read_arrays, each)):
                    with pytest.raises(TypeError, match="positions must be a sequence of integers"):
                        read(asked)
            assert each.get_many([torch.tensor(2), np.uint8(1)]) == [{"label": 2}, {"label": 1}]
