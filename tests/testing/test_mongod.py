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


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Make `find_mongod` return a shell script."""
    path = tmp_path / "mongod"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("STOREDS_MONGOD", str(path))


def test_it_answers_at_once_and_keeps_its_data(tmp_path: Path) -> None:
    with run_mongod(tmp_path) as uri:
        client: pymongo.MongoClient[Any] = pymongo.MongoClient(uri)
        with client:
            client.db.things.insert_one({"_id": 1})
        pidfd = os.pidfd_open(server_pid(uri))
    assert ends(pidfd, 0)
    os.close(pidfd)
    with run_mongod(tmp_path, "--setParameter", "diagnosticDataCollectionEnabled=false") as uri:
        client = pymongo.MongoClient(uri)
        with client:
            assert client.db.things.count_documents({}) == 1


def test_its_working_directory_is_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends when somebody deletes its working directory."""
    monkeypatch.chdir(tmp_path)
    with run_mongod("server") as uri:
        assert Path(f"/proc/{server_pid(uri)}/cwd").readlink() == tmp_path / "server"


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


def test_a_server_that_ends_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "echo the disk is on fire; exit 3")
    with pytest.raises(UnavailableError, match="(?s)status 3.*the disk is on fire"), run_mongod(tmp_path / "data"):
        pass


def test_a_taken_port_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "echo started; exit 48")
    with pytest.raises(UnavailableError, match="status 48"), run_mongod(tmp_path / "data"):
        pass
    assert (tmp_path / "data" / "out").read_text().count("started") == 3
