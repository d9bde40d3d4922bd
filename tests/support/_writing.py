"""Run writers in separate processes, one step at a time. A test can stop them inside a step, and kill them."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from pymongo import monitoring

import storeds

__all__ = [
    "DEADLINE",
    "WriterProcess",
    "content",
    "die_at_command",
    "die_at_file_operation",
    "fork",
    "in_fork",
    "leftovers_in",
    "server_pids",
    "wait_for",
]

DEADLINE = 150.0  # seconds: a hang, not a slow machine

FIELDS = {"job": "str", "at": "int"}


class _AtCommand(monitoring.CommandListener):
    """Does something when this process is about to send its n-th command to MongoDB; 0 is never."""

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        self.left, self.action = number, action

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.left -= 1
        if self.left == 0:
            self.action()

    def succeeded(self, event: object) -> None:
        pass

    failed = succeeded


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child and return its pid; its exit code is 0, or 10 after an exception."""
    pid = os.fork()
    if pid == 0:
        code = 10
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def in_fork(work: Callable[[], object]) -> None:
    """Run `work` in a forked child; a child that fails or hangs fails the test."""
    assert wait_for(fork(work)) == 0


def wait_for(pid: int) -> int:
    """Return the exit code of a child; one that hangs fails the test."""
    ended = os.pidfd_open(pid)
    try:
        if not select.select([ended], [], [], DEADLINE)[0]:
            os.kill(pid, signal.SIGKILL)
            pytest.fail(f"the forked child hung for {DEADLINE} s")
    finally:
        os.close(ended)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def die_at_command(work: Callable[[], object], number: int) -> int:
    """Run `work` in a child that is killed when it is about to send this command; return its exit code."""

    def watched() -> None:
        monitoring.register(_AtCommand(number, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        work()

    return wait_for(fork(watched))


_FILE_EVENTS = {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}


def die_at_file_operation(work: Callable[[], object], below: str, number: int) -> int:
    """Run `work` in a child that is killed at its n-th operation on a path that contains `below`; return its exit code."""

    def watched() -> None:
        left = number

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in _FILE_EVENTS and below in str(arguments[0]):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()

    return wait_for(fork(watched))


class WriterProcess:
    """A process with at most one writer of `url`, which appends records that say which job they are of."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pipe, theirs = Pipe()
        self.pid = fork(lambda: self._serve(theirs))
        theirs.close()

    def _serve(self, pipe: Connection) -> None:
        self._pipe.close()
        stop = _AtCommand(0, lambda: os.kill(os.getpid(), signal.SIGSTOP))
        monitoring.register(stop)
        writer: Any = None
        reply: Any
        while True:
            action, job, stop.left, options = pipe.recv()
            try:
                if action == "begin":
                    writer = storeds.open_writer(self.url, FIELDS, plan=job, commit_every=3, **options)
                elif action == "append":
                    first = writer.count
                    writer.append({"job": job, "at": first + k} for k in range(options["count"]))
                else:
                    getattr(writer, action)()
                reply = (writer.count, writer.meta.id if writer.meta else None)
            except storeds.errors.StoredsError as error:
                reply = error
            stop.left = 0
            pipe.send(pickle.dumps(reply))

    def tell(self, action: str, job: str, *, stop_at: int = 0, **options: Any) -> None:
        """Begin a step; it stops the process before its `stop_at`-th command to MongoDB, if it comes to that."""
        self._pipe.send((action, job, stop_at, options))

    def is_stopped(self) -> bool:
        """Wait until the step ends, or stops the process; return which."""
        while not self._pipe.poll(0.02):
            if os.waitpid(self.pid, os.WUNTRACED | os.WNOHANG)[1]:
                return True
        return False

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def reply(self) -> Any:
        """Return (count, id) of the writer, or the error."""
        return pickle.loads(self._pipe.recv())

    def ask(self, action: str, job: str, **options: Any) -> Any:
        self.tell(action, job, **options)
        return self.reply()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._pipe.close()


def leftovers_in(database: Any, name: str) -> list[str]:
    """Return what there is of a MongoDB store beyond its records, its meta and the parts of its large values."""
    found = [one for one in sorted(database.list_collection_names()) if one.startswith(f"{name}.")]
    used = {"meta"}
    for row in database[name].find({"_id": {"$type": "number"}}):
        for field, value in row.items():
            if isinstance(value, dict):
                used |= {f"part/{row['_id']:016x}/{field}/{number}" for number in range(value["_parts"])}
    found += [
        f"document {id}" for id in database[name].find({"_id": {"$type": "string"}}).distinct("_id") if id not in used
    ]
    return found


def server_pids(data: Path) -> list[int]:
    """Return the servers whose data lie below `data`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(data).encode() in command and b"mongod\0" in command:
            found.append(int(process.name))
    return found


def content(url: str) -> str | None:
    """Return the id of the store at `url` after reading all of it, or None when nothing is there."""
    try:
        with storeds.open_backend(url) as backend:
            for record in backend.get_many(range(len(backend))):
                if isinstance(record, storeds.errors.RecordError):
                    raise record
            return backend.meta.id
    except storeds.errors.StoreNotFoundError:
        return None
