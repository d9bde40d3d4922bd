"""MongoDB stores that were damaged, lost or replaced, and host names that do not resolve: one clear error, no secret in it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dns.exception
import dns.message
import dns.name
import dns.resolver
import numpy as np
import pymongo
import pymongo.monitoring
import pytest

import storeds
from conftest import with_path
from storeds import errors
from storeds.testing import run_mongod

ENCODED = "hunter2%2F%40%3Asecret"
FIELDS = {"x": "int", "text": "str", "b": "bytes"}
LARGE = {"x": 3, "text": "ä" * 1500, "b": b"?" * 5000}  # more than `small_parts` puts into one document


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split records above 2000 bytes, instead of those above 15 MiB."""
    monkeypatch.setattr("storeds.backends.mongodb.documents._LARGE", 2000)


@pytest.fixture
def url(mongodb_database: str) -> str:
    """The URL of a store in it, the collection ``store``."""
    return with_path(mongodb_database, "store")


def write(url: str, offset: int = 0, **options: Any) -> None:
    """Write three small records and a large one."""
    with storeds.open_writer(url, FIELDS, **options) as writer:
        writer.append({"x": n + offset, "text": f"{n}", "b": b"?"} for n in range(3))
        writer.append([LARGE])


PART = "part/0000000000000003/b/1"


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("position", "lost", "says"), [(2, 2, "is missing"), (3, PART, "a part of its field 'b' is missing")]
)
def test_a_lost_document_is_an_error_in_its_place(database: Any, url: str, position: int, lost: Any, says: str) -> None:
    write(url)
    with storeds.open_backend(url) as backend:
        whole = backend.get_many(range(4))
        assert whole[3] == LARGE
        database["store"].delete_one({"_id": lost})
        found: list[Any] = backend.get_many(range(4))
        bad = found.pop(position)
        assert isinstance(bad, errors.RecordError)
        assert says in str(bad)
        assert found == whole[:position] + whole[position + 1 :]
    if lost == position:
        with pytest.raises(errors.FormatError, match="3 documents are there.*says 4"):
            storeds.open_backend(url)


OF_EACH_KIND: dict[str, tuple[Any, Any]] = {
    "int": (1, 2),
    "float": (0.5, 0.25),
    "bool": (True, False),
    "str": ("a", "b"),
    "json": ('{"a":1}', '{"a":2}'),
    "array": (np.ones(2, "f4"), {"dtype": "<f4", "shape": [2], "data": bytes(8)}),
}


@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_a_changed_value_is_an_error_if_read_alone(database: Any, url: str, kind: str, commands: list[str]) -> None:
    value, other = OF_EACH_KIND[kind]
    field = {"kind": "array", "dtype": "float32", "shape": [2]} if kind == "array" else kind
    with storeds.open_writer(url, {"x": field, "image": "bytes"}) as writer:
        writer.append({"x": json.loads(value) if kind == "json" else value, "image": bytes(99)} for _ in range(6))
    with storeds.open_backend(url, client_factory=partial(_listening, commands)) as backend:
        sound = backend.get_many(range(6), ["x"])
        del commands[:]
        backend.get_many([0], ["x"])
        assert commands.count("find") == 1  # the column is compared once
    database["store"].update_one({"_id": 3}, {"$set": {"x": other}})
    with storeds.open_backend(url) as backend:
        found: list[Any] = backend.get_many(range(6), ["x"])
        assert "record 3" in str(found[3])
        assert "checksum" in str(found[3])
        assert str(found[:3] + found[4:]) == str(sound[:3] + sound[4:])


@pytest.fixture
def commands() -> list[str]:
    """The names of the commands that clients of `_listening` have sent."""
    return []


def _listening(commands: list[str], *args: Any, **kwargs: Any) -> Any:
    class Listener(pymongo.monitoring.CommandListener):
        def started(self, event: Any) -> None:
            commands.append(event.command_name)

        def succeeded(self, event: Any) -> None: ...

        def failed(self, event: Any) -> None: ...

    return pymongo.MongoClient(*args, event_listeners=[Listener()], **kwargs)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("lost", [PART, 1])
def test_a_write_that_lost_a_document_is_not_published(database: Any, url: str, lost: Any) -> None:
    writer = storeds.open_writer(url, FIELDS)
    writer.append([{"x": n, "text": "", "b": b""} for n in range(3)] + [LARGE])
    writer.flush()
    (name,) = database.list_collection_names()
    assert database[name].delete_one({"_id": lost}).deleted_count == 1
    with pytest.raises(errors.StoredsError, match=r"(\d) documents were sent and (?!\1)\d arrived"):
        writer.publish()
    with pytest.raises(errors.StoreNotFoundError):
        storeds.open_backend(url)


