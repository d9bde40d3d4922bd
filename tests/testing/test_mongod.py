"""Test the private MongoDB server: how it is found, starts, fails and ends with its parent."""

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

from storeds.errors import MissingDependencyError, UnavailableError
from storeds.testing import find_mongod, mongod, run_mongod


def server_pid(uri: str) -> int:
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(uri)
    with client:
        return int(client.admin.command("serverStatus")["pid"])


def ends(pidfd: int, seconds: float) -> bool:
    """Wait for a process that need not be our child."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def test_it_answers_at_once_and_keeps_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with run_mongod("server") as uri:
        client: pymongo.MongoClient[Any] = pymongo.MongoClient(uri)
        with client:
            client.db.things.insert_one({"_id": 1})
        pid = server_pid(uri)
        # A server ends when somebody deletes its working directory.
        assert Path(f"/proc/{pid}/cwd").readlink() == tmp_path / "server"
        pidfd = os.pidfd_open(pid)
    assert ends(pidfd, 0)
    os.close(pidfd)
    with run_mongod("server", "--setParameter", "diagnosticDataCollectionEnabled=false") as uri:
        client = pymongo.MongoClient(uri)
        with client:
            assert client.db.things.count_documents({}) == 1


def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from storeds.testing.mongod import run_mongod\n"
        "with run_mongod(sys.argv[1]) as uri:\n"
        "    print(uri, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(server_pid(parent.stdout.readline().strip()))
        parent.send_signal(signal.SIGKILL)
    assert ends(pidfd, 60)
    os.close(pidfd)


def test_without_a_server_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOREDS_MONGOD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mongod, "_WHEEL", "no-such-wheel")
    assert find_mongod() is None
    with pytest.raises(MissingDependencyError, match="pip install"), run_mongod(tmp_path):
        pass


@pytest.mark.parametrize(("status", "starts"), [(3, 1), (48, 3)], ids=["ends", "port taken"])
def test_a_server_that_ends_shows_its_log(
    status: int, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mongod"
    path.write_text(f"#!/bin/sh\necho the disk is on fire; exit {status}\n")
    path.chmod(0o755)
    monkeypatch.setenv("STOREDS_MONGOD", str(path))
    says = f"(?s)status {status}.*the disk is on fire"
    with pytest.raises(UnavailableError, match=says), run_mongod(tmp_path / "data"):
        pass
    assert (tmp_path / "data" / "out").read_text().count("fire") == starts
