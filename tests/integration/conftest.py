"""The MongoDB deployments that the integration tests use, each started when a test first asks for it.

``STOREDS_TEST_MONGODB_URI``, the URI of a user who may read and write, points `place` elsewhere;
``STOREDS_TEST_MONGODB_READONLY_URI`` is that of a user of the same database who may only read. What kills nodes or makes
certificates still runs servers of its own, where there is a mongod.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from integration._places import GIVEN, GIVEN_READONLY, KINDS, Place
from replica_set import ReplicaSet, run_replica_set
from storeds.testing import find_mongod, run_mongod


@pytest.fixture(scope="package")
def own_servers() -> None:
    """Skip a test that needs servers of its own where it was given another and cannot start any."""
    if GIVEN and find_mongod() is None:
        pytest.skip("no mongod is installed here, and STOREDS_TEST_MONGODB_URI names a server that is not ours to harm")


@pytest.fixture(scope="package")
def standalone(own_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of one server without users."""
    with run_mongod(tmp_path_factory.mktemp("standalone")) as uri:
        yield uri


@pytest.fixture(scope="package")
def replica_set(own_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """Three nodes with users; who harms one asks for `harmed_set`."""
    with run_replica_set(tmp_path_factory.mktemp("replica_set"), auth=True) as found:
        yield found


@pytest.fixture(scope="package")
def secure(own_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """One node with TLS and users."""
    with run_replica_set(tmp_path_factory.mktemp("secure"), 1, auth=True, tls=True) as found:
        yield found


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each deployment in turn, as its users see it."""
    yield from _cleaned(make_place(request, request.param))


@pytest.fixture
def set_place(replica_set: ReplicaSet) -> Iterator[Place]:
    """The replica set of three, as its users see it."""
    yield from _cleaned(place_in(replica_set))


@pytest.fixture
def harmed_set(replica_set: ReplicaSet, set_place: Place) -> Iterator[ReplicaSet]:
    """The replica set, whole before the test, and made whole again before `set_place` is cleared."""
    replica_set.heal()
    yield replica_set
    replica_set.heal()


def make_place(request: pytest.FixtureRequest, kind: str) -> Place:
    """Return a new place in the deployment of that name."""
    if GIVEN:
        return Place.at(GIVEN, GIVEN_READONLY or GIVEN)
    found = request.getfixturevalue(kind)
    return place_in(found) if isinstance(found, ReplicaSet) else Place.at(found, found)


def place_in(replica_set: ReplicaSet) -> Place:
    """Return a new place in a replica set."""
    return Place.at(replica_set.uri("writer"), replica_set.uri("reader"), replica_set.database)


def _cleaned(place: Place) -> Iterator[Place]:
    yield place
    place.drop()


@pytest.fixture
def unique() -> str:
    """A name that nothing else has."""
    return f"x{secrets.token_hex(6)}"
