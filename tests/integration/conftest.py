"""The MongoDB deployments that the integration tests use, each started when a test first asks for it.

``STOREDS_TEST_MONGODB_URI``, the URI of a user who may read and write, points `place` elsewhere;
``STOREDS_TEST_MONGODB_READONLY_URI`` is that of a user of the same database who may only read. What kills nodes or makes
certificates still runs servers of its own, where there is a mongod.
"""

from __future__ import annotations

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
    """Three nodes with users; a test that harms one requests `harmed_set`."""
    with run_replica_set(tmp_path_factory.mktemp("replica_set")) as found:
        yield found


@pytest.fixture(scope="package")
def secure(own_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    """One node with TLS and users."""
    with run_replica_set(tmp_path_factory.mktemp("secure"), 1, tls=True) as found:
        yield found


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A new place in each deployment in turn, as its users see it."""
    if GIVEN:
        found = Place.at(GIVEN, GIVEN_READONLY or GIVEN)
    else:
        server = request.getfixturevalue(request.param)
        found = Place.at(server) if isinstance(server, str) else Place.at(server.uri("writer"), server.uri("reader"))
    yield found
    found.drop()


@pytest.fixture
def set_place(replica_set: ReplicaSet) -> Iterator[Place]:
    """A new place in the replica set of three, as its users see it."""
    found = Place.at(replica_set.uri("writer"), replica_set.uri("reader"))
    yield found
    found.drop()


@pytest.fixture
def harmed_set(replica_set: ReplicaSet, set_place: Place) -> Iterator[ReplicaSet]:
    """The replica set, whole before the test, and made whole again before `set_place` is cleared."""
    replica_set.heal()
    yield replica_set
    replica_set.heal()
