"""A MongoDB that is not there, or that refuses: one clear error in time, no secret in it."""

from __future__ import annotations

import pickle
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import dns.exception
import dns.message
import dns.name
import dns.resolver
import gridfs
import pymongo
import pytest

import storeds
from conftest import with_path
from storeds import errors
from storeds.backends.mongodb import parse_location, with_retries
from storeds.layouts.mongodb import Connection
from storeds.testing import run_mongod


def connect(uri: str) -> pymongo.MongoClient[dict[str, Any]]:
    return pymongo.MongoClient(uri)


# Seconds that PyMongo looks for a server unless the URL says otherwise: far more than a busy machine adds.
PYMONGO_SELECTION = 30
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
        assert time.monotonic() - start < PYMONGO_SELECTION
        assert_no_secret(raised.value)


def test_a_server_that_goes_away_is_an_unavailable_error_for_the_whole_batch(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with run_mongod(tmp_path_factory.mktemp("goes")) as uri:
        # Long enough for a busy machine to answer while the server lives.
        url = with_path(uri, "db/c") + "?timeoutMS=10000"
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


def test_an_error_says_that_a_user_may_not_write(guarded: str) -> None:
    url = f"mongodb://reader:{ENCODED}@{guarded}/db/new"
    with pytest.raises(errors.UnavailableError, match="not authorised"):
        storeds.open_writer(url, {"x": "int"})


def test_a_collection_that_is_not_ours_and_one_that_is_absent(mongodb: str, mongodb_database: str) -> None:
    database = mongodb_database.rpartition("/")[2].partition("?")[0]
    with connect(mongodb) as client:
        client[database]["theirs"].insert_one({"a": 1})
    with pytest.raises(errors.FormatError, match="not a native store"):
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
        client[database]["shrunk"].insert_one({"_id": 2, "x": 2})
        with pytest.raises(errors.FormatError, match="column 'x' does not match its checksum"):
            backend.column("x")  # type: ignore[attr-defined]
        client[database]["shrunk"].delete_one({"_id": 2})
    with pytest.raises(errors.FormatError, match="3 documents are there, its meta says 4"):
        storeds.open_backend(url)


@pytest.mark.parametrize("lost", [{"_id": "part/0000000000000000/b/1"}, {"_id": 1}])
def test_a_store_that_lost_something_on_its_way_is_not_published(
    mongodb: str, mongodb_database: str, lost: dict[str, Any]
) -> None:
    url = with_path(mongodb_database, "large")
    database = mongodb_database.rpartition("/")[2].partition("?")[0]
    with connect(mongodb) as client:
        writer = storeds.open_writer(url, {"b": "bytes"})
        writer.append([{"b": bytes(16 << 20)}, {"b": b""}])
        writer.flush()
        (name,) = client[database].list_collection_names()
        assert client[database][name].delete_one(lost).deleted_count == 1
        with pytest.raises(errors.StoredsError, match=r"2 .* were sent and 1 arrived"):
            writer.publish()
    with pytest.raises(errors.StoreNotFoundError):
        storeds.open_backend(url)


def test_a_large_value_that_lost_a_part_later_is_a_bad_record(mongodb: str, mongodb_database: str) -> None:
    url = with_path(mongodb_database, "large")
    database = mongodb_database.rpartition("/")[2].partition("?")[0]
    with storeds.open_writer(url, {"b": "bytes"}) as writer:
        writer.append([{"b": bytes(16 << 20)}, {"b": b""}])
    with storeds.open_backend(url) as backend, connect(mongodb) as client:
        client[database]["large"].delete_one({"_id": "part/0000000000000000/b/1"})
        bad, good = backend.get_many([0, 1])
    assert isinstance(bad, errors.RecordError)
    assert "a part of its field 'b' is missing" in str(bad)
    assert good == {"b": b""}


def test_a_document_copied_from_elsewhere_is_a_bad_record(mongodb: str, mongodb_database: str) -> None:
    url = with_path(mongodb_database, "copied")
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append({"x": n} for n in range(3))
    with storeds.open_backend(url) as backend, connect(mongodb_database) as client:
        collection = client.get_default_database()["copied"]
        collection.replace_one({"_id": 1}, {**(collection.find_one({"_id": 2}) or {}), "_id": 1})
        bad = backend.get_many([1])[0]
    assert isinstance(bad, errors.RecordError)
    assert "belongs to position 2" in str(bad)


@pytest.mark.parametrize("fields", [None, ["x"]], ids=["whole", "x"])
@pytest.mark.parametrize("same", [True, False], ids=["equal", "other"])
def test_no_read_returns_anything_of_a_store_that_replaced_the_opened_one(
    mongodb_database: str, same: bool, fields: list[str] | None
) -> None:
    url = with_path(mongodb_database, "replaced")

    def write(offset: int) -> None:
        with storeds.open_writer(url, {"x": "int", "b": "bytes"}, overwrite=True) as writer:
            writer.append({"x": n + offset, "b": b"?"} for n in range(3))

    write(0)
    with storeds.open_backend(url) as backend:
        write(0 if same else 5)
        reads: list[Callable[[], object]] = [lambda: backend.get_many([1], fields), lambda: backend.column("x")]  # type: ignore[attr-defined]
        for read in reads:
            with pytest.raises(errors.UnavailableError, match="was replaced while in use; open it again"):
                read()


def test_a_collection_of_another_program_is_not_replaced(mongodb_database: str) -> None:
    url = with_path(mongodb_database, "theirs")
    with connect(mongodb_database) as client:
        client.get_default_database()["theirs"].insert_one({"a": 1})
        with pytest.raises(errors.StoreExistsError, match="no store, so it is not replaced"):
            storeds.open_writer(url, {"x": "int"}, overwrite=True)
        assert client.get_default_database()["theirs"].count_documents({}) == 1


def test_a_store_that_mongodb_copies_is_the_same_store(mongodb_database: str) -> None:
    url = with_path(mongodb_database, "here")
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append({"x": n} for n in range(3))
    with connect(mongodb_database) as client:
        client.get_default_database()["here"].aggregate([{"$out": "there"}])
    with storeds.open_backend(with_path(mongodb_database, "there")) as backend:
        assert backend.meta.id == storeds.info(url).id
        assert backend.get_many([2, 0]) == [{"x": 2}, {"x": 0}]


def test_a_reader_opens_a_bucket_and_an_error_says_that_a_user_may_not_list_collections(guarded: str) -> None:
    with connect(f"mongodb://owner:{ENCODED}@{guarded}/?authSource=admin") as client:
        gridfs.GridFSBucket(client.db, "gfs").upload_from_stream("a", b"1")
        may_find = [
            {"resource": {"db": "db", "collection": f"gfs.{part}"}, "actions": ["find"]} for part in ("files", "chunks")
        ]
        client.db.command("createRole", "finds", privileges=may_find, roles=[])
        client.db.command("createUser", "finder", pwd=PASSWORD, roles=["finds"])
    with storeds.open_backend(f"mongodb://reader:{ENCODED}@{guarded}/db/gfs") as backend:
        assert backend.get_many([0]) == [{"key": "a", "data": b"1", "metadata": {}}]
    with pytest.raises(errors.UnavailableError, match="not authorised"):
        storeds.open_backend(f"mongodb://finder:{ENCODED}@{guarded}/db/gfs")


RESOLVER: Any = dns.resolver
SRV = f"mongodb+srv://user:{ENCODED}@cluster.example.org/db/c"


def eager(uri: str) -> pymongo.MongoClient[dict[str, Any]]:
    """Make a client that looks the name up at once, as every client of PyMongo before 4.12 does."""
    return pymongo.MongoClient(uri, connect=True)


@pytest.mark.parametrize(
    "failure",
    [
        RESOLVER.NXDOMAIN(qnames=["cluster.example.org."], responses={}),
        RESOLVER.LifetimeTimeout(timeout=1.0, errors=[]),
        RESOLVER.NoNameservers(),
        RESOLVER.NoAnswer(response=dns.message.make_query("cluster.example.org.", "SRV")),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_name_that_name_servers_do_not_resolve_is_no_server(
    failure: dns.exception.DNSException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*_: Any, **__: Any) -> Any:
        raise failure

    monkeypatch.setattr(RESOLVER, "resolve", resolve)
    actions: list[Callable[[], object]] = [
        lambda: storeds.open_backend(SRV),
        lambda: storeds.open_backend(SRV, client_factory=eager),
        lambda: storeds.open_backend(SRV, layout="gridfs"),
        lambda: storeds.open_writer(SRV, {"x": "int"}),
        lambda: storeds.info(SRV),
    ]
    for action in actions:
        with pytest.raises(errors.UnavailableError, match=r"user:\*\*\*@cluster.* cannot be reached: ") as raised:
            action()
        assert str(failure) in str(raised.value)
        assert_no_secret(raised.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "a..example.org", f"{'a' * 64}.example.org"])
def test_a_name_that_cannot_be_one_is_an_error_of_the_url(host: str) -> None:
    for factory in (None, eager):
        with pytest.raises(errors.ConfigError, match="mongodb\\+srv://"):
            storeds.open_backend(f"mongodb+srv://{host}/db/c", client_factory=factory)


def test_hosts_of_another_domain_than_the_url_are_an_error_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RESOLVER, "resolve", NameServer("db.example.com", 27017))
    with pytest.raises(errors.ConfigError, match="Invalid SRV host"):
        storeds.open_backend(SRV)


class NameServer:
    """Stands for the name servers: they know one host, after a number of failures."""

    def __init__(self, host: str, port: int, failures: float = 0) -> None:
        self.host, self.port, self.failures, self.asked = dns.name.from_text(host), port, failures, 0

    def __call__(self, name: str, kind: str, **_: Any) -> list[Any]:
        if kind == "TXT":
            raise RESOLVER.NoAnswer(response=dns.message.make_query(name, kind))
        self.asked += 1
        if self.asked <= self.failures:
            raise RESOLVER.LifetimeTimeout(timeout=1.0, errors=[])
        return [SimpleNamespace(target=self.host, port=self.port)]


def test_a_batch_waits_until_the_name_resolves_again(
    mongodb: str, mongodb_database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with storeds.open_writer(with_path(mongodb_database, "c"), {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    port = int(mongodb.rpartition(":")[2].partition("/")[0])
    find = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: find("127.0.0.1" if host == "db.example.org" else host, *a, **k)
    )
    database = mongodb_database.rpartition("/")[2].partition("?")[0]
    url = f"mongodb+srv://cluster.example.org/{database}/c?tls=false&directConnection=false"
    monkeypatch.setattr(RESOLVER, "resolve", NameServer("db.example.org", port))
    with storeds.open_backend(url) as backend:
        recipe = pickle.dumps(backend)
    again = NameServer("db.example.org", port, failures=2)
    monkeypatch.setattr(RESOLVER, "resolve", again)
    with pickle.loads(recipe) as worker:
        assert worker.get_many([0]) == [{"x": 1}]
    assert again.asked == 3
    assert "trying again" in caplog.text


def test_a_name_that_never_resolves_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    never = NameServer("db.example.org", 27017, failures=float("inf"))
    monkeypatch.setattr(RESOLVER, "resolve", never)
    for limits in ("timeoutMS=600", "timeoutMS=0&serverSelectionTimeoutMS=200"):
        location, start = parse_location(f"{SRV}?{limits}"), time.monotonic()
        connection = Connection(location, None)
        with pytest.raises(errors.UnavailableError, match=r"lifetime expired.*\(tried: \d+ attempts within"):
            with_retries(location, connection.names, connection.knows_server)
        connection.close()
        assert time.monotonic() - start < PYMONGO_SELECTION
    assert never.asked >= 2


def assert_no_secret(error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error))
    assert "secret" not in str(error)
    assert "hunter2" not in shown
