"""One process that checks: how its parent starts it and hears from it, and what it does.

It says beforehand what comes next, so that what it said last tells what killed it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

from storeds._meta import NATIVE
from storeds.errors import StoredsError
from storeds.ops._dependents import become_dependent, starting_dependents
from storeds.ops.checks import Checker, RunResult
from storeds.protocols import Backend
from storeds.stores import open_backend, scheme_of

__all__ = ["DEADLINE", "Child", "Death", "open_to_check", "run_child", "share_of", "start_child"]

DEADLINE = 60.0
"""Seconds that a child may say nothing; ten times that to open the store, to read a column, or for one deep check."""

_SIGN = 1.0  # seconds between two signs of life
_FEWEST = 256  # records for which it pays to start another process


@dataclass
class Death:
    """How a child ended; without a cause it was done."""

    cause: str
    hung: bool = False


@dataclass
class Child:
    """A process that checks the records ``[start, stop)``, as its parent sees it; ``stop`` is None until it is known.

    Attributes
    ----------
    at : int, str or None
        The first record of the batch that it is at, or the column; None while it opens the store.
    silent : float
        For how many seconds its parent has waited for it.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    start: int
    stop: int | None
    step: int
    deep: bool = False
    at: int | str | None = None
    silent: float = 0.0

    @property
    def deadline(self) -> float:
        """How many seconds the process may take for what it is at."""
        # Some engines count or read all records for what is no batch; and a picture of 50 MB takes a deep check a minute.
        return DEADLINE if isinstance(self.at, int) and not self.deep else 10 * DEADLINE

    def receive(self) -> Any:
        """Return the process's next message; `Death` once there are no more, or when it took too long."""
        late = self.silent > self.deadline
        if late:
            self.process.kill()
        try:
            if not late:
                return self.connection.recv()
        except EOFError:
            pass
        except Exception:  # cut short, or what a process sends whose memory is damaged
            self.process.kill()
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(DEADLINE)
        self.process.kill()
        code = self.process.wait()
        if late:
            return Death(f"did not answer for {self.deadline:g} seconds", hung=True)
        if code < 0:
            return Death(f"died of {signal.Signals(-code).name}")
        return Death(f"ended with exit code {code}" if code else "")


# Not multiprocessing: it would run the user's main script again, which may have no guard against that. What to do
# comes through a pipe, since everybody may see a command line and the URL may hold a password.
_BOOT = """
import json, sys
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from storeds.ops.child import run_child
run_child(job)
"""


def start_child(
    url: str, start: int, stop: int | None, step: int, *, workers: int, skip: list[str], deep: bool
) -> Child:
    """Start a process that does the job of these arguments; see `run_child`."""
    receiver, sender = Pipe(duplex=False)
    with sender:
        command = [sys.executable, "-c", _BOOT]
        with starting_dependents():
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[sender.fileno()])  # noqa: S603  # our own
        job = {"url": url, "start": start, "stop": stop, "step": step, "workers": workers, "skip": skip}
        job |= {"deep": deep, "descriptor": sender.fileno(), "path": sys.path}
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:  # a child that is gone already is noticed by its silence
            process.stdin.write(json.dumps(job).encode())
    return Child(process, receiver, start, stop, step, deep)


def share_of(count: int, workers: int) -> int:
    """Return how many of `count` records each of at most `workers` children checks."""
    return max(_FEWEST, -(-count // workers))


def run_child(job: dict[str, Any]) -> None:
    """Do a job in this process, which was started for it.

    Parameters
    ----------
    job : dict
        ``url``; ``start``, ``stop`` and ``step`` of the records, where ``stop`` may be None: then the store's meta is
        sent first, and the share of one in ``workers`` is checked; ``skip``, columns to leave alone; ``deep`` as
        for `verify`; ``descriptor`` of the pipe to send through.
    """
    become_dependent()
    with Connection(job["descriptor"]) as sender:
        try:
            _check(sender, job)
        except StoredsError as error:
            sender.send(error)


def _check(sender: Connection, job: dict[str, Any]) -> None:
    start, stop, step = job["start"], job["stop"], job["step"]
    with open_to_check(job["url"]) as backend:
        if stop is None:
            sender.send(backend.meta)
            stop = min(share_of(len(backend), job["workers"]), len(backend))
        sign = _Sign(sender)
        checker = Checker(backend, skip=job["skip"], announce=sender.send, alive=sign, deep=job["deep"])
        sender.send(RunResult(start, start, findings=checker.findings))
        for at in range(start, stop, step):
            sign.announce(at)
            sender.send(checker.check(at, min(at + step, stop)))


def open_to_check(url: str) -> Backend:
    """Open a store; a native LMDB one so that damaged pages are findings, and do not kill this process."""
    if scheme_of(url, writing=False) == "lmdb":
        with suppress(StoredsError):  # a foreign one; or what is wrong will be said below
            return open_backend(url, layout=NATIVE, read="safe")
    return open_backend(url)


class _Sign:
    """Says which batch is next, and that again while it takes long: a picture may take a second, and a batch has many."""

    def __init__(self, sender: Connection) -> None:
        self._sender = sender
        self._at, self._last = 0, 0.0

    def announce(self, at: int) -> None:
        self._at, self._last = at, time.monotonic()
        self._sender.send(at)

    def __call__(self) -> None:
        if time.monotonic() - self._last > _SIGN:
            self.announce(self._at)
