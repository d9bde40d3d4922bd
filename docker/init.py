"""Start a replica set of the three servers, create its users, write /tmp/ready, and wait for a stop signal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from pymongo import MongoClient
from pymongo.errors import OperationFailure

READY = Path("/tmp/ready")  # noqa: S108  # inside a container, for its health check
HOSTS = ["mongo1:27017", "mongo2:27017", "mongo3:27017"]
SET = "rs0"
SECONDS = 60
STOPPED = {signal.SIGTERM, signal.SIGINT}

UNAUTHORIZED, AUTHENTICATION_FAILED, ALREADY_INITIALIZED = 13, 18, 23
PRIMARY, SECONDARY = 1, 2

# storeds needs no other roles, and only on one database.
DATABASE = "storeds"
ROLES = {"writer": "readWrite", "reader": "read"}

Client = MongoClient[dict[str, Any]]


def main() -> int:
    """Start the set; on volumes of an earlier run, give the users the passwords of this run."""
    passwords = {name: read_password(name) for name in ("admin", *ROLES)}
    local: Client = MongoClient("127.0.0.1", directConnection=True)
    with local:
        initiate(local)
        if not may_enter(passwords["admin"]):
            create_admin(local, passwords["admin"])
    with connect(passwords["admin"]) as admin:
        wait(f"all of {', '.join(HOSTS)} are members of {SET}", lambda: all_joined(admin))
        for name, role in ROLES.items():
            put_user(admin, name, passwords[name], role)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPED)
    READY.touch()
    say(f"{SET} is up, with the users {', '.join(ROLES)}")
    signal.sigwait(STOPPED)
    return 0


def read_password(user: str) -> str:
    """Return the password of a user from the environment; it must need no escaping in a URL."""
    variable = f"STOREDS_{user.upper()}_PASSWORD"
    password = os.environ[variable]
    if not password or quote_plus(password) != password:
        raise SystemExit(f"init: {variable} must be letters, digits and - . _ ~, because it becomes part of a URL")
    return password


def initiate(local: Client) -> None:
    """Start the replica set. On volumes of an earlier run it exists already, and rejects clients without a login."""
    # Prefer mongo1: its port is published, and this container shares only its localhost.
    members = [{"_id": at, "host": host, "priority": 1 if at else 2} for at, host in enumerate(HOSTS)]
    try:
        local.admin.command("replSetInitiate", {"_id": SET, "members": members})
    except OperationFailure as error:
        if error.code not in (ALREADY_INITIALIZED, UNAUTHORIZED):
            raise


def connect(password: str) -> Client:
    """Return a client for the administrator; its first operation waits until there is a primary."""
    timeout = SECONDS * 1000
    return MongoClient(HOSTS, replicaSet=SET, username="admin", password=password, serverSelectionTimeoutMS=timeout)


def may_enter(password: str) -> bool:
    """Whether there is an administrator with this password."""
    with connect(password) as admin:
        try:
            admin.admin.command("ping")
        except OperationFailure as error:
            if error.code != AUTHENTICATION_FAILED:
                raise
            return False
    return True


def create_admin(local: Client, password: str) -> None:
    """Create the first user; a server without users allows that from its localhost."""
    wait("mongo1 is the primary", lambda: bool(local.admin.command("hello")["isWritablePrimary"]))
    try:
        local.admin.command("createUser", "admin", pwd=password, roles=["root"])
    except OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        raise SystemExit(
            "init: the volumes come from a run with another STOREDS_ADMIN_PASSWORD; set that one, or remove them with "
            "docker-compose down --volumes"
        ) from None


def all_joined(admin: Client) -> bool:
    """Whether every member holds the data."""
    states = [member["state"] for member in admin.admin.command("replSetGetStatus")["members"]]
    return len(states) == len(HOSTS) and all(state in (PRIMARY, SECONDARY) for state in states)


def put_user(admin: Client, name: str, password: str, role: str) -> None:
    """Create a user, or update the existing one."""
    exists = admin.admin.command("usersInfo", name)["users"]
    roles = [{"role": role, "db": DATABASE}]
    admin.admin.command("updateUser" if exists else "createUser", name, pwd=password, roles=roles)


def wait(what: str, ready: Callable[[], bool]) -> None:
    """Wait until `ready` returns True; end the program after `SECONDS`."""
    deadline = time.monotonic() + SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"init: waited {SECONDS} s until {what}; docker-compose logs shows why not")
        time.sleep(0.2)


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
