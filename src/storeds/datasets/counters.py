"""Counts the samples that were bad, repaired, skipped or replaced.

What happens to the samples of a batch travels with it as a `BatchEvents`, and the training process counts it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from storeds._utils.text import counted
from storeds.datasets.epoch import SharedTable, collected_events
from storeds.errors import BadSamplesError

__all__ = ["FAULTS", "BatchEvents", "Event", "Limits", "SampleCounters", "SampleReport", "count_events"]

_LOG = logging.getLogger("storeds")

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

_KEPT = 10  # events of a report
_EPOCHS = 8  # epochs whose samples are counted for the limits: of loaders that run side by side
# A fraction of fewer samples than this says little.
_MIN_SEEN = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """One bad or repaired sample.

    Attributes
    ----------
    time : int
        Of the system's monotonic clock, in nanoseconds.
    epoch, index, position : int
        The sample, and its record in the store; -1 if none is to blame.
    fault : str
        One of `FAULTS`.
    repaired : bool
        Whether the sample was returned although a part of it is missing.
    text : str
        What is wrong; names the store, the record and its key.
    outcome : str
        ``skipped`` or ``replaced`` for a bad sample under these policies, otherwise empty.
    """

    time: int
    epoch: int
    index: int
    position: int
    fault: str
    repaired: bool
    text: str
    outcome: str = ""


class BatchEvents(NamedTuple):
    """What happened to the samples that one batch takes from a dataset.

    Attributes
    ----------
    counters : str
        The key of the dataset's `SampleCounters`.
    epoch, seen : int
        How many samples of which epoch were requested.
    events : sequence of Event
    """

    counters: str
    epoch: int
    seen: int
    events: Sequence[Event]


@dataclass(frozen=True)
class Limits:
    """How many samples of an epoch may be bad.

    Attributes
    ----------
    max_bad : int or None
    max_bad_fraction : float or None
        A fraction of the samples seen in the epoch. While fewer were seen, it is a fraction of 10,000 or of `total`,
        whichever is smaller.
    total : int
        The samples of the dataset.
    """

    max_bad: int | None = None
    max_bad_fraction: float | None = None
    total: int = 0

    def check(self, seen: int, bad: int, first: Sequence[Event]) -> None:
        """Raise BadSamplesError, which lists the first bad samples, if there are too many."""
        limits: list[tuple[float, str]] = []
        if self.max_bad is not None:
            limits.append((self.max_bad, f"max_bad={self.max_bad}"))
        if self.max_bad_fraction is not None:
            total = max(seen, min(_MIN_SEEN, self.total))
            limits.append((self.max_bad_fraction * total, f"max_bad_fraction={self.max_bad_fraction} of {total:,}"))
        for limit, name in limits:
            if bad > limit:
                listed = "\n  ".join(event.text for event in first)
                raise BadSamplesError(f"{bad} samples were bad, more than {name}; the first are:\n  {listed}")


@dataclass
class _Totals:
    """The counts of one process."""

    counts: Counter[str] = field(default_factory=Counter)  # of seen, skipped and replaced
    bad: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    first: list[Event] = field(default_factory=list)
    last: deque[Event] = field(default_factory=lambda: deque(maxlen=_KEPT))
    epochs: dict[int, list[int]] = field(default_factory=dict)  # epoch → samples seen and bad ones

    def add(self, epoch: int, seen: int, events: Sequence[Event]) -> list[Event]:
        """Count; return the events that are the first of their kind."""
        self.counts["seen"] += seen
        of_epoch = self.epochs.setdefault(epoch, [0, 0])
        of_epoch[0] += seen
        while len(self.epochs) > _EPOCHS:
            del self.epochs[next(iter(self.epochs))]
        new = []
        for event in events:
            fault = _known(event.fault)
            if not (self.bad[fault] or self.repaired[fault]):
                new.append(event)
            self.last.append(event)
            if event.repaired:
                self.repaired[fault] += 1
                continue
            self.bad[fault] += 1
            of_epoch[1] += 1
            if event.outcome:
                self.counts[event.outcome] += 1
            if len(self.first) < _KEPT:
                self.first.append(event)
        return new


# A thread that holds the lock during a fork does not exist in the child and would never release it.
_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)

_ROWS = 256
_NAMES = ("seen", "skipped", "replaced")


class SampleCounters(SharedTable):
    """The counters of one dataset. Thread-safe.

    The batches of our loaders carry their events, which the training process counts. Workers of a plain DataLoader have
    no such message: they add up their counts, without events, in a row of shared memory each.

    Attributes
    ----------
    limits : Limits or None
        Checked whenever samples are counted.
    """

    DTYPE = np.dtype(
        [
            ("epoch", "<i8"),  # of the next two counters
            ("epoch_seen", "<i8"),
            ("epoch_bad", "<i8"),
            *((name, "<i8") for name in _NAMES),
            ("bad", "<i8", len(FAULTS)),
            ("repaired", "<i8", len(FAULTS)),
        ]
    )
    COUNT = _ROWS

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__()
        self.limits = limits
        self._totals = _Totals()
        self._name(secrets.token_hex(8))

    def _name(self, key: str) -> None:
        self.key = key
        _COUNTERS[key] = self

    def add(self, epoch: int, seen: int, events: Sequence[Event]) -> None:
        """Count samples, or put them into the message of the batch that this thread makes.

        Raises
        ------
        BadSamplesError
            Too many samples of the epoch are bad.
        """
        message = collected_events()
        if message is not None:
            message.append(BatchEvents(self.key, epoch, seen, events))
            return
        worker = get_worker_info()
        with _lock:
            new = self._totals.add(epoch, seen, events)
            if worker is not None:
                self._add_to_row(worker.seed % _ROWS, epoch, seen, events)
        for event in new:
            if event.outcome or event.repaired:
                start = f"{event.outcome}: " if event.outcome else ""
                _LOG.warning("%s%s (more faults of kind %s are only counted)", start, event.text, event.fault)
        if self.limits is not None and any(event.outcome for event in events):
            self.limits.check(*self._of_epoch(epoch), self._totals.first)

    def _add_to_row(self, at: int, epoch: int, seen: int, events: Sequence[Event]) -> None:
        # The workers of a loader have consecutive seeds, so each has a row. Loaders that run side by side may share one.
        row = self.table[at]
        if row["epoch"] != epoch:
            row["epoch"], row["epoch_seen"], row["epoch_bad"] = epoch, 0, 0
        for name in ("seen", "epoch_seen"):
            row[name] += seen
        for event in events:
            row["repaired" if event.repaired else "bad"][FAULTS.index(_known(event.fault))] += 1
            row["epoch_bad"] += not event.repaired
            if event.outcome:
                row[event.outcome] += 1

    def _of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return how many samples all processes saw in `epoch`, and how many of them were bad."""
        rows = self.table[self.table["epoch"] == epoch]
        seen, bad = self._totals.epochs.get(epoch, (0, 0)) if get_worker_info() is None else (0, 0)
        return seen + int(rows["epoch_seen"].sum()), bad + int(rows["epoch_bad"].sum())

    def report(self, url: str, on_error: str) -> SampleReport:
        """Return the present counts of this process and its workers."""
        rows, own = self.table, self._totals
        with _lock:
            totals = {name: own.counts[name] + int(rows[name].sum()) for name in _NAMES}
            bad, repaired = (
                {
                    fault: count
                    for at, fault in enumerate(FAULTS)
                    if (count := getattr(own, name)[fault] + int(rows[name][:, at].sum()))
                }
                for name in ("bad", "repaired")
            )
            return SampleReport(
                url, on_error, **totals, bad=bad, repaired=repaired, first=list(own.first), last=list(own.last)
            )

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return _of_worker, (self._cell, self.key, self.limits)
        return type(self), (self.limits,)


