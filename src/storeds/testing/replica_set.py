"""Runs a private replica set of MongoDB on this machine, whose nodes can be killed, frozen and restarted."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymongo
from pymongo.errors import PyMongoError

from storeds.errors import MissingDependencyError, UnavailableError
from storeds.testing.mongod import _PORT_TAKEN, _STARTS, _demand_mongod, _failure, _launch

__all__ = ["Certificates", "Member", "ReplicaSet", "make_certificates", "run_replica_set"]


class Member:
    """One node of a replica set, and what can happen to it.

    Attributes
    ----------
    port : int
        Its port on 127.0.0.1, the same after a restart.
    folder : pathlib.Path
        Where its data and its log are.
    is_frozen : bool
        Whether it was frozen, and not thawed or killed since.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], deadline: float) -> None:
        (folder / "db").mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.is_frozen = False
        self._arguments = arguments
        self._deadline = deadline
        self._executable = _demand_mongod()
        for _ in range(_STARTS):
            self.port = _steady_port()
            self._process = self._launch()
            if self._listens():
                return
            if self._process.returncode != _PORT_TAKEN:
                break
        raise _failure(self._executable, folder, self._process.returncode)

    @property
    def pid(self) -> int:
        """The process that serves it, or the one that last did."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process exists; a frozen one does."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once, as by SIGKILL; returns when it is gone. It may be frozen."""
        self._process.kill()
        self._process.wait()
        self.is_frozen = False

    def freeze(self) -> None:
        """Stop it as by SIGSTOP: its connections stay open and nobody answers."""
        self._process.send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let a frozen node go on."""
        self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def restart(self) -> None:
        """Start it on its old port over its old data, after a kill if need be; returns when it listens."""
        self.kill()
        self._process = self._launch()
        if not self._listens():
            raise _failure(self._executable, self.folder, self._process.returncode)

    def _launch(self) -> subprocess.Popen[bytes]:
        # SIGTERM would not end a frozen process.
        return _launch(self._executable, self.folder, self.port, self._arguments, signal.SIGKILL)

    def _listens(self) -> bool:
        end = time.monotonic() + self._deadline
        while self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if time.monotonic() > end:
                    self.kill()
                    raise UnavailableError(
                        f"mongod did not listen on port {self.port} within {self._deadline} s"
                    ) from None
                time.sleep(0.02)
            else:
                return True
        return False


def _steady_port() -> int:
    """Return a free port that the kernel gives to nobody who asks for any port.

    Otherwise a client could take a killed node's port as its own side of a connection, even of one to that very port.
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


