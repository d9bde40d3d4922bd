"""The conformance kit over every engine, and what is particular to one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mongomock
import numpy as np
import pytest
import torch
from mongomock.store import ServerStore

import storeds
from storeds.errors import ConfigError
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


def test_one_record_outside_a_list_is_refused_and_a_tensor_is_a_label() -> None:
    with storeds.open_writer("memory://appended", {"label": "int"}, overwrite=True) as writer:
        with pytest.raises(ConfigError, match=r"append takes a list of records, and got one mapping; pass append\(\["):
            writer.append({"label": 1})  # type: ignore[dict-item]
        writer.append([{"label": torch.tensor(1)}, {"label": np.uint8(2)}])
    with storeds.open_backend("memory://appended") as backend:
        assert [record["label"] for record in backend.get_many([0, 1])] == [1, 2]  # type: ignore[index]
