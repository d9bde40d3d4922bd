"""Counts samples and what was wrong with them, in rows that a dataset shares with its workers."""

from __future__ import annotations

import os
import threading
import time as clock
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from storeds._utils.shared_values import SharedTable
from storeds._utils.text import counted

__all__ = ["FAULTS", "Event", "SampleReport", "Tally", "now"]


FAULTS = (
    "record",
    "not_jpeg",
    "truncated_header",
    "truncated_scan",
    "truncated_file",
    "missing_eoi",
    "corrupt_data",
    "too_large",
    "decode",
    "transform",
    "other",
)
"""The sorts of fault that are counted apart."""

_ROWS, _KEPT, _TEXT = 128, 10, 240
_COUNTERS = np.dtype(
    [
        ("process", "<i8"),
        ("epoch", "<i8"),  # the one that the next two belong to, as limits hold for one epoch
        ("epoch_seen", "<i8"),
        ("epoch_bad", "<i8"),
        ("seen", "<i8"),
        ("skipped", "<i8"),
        ("replaced", "<i8"),
        ("bad", "<i8", len(FAULTS)),
        ("mended", "<i8", len(FAULTS)),
        ("events", "<i8"),
    ]
)
_EVENT = np.dtype(
    [
        ("time", "<i8"),
        ("epoch", "<i8"),
        ("index", "<i8"),
        ("position", "<i8"),
        ("fault", "<i4"),
        ("mended", "?"),
        ("text", f"S{_TEXT}"),
    ]
)


@dataclass(frozen=True, slots=True)
class Event:
    """One bad or mended sample."""

    time: int
    epoch: int
    index: int
    position: int
    fault: str
    mended: bool
    text: str


# A fork may catch another thread with the lock in its hands, which the child would wait for in vain.
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class Tally(SharedTable):
    """The counters of one dataset: a row for each process.

    Notes
    -----
    Thread-safe. Only its own process writes a row; anyone reads them all, and may see a sample that one counter shows
    already and another not yet.
    """

    DTYPE = np.dtype(
        [
            ("told", "<i8", len(FAULTS)),
            ("rows", _COUNTERS, _ROWS),
            ("first", _EVENT, (_ROWS, _KEPT)),
            ("last", _EVENT, (_ROWS, _KEPT)),
        ]
    )
    _mine: tuple[int, int] | None = None

    def saw(self, count: int, epoch: int) -> None:
        """Count samples that were asked for."""
        with _lock:
            row = self.table["rows"][self._row(epoch)]
            row["seen"] += count
            row["epoch_seen"] += count

    def add(self, event: Event, outcome: str = "") -> None:
        """Count a bad or mended sample, and the `outcome` ``skipped`` or ``replaced`` of a bad one."""
        code = _code(event.fault)
        text = event.text.encode()[:_TEXT].decode(errors="ignore").encode()
        with _lock:
            at = self._row(event.epoch)
            row = self.table["rows"][at]
            packed = (event.time, event.epoch, event.index, event.position, code, event.mended, text)
            self.table["last"][at, int(row["events"]) % _KEPT] = packed
            row["events"] += 1
            if event.mended:
                row["mended"][code] += 1
                return
            before = int(row["bad"].sum())
            if before < _KEPT:
                self.table["first"][at, before] = packed
            row["bad"][code] += 1
            row["epoch_bad"] += 1
            if outcome:
                row[outcome] += 1

    def tell(self, fault: str) -> bool:
        """Return whether this process is to tell of `fault`, which one process does once."""
        told, code, process = self.table["told"], _code(fault), os.getpid()
        if told[code]:
            return False
        told[code] = process
        return bool(told[code] == process)

    def limits(self, epoch: int) -> tuple[int, int]:
        """Return how many samples all processes saw, and how many were bad, in `epoch`."""
        rows = self.table["rows"]
        mine = rows["epoch"] == epoch
        return int(rows["epoch_seen"][mine].sum()), int(rows["epoch_bad"][mine].sum())

    def total(self, counter: str) -> Any:
        """Return a counter summed over all processes; for ``bad`` and ``mended`` a dict by fault."""
        total = self.table["rows"][counter].sum(axis=0)
        if total.ndim:
            return {fault: int(count) for fault, count in zip(FAULTS, total, strict=True) if count}
        return int(total)

    def events(self, which: str) -> list[Event]:
        """Return the ``first`` ten bad samples or the ``last`` ten bad or mended ones of all processes, oldest first."""
        found = sorted(self._events(which), key=lambda event: event.time)
        return found[:_KEPT] if which == "first" else found[-_KEPT:]

    def _events(self, which: str) -> Iterator[Event]:
        rows, events = self.table["rows"], self.table[which]
        counts = rows["events"] if which == "last" else rows["bad"].sum(axis=1)
        for at in np.flatnonzero(counts):
            for event in events[at, : int(counts[at])]:
                time, epoch, index, position = (int(event[name]) for name in ("time", "epoch", "index", "position"))
                text = event["text"].decode(errors="replace")
                yield Event(time, epoch, index, position, FAULTS[event["fault"]], bool(event["mended"]), text)

    def _row(self, epoch: int) -> int:
        process = os.getpid()
        if self._mine is None or self._mine[0] != process:
            self._mine = process, self._claim(process)
        at = self._mine[1]
        row = self.table["rows"][at]
        if row["epoch"] != epoch:
            row["epoch"], row["epoch_seen"], row["epoch_bad"] = epoch, 0, 0
        return at

    def _claim(self, process: int) -> int:
        """Return a row that no other living process writes; workers that start together have neighbouring numbers."""
        owners = self.table["rows"]["process"]
        for step in range(_ROWS):
            at = (process + step) % _ROWS
            if owners[at] in (0, process) or not _is_alive(int(owners[at])):
                break
        owners[at] = process
        return at


