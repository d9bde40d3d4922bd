"""A private MongoDB replica set whose nodes can be killed, frozen and restarted."""

from __future__ import annotations

import random
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pymongo
import trustme
from pymongo.errors import PyMongoError

from storeds.testing import launch_mongod, require_mongod

__all__ = ["Certificates", "Member", "ReplicaSet", "make_certificates", "run_replica_set"]

_DEADLINE = 60.0  # seconds within which a node must answer, and within which a primary must be elected
_NAME = "storeds"
# With these settings a failover takes about 2 s instead of 12.
_SETTINGS = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 500, "heartbeatTimeoutSecs": 1}
_ARGUMENTS = ("--replSet", _NAME, "--oplogSize", "64", "--setParameter", "diagnosticDataCollectionEnabled=false")
_ROLES = {"root": "root", "writer": "readWrite", "reader": "read"}


class Member:
    """One node of a replica set, which keeps its port of 127.0.0.1 after a restart."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        (folder / "db").mkdir(parents=True)
        self.port = _steady_port()
        self._folder, self._arguments = folder, arguments
        self.restart()

    @property
    def is_running(self) -> bool:
        """Whether its process exists, also while frozen."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the node, frozen or not, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop the node with SIGSTOP: its connections stay open, and it does not answer."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue a frozen node."""
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start the node, which does not run, on its port and data."""
        # SIGTERM would not end a frozen process.
        self._process = launch_mongod(require_mongod(), self._folder, self.port, self._arguments, signal.SIGKILL)


