"""Counts the samples of a dataset that were bad, repaired, skipped or replaced, and reports them."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from storeds._utils.arguments import check_share
from storeds._utils.text import counted, html_table
from storeds.datasets.epoch import SharedEpoch, SharedTable
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

IN_WORKERS = "in_workers"
"""Stands in a report for samples that workers of a plain DataLoader met, which tell no more than their number."""

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

_PROCESSES = 256  # that count at the same time, by the last digits of their numbers


@dataclass
class _Pass:
    """The samples of a pass, in this process."""

    seen: int = 0
    bad: int = 0
    first: list[Event] = field(default_factory=list)


class SampleCounters(SharedTable):
    """The counters of one dataset. Thread-safe.

    The batches of our loaders carry their events, which the training process counts. The workers of a plain DataLoader have
    no such message: each adds up its bad and its repaired samples in two integers that all processes share.

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

    DTYPE = np.dtype([("bad", "<i8"), ("repaired", "<i8")])
    COUNT = _PROCESSES

    def __init__(self, policy: Policy, length: int, epochs: SharedEpoch, url: str) -> None:
        super().__init__()
        self.policy, self._length, self._epochs, self._url = policy, length, epochs, url
        self._home = self._process = os.getpid()
        self._totals: Counter[str] = Counter()  # of this process: seen, skipped, replaced
        self._faults: dict[str, Counter[str]] = {"bad": Counter(), "repaired": Counter()}
        self._passes: dict[Any, _Pass] = {}
        self._first: list[Event] = []
        self._last: deque[Event] = deque(maxlen=_KEPT)
        self._logged: set[str] = set()

    def add(self, epoch: int, seen: int, events: Sequence[Event], turn: Any = None) -> None:
        """Count samples that were requested, and what happened to them.

        Parameters
        ----------
        turn : hashable, optional
            The pass of a loader. By default a pass of samples that are read directly begins whenever the epoch is set.

        Raises
        ------
        BadSamplesError
            Too many samples of the pass are bad.
        """
        with _lock:
            if self._process != os.getpid():  # a forked worker keeps the limits for itself
                self._process, self._passes = os.getpid(), {}
            of_pass = self._pass(epoch, self._epochs.turn if turn is None else turn)
            self._totals["seen"] += seen
            of_pass.seen += seen
            new = [event for event in events if self._count(event, of_pass)]
        for event in new:
            if event.outcome or event.repaired:
                start = f"{event.outcome}: " if event.outcome else ""
                text = f"{event.place} of {self._url}: {event.reason}"
                _LOG.warning("%s%s (more faults of kind %s are only counted)", start, text, event.fault)
        if any(event.outcome for event in events):
            self.policy.check(of_pass.seen, of_pass.bad, self._length, of_pass.first, self._url)

    def _pass(self, epoch: int, turn: Any) -> _Pass:
        found = self._passes[epoch, turn] = self._passes.pop((epoch, turn), _Pass())
        while len(self._passes) > _PASSES:
            del self._passes[next(iter(self._passes))]
        return found

    def _count(self, event: Event, of_pass: _Pass) -> bool:
        """Count an event; return whether it is the first of its kind."""
        fault, what = event.fault if event.fault in FAULTS else "other", "repaired" if event.repaired else "bad"
        self._faults[what][fault] += 1
        if os.getpid() != self._home:
            self.table[os.getpid() % _PROCESSES][what] += 1
        self._last.append(event)
        if not event.repaired:
            of_pass.bad += 1
            if event.outcome:
                self._totals[event.outcome] += 1
            for events in (of_pass.first, self._first):
                if len(events) < _KEPT:
                    events.append(event)
        is_new = fault not in self._logged
        self._logged.add(fault)
        return is_new

    def report(self) -> SampleReport:
        """Return the present counts of this process and its workers."""
        with _lock:
            others = self.table.copy()
            if os.getpid() != self._home:  # counted in this process too
                others[os.getpid() % _PROCESSES] = 0
            found = {
                what: {fault: counts[fault] for fault in FAULTS if counts[fault]}
                for what, counts in self._faults.items()
            }
            for what, faults in found.items():
                if elsewhere := int(others[what].sum()):
                    faults[IN_WORKERS] = elsewhere
            totals = {name: self._totals[name] for name in ("seen", "skipped", "replaced")}
            first, last = list(self._first), list(self._last)
        return SampleReport(
            self._url,
            self.policy.on_error,
            **totals,
            bad=found["bad"],
            repaired=found["repaired"],
            first=first,
            last=last,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self.policy, self._length, self._epochs, self._url
        return (_of_worker, (self._cell, *settings)) if get_spawning_popen() is not None else (type(self), settings)


def _of_worker(cell: Any, policy: Policy, length: int, epochs: SharedEpoch, url: str) -> SampleCounters:
    counters = SampleCounters(policy, length, epochs, url)
    counters._cell, counters._home = cell, -1
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
        Fault → number of samples that were bad, or that were returned after a repair although a part is missing. The fault
        ``in_workers`` has those of the workers of a plain DataLoader, about which nothing else is known here: each worker logs
        the first of a kind.
    first, last : list of Event
        The first ten bad samples, and the last ten bad or repaired ones, oldest first.
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

    @classmethod
    def joined(cls, reports: Sequence[SampleReport]) -> SampleReport:
        """Return the sums of several reports, and the events of all, in the order of their time."""
        totals = {name: sum(getattr(each, name) for each in reports) for name in ("seen", "skipped", "replaced")}
        counts = {
            what: dict(sum((Counter(getattr(each, what)) for each in reports), Counter[str]()))
            for what in ("bad", "repaired")
        }
        first, last = (
            sorted((event for each in reports for event in getattr(each, name)), key=lambda event: event.time)
            for name in ("first", "last")
        )
        urls, policies = (
            ", ".join(dict.fromkeys(getattr(each, name) for each in reports)) for name in ("url", "on_error")
        )
        return cls(
            urls,
            policies,
            **totals,
            bad=counts["bad"],
            repaired=counts["repaired"],
            first=first[:_KEPT],
            last=last[-_KEPT:],
        )

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
        faults = [fault for fault in (*FAULTS, IN_WORKERS) if fault in self.bad or fault in self.repaired]
        if faults:
            lines.append(f"  {'fault':<18}{'repaired':>10}{'bad':>10}")
            lines += [
                f"  {fault:<18}{self.repaired.get(fault, 0):>10,}{self.bad.get(fault, 0):>10,}" for fault in faults
            ]
        lines += [f"  {event.text}" for event in self.last]
        return "\n".join(lines)
