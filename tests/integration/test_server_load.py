"""What a server is asked for: connections by the documented arithmetic, batches by ``_id``, and no blob that nobody wants."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pymongo
import pytest

import storeds
from _processes import loader, open_rows
from conftest import with_path
from integration._places import Place, rows, write_rows
from replica_set import ReplicaSet

WORKERS = 4
MONITORS = 2  # PyMongo watches each node over one connection and measures its round trip over another
READING = 1  # of a pool's two at most: a worker reads in one thread

Client = pymongo.MongoClient[dict[str, Any]]


@pytest.fixture
def nodes(replica_set: ReplicaSet) -> Iterator[list[Client]]:
    """A client of each node alone, the primary's first."""
    primary = replica_set.wait_for_primary()
    members = sorted(replica_set.members, key=lambda member: member is not primary)
    with ExitStack() as stack:
        yield [stack.enter_context(pymongo.MongoClient(replica_set.member_uri(member))) for member in members]


def connections(node: Client, name: str) -> int:
    """Return a node's count of its connections, less those that it lists under another application's name."""
    count: int = node.admin.command("serverStatus")["connections"]["current"]
    listed = node.admin.aggregate([{"$currentOp": {"allUsers": True, "idleConnections": True}}])
    others = [each for each in listed if ("client" in each or "client_s" in each) and each.get("appName") != name]
    return count - len(others)


def settled(nodes: list[Client], name: str, expected: list[int]) -> list[int]:
    """Return the counts as soon as they are what is expected, or as they are after a minute."""
    end = time.monotonic() + 60
    while (found := [connections(node, name) for node in nodes]) != expected and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on machines of two CPUs
def test_a_process_has_two_monitors_a_node_and_one_connection_to_read(nodes: list[Client], set_place: Place) -> None:
    write_rows(rows(400, 1024), set_place.url())
    name = set_place.prefix  # nothing else has it
    with closing(open_rows(set_place.url(user="reader", appName=name))) as dataset:
        # The parent has read the meta, and let go.
        assert settled(nodes, name, [0, 0, 0]) == [0, 0, 0]
        batches = loader(dataset, "fork", num_workers=WORKERS, batch_size=10, persistent_workers=True)
        assert len(list(batches)) == 40
        expected = [WORKERS * (MONITORS + READING), WORKERS * MONITORS, WORKERS * MONITORS]
        assert settled(nodes, name, expected) == expected
        del batches
    assert settled(nodes, name, [0, 0, 0]) == [0, 0, 0]


class Profile:
    """A store on a server that keeps every query it was asked while it is profiled."""

    def __init__(self, place: Place, database: Any) -> None:
        self.rows, self.url = rows(300, 1024), place.url()
        self._database, self._name = database, f"{place.prefix}_store"
        write_rows(self.rows, self.url)

    def start(self) -> None:
        self._database.command("profile", 2)

    def queries(self) -> list[dict[str, Any]]:
        self._database.command("profile", 0)
        wanted = {"op": "query", "ns": f"{self._database.name}.{self._name}"}
        return list(self._database["system.profile"].find(wanted).sort("ts", 1))


@pytest.fixture
def profile(standalone: str) -> Iterator[Profile]:
    with Client(with_path(standalone, "admin")) as client:
        yield Profile(Place.at(standalone, database="profiled"), client["profiled"])
        client["profiled"].command("profile", 0)
        client.drop_database("profiled")


def test_where_reads_one_column_and_no_blob(profile: Profile) -> None:
    profile.start()
    dataset = storeds.StoreDataset(profile.url, reader="array", where={"label": 10})
    assert len(dataset) == sum(number * 7 % 13 == 10 for number in range(len(profile.rows))) > 0
    asked = [query for query in profile.queries() if query["nreturned"] > 1]
    assert sum(query["nreturned"] for query in asked) == len(profile.rows) + 1  # the build comes with the page
    assert {name for query in asked for name in query["command"]["projection"]} == {"label", "_build"}


@pytest.mark.parametrize(
    ("positions", "by"),
    [([9, 200, 9, 11], {"$in": [9, 11, 200]}), ([5, 3, 4], {"$gte": 3, "$lte": 5})],
    ids=["apart", "in a row"],
)
def test_a_batch_is_one_query_by_id(profile: Profile, positions: list[int], by: dict[str, Any]) -> None:
    with storeds.open_backend(profile.url) as backend:
        profile.start()
        assert backend.get_many(positions, ["image", "label"]) == [profile.rows[position] for position in positions]
    (asked,) = profile.queries()
    assert asked["command"]["filter"] == {"_id": by}
    assert asked["planSummary"] == "IXSCAN { _id: 1 }"
    assert not asked.get("cursorid")
