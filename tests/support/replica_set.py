"""A private MongoDB replica set whose nodes can be killed, frozen and restarted."""

from __future__ import annotations

import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pymongo
import trustme
from pymongo.errors import PyMongoError

from storeds.errors import UnavailableError
from storeds.testing import launch_mongod, mongod_error, require_mongod

__all__ = ["Certificates", "Member", "ReplicaSet", "make_certificates", "run_replica_set"]

_STARTS = 3  # another process may take the free port first
_PORT_TAKEN = 48  # status with which mongod exits then
_DEADLINE = 60.0  # seconds within which a node must answer, and within which a primary must be elected


class Member:
    """One node of a replica set, which tests can kill, freeze and restart.

    Attributes
    ----------
    port : int
        Port on 127.0.0.1, the same after a restart.
    folder : pathlib.Path
        Folder of its data and log.
    is_frozen : bool
        Whether `freeze` stopped it, and neither `thaw` nor `kill` followed.
    """

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        (folder / "db").mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.is_frozen = False
        self._arguments = arguments
        self._executable = require_mongod()
        for _ in range(_STARTS):
            self.port = _steady_port()
            self._process = self._launch()
            if self._listens():
                return
            if self._process.returncode != _PORT_TAKEN:
                break
        raise mongod_error(self._executable, folder, self._process.returncode)

    @property
    def pid(self) -> int:
        """Id of its current or last process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process exists, also while frozen."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the node, frozen or not, with SIGKILL and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self.is_frozen = False

    def freeze(self) -> None:
        """Stop the node with SIGSTOP: its connections stay open, and it does not answer."""
        self._process.send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Continue a frozen node."""
        self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def restart(self) -> None:
        """Start the node on its old port and data, killing it first if it runs; return when it listens."""
        self.kill()
        self._process = self._launch()
        if not self._listens():
            raise mongod_error(self._executable, self.folder, self._process.returncode)

    def _launch(self) -> subprocess.Popen[bytes]:
        # SIGTERM would not end a frozen process.
        return launch_mongod(self._executable, self.folder, self.port, self._arguments, signal.SIGKILL)

    def _listens(self) -> bool:
        end = time.monotonic() + _DEADLINE
        while self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if time.monotonic() > end:
                    self.kill()
                    raise UnavailableError(f"mongod did not listen on port {self.port} within {_DEADLINE} s") from None
                time.sleep(0.02)
            else:
                return True
        return False


def _steady_port() -> int:
    """Return a free port outside the range from which the kernel assigns ports.

    Otherwise a client's connection could take the port of a killed node before the node restarts.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chance = random.SystemRandom()
    while True:
        with socket.socket() as probe:
            port = chance.randrange(min(10_000, first - 1), first)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Certificates(NamedTuple):
    """Paths of the certificate of an authority that clients trust, and of a server's certificate and private key."""

    authority: Path
    server: Path


