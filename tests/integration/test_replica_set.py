"""The private replica set: whole when it says so, healed after harm, and gone when its parent is, frozen nodes too."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

from replica_set import ReplicaSet, run_replica_set
from storeds.errors import UnavailableError


def client(uri: str) -> pymongo.MongoClient[dict[str, Any]]:
    return pymongo.MongoClient(uri)


def ends(pidfd: int, seconds: float) -> bool:
    """Wait for a process that need not be our child."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def test_its_users_may_do_what_they_are_called_for(replica_set: ReplicaSet) -> None:
    with client(replica_set.uri("writer")) as writer, client(replica_set.uri("reader")) as reader:
        name = replica_set.database
        writer[name].things.insert_one({"_id": 1})
        assert list(reader[name].things.find()) == [{"_id": 1}]
        writer[name].things.drop()
        with pytest.raises(OperationFailure, match="not authorized"):
            reader[name].things.insert_one({"_id": 2})
        with pytest.raises(OperationFailure, match="not authorized"):
            writer.elsewhere.things.insert_one({"_id": 2})


def test_it_is_whole_again_after_every_harm(harmed_set: ReplicaSet) -> None:
    primary = harmed_set.wait_for_primary()
    primary.freeze()
    other = harmed_set.wait_for_primary()
    assert other is not primary
    primary.thaw()
    harmed_set.wait_until_whole()
    pid = other.pid
    other.kill()
    assert not other.is_running
    harmed_set.heal()
    assert other.pid != pid
    before = harmed_set.wait_for_primary()
    harmed_set.step_down()
    assert harmed_set.wait_for_primary() is not before


def test_no_node_outlives_a_killed_parent_not_even_a_frozen_one(own_servers: None, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r})\n"
        "from replica_set import run_replica_set\n"
        "with run_replica_set(sys.argv[1], 2) as found:\n"
        "    found.members[0].freeze()\n"
        "    print(*(member.pid for member in found.members), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        nodes = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(nodes) == 2
    for node in nodes:
        assert ends(node, 30)
        os.close(node)


def test_a_node_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "mongod"
    script.write_text("#!/bin/sh\necho the disk is on fire; exit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("STOREDS_MONGOD", str(script))
    with pytest.raises(UnavailableError, match="(?s)status 3.*the disk is on fire"), run_replica_set(tmp_path / "set"):
        pass
