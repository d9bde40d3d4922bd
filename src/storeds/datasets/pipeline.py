"""Makes samples: reads records in one call, builds and transforms each, applies the policy to bad ones and counts them."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from storeds._utils.arguments import check_share
from storeds._utils.permutation import permute, round_keys
from storeds._utils.text import counted
from storeds.backends.concatenated import ConcatenatedBackend
from storeds.backends.selection import Selection
from storeds.batching.skipped import Skipped
from storeds.datasets.epoch import SharedTable
from storeds.errors import (
    BadSamplesError,
    ConfigError,
    DecodeError,
    RecordError,
    StoredsError,
    TransformError,
    suggest,
)
from storeds.protocols import Backend, Reader, Record, SampleContext
from storeds.records.roles import Sample
from storeds.transforms import BoundTransform

__all__ = ["FAULTS", "POLICIES", "Event", "Policy", "SampleCounters", "SamplePipeline", "SampleReport", "SampleResult"]

_LOG = logging.getLogger("storeds")

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


POLICIES = ("raise", "skip", "replace")

# A store in which so many samples in a row are bad is not worth training on.
_ATTEMPTS = 100
# A fraction of fewer samples than this says little.
_MIN_SEEN = 10_000


@dataclass(frozen=True)
class Policy:
    """What happens to bad samples.

    Parameters
    ----------
    on_error : str
        ``raise``, ``skip`` or ``replace``.
    max_bad : int, optional
        How many bad samples an epoch may have, over all workers of this process.
    max_bad_fraction : float, optional
        The same as a fraction of the samples seen in the epoch. While fewer were seen, it is a fraction of 10,000 or of
        the length of the dataset, whichever is smaller.
    total : int, optional
        The number of samples of all datasets that share the counters, where that is not the length of the dataset.
    """

    on_error: str = "raise"
    max_bad: int | None = None
    max_bad_fraction: float | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        if self.on_error not in POLICIES:
            raise ConfigError(f"unknown on_error {self.on_error!r}; {suggest(self.on_error, POLICIES, 'policies')}")
        if self.max_bad is not None and (not isinstance(self.max_bad, int) or self.max_bad is True or self.max_bad < 0):
            raise ConfigError(f"max_bad is a number of samples, 0 or more, got {self.max_bad!r}")
        if self.max_bad_fraction is not None:
            check_share("max_bad_fraction", self.max_bad_fraction)


class SampleResult(NamedTuple):
    """A sample, or the error that names its place, and the positions of its records.

    The pipeline asks a reader for the positions once: a reader that draws them from a global generator would draw
    others the second time.
    """

    sample: Any | RecordError
    positions: Sequence[int]


@dataclass(frozen=True)
class SamplePipeline:
    """Makes the samples of one dataset. Thread-safe; pickles small.

    Parameters
    ----------
    view : Backend
        The store, or what ``where=`` selects of it.
    reader : Reader
        Bound to `view`.
    transforms : sequence of (str, BoundTransform)
        Element → its transform.
    joint : callable, optional
        Makes the elements of the `Sample` that the reader builds, before `transforms`.
    as_dict : bool
        Whether samples are dicts; tuples otherwise.
    policy : Policy
    counters : SampleCounters
    """

    view: Backend
    reader: Reader[Any]
    transforms: Sequence[tuple[str, BoundTransform]]
    as_dict: bool
    policy: Policy = field(default_factory=Policy)
    counters: SampleCounters = field(default_factory=SampleCounters)
    joint: Callable[[Sample, SampleContext], dict[str, Any]] | None = None

    def samples(self, contexts: Sequence[SampleContext], *, fill: bool) -> list[Any]:
        """Return the samples of `contexts`, with what the policy puts in the place of bad ones.

        Parameters
        ----------
        fill : bool
            Whether replacements make up a batch in which every sample would be skipped.

        Raises
        ------
        RecordError
            With ``raise``, the first bad sample.
        BadSamplesError
            There are too many bad samples, or no good one was found to replace one.
        UnavailableError
            The engine cannot be reached.
        """
        samples, error = self.samples_until_error(contexts, fill=fill)
        if error is not None:
            raise error from error.__cause__
        return samples

    def samples_until_error(
        self, contexts: Sequence[SampleContext], *, fill: bool
    ) -> tuple[list[Any], RecordError | None]:
        """Return what `samples` returns; with ``raise``, the samples before the first bad one, and its error."""
        if not contexts:
            return [], None
        self.counters.add_seen(len(contexts), contexts[0].epoch)
        samples: list[Any] = []
        for context, (sample, positions) in zip(contexts, self.make(contexts), strict=True):
            if isinstance(sample, RecordError) and self.policy.on_error == "raise":
                self._count_bad(sample, context)
                return samples, self._with_key(sample, positions)
            samples.append(sample)
            if not isinstance(sample, RecordError):
                self._count_repaired(context, positions)
        bad = [at for at, sample in enumerate(samples) if isinstance(sample, RecordError)]
        if bad:
            self._apply_policy(samples, bad, contexts, fill)
        return samples, None

    def make(self, contexts: Sequence[SampleContext]) -> Iterator[SampleResult]:
        """Yield the result for each context, whatever the policy; reads all records at once."""
        located = [self.reader.locate(context.index, context) for context in contexts]
        flat = [position for positions in located for position in positions]
        records = iter(self.view.get_many(flat, self.reader.stored))
        for positions, context in zip(located, contexts, strict=True):
            yield SampleResult(self._sample([next(records) for _ in positions], positions, context), positions)

    def _sample(self, records: list[Record | RecordError], positions: Sequence[int], context: SampleContext) -> Any:
        for record in records:
            if isinstance(record, RecordError):
                return record
        try:
            sample = self.reader.build(records, context)  # type: ignore[arg-type]  # errors were returned above
        except RecordError as error:
            # A plug-in's own subclass may take other arguments.
            kind = DecodeError if isinstance(error, DecodeError) else RecordError
            return self._error_at(kind, positions, error.reason or str(error), error.kind, error.__cause__)
        except Exception as error:  # a bug in the reader, which is no bad sample
            position = self._in_store(positions[0]) if positions else -1
            error.add_note(f"{type(self.reader).__name__} was given record {position} of {self.view.url}")
            raise
        if self.joint is not None:
            sample = self._joined(sample, positions, context)
            if isinstance(sample, RecordError):
                return sample
        for name, transform in self.transforms:
            try:
                sample[name] = transform(sample[name], context)
            except Exception as error:  # whatever a user's transform raises
                reason = f"transform {transform!r} failed on {name!r}: {_reason(error)}"
                return self._error_at(TransformError, positions, reason, None, error)
        if self.as_dict or not isinstance(sample, dict):
            return sample
        return tuple(sample[name] for name in self.reader.fields)

    def _joined(self, sample: Sample, positions: Sequence[int], context: SampleContext) -> dict[str, Any] | RecordError:
        """Return the elements of a sample after the transforms of whole samples, or the error of a bad one."""
        assert self.joint is not None
        try:
            return self.joint(sample, context)
        except RecordError as error:  # of its values, such as a mask of another size
            return self._error_at(RecordError, positions, error.reason or str(error), error.kind, error.__cause__)
        except Exception as error:  # whatever a user's transform raises
            reason = f"transforms {self.joint!r} failed: {_reason(error)}"
            return self._error_at(TransformError, positions, reason, None, error)

    # --- Bad samples ---

    def _apply_policy(self, samples: list[Any], bad: list[int], contexts: Sequence[SampleContext], fill: bool) -> None:
        """Replace the errors at the places `bad` of `samples` as the policy says, and count them."""
        replacing = self.policy.on_error == "replace" or (fill and len(bad) == len(samples))
        for at in bad:
            self._count_bad(samples[at], contexts[at], "replaced" if replacing else "skipped")
        self._check_limits(contexts[0].epoch)
        if replacing:
            found = self._replacements([contexts[at] for at in bad])
            for at, sample in zip(bad, found, strict=True):
                samples[at] = sample
        else:
            for at in bad:
                error = samples[at]
                samples[at] = Skipped(contexts[at].index, error.url, error.position, error.kind, error.reason)

    def _replacements(self, contexts: Sequence[SampleContext]) -> list[Any]:
        """Return a good sample for each context: the first one in an order keyed by (seed, epoch, index)."""
        count = len(self.reader)
        orders = [_other_indices(context, count) for context in contexts]
        found: list[Any] = [None] * len(contexts)
        pending = list(range(len(contexts)))
        for attempt in range(min(_ATTEMPTS, count - 1)):
            tried = [replace(contexts[at], index=orders[at][attempt], notes=[]) for at in pending]
            for at, context, (sample, positions) in zip(pending, tried, self.make(tried), strict=True):
                found[at] = sample
                if not isinstance(sample, RecordError):
                    self._count_repaired(context, positions)
            pending = [at for at in pending if isinstance(found[at], RecordError)]
            if not pending:
                return found
        index, tries = contexts[pending[0]].index, min(_ATTEMPTS, count - 1)
        why = f"the {tries} others tried are bad too, the last: {found[pending[0]]}" if tries else "it is the only one"
        raise BadSamplesError(f"no good sample can replace sample {index} of {self.view.url}: {why}")

    def _check_limits(self, epoch: int) -> None:
        """Raise BadSamplesError, which lists the first bad samples, if there are too many."""
        policy = self.policy
        if policy.max_bad is None and policy.max_bad_fraction is None:
            return
        seen, bad = self.counters.of_epoch(epoch)
        limits: list[tuple[float, str]] = []
        if policy.max_bad is not None:
            limits.append((policy.max_bad, f"max_bad={policy.max_bad}"))
        if policy.max_bad_fraction is not None:
            total = max(seen, min(_MIN_SEEN, len(self.reader) if policy.total is None else policy.total))
            limits.append((policy.max_bad_fraction * total, f"max_bad_fraction={policy.max_bad_fraction} of {total:,}"))
        for limit, name in limits:
            if bad > limit:
                listed = "\n  ".join(event.text for event in self.counters.events("first"))
                raise BadSamplesError(f"{bad} samples were bad, more than {name}; the first are:\n  {listed}")

    def _count_bad(self, error: RecordError, context: SampleContext, outcome: str = "") -> None:
        position = -1 if error.position is None else error.position
        event = Event(time.monotonic_ns(), context.epoch, context.index, position, error.kind, False, str(error))
        self.counters.add(event, outcome)
        if outcome and self.counters.is_first_of_kind(event.fault):
            _LOG.warning("%s: %s (more faults of kind %s are only counted)", outcome, error, event.fault)

    def _count_repaired(self, context: SampleContext, positions: Sequence[int]) -> None:
        for note in context.notes:
            error = self._error_at(RecordError, positions, note.message, note.kind)
            position = -1 if error.position is None else error.position
            self.counters.add(
                Event(time.monotonic_ns(), context.epoch, context.index, position, note.kind, True, str(error))
            )
            if self.counters.is_first_of_kind(note.kind):
                _LOG.warning("%s (more faults of kind %s are only counted)", error, note.kind)

    # --- Errors that name the place ---

    def _error_at(
        self,
        error: type[RecordError],
        positions: Sequence[int],
        reason: str,
        kind: str | None = None,
        cause: BaseException | None = None,
    ) -> RecordError:
        """Return an error of that class that names the place of the first of `positions` in the store."""
        position = self._in_store(positions[0]) if positions else -1
        placed = error.at(self.view.url, position, reason + self._member(position), kind=kind)
        placed.__cause__ = cause
        return placed

    def _in_store(self, position: int) -> int:
        return int(self.view.positions[position]) if isinstance(self.view, Selection) else position

    def _member(self, position: int) -> str:
        """Return text that names the member store of a record, where the view is many stores."""
        store = self.view.backend if isinstance(self.view, Selection) else self.view
        if position < 0 or not isinstance(store, ConcatenatedBackend):
            return ""
        place = store.place(position)
        return f" (record {place.position} of {place.url})"

    def _with_key(self, error: RecordError, positions: Sequence[int]) -> RecordError:
        """Return `error`, about one of `positions`, with the record's key, where the store has keys.

        That takes a storage call.
        """
        if error.key is not None or "key" not in self.view.meta.fields:
            return error
        at = next((position for position in positions if self._in_store(position) == error.position), None)
        if at is None:
            return error
        (record,) = self.view.get_many([at], ("key",))
        if isinstance(record, RecordError):
            return error
        url = error.url or self.view.url
        named = type(error).at(url, self._in_store(at), error.reason, key=str(record["key"]), kind=error.kind)
        named.__cause__ = error.__cause__
        return named


def _reason(error: Exception) -> str:
    """Return the text about a transform's exception; raises the exception where the sample is not at fault."""
    if isinstance(error, RecordError):
        return str(error)
    if isinstance(error, (StoredsError, MemoryError, torch.OutOfMemoryError)):
        raise error
    return f"{type(error).__name__}: {error}"


def _other_indices(context: SampleContext, count: int) -> list[int]:
    """Return the first indices, without the context's own, of an order keyed by (seed, epoch, index)."""
    keys = round_keys("replace", context.seed or 0, context.epoch, context.index)
    drawn = permute(np.arange(min(_ATTEMPTS + 1, count), dtype=np.uint64), count, keys)
    others: Iterable[int] = (int(index) for index in drawn if index != context.index)
    return list(itertools.islice(others, _ATTEMPTS))
