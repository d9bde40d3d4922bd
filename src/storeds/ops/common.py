"""What several operations share: progress, counts of verdicts, reading a store in batches, child processes."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from storeds._utils.prefetch import ReadAhead
from storeds._utils.text import counted
from storeds._utils.urls import file_path
from storeds.backends.opening import open_backend, scheme_of
from storeds.backends.view import stores_in
from storeds.errors import ConfigError, FormatError, RecordError, StoreNotFoundError
from storeds.pictures import Verdict, is_ready
from storeds.pictures.restarts import RestartMarker
from storeds.protocols import Backend, Meta, Record
from storeds.records.columns import read_column
from storeds.records.verdict_fields import pictures, verdict_fields
from storeds.redaction import redact

__all__ = [
    "NOT_EXAMINED",
    "Batch",
    "Progress",
    "ProgressHook",
    "VerdictCounts",
    "brief_counts",
    "check_distinct",
    "damage_note",
    "damaged_kinds",
    "die_with_parent",
    "images_of",
    "in_order",
    "is_fast",
    "listed",
    "mark_picture",
    "read_batches",
    "sigint_blocked",
]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an operation.

    Attributes
    ----------
    done, total : int
        Items or records.
    bytes : int
        Bytes of blobs processed.
    bad : int
        Items with a problem.
    damaged : int
        Damaged pictures that are kept.
    """

    done: int
    total: int
    bytes: int
    bad: int = 0
    damaged: int = 0


ProgressHook: TypeAlias = Callable[[Progress], None]

NOT_EXAMINED = "not examined"
"""The kind that stands for pictures without a verdict."""


