"""What is not there, not allowed or not ours: one clear error in time, with no secret in it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import storeds
from _processes import loader
from integration._places import KINDS, Place
from integration._refusals import assert_refused, no_secret, readers_and_writers
from replica_set import ReplicaSet, make_certificates
from storeds import StoreDataset, errors

DEADLINE_MS = 30_000  # for a server that answers; a busy machine may take its time
WITHIN = 5.0  # seconds: what is refused does not use up its deadline
SOON_MS = 500  # for one that never will, all of which is waited
SOON = SOON_MS / 1000
LOGIN = "writer:hunter2%2F%40%3Asecret"
ACTIONS = tuple(readers_and_writers(""))
SOME_ACTIONS = ("open_backend", "open_writer", "command")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound and does not listen, so that no other process takes it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("option", ["serverSelectionTimeoutMS=300", f"timeoutMS={SOON_MS}"])
def test_no_server(closed_port: int, action: str, option: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"mongodb://{LOGIN}@127.0.0.1:{closed_port}/db/store?{option}"
    act = readers_and_writers(url)[action]
    assert_refused(act, errors.UnavailableError, f"127.0.0.1:{closed_port}", SOON, caplog, LOGIN)


def other_login(url: str, login: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{login}@{rest.rpartition('@')[2]}"


WRONG = r"writer:\*\*\*@.*authentication failed"


@pytest.mark.parametrize("action", ACTIONS)
def test_a_wrong_password(set_place: Place, action: str, unique: str, caplog: pytest.LogCaptureFixture) -> None:
    login = f"{LOGIN}{unique}"  # each action comes first with it
    url = other_login(set_place.url(timeoutMS=DEADLINE_MS), login)
    assert_refused(readers_and_writers(url)[action], errors.UnavailableError, WRONG, WITHIN, caplog, login)


def test_a_wrong_password_is_reported_as_well_the_second_time(
    set_place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    url = other_login(set_place.url(timeoutMS=DEADLINE_MS), LOGIN)
    for action in readers_and_writers(url).values():
        assert_refused(action, errors.UnavailableError, WRONG, WITHIN, caplog, LOGIN)


@pytest.mark.parametrize("action", ACTIONS)
def test_no_right_to_read(replica_set: ReplicaSet, action: str, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = Place.at(replica_set.uri("reader"), replica_set.uri("reader"), "elsewhere").url(timeoutMS=DEADLINE_MS)
    login = f"reader:{replica_set.password('reader')}"
    act = readers_and_writers(elsewhere)[action]
    assert_refused(act, errors.UnavailableError, "not authorised", WITHIN, caplog, login)


def login_of(uri: str) -> str:
    return urlsplit(uri).netloc.rpartition("@")[0]


@pytest.mark.parametrize("place", [kind for kind in KINDS if kind != "standalone"], indirect=True)
def test_no_right_to_write(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    if not place.has_reader:
        pytest.skip("STOREDS_TEST_MONGODB_READONLY_URI names no user who may only read")
    write(place.url())
    before = storeds.info(place.url()).build
    for name, overwrite in (("new", False), ("store", True)):
        url = place.url(name, "reader", timeoutMS=DEADLINE_MS)
        assert_refused(
            lambda url=url, overwrite=overwrite: storeds.open_writer(url, {"x": "int"}, overwrite=overwrite),  # type: ignore[misc]
            *(errors.UnavailableError, "not authorised", WITHIN, caplog, login_of(place.reader)),
        )
    assert storeds.info(place.url(user="reader")).build == before


@pytest.mark.parametrize("action", SOME_ACTIONS)
def test_tls_against_a_server_without(set_place: Place, action: str, caplog: pytest.LogCaptureFixture) -> None:
    url = set_place.url(timeoutMS=SOON_MS, tls="true")
    act = readers_and_writers(url)[action]
    assert_refused(act, errors.UnavailableError, "(?i)SSL|TLS", SOON, caplog, login_of(set_place.writer))


@pytest.mark.parametrize("action", SOME_ACTIONS)
def test_no_tls_against_a_server_that_demands_it(
    secure: ReplicaSet, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = secure.uri("writer").partition("&tls=")[0]
    url = Place.at(plain, plain).url(timeoutMS=SOON_MS)
    act = readers_and_writers(url)[action]
    assert_refused(act, errors.UnavailableError, "connection closed", SOON, caplog, login_of(plain))


@pytest.mark.parametrize("action", SOME_ACTIONS)
def test_a_certificate_that_nobody_trusts(
    secure: ReplicaSet, action: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = quote(str(make_certificates(tmp_path).authority), safe="/")
    uri = f"{secure.uri('writer').partition('&tlsCAFile=')[0]}&tlsCAFile={other}"
    act = readers_and_writers(Place.at(uri, uri).url(timeoutMS=SOON_MS))[action]
    assert_refused(act, errors.UnavailableError, "(?i)certificate verify failed", SOON, caplog, login_of(uri))


def write(url: str, count: int = 4) -> None:
    with storeds.open_writer(url, {"x": "int", "blob": "bytes"}) as writer:
        writer.append({"x": number, "blob": b"?" * number} for number in range(count))


def refuse(place: Place, kind: type[Exception], match: str, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that the store is refused alike by its reader's every way to begin."""
    url = place.url(user="reader", timeoutMS=DEADLINE_MS)
    for name, action in readers_and_writers(url).items():
        if name in ("open_backend", "StoreDataset", "info"):
            assert_refused(action, kind, match, WITHIN, caplog, login_of(place.reader))


