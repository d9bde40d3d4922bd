"""Identifies the process that a writer belongs to, on this machine or another, and tells whether it has ended."""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

__all__ = ["Owner"]


@dataclass(frozen=True)
class Owner:
    """A writer's process.

    Attributes
    ----------
    host, pid, since : str, int, str
        What messages show; `since` is when the writer was opened, in UTC.
    machine : str
        The boot of a kernel and the namespace of its process ids; empty where there is no ``/proc``.
    ticks : int
        When the process started, by its kernel's clock: process ids are used again.
    """

    host: str
    pid: int
    since: str
    machine: str
    ticks: int

    @classmethod
    def here(cls) -> Self:
        """Return the owner of a writer that this process opens now."""
        since = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return cls(socket.gethostname(), os.getpid(), since, _machine(), _start(os.getpid())[0])

    @classmethod
    def from_json(cls, found: Any) -> Self | None:
        """Return the owner that `to_json` described, or None for anything else."""
        try:
            return cls(**{name: kind(found[name]) for name, kind in _KINDS.items()})
        except (TypeError, KeyError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return asdict(self)

    @property
    def is_here(self) -> bool:
        """Whether this is the present process."""
        return (self.pid, self.machine, self.host) == (os.getpid(), _machine(), socket.gethostname()) and (
            self.ticks == _start(self.pid)[0]
        )

    @property
    def has_ended(self) -> bool:
        """Whether the process has certainly ended; a process of another machine or container may have."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # somebody else's process
        ticks, state = _start(self.pid)
        return ticks != 0 and (ticks != self.ticks or state in "ZX")

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


_KINDS: Mapping[str, type] = {"host": str, "pid": int, "since": str, "machine": str, "ticks": int}


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start(pid: int) -> tuple[int, str]:
    """Return when a process started and its state; (0, "") where that cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[19]), fields[0]