@dataclass(frozen=True)
class VerdictCounts:
    """How many pictures of a store have which verdict.

    Attributes
    ----------
    kinds : dict
        Kind of verdict, or `NOT_EXAMINED` → number of pictures, the most frequent first.
    lost : dict
        Kind → number of pictures of which nothing is recovered.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: Backend) -> VerdictCounts:
        """Count the verdicts on every image field of `backend`, from its columns alone.

        Raises
        ------
        RecordError
            A column is damaged.
        """
        kinds: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        for image, declared in backend.meta.fields.items():
            if declared.kind != "image":
                continue
            if image not in pictures(backend.meta.fields):
                kinds[NOT_EXAMINED] += len(backend)
                continue
            columns = (read_column(backend, name).tolist() for name in verdict_fields(image))
            for (kind, recovered), count in Counter(zip(*columns, strict=True)).items():
                kinds[kind or NOT_EXAMINED] += count
                if kind and not recovered:
                    lost[kind] += count
        return cls({kind: n for kind, n in kinds.most_common() if n}, dict(lost.most_common()))


def damaged_kinds(kinds: Mapping[str, int]) -> dict[str, int]:
    """Return those of `kinds` that are damage."""
    return {kind: n for kind, n in kinds.items() if kind != NOT_EXAMINED and not Verdict(kind, 0.0).is_whole}


def brief_counts(kinds: Mapping[str, int]) -> str:
    """Return the counts in one line: ``37 whole, 3 damaged (truncated_scan 2, corrupt_data 1)``."""
    found, unknown = damaged_kinds(kinds), kinds.get(NOT_EXAMINED, 0)
    broken = sum(found.values())
    whole = sum(kinds.values()) - broken - unknown
    parts = [f"{whole:,} whole"] if whole or not unknown else []
    if broken:
        parts.append(f"{broken:,} damaged ({listed(found)})")
    if unknown:
        parts.append(f"{unknown:,} {NOT_EXAMINED}")
    return ", ".join(parts)


def listed(kinds: Mapping[str, int]) -> str:
    """Return kinds with their counts: ``truncated_scan 2, corrupt_data 1``."""
    return ", ".join(f"{kind} {n:,}" for kind, n in kinds.items())


def damage_note(kinds: Mapping[str, int], meta: Meta) -> str | None:
    """Return a sentence on the damaged pictures of a store and what to do about them, or None without any."""
    found = damaged_kinds(kinds)
    if not found:
        return None
    where = {finding: "intact" for finding, _ in pictures(meta.fields).values()}
    selects = f"where={where} reads only whole ones, " if where else ""
    return (
        f"{sum(found.values()):,} of {counted(sum(kinds.values()), 'picture')} are damaged ({listed(found)}) and stored "
        f"unchanged; readers apply min_recovered=, {selects}storeds verify lists the damaged ones, and storeds repair "
        "writes a copy in which every program can read what is left of them"
    )


_BATCH = 64  # records
Batch: TypeAlias = tuple[list[Record], Progress]


def read_batches(
    source: Backend, start: int, stop: int | None = None, on_bad: Callable[[RecordError], object] | None = None
) -> Iterator[Batch]:
    """Yield records with their verdicts in batches, from `start` up to `stop`, each with the progress so far.

    Raises
    ------
    RecordError
        A record is bad, and there is no `on_bad` to call with it.
    """
    volume = 0
    stop = len(source) if stop is None else stop
    for first in range(start, stop, _BATCH):
        records: list[Record] = []
        positions = range(first, min(first + _BATCH, stop))
        for record in source.get_many(positions):
            if not isinstance(record, RecordError):
                records.append(record)
                volume += sum(len(value) for value in record.values() if isinstance(value, bytes))
            elif on_bad is None:
                raise record
            else:
                on_bad(record)
        yield records, Progress(positions.stop, len(source), volume)


def images_of(backend: Backend) -> tuple[str, ...]:
    """Return the names of the image fields."""
    return tuple(name for name, field in backend.meta.fields.items() if field.kind == "image")


T = TypeVar("T")
R = TypeVar("R")


def in_order(tasks: Iterable[T], work: Callable[[T], R], threads: int) -> Iterator[tuple[T, R]]:
    """Yield each task with its result, in order, while threads work on the next ones.

    Parameters
    ----------
    tasks : iterable
        Drawn in this thread. One more than `threads` is in memory.
    work : callable
        Thread-safe. Its errors are raised here.
    threads : int
        0 means this thread, for work that takes less time than handing it over.
    """

    def done(task: T) -> tuple[T, R]:
        return task, work(task)

    results = ReadAhead(done, iter(tasks), threads)
    try:
        yield from results
    finally:
        results.close()


def mark_picture(marker: RestartMarker, record: Record, image: str) -> str:
    """Put restart markers into field `image` of `record`, if that is possible; return the outcome."""
    record[image], outcome = marker.mark(record[image], Verdict.of(record, image))
    return outcome


def is_fast(record: Record, image: str) -> bool:
    """Return whether readers can decode a crop of field `image` alone: it has restart markers and no known damage."""
    verdict = Verdict.of(record, image)
    return (verdict is None or verdict.is_whole) and is_ready(record[image])


_FILES = ("lmdb", "hdf5")


def check_distinct(source: Backend, dst_url: str) -> None:
    """Raise ConfigError if `dst_url` is the store that `source` reads, selects from, or concatenates."""
    for member in stores_in(source):
        if _is_same(member, dst_url):
            raise ConfigError(
                f"{redact(dst_url)} is the source {member.url} itself, which writing would replace; pass another target"
            )


def _is_same(source: Backend, dst_url: str) -> bool:
    try:
        if scheme_of(source.url, writing=False) in _FILES and scheme_of(dst_url, writing=True) in _FILES:
            return os.path.samefile(file_path(source.url)[0], file_path(dst_url)[0])
        with open_backend(dst_url, layout="native") as target:
            return target.meta.build == source.meta.build
    except (OSError, StoreNotFoundError, FormatError, ConfigError):  # there is none, or the writer will refuse the URL
        return False


_PR_SET_PDEATHSIG = 1


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block Ctrl-C while child processes start. They inherit the mask and print no traceback from an import."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """Make this process ignore Ctrl-C and die when its parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