# Sections of our own, because what /etc/ssl/openssl.cnf adds differs between systems. The name is random so that two
# authorities are told apart by it, as real ones are.
_CONFIG = """
[req]
distinguished_name = name
prompt = no
x509_extensions = authority
[name]
CN = storeds tests {number}
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = IP:127.0.0.1,DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
_DAYS = "2"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """Paths of what a server and its clients need.

    Attributes
    ----------
    authority : pathlib.Path
        The certificate of the authority, which a client is told to trust.
    server : pathlib.Path
        The server's certificate and its private key, for 127.0.0.1 and localhost.
    """

    authority: Path
    server: Path

    def server_arguments(self) -> tuple[str, ...]:
        """Return mongod's arguments: TLS alone, from clients without a certificate too."""
        return (
            *("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(self.server)),
            *("--tlsCAFile", str(self.authority), "--tlsAllowConnectionsWithoutCertificates"),
        )


def make_certificates(folder: Path) -> Certificates:
    """Make an authority of its own and a certificate that it signed.

    Parameters
    ----------
    folder : pathlib.Path
        For the files; made if need be.

    Returns
    -------
    Certificates
        Valid for two days.

    Raises
    ------
    MissingDependencyError
        There is no openssl command.
    UnavailableError
        It failed; the message ends with what it said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config"
    config.write_text(_CONFIG.format(number=secrets.token_hex(4)))
    key, authority, request = folder / "authority.key", folder / "authority.pem", folder / "server.csr"
    server_key, signed, server = folder / "server.key", folder / "server.crt", folder / "server.pem"
    _openssl("req", "-x509", *_NEW_KEY, "-config", config, "-days", _DAYS, "-keyout", key, "-out", authority)
    _openssl("req", *_NEW_KEY, "-config", config, "-subj", "/CN=127.0.0.1", "-keyout", server_key, "-out", request)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", authority, "-CAkey", key, "-CAcreateserial"),
        *("-days", _DAYS, "-extfile", config, "-extensions", "server", "-out", signed),
    )
    server.touch(mode=0o600)
    server.write_bytes(signed.read_bytes() + server_key.read_bytes())
    return Certificates(authority, server)


def _openssl(*arguments: str | Path) -> None:
    executable = shutil.which("openssl")
    if executable is None:
        raise MissingDependencyError("certificates are made with the openssl command: `apt-get install openssl`")
    ended = subprocess.run([executable, *arguments], capture_output=True, text=True, check=False)  # noqa: S603  # ours
    if ended.returncode:
        raise UnavailableError(f"openssl {arguments[0]} ended with status {ended.returncode}:\n{ended.stderr}")


_NAME = "storeds"
# A test's failover is over in about two seconds, not in a production server's twelve.
_SETTINGS = {"electionTimeoutMillis": 1000, "heartbeatIntervalMillis": 500, "heartbeatTimeoutSecs": 1}
_ARGUMENTS = ("--replSet", _NAME, "--oplogSize", "64", "--setParameter", "diagnosticDataCollectionEnabled=false")
_ROLES = {"root": "root", "writer": "readWrite", "reader": "read"}
_QUICK_MS = 1000  # for a question that a node answers at once, or not at all


class ReplicaSet:
    """A running replica set.

    Attributes
    ----------
    members : tuple of Member
        Its nodes.
    database : str
        What the users ``writer`` and ``reader`` have a right to.
    certificates : storeds.testing.replica_set.Certificates or None
        What it uses for TLS.
    """

    def __init__(self, members: Sequence[Member], database: str, auth: bool, certificates: Certificates | None) -> None:
        self.members = tuple(members)
        self.database = database
        self.certificates = certificates
        # Characters that a URL must escape: who shows a password shows one of its two forms.
        self._passwords = {user: f"{secrets.token_hex(8)}/@:%" for user in _ROLES} if auth else {}

    def password(self, user: str) -> str:
        """Return the password of ``root``, ``writer`` or ``reader``, as it was before it was encoded for a URL."""
        return self._passwords[user]

    def uri(self, user: str = "root") -> str:
        """Return the URI for ``root``, ``writer`` or ``reader``, without a database."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return self._uri(hosts, user, {"replicaSet": _NAME})

    def member_uri(self, member: Member, user: str = "root") -> str:
        """Return the URI of one node alone, for what only that node knows."""
        return self._uri(f"127.0.0.1:{member.port}", user, {"directConnection": "true"})

    def primary(self) -> Member | None:
        """Return the node that says it is the primary, or None."""
        states = {member: self._hello(member) for member in self.members}
        claiming = [member for member, state in states.items() if state.get("isWritablePrimary")]
        # A node that was cut off may claim it for a moment longer than it is.
        return max(claiming, key=lambda member: states[member]["electionId"], default=None)

    def wait_for_primary(self, seconds: float = 30) -> Member:
        """Return the primary as soon as there is one; raises UnavailableError after so many seconds."""
        found: Member = _wait(self.primary, seconds, "no primary was elected")
        return found

    def wait_until_whole(self, seconds: float = 30) -> None:
        """Wait until one node is the primary and every other one a secondary."""

        def is_whole() -> bool:
            states = [self._hello(member) for member in self.members]
            primaries = sum(bool(state.get("isWritablePrimary")) for state in states)
            return primaries == 1 and sum(bool(state.get("secondary")) for state in states) == len(states) - 1

        _wait(is_whole, seconds, "not every node is back")

    def heal(self, seconds: float = 30) -> None:
        """Thaw and restart what was frozen or killed, and wait until all is as at the start."""
        for member in self.members:
            if member.is_running:
                member.thaw()
            else:
                member.restart()
        self.wait_until_whole(seconds)

    def step_down(self) -> None:
        """Make the primary step down for three seconds; another node is elected meanwhile."""
        member = self.wait_for_primary()
        client: pymongo.MongoClient[Any] = pymongo.MongoClient(self.member_uri(member))
        with client:
            client.admin.command({"replSetStepDown": 3, "secondaryCatchUpPeriodSecs": 2})

    def _uri(self, hosts: str, user: str, options: dict[str, str]) -> str:
        given = dict(options)
        login = ""
        if self._passwords:
            login = f"{user}:{quote(self._passwords[user], safe='')}@"
            given["authSource"] = "admin"
        if self.certificates is not None:
            given |= {"tls": "true", "tlsCAFile": quote(str(self.certificates.authority), safe="/")}
        return f"mongodb://{login}{hosts}/?{'&'.join(f'{name}={value}' for name, value in given.items())}"

    def _direct(self, member: Member, timeout_ms: int | None = None) -> pymongo.MongoClient[Any]:
        """Return a client of one node that does not log in."""
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

    def _initiate(self, deadline: float) -> None:
        hosts = [{"_id": n, "host": f"127.0.0.1:{member.port}"} for n, member in enumerate(self.members)]
        with self._direct(self.members[0]) as client:
            client.admin.command("replSetInitiate", {"_id": _NAME, "members": hosts, "settings": _SETTINGS})
        primary = self.wait_for_primary(deadline)
        if self._passwords:
            self._create_users(primary)
        self.wait_until_whole(deadline)

    def _create_users(self, primary: Member) -> None:
        everywhere = {"w": len(self.members), "wtimeout": 60_000}  # else a member may not know a user yet
        # The server lets a client on its own machine make the first user, who makes the others.
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
def run_replica_set(
    folder: str | os.PathLike[str],
    members: int = 3,
    *,
    auth: bool = False,
    tls: bool = False,
    database: str = "storeds",
    deadline: float = 60,
) -> Iterator[ReplicaSet]:
    """Run a replica set on free ports of the loopback interface and kill it afterwards.

    Parameters
    ----------
    folder : path
        For its data, its logs and its keys; made if need be, and new for each set.
    members : int
        How many nodes; one is enough for a server with users and TLS.
    auth : bool
        Whether to demand a password (SCRAM): ``root`` may all, ``writer`` may write `database`, ``reader`` may read it.
    tls : bool
        Whether to talk TLS alone, with certificates made for this set by the openssl command.
    database : str
        What ``writer`` and ``reader`` have a right to.
    deadline : float
        Seconds until a node must answer, and until a primary must be elected.

    Yields
    ------
    ReplicaSet
        With its primary elected and every other node a secondary.

    Raises
    ------
    MissingDependencyError
        No mongod was found, or no openssl for TLS; the message says what to install.
    UnavailableError
        A node ended or the set did not come up in time.

    Notes
    -----
    Start it, and restart its nodes, from a thread that lives as long as they are needed (the main thread): the kernel
    kills them when that thread dies, however it dies, frozen ones too.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    certificates = make_certificates(folder / "certificates") if tls else None
    arguments = [*_ARGUMENTS, *(certificates.server_arguments() if certificates else ())]
    if auth:
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(64))
        arguments += ["--keyFile", str(key)]
    with ExitStack() as stack:
        running = []
        for number in range(members):
            running.append(Member(folder / str(number), arguments, deadline))
            stack.callback(running[-1].kill)
        found = ReplicaSet(running, database, auth, certificates)
        found._initiate(deadline)
        yield found


def _wait(probe: Callable[[], Any], seconds: float, otherwise: str) -> Any:
    end = time.monotonic() + seconds
    while not (found := probe()):
        if time.monotonic() > end:
            raise UnavailableError(f"{otherwise} within {seconds} s")
        time.sleep(0.05)
    return found