def now() -> int:
    """Return the time of an event, comparable between processes."""
    return clock.monotonic_ns()


def _code(fault: str) -> int:
    return FAULTS.index(fault) if fault in FAULTS else len(FAULTS) - 1


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@dataclass(frozen=True)
class SampleReport:
    """Counts over all epochs so far, of this process and the workers that it started.

    Attributes
    ----------
    url : str
    on_error : str
        The policy.
    seen : int
        Samples asked for.
    bad, mended : dict
        Fault → how many samples were bad by it, or were given out although a part of them is missing.
    skipped, replaced : int
        What became of the bad ones; with ``raise``, neither.
    first, last : list of Event
        The first ten bad samples, and the last ten that were bad or mended, oldest first.
    """

    url: str
    on_error: str
    seen: int
    bad: dict[str, int]
    mended: dict[str, int]
    skipped: int
    replaced: int
    first: list[Event]
    last: list[Event]

    @classmethod
    def of(cls, url: str, on_error: str, tally: Tally) -> SampleReport:
        """Return what `tally` holds now."""
        counters = {name: tally.total(name) for name in ("seen", "bad", "mended", "skipped", "replaced")}
        return cls(url, on_error, **counters, first=tally.events("first"), last=tally.events("last"))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        total = f"{sum(self.bad.values()):,} bad ({self.skipped:,} skipped, {self.replaced:,} replaced)"
        lines = [f"{self.url}: {counted(self.seen, 'sample')}, {sum(self.mended.values()):,} mended, {total}"]
        faults = [fault for fault in FAULTS if fault in self.bad or fault in self.mended]
        if faults:
            lines.append(f"  {'fault':<18}{'mended':>10}{'bad':>10}")
            lines += [f"  {fault:<18}{self.mended.get(fault, 0):>10,}{self.bad.get(fault, 0):>10,}" for fault in faults]
        lines += [f"  {event.text}" for event in self.last]
        return "\n".join(lines)