def _steady_port() -> int:
    """Return a free port outside the range from which the kernel assigns ports.

    Otherwise a client's connection could take the port of a killed node before the node restarts.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(min(10_000, first - 1), first)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


class Certificates(NamedTuple):
    """The certificate of the authority that clients trust; the certificate and the key of a server on 127.0.0.1."""

    authority: Path
    server: Path


def make_certificates(folder: Path) -> Certificates:
    """Write the certificates of a new authority, and of a server that it signed, into `folder`."""
    authority, found = trustme.CA(), Certificates(folder / "authority.pem", folder / "server.pem")
    authority.cert_pem.write_to_path(str(found.authority))
    found.server.touch(mode=0o600)
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(str(found.server))
    return found


class ReplicaSet:
    """A running replica set, whose user ``root`` may do everything; ``writer`` and ``reader`` may use `database`."""

    database = "storeds"

    def __init__(self, members: Sequence[Member], authority: Path | None) -> None:
        self.members = tuple(members)
        self._authority = authority
        # Characters that a URL must escape: tests search output for both forms of a password.
        self._passwords = {user: f"{secrets.token_hex(8)}/@:%" for user in _ROLES}

    def password(self, user: str) -> str:
        """Return the password of ``root``, ``writer`` or ``reader``, not encoded for a URL."""
        return self._passwords[user]

    def uri(self, user: str = "root") -> str:
        """Return the URI for ``root``, ``writer`` or ``reader``, without a database."""
        return self._uri(self.members, user, f"replicaSet={_NAME}")

    def member_uri(self, member: Member, user: str = "root") -> str:
        """Return the URI of one node, for questions about that node; for ``""``, without a login."""
        return self._uri([member], user, "directConnection=true")

    def _uri(self, members: Sequence[Member], user: str, options: str) -> str:
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in members)
        login = f"{user}:{quote(self._passwords[user], safe='')}@" if user else ""
        options += "&authSource=admin" if user else ""
        if self._authority is not None:
            options += f"&tls=true&tlsCAFile={quote(str(self._authority), safe='/')}"
        return f"mongodb://{login}{hosts}/?{options}"

    def wait_for_primary(self) -> Member:
        """Return the primary as soon as one is elected."""

        def primary() -> Member | None:
            states = {member: self._hello(member) for member in self.members}
            claiming = [member for member, state in states.items() if state.get("isWritablePrimary")]
            # An isolated former primary still reports it for a moment.
            return max(claiming, key=lambda member: states[member]["electionId"], default=None)

        found: Member = _wait(primary, "no primary was elected")
        return found

    def wait_until_whole(self) -> None:
        """Wait until one node is the primary and all others are secondaries."""

        def is_whole() -> bool:
            states = [self._hello(member) for member in self.members]
            primaries = sum(bool(state.get("isWritablePrimary")) for state in states)
            return primaries == 1 and sum(bool(state.get("secondary")) for state in states) == len(states) - 1

        _wait(is_whole, "not every node is back")

    def heal(self) -> None:
        """Thaw frozen nodes, restart killed ones, and wait until the set is whole."""
        for member in self.members:
            if member.is_running:
                member.thaw()
            else:
                member.restart()
        self.wait_until_whole()

    def step_down(self) -> None:
        """Make the primary step down for three seconds; another node is elected meanwhile."""
        with pymongo.MongoClient[Any](self.member_uri(self.wait_for_primary())) as client:
            client.admin.command({"replSetStepDown": 3, "secondaryCatchUpPeriodSecs": 2})

    def initiate(self) -> None:
        """Make one set of the nodes, with its users, as soon as they run."""
        _wait(lambda: all(map(self._hello, self.members)), "not every node answers")
        hosts = [{"_id": n, "host": f"127.0.0.1:{member.port}"} for n, member in enumerate(self.members)]
        with pymongo.MongoClient[Any](self.member_uri(self.members[0], "")) as client:
            client.admin.command("replSetInitiate", {"_id": _NAME, "members": hosts, "settings": _SETTINGS})
        # mongod lets a local client create the first user, who creates the others.
        with pymongo.MongoClient[Any](self.member_uri(self.wait_for_primary(), "")) as client:
            self._create_user(client, "root", "admin")
        with pymongo.MongoClient[Any](self.uri()) as client:
            for user in ("writer", "reader"):
                self._create_user(client, user, self.database)
        self.wait_until_whole()

    def _create_user(self, client: pymongo.MongoClient[Any], user: str, database: str) -> None:
        everywhere = {"w": len(self.members), "wtimeout": 60_000}  # every member must know the users
        roles = [{"role": _ROLES[user], "db": database}]
        client.admin.command("createUser", user, pwd=self._passwords[user], roles=roles, writeConcern=everywhere)

    def _hello(self, member: Member) -> dict[str, Any]:
        try:  # a node that runs answers at once
            with pymongo.MongoClient[Any](self.member_uri(member, ""), timeoutMS=1000) as client:
                return dict(client.admin.command("hello")) if member.is_running else {}
        except PyMongoError:
            return {}


@contextmanager
def run_replica_set(folder: Path, members: int = 3, *, tls: bool = False) -> Iterator[ReplicaSet]:
    """Run a replica set with users on free ports of the loopback interface, and kill it afterwards.

    Parameters
    ----------
    folder : pathlib.Path
        Folder for data, logs and keys.
    members : int
        Number of nodes. One is enough for a server with users and TLS.
    tls : bool
        Accept TLS only, with new certificates.

    Yields
    ------
    ReplicaSet
        With one primary; all other nodes are secondaries.

    Notes
    -----
    Call it, and restart nodes, from a thread that lives as long as they are needed, such as the main thread. The kernel
    kills the nodes, frozen ones too, when that thread ends.
    """
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(64))
    arguments, authority = [*_ARGUMENTS, "--keyFile", str(key)], None
    if tls:
        authority, server = make_certificates(folder)
        arguments += ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(server)]
        arguments += ["--tlsCAFile", str(authority), "--tlsAllowConnectionsWithoutCertificates"]
    with ExitStack() as stack:
        running = []
        for number in range(members):
            running.append(Member(folder / str(number), arguments))
            stack.callback(running[-1].kill)
        found = ReplicaSet(running, authority)
        found.initiate()
        yield found


def _wait(probe: Callable[[], Any], otherwise: str) -> Any:
    end = time.monotonic() + _DEADLINE
    while not (found := probe()):
        if time.monotonic() > end:
            raise TimeoutError(f"{otherwise} within {_DEADLINE} s; see the logs of the nodes")
        time.sleep(0.05)
    return found
