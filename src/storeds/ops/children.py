"""Runs checks in child processes that may die, as the reader of a damaged LMDB does, and tells where they died."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from storeds.errors import StoredsError
from storeds.ops.checks import Checker, Finding, RunResult
from storeds.protocols import Meta
from storeds.stores import open_backend

__all__ = ["check_in_children", "probe_in_child", "run_child"]

_STEP = 64
_MOST_DEATHS = 50
_PR_SET_PDEATHSIG = 1


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    connection: Connection
    start: int
    stop: int
    step: int
    at: int | None = None
    """Where the run begins that it is at; None while it opens the store and reads columns."""

    def receive(self) -> Any:
        """Return the child's next message; `_Death` once it is gone, which without a cause means that it is done."""
        try:
            return self.connection.recv()
        except EOFError:
            self.connection.close()
            code = self.process.wait()
            return _Death(f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}" if code else "")


@dataclass
class _Death:
    cause: str


def probe_in_child(url: str) -> Meta | Finding:
    """Return the meta of the store at `url`, or how opening it killed the process that tried.

    Raises
    ------
    StoredsError
        It cannot be opened.
    """
    child = _start("probe", url, 0, 0, 0)
    message = child.receive()
    if not isinstance(message, _Death):
        child.receive()
    if isinstance(message, StoredsError):
        raise message
    if isinstance(message, Meta):
        return message
    return Finding("crash", f"opening the store killed the process that tried ({message.cause})")


def check_in_children(url: str, count: int, workers: int) -> Iterator[RunResult]:
    """Yield what is wrong with all `count` records of the store at `url`, run by run, in no particular order.

    Findings about whole columns come with a run that is empty. A child that dies costs a finding of kind ``crash`` for
    the record at which it died, and another takes over behind it.

    Raises
    ------
    StoredsError
        A child could not open the store, or was told that the engine is gone.
    """
    share = -(-count // workers)
    waiting = deque((start, min(start + share, count), _STEP) for start in range(0, count, share))
    running: list[_Child] = []
    deaths, columns_told = 0, False
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start("check", url, *waiting.popleft()))
            for child in _ready(running):
                message = child.receive()
                if isinstance(message, StoredsError):
                    raise message
                if isinstance(message, int):
                    child.at = message
                elif isinstance(message, _Death):
                    running.remove(child)
                    deaths += bool(message.cause)
                    yield from _bury(child, message.cause, deaths, waiting)
                elif message.start < message.stop or not columns_told:
                    columns_told = True
                    yield message
    finally:
        for child in running:
            child.process.kill()
            child.process.wait()
            child.connection.close()


# Not multiprocessing: it would run the user's main script again, which may have no guard against that. What to do
# comes through a pipe, since everybody may see a command line and the URL may hold a password.
_BOOT = """
import json, sys
job = json.load(sys.stdin)
sys.path[:] = job["path"]
from storeds.ops.children import run_child
run_child(job)
"""


def _start(task: str, url: str, start: int, stop: int, step: int) -> _Child:
    receiver, sender = Pipe(duplex=False)
    with sender:
        command = [sys.executable, "-c", _BOOT]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[sender.fileno()])  # noqa: S603  # our own
        job = {"path": sys.path, "descriptor": sender.fileno(), "task": task, "arguments": [url, start, stop, step]}
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:  # a child that is gone already is noticed by its silence
            process.stdin.write(json.dumps(job).encode())
    return _Child(process, receiver, start, stop, step)


def _ready(running: list[_Child]) -> list[_Child]:
    ready = wait([child.connection for child in running])
    return [child for child in running if child.connection in ready]


def _bury(child: _Child, cause: str, deaths: int, waiting: deque[tuple[int, int, int]]) -> Iterator[RunResult]:
    """Tell where a child died, if it did, and arrange for what it left undone."""
    if not cause:
        return
    if child.at is None:
        finding = Finding(
            "crash", f"reading the store's header and columns killed the process that checked it ({cause})"
        )
        yield RunResult(child.start, child.stop, None, findings=[finding])
        return
    stop = min(child.at + child.step, child.stop)
    if deaths > _MOST_DEATHS:
        message = f"{deaths} checking processes died; the records up to {child.stop - 1} were not checked"
        yield RunResult(child.at, child.stop, None, findings=[Finding("crash", message, child.at)])
    elif child.step > 1:
        waiting.append((child.at, stop, 1))
        if stop < child.stop:
            waiting.append((stop, child.stop, child.step))
    else:
        message = f"reading it killed the process that checked it ({cause})"
        yield RunResult(child.at, stop, None, findings=[Finding("crash", message, child.at)])
        if stop < child.stop:
            waiting.append((stop, child.stop, 1))


def run_child(job: dict[str, Any]) -> None:
    """Do a job in this process, which was started for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with Connection(job["descriptor"]) as sender:
        try:
            tasks: dict[str, Callable[..., None]] = {"check": _check, "probe": _probe}
            tasks[job["task"]](sender, *job["arguments"])
        except StoredsError as error:
            sender.send(error)


def _probe(sender: Connection, url: str, *_: int) -> None:
    with open_backend(url) as backend:
        sender.send(backend.meta)


def _check(sender: Connection, url: str, start: int, stop: int, step: int) -> None:
    with open_backend(url) as backend:
        checker = Checker(backend)
        sender.send(RunResult(start, start, b"", findings=checker.findings))
        for at in range(start, stop, step):
            sender.send(at)
            sender.send(checker.check(at, min(at + step, stop)))
