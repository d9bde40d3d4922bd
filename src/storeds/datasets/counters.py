"""Counts the samples that were bad, repaired, skipped or replaced, in a table that all processes of a dataset share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from storeds._utils.text import counted
from storeds.datasets.epoch import SharedTable

__all__ = ["FAULTS", "Event", "SampleCounters", "SampleReport"]

FAULTS = (
    "record",
    "not_jpeg",
    "truncated_header",
    "truncated_scan",
    "missing_eoi",
    "corrupt_data",
    "too_large",
    "decode",
    "transform",
    "other",
)
"""The kinds of fault, each with its own counter."""

_ROWS, _KEPT, _TEXT = 128, 10, 240
_COUNTERS = np.dtype(
    [
        ("process", "<i8"),
        ("epoch", "<i8"),  # of the next two counters, because limits hold for one epoch
        ("epoch_seen", "<i8"),
        ("epoch_bad", "<i8"),
        ("seen", "<i8"),
        ("skipped", "<i8"),
        ("replaced", "<i8"),
        ("bad", "<i8", len(FAULTS)),
        ("repaired", "<i8", len(FAULTS)),
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
        ("repaired", "?"),
        ("text", f"S{_TEXT}"),
    ]
)


@dataclass(frozen=True, slots=True)
class Event:
    """One bad or repaired sample; `time` is that of the system's monotonic clock, in nanoseconds."""

    time: int
    epoch: int
    index: int
    position: int
    fault: str
    repaired: bool
    text: str


# A thread that holds the lock during a fork does not exist in the child and would never release it.
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


class SampleCounters(SharedTable):
    """The counters of one dataset, one row for each process. Thread-safe.

    Only its own process writes a row. A process that reads all rows may see a sample in one counter and not yet in
    another.
    """

    DTYPE = np.dtype(
        [
            ("logged_by", "<i8", len(FAULTS)),
            ("rows", _COUNTERS, _ROWS),
            ("first", _EVENT, (_ROWS, _KEPT)),
            ("last", _EVENT, (_ROWS, _KEPT)),
        ]
    )
    _mine: tuple[int, int] | None = None

    def add_seen(self, count: int, epoch: int) -> None:
        """Count requested samples."""
        with _lock:
            row = self.table["rows"][self._row(epoch)]
            row["seen"] += count
            row["epoch_seen"] += count

    def add(self, event: Event, outcome: str = "") -> None:
        """Count a bad or repaired sample, and the `outcome` ``skipped`` or ``replaced`` of a bad one."""
        code = _code(event.fault)
        text = event.text.encode()[:_TEXT].decode(errors="ignore").encode()
        with _lock:
            at = self._row(event.epoch)
            row = self.table["rows"][at]
            packed = (event.time, event.epoch, event.index, event.position, code, event.repaired, text)
            self.table["last"][at, int(row["events"]) % _KEPT] = packed
            row["events"] += 1
            if event.repaired:
                row["repaired"][code] += 1
                return
            before = int(row["bad"].sum())
            if before < _KEPT:
                self.table["first"][at, before] = packed
            row["bad"][code] += 1
            row["epoch_bad"] += 1
            if outcome:
                row[outcome] += 1

    def is_first_of_kind(self, fault: str) -> bool:
        """Return True in one process once: the first time that any process asks about this kind of fault."""
        owners, code, process = self.table["logged_by"], _code(fault), os.getpid()
        if owners[code]:
            return False
        owners[code] = process
        return bool(owners[code] == process)

    def of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return how many samples all processes saw in `epoch`, and how many of them were bad."""
        rows = self.table["rows"]
        mine = rows["epoch"] == epoch
        return int(rows["epoch_seen"][mine].sum()), int(rows["epoch_bad"][mine].sum())

    def total(self, counter: str) -> Any:
        """Return a counter summed over all processes; for ``bad`` and ``repaired`` a dict by fault."""
        total = self.table["rows"][counter].sum(axis=0)
        if total.ndim:
            return {fault: int(count) for fault, count in zip(FAULTS, total, strict=True) if count}
        return int(total)

    def events(self, which: str) -> list[Event]:
        """Return the ``first`` ten bad samples or the ``last`` ten bad or repaired ones of all processes, oldest first."""
        found = sorted(self._events(which), key=lambda event: event.time)
        return found[:_KEPT] if which == "first" else found[-_KEPT:]

    def _events(self, which: str) -> Iterator[Event]:
        rows, events = self.table["rows"], self.table[which]
        counts = rows["events"] if which == "last" else rows["bad"].sum(axis=1)
        for at in np.flatnonzero(counts):
            for event in events[at, : int(counts[at])]:
                time, epoch, index, position = (int(event[name]) for name in ("time", "epoch", "index", "position"))
                text = event["text"].decode(errors="replace")
                yield Event(time, epoch, index, position, FAULTS[event["fault"]], bool(event["repaired"]), text)

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
        """Return a row that no other living process writes.

        Workers that start together have neighbouring process ids, so they claim different rows.
        """
        owners = self.table["rows"]["process"]
        for step in range(_ROWS):
            at = (process + step) % _ROWS
            if owners[at] in (0, process) or not _is_alive(int(owners[at])):
                break
        owners[at] = process
        return at


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
    """Counts over all epochs so far, of this process and its workers.

    Attributes
    ----------
    url : str
    on_error : str
        The policy.
    seen : int
        Requested samples.
    bad, repaired : dict
        Fault → number of samples that were bad, or that were returned after a repair although a part is missing.
    skipped, replaced : int
        What happened to the bad ones; 0 with ``raise``.
    first, last : list of Event
        The first ten bad samples, and the last ten bad or repaired ones, oldest first.
    """

    url: str
    on_error: str
    seen: int
    bad: dict[str, int]
    repaired: dict[str, int]
    skipped: int
    replaced: int
    first: list[Event]
    last: list[Event]

    @classmethod
    def of(cls, url: str, on_error: str, counters: SampleCounters) -> SampleReport:
        """Return a report of the present counts."""
        totals = {name: counters.total(name) for name in ("seen", "bad", "repaired", "skipped", "replaced")}
        return cls(url, on_error, **totals, first=counters.events("first"), last=counters.events("last"))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        total = f"{sum(self.bad.values()):,} bad ({self.skipped:,} skipped, {self.replaced:,} replaced)"
        lines = [f"{self.url}: {counted(self.seen, 'sample')}, {sum(self.repaired.values()):,} repaired, {total}"]
        faults = [fault for fault in FAULTS if fault in self.bad or fault in self.repaired]
        if faults:
            lines.append(f"  {'fault':<18}{'repaired':>10}{'bad':>10}")
            lines += [
                f"  {fault:<18}{self.repaired.get(fault, 0):>10,}{self.bad.get(fault, 0):>10,}" for fault in faults
            ]
        lines += [f"  {event.text}" for event in self.last]
        return "\n".join(lines)
