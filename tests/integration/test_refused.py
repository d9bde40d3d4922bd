"""What is not there, not allowed or not ours: one clear error in time, with no secret in it."""

from __future__ import annotations

import logging
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote

import pymongo
import pytest
from typer.testing import CliRunner

import storeds
from integration._places import SLACK, Place, login_of
from make_store import make_store
from replica_set import ReplicaSet, make_certificates
from storeds import errors
from storeds.cli import app

DEADLINE_MS = 1_200_000  # what is refused does not use up its deadline, for which pytest would not wait
WITHIN = 600.0
SOON_MS = 500  # for one that never will, all of which is waited
SOON = SOON_MS / 1000
LOGIN = "writer:hunter2%2F%40%3Asecret"


def _command(url: str) -> None:
    ended = CliRunner().invoke(app, ["info", url])
    assert ended.exit_code != 0
    # What a user sees: the message, in place of the exception.
    raise errors.UnavailableError(" ".join(ended.output.split()))


ACTIONS: dict[str, Callable[[str], object]] = {
    "open_backend": storeds.open_backend,
    "open_writer": lambda url: storeds.open_writer(url, {"x": "int"}),
    "overwrite": lambda url: storeds.open_writer(url, {"x": "int"}, overwrite=True),
    "verify": storeds.verify,
    "command": _command,
}
"""Every way to begin with a store, by name."""


def assert_refused(
    action: Callable[[], object],
    match: str,
    within: float,
    caplog: pytest.LogCaptureFixture,
    login: str = "",
    kind: type[Exception] = errors.UnavailableError,
) -> None:
    """Assert that `action` raises this error within so many seconds, and that nothing shows the password of `login`."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        start = time.monotonic()
        with pytest.raises(kind, match=match) as raised:
            action()
    assert time.monotonic() - start < within + SLACK
    shown = [repr(raised.value), *traceback.format_exception(raised.value), caplog.text]
    shown += [repr(record.__dict__) for record in caplog.records]
    password = login.partition(":")[2]
    for form in filter(None, {password, unquote(password), quote(unquote(password), safe="")}):
        assert not [text for text in shown if form in text]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is bound and does not listen, so that no other process takes it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def no_server(request: pytest.FixtureRequest, option: str) -> tuple[str, str, float]:
    port = request.getfixturevalue("closed_port")
    return f"mongodb://{LOGIN}@127.0.0.1:{port}/db/store?{option}", f"127.0.0.1:{port}", SOON


def wrong_password(request: pytest.FixtureRequest) -> tuple[str, str, float]:
    url = request.getfixturevalue("set_place").url(timeoutMS=DEADLINE_MS)
    return url.replace(login_of(url), LOGIN), r"writer:\*\*\*@.*authentication failed", WITHIN


def other_database(request: pytest.FixtureRequest) -> tuple[str, str, float]:
    uri = request.getfixturevalue("replica_set").uri("reader")
    return Place.at(uri, database="elsewhere").url(timeoutMS=DEADLINE_MS), "not authorised", WITHIN


def needless_tls(request: pytest.FixtureRequest) -> tuple[str, str, float]:
    return request.getfixturevalue("set_place").url(timeoutMS=SOON_MS, tls="true"), "(?i)SSL|TLS", SOON


def missing_tls(request: pytest.FixtureRequest) -> tuple[str, str, float]:
    plain = request.getfixturevalue("secure").uri("writer").partition("&tls=")[0]
    return Place.at(plain).url(timeoutMS=SOON_MS), "connection closed", SOON


def other_authority(request: pytest.FixtureRequest) -> tuple[str, str, float]:
    other = quote(str(make_certificates(request.getfixturevalue("tmp_path")).authority), safe="/")
    uri = f"{request.getfixturevalue('secure').uri('writer').partition('&tlsCAFile=')[0]}&tlsCAFile={other}"
    return Place.at(uri).url(timeoutMS=SOON_MS), "(?i)certificate verify failed", SOON


CASES: dict[str, tuple[Callable[[pytest.FixtureRequest], tuple[str, str, float]], tuple[str, ...]]] = {
    "no server, selection": (lambda request: no_server(request, "serverSelectionTimeoutMS=300"), tuple(ACTIONS)),
    "no server, deadline": (lambda request: no_server(request, f"timeoutMS={SOON_MS}"), ("open_backend",)),
    "wrong password": (wrong_password, ("open_backend", "open_writer", "command")),
    "other database": (other_database, ("open_backend", "overwrite")),
    "needless TLS": (needless_tls, ("open_backend",)),
    "missing TLS": (missing_tls, ("open_writer",)),
    "other authority": (other_authority, ("open_backend",)),
}


@pytest.mark.parametrize(
    ("case", "action"), [(case, action) for case, (_, actions) in CASES.items() for action in actions]
)
def test_a_server_that_refuses(
    request: pytest.FixtureRequest, case: str, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    url, match, within = CASES[case][0](request)
    for _ in range(2):  # the client is the same one the second time
        assert_refused(lambda: ACTIONS[action](url), match, within, caplog, login_of(url))


def write(url: str) -> None:
    make_store({"x": "int", "blob": "bytes"}, ({"x": number, "blob": b"?" * number} for number in range(4)), url)


def test_no_right_to_write(set_place: Place, caplog: pytest.LogCaptureFixture) -> None:
    write(set_place.url())
    before = storeds.info(set_place.url()).build
    for name, action in (("new", "open_writer"), ("store", "overwrite")):
        url = set_place.url(name, "reader", timeoutMS=DEADLINE_MS)
        assert_refused(lambda: ACTIONS[action](url), "not authorised", WITHIN, caplog, login_of(url))  # noqa: B023
    assert storeds.info(set_place.url(user="reader")).build == before


def test_a_user_who_may_only_find_reads(
    replica_set: ReplicaSet, set_place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    write(set_place.url())
    only, login = set_place.prefix, f"{set_place.prefix}:hunter2"
    may = {"resource": {"db": replica_set.database, "collection": f"{only}_store"}, "actions": ["find"]}
    with pymongo.MongoClient[Any](replica_set.uri()) as root:
        root.admin.command("createRole", only, privileges=[may], roles=[])
        root.admin.command("createUser", only, pwd="hunter2", roles=[only], writeConcern={"w": 3})
    uri = set_place.reader.replace(login_of(set_place.reader), login)
    with storeds.open_backend(Place(uri, uri, only).url()) as backend:
        assert backend.get_many([3]) == [{"x": 3, "blob": b"???"}]
    absent = Place(uri, uri, only).url("other")
    assert_refused(lambda: storeds.open_backend(absent), "not authorised", WITHIN, caplog, login)
