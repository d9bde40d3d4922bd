"""Child processes that check a store: `WorkerPool` in the parent, `run_worker` in the child.

A child announces each batch before it reads it, so that its last message shows which batch crashed it.
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

from storeds.backends.opening import open_backend
from storeds.errors import StoredsError
from storeds.ops.common import die_with_parent, sigint_blocked
from storeds.ops.verifying.checks import Checker, Finding, RunResult
from storeds.protocols import Meta

__all__ = ["DEADLINE", "WorkerPool", "run_worker"]


DEADLINE = 60.0
"""Seconds that a child may be silent; ten times that to open the store, or to read a column."""

_HEARTBEAT = 1.0  # seconds
_MIN_RECORDS = 256  # that are worth another process


@dataclass
class _Exit:
    """How a child ended. The cause is empty if it finished its work."""

    cause: str
    hung: bool = False


@dataclass
class _Worker:
    """The parent's view of a process that checks the records ``[start, stop)``. ``stop`` is None until it is known.

    Attributes
    ----------
    at : int, str or None
        The first record of the batch, or the column, that it is reading; None while it opens the store.
    silent : float
        Seconds that its parent has waited for it.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    start: int
    stop: int | None
    step: int
    at: int | str | None = None
    silent: float = 0.0

    @property
    def deadline(self) -> float:
        """Seconds that the process may take for its current batch or column."""
        # Opening a store or a column may read all records.
        return DEADLINE if isinstance(self.at, int) else 10 * DEADLINE

    def receive(self) -> Any:
        """Return the next message of the process, or `_Exit` when it ended or took too long."""
        late = self.silent > self.deadline
        if late:
            self.process.kill()
        try:
            if not late:
                return self.connection.recv()
        except EOFError:
            pass
        except Exception:  # a truncated message, or one from a process with damaged memory
            self.process.kill()
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(DEADLINE)
        self.process.kill()
        code = self.process.wait()
        if late:
            return _Exit(f"did not answer for {self.deadline:g} seconds", hung=True)
        if code < 0:
            return _Exit(f"died of {signal.Signals(-code).name}")
        return _Exit(f"ended with exit code {code}" if code else "")


# multiprocessing would run the user's main script again, which may lack a guard. The job comes through a pipe because
# other users can see a command line, and the URL may contain a password.
_BOOT = """
import json, sys
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from storeds.ops.verifying.workers import run_worker
run_worker(job)
"""


def _start_worker(url: str, start: int, stop: int | None, step: int, *, workers: int, skip: list[str]) -> _Worker:
    """Start a process for the job with these arguments; see `run_worker`."""
    receiver, sender = Pipe(duplex=False)
    with sender:
        command = [sys.executable, "-c", _BOOT]
        with sigint_blocked():
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[sender.fileno()])  # noqa: S603  # our own
        job = {"url": url, "start": start, "stop": stop, "step": step, "workers": workers, "skip": skip}
        job |= {"descriptor": sender.fileno(), "path": sys.path}
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:  # the missing messages reveal a child that is gone already
            process.stdin.write(json.dumps(job).encode())
    return _Worker(process, receiver, start, stop, step)


