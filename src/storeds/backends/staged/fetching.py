"""Has a store copied by a process of its own, and opens files of it as soon as they are there.

The process that copies is a fresh one: threads of a library that reads the cloud do not survive the fork of a worker.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from storeds import errors
from storeds.backends.raw import Opener, RawStore
from storeds.backends.staged.cache import Entry
from storeds.errors import FormatError, StoredsError, UnavailableError

__all__ = ["ArrivingOpener", "Copier"]

_LOG = logging.getLogger("storeds")
_PAUSE = 0.02  # seconds between looks at a file
_DEATHS = 3  # processes that a signal killed, while one file is awaited
_RUNNING: dict[tuple[int, Path], subprocess.Popen[str]] = {}  # by process and entry: it ends with its pipe


@dataclass(frozen=True)
class Copier:
    """How to have a store copied. Picklable.

    Parameters
    ----------
    url : str
        The store. It may hold a password, which only a pipe passes on.
    entry : Entry
        Where to.
    """

    url: str
    entry: Entry

    def begin(self) -> bool:
        """Start a process that copies, unless one works already; return whether it was started."""
        own = os.getpid(), self.entry.folder
        last = _RUNNING.get(own)
        with self.entry.lock_now() or contextlib.nullcontext() as lock:
            if lock is None or (last is not None and last.poll() is None):
                return False
            if last is not None:
                _close(last)
            _RUNNING[own] = self._start(None, lock)
        return True

    def wait_for(self, path: str) -> None:
        """Return once a file is there, which some process of this machine copies.

        Raises
        ------
        StoredsError
            That of the process: the store cannot be reached, is damaged, or there is no room for it.
        """
        own, deaths, is_own, is_told = (os.getpid(), self.entry.folder), 0, False, False
        while not os.path.exists(path):
            process = _RUNNING.get(own)
            if process is None:
                is_own = self.begin() or is_own
            elif process.poll() is not None:
                _RUNNING.pop(own, None)
                deaths += process.returncode < 0  # by a signal
                if is_own and (process.returncode >= 0 or deaths > _DEATHS):
                    self._end(process)
                    if not os.path.exists(path):
                        raise UnavailableError(f"{self.entry.url} was copied, and {path} is gone: open the store again")
                _close(process)  # it began for another file, or is replaced
            if not is_told:
                _LOG.info("%s: waiting for %s", self.entry.url, path)
                is_told = True
            time.sleep(_PAUSE)

    def renew(self, name: str) -> bool:
        """Have a file copied again if it is damaged; return whether it is intact now."""
        try:
            self._end(self._start(name, None))
        except StoredsError as error:
            _LOG.warning("%s: a damaged copy cannot be replaced: %s", self.entry.url, error)
            return False
        return True

    def _start(self, renew: str | None, lock: IO[bytes] | None) -> subprocess.Popen[str]:
        """Start a process, which gets the lock of the entry so that no other one starts meanwhile."""
        cache, passed = self.entry.cache, [] if lock is None else [lock.fileno()]
        request = {"url": self.url, "path": str(cache.path), "limit": cache.limit, "renew": renew, "lock": passed}
        command = [sys.executable, "-m", "storeds.backends.staged.process"]
        process = subprocess.Popen(  # noqa: S603  # this Python
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=passed
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Wait for a process, and raise its error."""
        assert process.stdout is not None
        answer = process.stdout.read()
        status = process.wait()
        _close(process)
        if status:
            try:
                body = json.loads(answer)
            except ValueError:
                what = f"{self.entry.url}: the process that copied it ended with status {status}"
                body = {"error": "UnavailableError", "message": what}
            raise getattr(errors, body["error"])(body["message"])


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@atexit.register
def _end_all() -> None:
    for (pid, _), process in _RUNNING.items():
        if pid == os.getpid():
            process.kill()
            process.wait()
            _close(process)


@dataclass(frozen=True)
class ArrivingOpener(Opener[Any]):
    """Opens a file once it is there, and has a damaged one copied again.

    Parameters
    ----------
    inner : Opener
        Of the file.
    copier : Copier
    name : str
        Of the file in the store.
    path : str
    """

    inner: Opener[Any]
    copier: Copier
    name: str
    path: str

    @property
    def may_wait(self) -> bool:
        # docstring inherited
        return self.inner.may_wait

    @property
    def url(self) -> str:
        # docstring inherited
        return self.inner.url

    def key(self) -> Hashable:
        # docstring inherited; it is asked for before a file is opened
        self.copier.wait_for(self.path)
        return self.inner.key()

    def open(self) -> Any:
        try:
            return self._open()
        except FormatError:
            if not self.renew():
                raise
            return self._open()

    def _open(self) -> Any:
        handle = self.inner.open()
        try:
            self.inner.attach(handle)
        except BaseException:
            self.inner.close(handle)
            raise
        return handle

    def close(self, handle: Any, /) -> None:
        self.inner.close(handle)

    def is_current(self, handle: Any, /) -> bool:
        # docstring inherited
        return self.inner.is_current(handle)

    def attach(self, handle: Any, /) -> RawStore:
        # docstring inherited
        return self.inner.attach(handle)

    def settled(self, raw: Any, /) -> Opener[Any]:
        # docstring inherited
        return replace(self, inner=self.inner.settled(raw))

    def renew(self) -> bool:
        # docstring inherited
        return self.copier.renew(self.name)
