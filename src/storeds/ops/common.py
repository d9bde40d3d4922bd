"""Reads a store from front to back, in batches, for what copies it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeAlias

from storeds._utils.locations import file_path, redact
from storeds.backends.concatenated import ConcatenatedBackend
from storeds.backends.opening import open_backend, scheme_of
from storeds.errors import ConfigError, FormatError, RecordError, StoreNotFoundError
from storeds.jpeg import examine
from storeds.ops.progress import Progress
from storeds.protocols import Backend, Record, Writer
from storeds.records.fields import UNCHECKED, stored_fields, verdict_field, wrong_verdict

__all__ = [
    "Batch",
    "check_distinct",
    "die_with_parent",
    "examined",
    "images_of",
    "read_batches",
    "resumable",
    "starting_dependents",
]


_BATCH = 64
Batch: TypeAlias = tuple[list[Record], Progress]


def read_batches(source: Backend, start: int, stop: int | None = None) -> Iterator[Batch]:
    """Yield the records from position `start` on, up to `stop`, with the verdicts on their pictures, and how far that is.

    Raises
    ------
    RecordError
        A record is bad, or a verdict in it.
    """
    volume, fields = 0, tuple(stored_fields(source.meta))
    stop = len(source) if stop is None else stop
    for first in range(start, stop, _BATCH):
        records: list[Record] = []
        for at, record in enumerate(source.get_many(range(first, min(first + _BATCH, stop)), fields), first):
            if isinstance(record, RecordError):
                raise record
            wrong = wrong_verdict(record, source.meta)
            if wrong is not None:
                raise RecordError.at(source.url, at, wrong)
            records.append(record)
            volume += sum(len(value) for value in record.values() if isinstance(value, bytes))
        yield records, Progress(first + len(records), len(source), volume)


def images_of(backend: Backend) -> tuple[str, ...]:
    """Return the names of the image fields."""
    return tuple(name for name, field in backend.meta.fields.items() if field.kind == "image")


def examined(batches: Iterable[Batch], images: tuple[str, ...]) -> Iterator[Batch]:
    """Yield the batches with a verdict on every picture: those that have none are examined.

    That is done in threads, one for each CPU, while the next batch is read.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "storeds-examine") as pool:
        before: tuple[Batch, list[Future[None]]] | None = None
        for batch in batches:
            tasks = [pool.submit(_examine, record, images) for record in batch[0] if _is_unchecked(record, images)]
            if before is not None:
                yield _finished(*before)
            before = batch, tasks
        if before is not None:
            yield _finished(*before)


def _finished(batch: Batch, tasks: list[Future[None]]) -> Batch:
    for task in tasks:
        task.result()
    return batch


def _is_unchecked(record: Record, images: tuple[str, ...]) -> bool:
    return any(record.get(verdict_field(image), UNCHECKED) == UNCHECKED for image in images)


def _examine(record: Record, images: tuple[str, ...]) -> None:
    for image in images:
        name = verdict_field(image)
        if record.get(name, UNCHECKED) == UNCHECKED:
            record[name] = examine(record[image]).to_text()


_FILES = ("lmdb", "hdf5")


def check_distinct(source: Backend, dst_url: str) -> None:
    """Raise ConfigError if `dst_url` is the store that `source` reads, or one of those that it reads as one."""
    members = source.members() if isinstance(source, ConcatenatedBackend) else [source]
    for member in members:
        if _is_same(member, dst_url):
            raise ConfigError(
                f"{redact(dst_url)} is {member.url} itself, which is only read here and would be replaced; name another target"
            )


def _is_same(source: Backend, dst_url: str) -> bool:
    try:
        if scheme_of(source.url, writing=False) in _FILES and scheme_of(dst_url, writing=True) in _FILES:
            return os.path.samefile(file_path(source.url)[0], file_path(dst_url)[0])
        with open_backend(dst_url, layout="native") as target:
            return target.meta.build == source.meta.build
    except (OSError, StoreNotFoundError, FormatError, ConfigError):  # nothing there; or what the writer refuses itself
        return False


@contextmanager
def resumable(writer: Writer) -> Iterator[Writer]:
    """Use `writer` in the body; an error that may pass (a full disk, a lost server, Ctrl-C) keeps what is durable.

    Bad records and a wrong configuration abort instead: going on from there would meet them again.
    """
    with writer:
        try:
            yield writer
        except (RecordError, ConfigError):
            raise
        except BaseException:
            writer.suspend()
            raise


_PR_SET_PDEATHSIG = 1


@contextmanager
def starting_dependents() -> Iterator[None]:
    """Hold Ctrl-C back while processes are started, which inherit that: they would print where it met them, importing."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent() -> None:
    """Make this process one that Ctrl-C does not end, and the death of its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
