"""Counts the samples of a dataset that were bad, repaired, skipped or replaced, and reports them."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from storeds._utils.arguments import check_share
from storeds._utils.text import counted, html_table
from storeds.datasets.epoch import MAX_EPOCH, SharedEpoch, SharedTable
from storeds.errors import BadSamplesError, ConfigError, suggest

__all__ = [
    "FAULTS",
    "Event",
    "Policy",
    "SampleCounters",
    "SampleReport",
]

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
_PASSES = 8  # whose samples are counted for the limits: of loaders that run side by side
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
        One of ``FAULTS``.
    repaired : bool
        Whether the sample was returned although a part of it is missing.
    reason : str
        What is wrong; names the file, or ``_id``, of a record that another tool wrote.
    outcome : str
        ``skipped`` or ``replaced`` for a bad sample under these policies, otherwise empty.
    key : str or None
        The record's key, if the store has keys and this one can be read.
    """

    time: int
    epoch: int
    index: int
    position: int
    fault: str
    repaired: bool
    reason: str
    outcome: str = ""
    key: str | None = None

    @property
    def place(self) -> str:
        """The record's number and key, without its store, which a report names once."""
        if self.position < 0:
            return f"sample {self.index}"
        return f"record {self.position}" + ("" if self.key is None else f" (key {self.key!r})")

    @property
    def text(self) -> str:
        """What is wrong with which record."""
        return f"{self.place}: {self.reason}"


POLICIES = ("raise", "skip", "replace")