def make_certificates(folder: Path) -> Certificates:
    """Write the certificates of a new authority and of a server on 127.0.0.1 that it signed into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    found = Certificates(folder / "authority.pem", folder / "server.pem")
    authority.cert_pem.write_to_path(str(found.authority))
    found.server.touch(mode=0o600)
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(str(found.server))
    return found


_NAME = "storeds"
# With these settings a failover takes about 2 s instead of 12.
_SETTINGS = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 500, "heartbeatTimeoutSecs": 1}
_ARGUMENTS = ("--replSet", _NAME, "--oplogSize", "64", "--setParameter", "diagnosticDataCollectionEnabled=false")
_ROLES = {"root": "root", "writer": "readWrite", "reader": "read"}
_QUICK_MS = 1000  # a node that runs answers `hello` at once


class ReplicaSet:
    """A running replica set.

    Attributes
    ----------
    members : tuple of Member
        Its nodes.
    database : str
        Database that the users ``writer`` and ``reader`` may access: storeds.
    certificates : Certificates or None
        Certificates for TLS.
    """

    database = "storeds"

    def __init__(self, members: Sequence[Member], certificates: Certificates | None) -> None:
        self.members = tuple(members)
        self.certificates = certificates
        # Characters that a URL must escape: tests search output for both forms of a password.
        self._passwords = {user: f"{secrets.token_hex(8)}/@:%" for user in _ROLES}

    def password(self, user: str) -> str:
        """Return the password of ``root``, ``writer`` or ``reader``, not encoded for a URL."""
        return self._passwords[user]

    def uri(self, user: str = "root") -> str:
        """Return the URI for ``root``, ``writer`` or ``reader``, without a database."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return self._uri(hosts, user, {"replicaSet": _NAME})

    def member_uri(self, member: Member, user: str = "root") -> str:
        """Return the URI of one node, for questions about that node."""
        return self._uri(f"127.0.0.1:{member.port}", user, {"directConnection": "true"})

    def primary(self) -> Member | None:
        """Return the node that reports being the primary, or None."""
        states = {member: self._hello(member) for member in self.members}
        claiming = [member for member, state in states.items() if state.get("isWritablePrimary")]
        # An isolated former primary still reports it for a moment.
        return max(claiming, key=lambda member: states[member]["electionId"], default=None)

    def wait_for_primary(self) -> Member:
        """Return the primary as soon as one is elected; raise UnavailableError if none is."""
        found: Member = _wait(self.primary, "no primary was elected")
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
        member = self.wait_for_primary()
        client: pymongo.MongoClient[Any] = pymongo.MongoClient(self.member_uri(member))
        with client:
            client.admin.command({"replSetStepDown": 3, "secondaryCatchUpPeriodSecs": 2})

    def _uri(self, hosts: str, user: str, options: dict[str, str]) -> str:
        given = {**options, "authSource": "admin"}
        if self.certificates is not None:
            given |= {"tls": "true", "tlsCAFile": quote(str(self.certificates.authority), safe="/")}
        login = f"{user}:{quote(self._passwords[user], safe='')}@"
        return f"mongodb://{login}{hosts}/?{'&'.join(f'{name}={value}' for name, value in given.items())}"

    def _direct(self, member: Member, timeout_ms: int | None = None) -> pymongo.MongoClient[Any]:
        """Return a client of one node, without a login."""
        authority = None if self.certificates is None else str(self.certificates.authority)
        return pymongo.MongoClient(
            f"mongodb://127.0.0.1:{member.port}",
            directConnection=True,
            tls=authority is not None,
            tlsCAFile=authority,
            timeoutMS=timeout_ms,
        )

    def _hello(self, member: Member) -> dict[str, Any]:
        if member.is_frozen or not member.is_running:
            return {}
        try:
            with self._direct(member, _QUICK_MS) as client:
                return dict(client.admin.command("hello"))
        except PyMongoError:
            return {}

    def _initiate(self) -> None:
        hosts = [{"_id": n, "host": f"127.0.0.1:{member.port}"} for n, member in enumerate(self.members)]
        with self._direct(self.members[0]) as client:
            client.admin.command("replSetInitiate", {"_id": _NAME, "members": hosts, "settings": _SETTINGS})
        primary = self.wait_for_primary()
        self._create_users(primary)
        self.wait_until_whole()

    def _create_users(self, primary: Member) -> None:
        everywhere = {"w": len(self.members), "wtimeout": 60_000}  # every member must know the users
        # mongod lets a local client create the first user, who creates the others.
        with self._direct(primary) as client:
            client.admin.command(
                "createUser", "root", pwd=self._passwords["root"], roles=["root"], writeConcern=everywhere
            )
        owner: pymongo.MongoClient[Any] = pymongo.MongoClient(self.uri())
        with owner:
            for user in ("writer", "reader"):
                roles = [{"role": _ROLES[user], "db": self.database}]
                owner.admin.command("createUser", user, pwd=self._passwords[user], roles=roles, writeConcern=everywhere)


@contextmanager
def run_replica_set(folder: Path, members: int = 3, *, tls: bool = False) -> Iterator[ReplicaSet]:
    """Run a replica set with users on free ports of the loopback interface, and kill it afterwards.

    ``root`` may do everything, ``writer`` may write `database`, ``reader`` may read it.

    Parameters
    ----------
    folder : pathlib.Path
        New folder for data, logs and keys, created if missing.
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
    folder.mkdir(parents=True, exist_ok=True)
    certificates = make_certificates(folder / "certificates") if tls else None
    arguments = [*_ARGUMENTS]
    if certificates:  # accept TLS only, with or without a certificate of the client
        arguments += ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(certificates.server)]
        arguments += ["--tlsCAFile", str(certificates.authority), "--tlsAllowConnectionsWithoutCertificates"]
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(64))
    arguments += ["--keyFile", str(key)]
    with ExitStack() as stack:
        running = []
        for number in range(members):
            running.append(Member(folder / str(number), arguments))
            stack.callback(running[-1].kill)
        found = ReplicaSet(running, certificates)
        found._initiate()
        yield found


def _wait(probe: Callable[[], Any], otherwise: str) -> Any:
    end = time.monotonic() + _DEADLINE
    while not (found := probe()):
        if time.monotonic() > end:
            raise UnavailableError(f"{otherwise} within {_DEADLINE} s")
        time.sleep(0.05)
    return found
