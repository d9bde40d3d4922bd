"""Child processes that check a store. Damage may end a child, but not its caller.

multiprocessing is no help: it runs the user's main script again in each child.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, Self

from storeds.backends.opening import open_backend
from storeds.errors import StoredsError
from storeds.ops.verifying.checks import BATCH, BatchResult, Checker, Finding, column_names
from storeds.protocols import Backend, Meta

__all__ = ["DEADLINE", "ChildDied", "WorkerPool", "serve"]


DEADLINE = 60.0
"""Seconds that a child may take for a batch; ten times that to open the store, or to read a column."""

_MIN_RECORDS = 256  # that are worth another process
_AHEAD = 16  # batches of each worker that may wait for a slower one before them
_MAX_TROUBLE = 50  # records that end children of one worker; a hang counts as ten
_HANG = 10


class ChildDied(Exception):  # noqa: N818  # an outcome
    """A child crashed or hung. The text says how."""

    def __init__(self, how: str, *, hung: bool = False) -> None:
        super().__init__(how)
        self.hung = hung


# The URL comes through the pipe, because other users can see a command line, and it may contain a password. -P keeps
# modules of the working directory out of the first imports.
_BOOT = """
import sys
from multiprocessing.connection import Connection
pipe = Connection({})
sys.path[:] = pipe.recv()
from storeds.ops.verifying.workers import serve
serve(pipe)
"""


def serve(pipe: Connection) -> None:
    """Open a store and answer requests, in a process that was started for it. Ends with the pipe.

    The first message is the URL of the store, or a `Backend`, and the columns to compare; the answer is the meta. Each request is the name of a method of
    `Checker` and its arguments. An answer may be a StoredsError.
    """
    _die_with_parent()
    try:
        source, columns = pipe.recv()
        with open_backend(source) if isinstance(source, str) else source as backend:
            checker = Checker(backend, columns)
            pipe.send(backend.meta)
            while True:
                name, *arguments = pipe.recv()
                pipe.send(getattr(checker, name)(*arguments))
    except EOFError:
        return
    except StoredsError as error:
        pipe.send(error)


class _Worker:
    """Answers requests through a child. After the child dies, the next request starts another. For one thread at a time."""

    def __init__(self, source: str | Backend, columns: list[str]) -> None:
        self._source = source
        self._columns = columns
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection
        self._closed = False
        self.trouble = 0

    def open(self) -> Meta:
        """Start a child, which opens the store and reads the columns; return the meta.

        Raises
        ------
        StoredsError
            The store cannot be opened.
        ChildDied
        """
        with self._lock:
            if self._closed:
                raise ChildDied("was stopped")
            self._pipe, theirs = Pipe()
            command = [sys.executable, "-P", "-c", _BOOT.format(theirs.fileno())]
            with theirs, _sigint_blocked():
                # The command is this interpreter and our own text.
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])  # noqa: S603  # this interpreter
        meta: Meta = self._exchange([sys.path, (self._source, self._columns)], 10 * DEADLINE)
        return meta

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what a method of `Checker` gives; raises what `open` does."""
        if self._process is None:
            self.open()
        return self._exchange([(name, *arguments)], DEADLINE if name == "check" else 10 * DEADLINE)

    def _exchange(self, messages: list[Any], seconds: float) -> Any:
        """Send `messages` and return the answer to the last one."""
        try:
            for message in messages:
                self._pipe.send(message)
            is_late = not self._pipe.poll(seconds)
            answer = None if is_late else self._pipe.recv()
        except Exception:  # the pipe ended, or a process with damaged memory sent something else
            raise ChildDied(self._reap()) from None
        if is_late:
            self.kill()
            self._reap()
            raise ChildDied(f"did not answer for {seconds:g} seconds", hung=True)
        if isinstance(answer, StoredsError):
            raise answer
        return answer

    def _reap(self) -> str:
        """Wait for the end of the child; return how it ended."""
        assert self._process is not None
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DEADLINE)
        self.kill()
        code = self._process.wait()
        self._process = None
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def kill(self, *, close: bool = False) -> None:
        """Kill the child, in any thread. After `close`, no other is started."""
        with self._lock:
            self._closed |= close
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Wait for the end of a killed child."""
        if self._process is not None:
            self._reap()


class WorkerPool:
    """At most `count` children that check a store, given by its URL or open. Leaving the context kills them.

    A store of few records has one child, because starting a process takes longer than checking some hundreds of them.
    """

    def __init__(self, source: str | Backend, count: int) -> None:
        self._columns: list[str] = []
        self._workers = [_Worker(source, self._columns) for _ in range(count)]
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "storeds-verify")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.kill(close=True)
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def open(self) -> Meta:
        """Return the meta of the store, from the first child.

        Raises
        ------
        StoredsError
            It cannot be opened.
        ChildDied
            Opening it ended the process.
        """
        return self._workers[0].open()

    def check(self, meta: Meta) -> Iterator[BatchResult]:
        """Yield what is wrong with whole columns, and then the result of each batch, in order.

        A column or record that ends its child gives a finding of kind ``crash``.

        Raises
        ------
        StoredsError
            A child could not open the store, or the engine became unavailable.
        """
        yield BatchResult(0, findings=list(self._column_findings(meta)))
        for worker in self._workers[: -(-meta.count // _MIN_RECORDS)]:
            self._idle.put(worker)
        ahead = _AHEAD * self._idle.qsize()
        batches = iter(range(0, meta.count, BATCH))
        pending: deque[Future[list[BatchResult]]] = deque()
        done = 0
        while done < meta.count:
            while len(pending) < ahead and (start := next(batches, None)) is not None:
                pending.append(self._threads.submit(self._check, start, min(start + BATCH, meta.count), meta.count))
            for result in pending.popleft().result():
                yield result
                done = result.stop

    def _column_findings(self, meta: Meta) -> Iterator[Finding]:
        for name in column_names(meta):
            try:
                finding = self._workers[0].ask("read_column", name)
            except ChildDied as end:
                finding = Finding("crash", f"the process that read column {name!r} {end}")
            if finding is None:
                self._columns.append(name)
            else:
                yield finding

    def _check(self, start: int, stop: int, count: int) -> list[BatchResult]:
        worker = self._idle.get()
        try:
            return [worker.ask("check", start, stop)]
        except ChildDied:
            # Checking one by one shows which record it was, or that the batch was only slow.
            return list(self._check_each(worker, start, stop, count))
        finally:
            self._idle.put(worker)

    def _check_each(self, worker: _Worker, start: int, stop: int, count: int) -> Iterator[BatchResult]:
        for at in range(start, stop):
            if worker.trouble > _MAX_TROUBLE:
                message = f"too many checking processes died; the records up to {count - 1} were not checked"
                yield _crash(at, count, message)
                return
            try:
                yield worker.ask("check", at, at + 1)
            except ChildDied as end:
                worker.trouble += _HANG if end.hung else 1
                yield _crash(at, at + 1, f"the process that read it {end}")


def _crash(at: int, stop: int, message: str) -> BatchResult:
    return BatchResult(stop, None, findings=[Finding("crash", message, at)])


_PR_SET_PDEATHSIG = 1


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block Ctrl-C while child processes start. They inherit the mask and print no traceback from an import."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_with_parent() -> None:
    """Make this process ignore Ctrl-C and die when its parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
