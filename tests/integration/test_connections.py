"""What a server is asked for: connections by the documented arithmetic, and no more bytes than are read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pymongo
import pytest

from _processes import loader, open_rows
from conftest import with_path
from integration._epochs import Rows
from integration._places import Place
from replica_set import ReplicaSet
from storeds import StoreDataset

WORKERS = 4
MONITORS = 2  # PyMongo watches each node over one connection and measures its round trip over another
READING = 1  # of a pool's two at most: a worker reads in one thread

Client = pymongo.MongoClient[dict[str, Any]]


@pytest.fixture
def nodes(replica_set: ReplicaSet) -> Iterator[list[Client]]:
    """A client of each node alone, the primary's first."""
    primary = replica_set.wait_for_primary()
    others = [member for member in replica_set.members if member is not primary]
    with ExitStack() as stack:
        uris = [replica_set.member_uri(member) for member in (primary, *others)]
        yield [stack.enter_context(pymongo.MongoClient(uri)) for uri in uris]


def connections(node: Client, name: str) -> int:
    """Return a node's count of its connections, less those that it lists under another application's name."""
    count: int = node.admin.command("serverStatus")["connections"]["current"]
    listed = node.admin.aggregate([{"$currentOp": {"allUsers": True, "idleConnections": True}}])
    others = [each for each in listed if ("client" in each or "client_s" in each) and each.get("appName") != name]
    return count - len(others)


def settled(nodes: list[Client], name: str, expected: list[int]) -> list[int]:
    """Return the counts as soon as they are what is expected, or as they are after ten seconds."""
    end = time.monotonic() + 10
    while (found := [connections(node, name) for node in nodes]) != expected and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on machines of two CPUs
def test_a_process_has_two_monitors_a_node_and_one_connection_to_read(
    nodes: list[Client], set_place: Place, unique: str
) -> None:
    Rows(400, 1024).write(set_place.url())
    with closing(open_rows(set_place.url(user="reader", appName=unique))) as dataset:
        # The parent has read the meta, and let go.
        assert settled(nodes, unique, [0, 0, 0]) == [0, 0, 0]
        batches = loader(dataset, "fork", num_workers=WORKERS, batch_size=10, persistent_workers=True)
        assert len(list(batches)) == 40
        expected = [WORKERS * (MONITORS + READING), WORKERS * MONITORS, WORKERS * MONITORS]
        assert settled(nodes, unique, expected) == expected
        del batches
    assert settled(nodes, unique, [0, 0, 0]) == [0, 0, 0]


def test_labels_are_read_without_the_images(standalone: str) -> None:
    rows = Rows(10_000, 40 * 1024)
    place = Place.at(standalone, standalone)
    rows.write(place.url())
    client: Client = pymongo.MongoClient(with_path(standalone, "admin"))
    with client, closing(StoreDataset(place.url())) as dataset:
        before = bytes_sent(client)
        targets = dataset.targets
        assert bytes_sent(client) - before < 1 << 20
    place.drop()
    assert list(targets) == [rows.label(number) for number in range(rows.count)]


def bytes_sent(node: Client) -> int:
    sent: int = node.admin.command("serverStatus")["network"]["bytesOut"]
    return sent
