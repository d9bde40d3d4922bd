"""The runner's side of an entrant's process: sends its job, requests epochs, and ends it with all its children."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_SECONDS_TO_END = 20.0
_QUIET = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


class Failed(Exception):  # noqa: N818  # what happened to an entrant, no fault of the program
    """An entrant raised, ended or hung; the message says which, and where its output is."""


class Missing(Exception):  # noqa: N818  # the same
    """Its library is not installed in that Python."""


@dataclass(frozen=True)
class Cost:
    """What an epoch took.

    Attributes
    ----------
    seconds : float
        From asking for the first batch to having the last.
    processor : float
        User and system seconds of the entrant and its workers.
    read : float
        Bytes that they read from disks, rather than from the page cache.
    """

    seconds: float
    processor: float
    read: float


class Process:
    """One entrant, in a Python of its own.

    Parameters
    ----------
    python : str
        The interpreter.
    job : mapping
        What `benchmarks.peers._job.Job` holds, and ``module`` and ``output``.
    log : Path
        Where its output goes.

    Raises
    ------
    Missing
        Its module cannot be imported.
    Failed
        It could not write its store, or its first epoch was not right.
    """

    def __init__(self, python: str, job: Mapping[str, Any], log: Path, deadline: float) -> None:
        self._log, self._deadline = log, deadline
        temporary = Path(job["work"]).parent / "tmp"  # libraries leave files there, which go with the folder
        temporary.mkdir(exist_ok=True)
        with open(log, "wb") as errors:
            # A session of its own, so that the worker processes it leaves behind can be ended with it.
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.peers._child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                cwd=_ROOT,
                env={**os.environ, **_QUIET, "TMPDIR": str(temporary)},
                start_new_session=True,
            )
        try:
            self.about = self._ask(json.dumps(job))
        except BaseException:
            self.close()
            raise

    def epoch(self) -> Cost:
        """Run an epoch."""
        before = self._used()
        seconds = float(self._ask("epoch")["seconds"])
        processor, read = (now - then for now, then in zip(self._used(), before, strict=True))
        return Cost(seconds, processor, read)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        end = time.monotonic() + _SECONDS_TO_END
        while not self._has_ended() and time.monotonic() < end:
            time.sleep(0.05)
        # Before it is waited for: until then its id, which is the group's too, can belong to nobody else.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _used(self) -> tuple[float, float]:
        """Return processor seconds and bytes read from disks, of all processes of its session: workers stay."""
        ticks = read = 0
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    after_name = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                    if int(after_name[3]) == self._process.pid:
                        ticks += int(after_name[11]) + int(after_name[12])
                        read += int(Path(entry.path, "io").read_text().partition("\nread_bytes:")[2].split()[0])
                except OSError:
                    continue  # it has just ended
        return ticks / os.sysconf("SC_CLK_TCK"), read

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise Failed(f"it ended by itself; see {self._log}") from None
        answer: dict[str, Any] = json.loads(self._line())
        if "missing" in answer:
            raise Missing(answer["missing"])
        if "error" in answer:
            raise Failed(f"{answer['error']}; see {self._log}")
        return answer

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        end, line = time.monotonic() + self._deadline, b""
        while not line.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
                raise Failed(f"it did not answer within {self._deadline:g} s; see {self._log}")
            more = self._process.stdout.read(1 << 16)
            if not more:
                raise Failed(f"it ended by itself; see {self._log}")
            line += more
        return line