@pytest.mark.parametrize(
    ("by", "says"), [(0, "was replaced while in use; open it again"), (None, "is gone now")], ids=["equal", "nothing"]
)
def test_nothing_is_read_of_a_store_that_replaced_it(database: Any, url: str, by: int | None, says: str) -> None:
    write(url)
    with storeds.open_backend(url) as backend:
        if by is None:
            database.drop_collection("store")
        else:
            write(url, by, overwrite=True)
        for fields in (None, ["x"]):
            with pytest.raises(errors.UnavailableError, match=says):
                backend.get_many([1], fields)
        with pytest.raises(errors.UnavailableError, match=says):
            backend.column("x")  # type: ignore[attr-defined]


def test_a_collection_of_another_program_is_not_replaced(database: Any, url: str) -> None:
    database["store"].insert_one({"a": 1})
    with pytest.raises(errors.StoreExistsError, match="no store, so it is not replaced"):
        storeds.open_writer(url, FIELDS, overwrite=True)
    with pytest.raises(errors.ConfigError, match="no field of its documents holds an image"):
        storeds.open_backend(url)
    with pytest.raises(errors.StoreNotFoundError, match="has the collections store"):
        storeds.open_backend(f"{url}2")
    assert database["store"].count_documents({}) == 1
    write(f"{url}3")
    database["store3"].delete_one({"_id": "meta"})
    with pytest.raises(errors.FormatError, match="not a native store"):
        storeds.open_backend(f"{url}3")


def test_an_aborted_writer_removes_only_its_own_collection(database: Any, url: str) -> None:
    for name in (url, f"{url}2"):
        storeds.open_writer(name, FIELDS).suspend()
    (other,) = (name for name in database.list_collection_names() if name.startswith("store2."))
    database[other].rename(other.replace("store2", "store"))  # as of two writers that began at once, and died
    storeds.open_writer(url, FIELDS, resume=True).abort()
    assert len(database.list_collection_names()) == 1


def test_a_store_that_mongodb_copies_is_the_same_store(database: Any, url: str) -> None:
    write(url)
    database["store"].aggregate([{"$out": "there"}])
    with storeds.open_backend(url) as here, storeds.open_backend(url.removesuffix("store") + "there") as there:
        assert there.meta.id == here.meta.id
        assert there.get_many([2, 0, 3]) == here.get_many([2, 0, 3])


# Failures that pass, and failures that stay.


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a store on a server whose queries fail on request."""
    with run_mongod(tmp_path_factory.mktemp("fragile"), "--setParameter", "enableTestCommands=1") as uri:
        write(f"{uri}/db/store")
        yield f"{uri}/db/store"


@contextmanager
def failing(url: str, mode: Any, **failure: Any) -> Iterator[None]:
    """Let queries fail: so many times, or always."""
    with pymongo.MongoClient[Any](url.removesuffix("/db/store")) as client:
        point = {"configureFailPoint": "failCommand", "data": {"failCommands": ["find"], **failure}}
        client.admin.command({**point, "mode": mode})
        yield
        client.admin.command({**point, "mode": "off"})


@pytest.mark.parametrize(
    ("failure", "deadline"), [({"errorCode": 43}, 10_000), ({"errorCode": 50}, 0), ({"closeConnection": True}, 10_000)]
)
def test_failures_that_pass_are_waited_out(
    fragile: str, failure: dict[str, Any], deadline: int, caplog: pytest.LogCaptureFixture
) -> None:
    with storeds.open_backend(f"{fragile}?timeoutMS={deadline}") as backend:
        with failing(fragile, {"times": 2}, **failure):
            assert backend.get_many([1]) == [{"x": 1, "text": "1", "b": b"?"}]
        expected = 2 if "errorCode" in failure else len(caplog.messages)  # PyMongo itself connects again
        assert ["trying again in" in message for message in caplog.messages] == [True] * expected


@pytest.mark.parametrize("code", [13, 11000, 14031])
def test_what_stays_is_an_error_at_once(fragile: str, code: int, caplog: pytest.LogCaptureFixture) -> None:
    with storeds.open_backend(fragile) as backend, failing(fragile, "alwaysOn", errorCode=code):
        with pytest.raises(errors.UnavailableError):
            backend.get_many([1])
        assert caplog.messages == []


# Names that name servers resolve.

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
        RESOLVER.NoAnswer(response=dns.message.make_query("cluster.example.org.", "SRV")),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_name_that_does_not_resolve_is_no_server(
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
    ]
    for action in actions:
        with pytest.raises(errors.UnavailableError, match=r"user:\*\*\*@cluster.* cannot be reached: ") as raised:
            action()
        assert str(failure) in str(raised.value)
        assert "secret" not in str(raised.value)
        assert "hunter2" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("host", ["127.0.0.1", "a..example.org", f"{'a' * 64}.example.org"])
def test_a_name_that_cannot_be_one_is_an_error_of_the_url(host: str) -> None:
    for factory in (None, eager):
        with pytest.raises(errors.ConfigError, match="mongodb\\+srv://"):
            storeds.open_backend(f"mongodb+srv://{host}/db/c", client_factory=factory)
