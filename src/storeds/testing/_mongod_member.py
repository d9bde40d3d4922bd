"""One node of a private replica set: a MongoDB server that can be killed, frozen and restarted on its port."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from storeds.errors import UnavailableError
from storeds.testing.mongod import _PORT_TAKEN, _STARTS, _demand_mongod, _failure, _launch

__all__ = ["Member"]


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
