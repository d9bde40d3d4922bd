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
from storeds.backends.mongodb import MongodbSink
from storeds.backends.staging import Staging
from storeds.errors import ConfigError, StoredsError, UnavailableError
from storeds.testing import FIELDS, BackendTests, MakeUrl, assert_same, kept, make_records, reference_id

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

    def test_a_failed_publish_is_resumed(self, make_url: MakeUrl, monkeypatch: pytest.MonkeyPatch) -> None:
        check_failed_publish(self, make_url(), monkeypatch, Staging, "publish", OSError("no space left"))


class TestHdf5(BackendTests):
    @pytest.fixture
    def make_url(self, make_engine_url: MakeEngineUrl) -> MakeUrl:
        return lambda: make_engine_url("hdf5")

    def test_a_failed_publish_is_resumed(self, make_url: MakeUrl, monkeypatch: pytest.MonkeyPatch) -> None:
        check_failed_publish(self, make_url(), monkeypatch, Staging, "publish", OSError("no space left"))


class TestMongodb(BackendTests):
    @pytest.fixture
    def make_url(self, make_engine_url: MakeEngineUrl) -> MakeUrl:
        return lambda: make_engine_url("mongodb")

    def test_a_failed_publish_is_resumed(self, make_url: MakeUrl, monkeypatch: pytest.MonkeyPatch) -> None:
        error = UnavailableError("the server went away")
        check_failed_publish(self, make_url(), monkeypatch, MongodbSink, "_rename", error)


def check_failed_publish(
    kit: BackendTests, url: str, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception
) -> None:
    """Let the last step of publishing fail: the writer can be resumed, and nothing is lost."""
    records = make_records(10)

    def fail(*_: object, **options: object) -> None:
        raise error

    writer = kit.writer(url, FIELDS, commit_every=3)
    writer.append(records[:8])
    with monkeypatch.context() as patched, pytest.raises((type(error), StoredsError), match=str(error)):
        patched.setattr(owner, name, fail)
        writer.publish()
    writer = kit.writer(url, FIELDS, commit_every=3, resume=True)
    assert writer.count == 8
    writer.append(records[8:])
    assert writer.publish().id == reference_id(FIELDS, records)
    with kit.open(url) as backend:
        assert_same(backend.get_many(range(10)), kept(records))
        assert backend.column("text").tolist() == [record["text"] for record in records]  # type: ignore[attr-defined]


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
