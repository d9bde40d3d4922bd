"""A MongoDB that is not there, or that refuses: one clear error in time, no secret in it."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pymongo
import pytest

import storeds
from conftest import with_path
from storeds import errors
from storeds.testing.mongod import run_mongod


def connect(uri: str) -> pymongo.MongoClient[dict[str, Any]]:
    return pymongo.MongoClient(uri)


PASSWORD = "hunter2/@:secret"
ENCODED = "hunter2%2F%40%3Asecret"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Yield a port that is bound and does not listen, so that no other process takes it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("scheme_and_user", ["mongodb://", f"mongodb://user:{ENCODED}@"])
def test_no_server_is_one_unavailable_error_within_the_configured_time(closed_port: int, scheme_and_user: str) -> None:
    url = f"{scheme_and_user}127.0.0.1:{closed_port}/db/c?serverSelectionTimeoutMS=300"
    actions: list[Callable[[], object]] = [
        lambda: storeds.open_backend(url),
        lambda: storeds.open_writer(url, {"x": "int"}),
        lambda: storeds.verify(url),
        lambda: storeds.info(url),
    ]
    for action in actions:
        start = time.monotonic()
        with pytest.raises(errors.UnavailableError, match=f"127.0.0.1:{closed_port}") as raised:
            action()
        assert time.monotonic() - start < 3
        assert_no_secret(raised.value)


def test_a_server_that_goes_away_is_an_unavailable_error_for_the_whole_batch(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with run_mongod(tmp_path_factory.mktemp("goes")) as uri:
        url = with_path(uri, "db/c") + "?serverSelectionTimeoutMS=300"
        with storeds.open_writer(url, {"x": "int"}) as writer:
            writer.append([{"x": 1}])
        backend = storeds.open_backend(url)
        assert backend.get_many([0]) == [{"x": 1}]
    with pytest.raises(errors.UnavailableError, match="cannot be reached"):
        backend.get_many([0])
    backend.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield host and port of a server with authentication: ``owner`` may all, ``reader`` may read ``db``."""
    with run_mongod(tmp_path_factory.mktemp("guarded"), "--auth") as uri:
        with connect(uri) as client:
            client.admin.command("createUser", "owner", pwd=PASSWORD, roles=["root"])
        host = uri.removeprefix("mongodb://")
        with connect(f"mongodb://owner:{ENCODED}@{host}/?authSource=admin") as client:
            client.db.command("createUser", "reader", pwd=PASSWORD, roles=["read"])
        yield host


def test_the_right_password_reads_and_writes_and_is_never_shown(guarded: str) -> None:
    url = f"mongodb://owner:{ENCODED}@{guarded}/db/fine?authSource=admin"
    with storeds.open_writer(url, {"x": "int"}, overwrite=True) as writer:
        writer.append([{"x": 7}])
    # The database before ours stays where PyMongo looks for it, so authSource is db by default.
    with storeds.open_backend(f"mongodb://reader:{ENCODED}@{guarded}/db/fine") as backend:
        assert backend.get_many([0]) == [{"x": 7}]
        assert backend.url == f"mongodb://reader:***@{guarded}/db/fine"
        for shown in (repr(backend), repr(backend._opener), str(storeds.info(url))):  # type: ignore[attr-defined]
            assert "secret" not in shown


@pytest.mark.parametrize("wrong", ["wr0ng-secret", "other%2Fsecret"])
def test_a_wrong_password_is_an_unavailable_error_that_names_the_user_alone(guarded: str, wrong: str) -> None:
    url = f"mongodb://owner:{wrong}@{guarded}/db/fine?authSource=admin"
    with pytest.raises(errors.UnavailableError, match=r"owner:\*\*\*@.*authentication failed") as raised:
        storeds.open_backend(url)
    assert_no_secret(raised.value)


def test_a_user_who_may_not_write_is_told_so(guarded: str) -> None:
    url = f"mongodb://reader:{ENCODED}@{guarded}/db/new"
    with pytest.raises(errors.UnavailableError, match="not authorised"):
        storeds.open_writer(url, {"x": "int"})


def test_a_collection_that_is_not_ours_and_one_that_is_absent(mongodb: str, mongodb_database: str) -> None:
    database = mongodb_database.rpartition("/")[2].partition("?")[0]
    with connect(mongodb) as client:
        client[database]["theirs"].insert_one({"a": 1})
    with pytest.raises(errors.FormatError, match="no native store"):
        storeds.open_backend(with_path(mongodb_database, "theirs"))
    with pytest.raises(errors.StoreNotFoundError, match="has the collections theirs"):
        storeds.open_backend(with_path(mongodb_database, "none"))


def test_documents_that_were_deleted_are_missed_at_opening_and_at_reading(mongodb: str, mongodb_database: str) -> None:
    url = with_path(mongodb_database, "shrunk")
    with storeds.open_writer(url, {"x": "int", "b": "bytes"}) as writer:
        writer.append({"x": n, "b": b"?"} for n in range(4))
    database = mongodb_database.rpartition("/")[2].partition("?")[0]
    with storeds.open_backend(url) as backend, connect(mongodb) as client:
        client[database]["shrunk"].delete_one({"_id": 2})
        client[database]["shrunk"].update_one({"_id": 3}, {"$set": {"x": 9}})
        whole, missing, changed = backend.get_many([1, 2, 3])
        assert whole == {"x": 1, "b": b"?"}
        assert isinstance(missing, errors.RecordError)
        assert "missing" in str(missing)
        assert isinstance(changed, errors.RecordError)
        assert "checksum" in str(changed)
        with pytest.raises(errors.RecordError, match="record 2"):
            backend.column("x")  # type: ignore[attr-defined]
    with pytest.raises(errors.FormatError, match="3 documents are there, its meta says 4"):
        storeds.open_backend(url)


def test_a_large_value_that_lost_a_part_is_not_published(mongodb: str, mongodb_database: str) -> None:
    url = with_path(mongodb_database, "large")
    database = mongodb_database.rpartition("/")[2].partition("?")[0]
    with connect(mongodb) as client:
        writer = storeds.open_writer(url, {"b": "bytes"})
        writer.append([{"b": bytes(16 << 20)}])
        writer.flush()
        assert client[database]["large.values.chunks"].delete_one({"n": 3}).deleted_count == 1
        with pytest.raises(errors.StoredsError, match=r"parts of the large value .* were sent"):
            writer.publish()
    with pytest.raises(errors.StoreNotFoundError):
        storeds.open_backend(url)


def assert_no_secret(error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error))
    assert "secret" not in str(error)
    assert "hunter2" not in shown