@dataclass(frozen=True)
class Policy:
    """What happens to bad samples.

    Parameters
    ----------
    on_error : str
        ``raise``, ``skip`` or ``replace``.
    max_bad : int, optional
        How many bad samples a pass over an epoch may have.
    max_bad_fraction : float, optional
        The same as a fraction of the samples seen in the pass. While fewer were seen, it is a fraction of 10,000 or of
        the length of the dataset, whichever is smaller.
    """

    on_error: str = "raise"
    max_bad: int | None = None
    max_bad_fraction: float | None = None

    def __post_init__(self) -> None:
        if self.on_error not in POLICIES:
            raise ConfigError(f"unknown on_error {self.on_error!r}; {suggest(self.on_error, POLICIES, 'policies')}")
        if self.max_bad is not None and (not isinstance(self.max_bad, int) or self.max_bad is True or self.max_bad < 0):
            raise ConfigError(f"max_bad is a number of samples, 0 or more, got {self.max_bad!r}")
        if self.max_bad_fraction is not None:
            check_share("max_bad_fraction", self.max_bad_fraction)

    def check(self, seen: int, bad: int, length: int, first: Sequence[Event], url: str) -> None:
        """Raise BadSamplesError, which names the store and lists the first bad samples, if an epoch has too many."""
        limits: list[tuple[float, str]] = []
        if self.max_bad is not None:
            limits.append((self.max_bad, f"max_bad={self.max_bad}"))
        if self.max_bad_fraction is not None:
            total = max(seen, min(_MIN_SEEN, length))
            limits.append((self.max_bad_fraction * total, f"max_bad_fraction={self.max_bad_fraction} of {total:,}"))
        for limit, name in limits:
            if bad > limit:
                listed = "\n  ".join(event.text for event in first)
                raise BadSamplesError(f"{bad} samples of {url} were bad, more than {name}; the first are:\n  {listed}")


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

    Parameters
    ----------
    policy : Policy
        Its limits are checked whenever bad samples are counted.
    length : int
        Of the dataset.
    epochs : SharedEpoch
        Those of the dataset.
    url : str
        The store, secrets removed.
    """

    DTYPE = np.dtype(
        [
            ("epoch", "<i8"),
            ("turn", "<i8"),  # tells passes of one epoch apart
            ("of_pass", "<i8", 2),  # its samples, and its bad ones
            *((name, "<i8") for name in _NAMES),
            ("bad", "<i8", len(FAULTS)),
            ("repaired", "<i8", len(FAULTS)),
        ]
    )
    COUNT = _ROWS

    def __init__(self, policy: Policy, length: int, epochs: SharedEpoch, url: str) -> None:
        super().__init__()
        self.policy, self._length, self._epochs, self._url = policy, length, epochs, url
        self._own = np.zeros(1, self.DTYPE)  # counted in this process
        # Epoch and turn → the samples and the bad ones of that pass in this process, and its first bad ones.
        self._passes: dict[Any, tuple[Any, list[Event]]] = {}
        self._first: list[Event] = []
        self._last: deque[Event] = deque(maxlen=_KEPT)
        self._logged: set[str] = set()

    def add(self, epoch: int, seen: int, events: Sequence[Event], turn: Any = None) -> None:
        """Count samples that were requested, and what happened to them.

        Parameters
        ----------
        turn : hashable, optional
            The pass of a loader. By default a pass of samples that are read directly begins whenever the epoch is set, and
            one of the workers of a plain DataLoader also when these start.

        Raises
        ------
        BadSamplesError
            Too many samples of the pass are bad.
        """
        turn = self._turn() if turn is None else turn
        with _lock:
            row, of_pass, first = self._row(epoch, turn)
            row["seen"] += seen
            of_pass[0] += seen
            new = [event for event in events if self._count(event, row, of_pass, first)]
        for event in new:
            if event.outcome or event.repaired:
                start = f"{event.outcome}: " if event.outcome else ""
                text = f"{event.place} of {self._url}: {event.reason}"
                _LOG.warning("%s%s (more faults of kind %s are only counted)", start, text, event.fault)
        if any(event.outcome for event in events):
            self.policy.check(*self._of_pass(epoch, turn, of_pass), self._length, first, self._url)

    def _turn(self) -> int:
        """Return the pass to which samples belong that are read without a loader of storeds."""
        worker = get_worker_info()
        return (self._epochs.turn + (0 if worker is None else worker.seed - worker.id)) & MAX_EPOCH

    def _row(self, epoch: int, turn: Any) -> tuple[Any, Any, list[Event]]:
        """Return where this process counts: over all passes, and in this one; and the first bad samples of this one."""
        of_pass, first = self._passes.pop((epoch, turn), None) or (np.zeros(2, np.int64), [])
        self._passes[epoch, turn] = of_pass, first
        while len(self._passes) > _PASSES:
            del self._passes[next(iter(self._passes))]
        worker = get_worker_info()
        if worker is None:
            return self._own[0], of_pass, first
        # The workers of a loader have consecutive seeds, so each has a row. Loaders that run side by side may share one.
        row = self.table[worker.seed % _ROWS]
        if (row["epoch"], row["turn"]) != (epoch, turn):
            row["epoch"], row["turn"], row["of_pass"] = epoch, turn, 0
        return row, row["of_pass"], first

    def _count(self, event: Event, row: Any, of_pass: Any, first: list[Event]) -> bool:
        """Count an event; return whether it is the first of its kind."""
        fault = event.fault if event.fault in FAULTS else "other"
        row["repaired" if event.repaired else "bad"][FAULTS.index(fault)] += 1
        self._last.append(event)
        if not event.repaired:
            of_pass[1] += 1
            if event.outcome:
                row[event.outcome] += 1
            for events in (first, self._first):
                if len(events) < _KEPT:
                    events.append(event)
        is_new = fault not in self._logged
        self._logged.add(fault)
        return is_new

    def _of_pass(self, epoch: int, turn: Any, own: Any) -> tuple[int, int]:
        """Return how many samples of a pass were seen, and how many of them were bad; by all workers in a worker."""
        if get_worker_info() is None:
            return int(own[0]), int(own[1])
        rows = self.table
        seen, bad = rows["of_pass"][(rows["epoch"] == epoch) & (rows["turn"] == turn)].sum(axis=0)
        return int(seen), int(bad)

    def report(self) -> SampleReport:
        """Return the present counts of this process and its workers."""
        with _lock:
            rows = np.concatenate([self._own, self.table])
            totals = {name: int(rows[name].sum()) for name in _NAMES}
            bad, repaired = (
                {fault: int(count) for fault, count in zip(FAULTS, rows[name].sum(axis=0), strict=True) if count}
                for name in ("bad", "repaired")
            )
            first, last = list(self._first), list(self._last)
        policy = self.policy.on_error
        return SampleReport(self._url, policy, **totals, bad=bad, repaired=repaired, first=first, last=last)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return _of_worker, (self._cell, self.policy, self._length, self._epochs, self._url)
        return type(self), (self.policy, self._length, self._epochs, self._url)


def _of_worker(cell: Any, policy: Policy, length: int, epochs: SharedEpoch, url: str) -> SampleCounters:
    counters = SampleCounters(policy, length, epochs, url)
    counters._cell = cell
    return counters


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
        """Return the report as JSON; each event has its `Event.text` too."""
        events = {
            name: [{**asdict(event), "text": event.text} for event in getattr(self, name)] for name in ("first", "last")
        }
        return {**asdict(self), **events}

    def _repr_html_(self) -> str:
        return html_table({**vars(self), "first": len(self.first), "last": "\n".join(each.text for each in self.last)})

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
