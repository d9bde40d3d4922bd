"""One process that checks: how its parent starts it and hears from it, and what it does.

It says beforehand what comes next, so that what it said last tells what killed it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Self

from storeds.backends.opening import open_backend, scheme_of
from storeds.errors import StoredsError
from storeds.ops.common import die_with_parent, starting_dependents
from storeds.ops.verifying.checks import Checker, Finding, RunResult
from storeds.protocols import Backend, Meta
from storeds.records.meta import NATIVE

__all__ = ["DEADLINE", "Child", "Children", "Death", "open_to_check", "run_child", "share_of", "start_child"]


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
from storeds.ops.verifying.workers import run_child
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
    die_with_parent()
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


_STEP = 64
_TICK = 1.0
_PATIENCE = 50  # deaths; a record that makes a child hang costs as much as ten
_HANG = 10


class Children:
    """Child processes that check the store at `url`, `deep` or not, at most `workers` at a time; leaving the context ends them.

    The one that opens the store first goes on to check it, alone if there are few records: starting a process takes
    longer than checking some hundreds.
    """

    def __init__(self, url: str, workers: int, *, deep: bool = False) -> None:
        self._url = url
        self._deep = deep
        self._workers = workers
        self._running: list[Child] = []
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._skip: list[str] = []
        self._columns_told = False
        self._trouble = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._running:
            child.process.kill()
            child.process.wait()
            child.connection.close()

    def open(self) -> Meta | Finding:
        """Return the meta of the store, or how opening it killed the process that tried.

        Raises
        ------
        StoredsError
            It cannot be opened.
        """
        first = self._start(0, None, _STEP)
        while not self._ready():
            pass
        message = first.receive()
        if isinstance(message, StoredsError):
            raise message
        if not isinstance(message, Meta):
            self._running.remove(first)
            return Finding("crash", f"the process that opened the store {message.cause}")
        count, share = message.count, share_of(message.count, self._workers)
        first.stop = min(share, count)
        self._waiting.extend((start, min(start + share, count), _STEP) for start in range(share, count, share))
        return message

    def check(self) -> Iterator[RunResult]:
        """Yield what is wrong with all records, run by run, in no particular order.

        Findings about whole columns come with a run that is empty. A child that dies, or says nothing for too long,
        costs a finding of kind ``crash`` for the record or the column that it was at, and another goes on behind it.

        Raises
        ------
        StoredsError
            A child could not open the store, or was told that the engine is gone.
        """
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._workers:
                self._start(*self._waiting.popleft())
            for child in self._ready():
                message = child.receive()
                if isinstance(message, StoredsError):
                    raise message
                if isinstance(message, (int, str)):
                    child.at = message
                elif isinstance(message, Death):
                    self._running.remove(child)
                    yield from self._bury(child, message) if message.cause else ()
                elif message.start < message.stop or not self._columns_told:
                    self._columns_told = True
                    yield message

    def _ready(self) -> list[Child]:
        """Wait a little; return the children that sent something or took too long."""
        before = time.monotonic()
        ready = wait([child.connection for child in self._running], _TICK)
        waited = min(time.monotonic() - before, _TICK)  # not what passed while this process was stopped
        for child in self._running:
            child.silent = 0.0 if child.connection in ready else child.silent + waited
        return [child for child in self._running if child.connection in ready or child.silent > child.deadline]

    def _start(self, start: int, stop: int | None, step: int) -> Child:
        workers, skip, deep = self._workers, self._skip, self._deep
        child = start_child(self._url, start, stop, step, workers=workers, skip=skip, deep=deep)
        self._running.append(child)
        return child

    def _bury(self, child: Child, death: Death) -> Iterator[RunResult]:
        """Tell where a child died, and arrange for what it left undone."""
        assert child.stop is not None
        self._trouble += 1
        at, goes_on = child.at, child.start
        if at is None:
            yield _crash(child.start, child.stop, f"the process that opened the store for it {death.cause}")
            return
        if isinstance(at, str):
            if at not in self._skip:
                self._skip.append(at)
                message = f"the process that read column {at!r} {death.cause}"
                yield RunResult(child.start, child.start, findings=[Finding("crash", message)])
        elif self._trouble > _PATIENCE:
            message = f"too many checking processes died; the records up to {child.stop - 1} were not checked"
            yield _crash(at, child.stop, message)
            return
        else:
            goes_on = min(at + child.step, child.stop)
            if child.step > 1:
                # One by one it will show which record it was, or that the batch only took long.
                self._waiting.append((at, goes_on, 1))
            else:
                self._trouble += _HANG * death.hung
                yield _crash(at, goes_on, f"the process that read it {death.cause}")
        if goes_on < child.stop:
            self._waiting.append((goes_on, child.stop, child.step))


def _crash(at: int, stop: int, message: str) -> RunResult:
    return RunResult(at, stop, None, findings=[Finding("crash", message, at)])