def _share_of(count: int, workers: int) -> int:
    """Return how many of `count` records each of at most `workers` processes checks."""
    return max(_MIN_RECORDS, -(-count // workers))


def run_worker(job: dict[str, Any]) -> None:
    """Do a job in this process, which was started for it.

    Parameters
    ----------
    job : dict
        ``url``; ``start``, ``stop`` and ``step`` of the records; ``skip``, columns not to read;
        ``descriptor`` of the pipe to send through. If ``stop`` is None, the process sends the meta of the store first,
        and checks the first share of ``workers``.
    """
    die_with_parent()
    with Connection(job["descriptor"]) as sender:
        try:
            _check(sender, job)
        except StoredsError as error:
            sender.send(error)


def _check(sender: Connection, job: dict[str, Any]) -> None:
    start, stop, step = job["start"], job["stop"], job["step"]
    with open_backend(job["url"]) as backend:
        if stop is None:
            sender.send(backend.meta)
            stop = min(_share_of(len(backend), job["workers"]), len(backend))
        heartbeat = _Heartbeat(sender)
        checker = Checker(backend, skip=job["skip"], announce=sender.send, alive=heartbeat)
        sender.send(RunResult(start, start, findings=checker.findings))
        for at in range(start, stop, step):
            heartbeat.announce(at)
            sender.send(checker.check(at, min(at + step, stop)))


class _Heartbeat:
    """Announces each batch, and repeats that while the batch takes long: one picture may take a second."""

    def __init__(self, sender: Connection) -> None:
        self._sender = sender
        self._at, self._last = 0, 0.0

    def announce(self, at: int) -> None:
        self._at, self._last = at, time.monotonic()
        self._sender.send(at)

    def __call__(self) -> None:
        if time.monotonic() - self._last > _HEARTBEAT:
            self.announce(self._at)


_STEP = 64
_TICK = 1.0
_MAX_TROUBLE = 50  # crashes; a hang counts as ten
_HANG = 10


class WorkerPool:
    """At most `workers` child processes that check the store at `url`. Leaving the context kills them.

    The first one opens the store, and then checks its share. It stays alone for few records, because starting a process
    takes longer than checking some hundreds of them.
    """

    def __init__(self, url: str, workers: int) -> None:
        self._url = url
        self._workers = workers
        self._running: list[_Worker] = []
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._skip: list[str] = []
        self._columns_reported = False
        self._trouble = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._running:
            child.process.kill()
            child.process.wait()
            child.connection.close()

    def open(self) -> Meta | Finding:
        """Return the meta of the store, or a finding if opening it crashed the process.

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
        count, share = message.count, _share_of(message.count, self._workers)
        first.stop = min(share, count)
        self._waiting.extend((start, min(start + share, count), _STEP) for start in range(share, count, share))
        return message

    def check(self) -> Iterator[RunResult]:
        """Yield the results of all records, range by range, in any order.

        Findings about whole columns come with an empty range. A child that dies, or is silent for too long, gives a
        finding of kind ``crash`` for its record or column, and another child continues after that.

        Raises
        ------
        StoredsError
            A child could not open the store, or the engine became unavailable.
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
                elif isinstance(message, _Exit):
                    self._running.remove(child)
                    yield from self._replace(child, message) if message.cause else ()
                elif message.start < message.stop or not self._columns_reported:
                    self._columns_reported = True
                    yield message

    def _ready(self) -> list[_Worker]:
        """Wait briefly; return the children that sent a message or took too long."""
        before = time.monotonic()
        ready = wait([child.connection for child in self._running], _TICK)
        waited = min(time.monotonic() - before, _TICK)  # ignores time while this process was stopped
        for child in self._running:
            child.silent = 0.0 if child.connection in ready else child.silent + waited
        return [child for child in self._running if child.connection in ready or child.silent > child.deadline]

    def _start(self, start: int, stop: int | None, step: int) -> _Worker:
        child = _start_worker(self._url, start, stop, step, workers=self._workers, skip=self._skip)
        self._running.append(child)
        return child

    def _replace(self, child: _Worker, end: _Exit) -> Iterator[RunResult]:
        """Report where a child died, and schedule the rest of its work."""
        assert child.stop is not None
        self._trouble += 1
        at, next_start = child.at, child.start
        if at is None:
            yield _crash(child.start, child.stop, f"the process that opened the store for it {end.cause}")
            return
        if isinstance(at, str):
            if at not in self._skip:
                self._skip.append(at)
                message = f"the process that read column {at!r} {end.cause}"
                yield RunResult(child.start, child.start, findings=[Finding("crash", message)])
        elif self._trouble > _MAX_TROUBLE:
            message = f"too many checking processes died; the records up to {child.stop - 1} were not checked"
            yield _crash(at, child.stop, message)
            return
        else:
            next_start = min(at + child.step, child.stop)
            if child.step > 1:
                # Checking one by one shows which record it was, or that the batch was only slow.
                self._waiting.append((at, next_start, 1))
            else:
                self._trouble += _HANG * end.hung
                yield _crash(at, next_start, f"the process that read it {end.cause}")
        if next_start < child.stop:
            self._waiting.append((next_start, child.stop, child.step))


def _crash(at: int, stop: int, message: str) -> RunResult:
    return RunResult(at, stop, None, findings=[Finding("crash", message, at)])