def _of_worker(cell: Any, key: str, limits: Limits | None) -> SampleCounters:
    counters = SampleCounters(limits)
    counters._cell = cell
    counters._name(key)
    return counters


_COUNTERS: weakref.WeakValueDictionary[str, SampleCounters] = weakref.WeakValueDictionary()


def count_events(messages: Sequence[BatchEvents]) -> None:
    """Count the events of a received batch for the datasets of this process; raises BadSamplesError."""
    for message in messages:
        counters = _COUNTERS.get(message.counters)  # a worker may have made a dataset of its own
        if counters is not None:
            counters.add(message.epoch, message.seen, message.events)


def _known(fault: str) -> str:
    return fault if fault in FAULTS else "other"


@dataclass(frozen=True)
class SampleReport:
    """Counts over all epochs so far, of this process and its workers.

    Attributes
    ----------
    url : str
    on_error : str
        The policy.
    seen : int
        Requested samples. Of a `StoreLoader`, those of batches that the training loop received.
    skipped, replaced : int
        What happened to bad ones; 0 with ``raise``.
    bad, repaired : dict
        Fault → number of samples that were bad, or that were returned after a repair although a part is missing.
    first, last : list of Event
        The first ten bad samples, and the last ten bad or repaired ones, oldest first. Those of the workers of a plain
        DataLoader are counted only, and each worker logs the first of a kind.
    """

    url: str
    on_error: str
    seen: int
    skipped: int
    replaced: int
    bad: dict[str, int]
    repaired: dict[str, int]
    first: list[Event]
    last: list[Event]

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