def test_nothing_there(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    refuse(place, errors.StoreNotFoundError, "no store at", caplog)


def test_a_collection_that_is_not_ours(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with place.database() as database:
        database[f"{place.prefix}_store"].insert_one({"their": "own"})
    refuse(place, errors.FormatError, "not a native store", caplog)


def test_meta_without_records(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    write(place.url())
    with place.database() as database:
        database.drop_collection(f"{place.prefix}_store")
    refuse(place, errors.StoreNotFoundError, "no store at", caplog)


def test_records_without_meta(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    write(place.url())
    with place.database() as database:
        database[f"{place.prefix}_store"].delete_one({"_id": "meta"})
    refuse(place, errors.FormatError, "not a native store", caplog)


def test_documents_deleted_and_changed_behind_our_back(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    write(place.url())
    with storeds.open_backend(place.url(user="reader")) as backend, place.database() as database:
        records = database[f"{place.prefix}_store"]
        records.delete_one({"_id": 1})
        records.update_one({"_id": 3}, {"$set": {"x": 9}})
        with no_secret(login_of(place.reader).partition(":")[2], caplog) as shown:
            found = backend.get_many([0, 1, 2, 3])
            bad: dict[int, Any] = {at: each for at, each in enumerate(found) if isinstance(each, errors.RecordError)}
            shown += map(repr, found)
    assert sorted(bad) == [1, 3]
    assert "missing" in str(bad[1])
    assert "checksum" in str(bad[3])
    refuse(place, errors.FormatError, "3 documents are there, its meta says 4", caplog)


@pytest.mark.parametrize(("change", "says"), [("replaced", "was replaced while in use"), ("dropped", "is gone now")])
def test_a_store_replaced_behind_our_back(
    place: Place, change: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(place.url())
    with storeds.open_backend(place.url(user="reader", timeoutMS=DEADLINE_MS)) as backend:
        assert backend.get_many([3]) == [{"x": 3, "blob": b"???"}]
        with place.database() as database:
            database.drop_collection(f"{place.prefix}_store")
        if change == "replaced":
            write(place.url(), 5)
        assert_refused(
            lambda: backend.get_many([3]),
            *(errors.UnavailableError, says, WITHIN, caplog, login_of(place.reader)),
        )


def test_a_worker_hands_on_the_same_error(set_place: Place, caplog: pytest.LogCaptureFixture) -> None:
    write(set_place.url())
    dataset = StoreDataset(set_place.url(timeoutMS=DEADLINE_MS), fields=("x",))
    dataset[0]
    with set_place.database() as database:
        database.drop_collection(f"{set_place.prefix}_store")
    assert_refused(
        lambda: list(loader(dataset, "fork", collate_fn=list)),
        *(
            errors.UnavailableError,
            "was there when it was opened and is gone",
            WITHIN,
            caplog,
            login_of(set_place.writer),
        ),
    )
