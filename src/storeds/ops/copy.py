"""The one loop that copies items into a new store: in order, with threads, and resumable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias, TypeVar

from storeds._utils.urls import file_path
from storeds.backends.opening import open_backend, scheme_of
from storeds.backends.view import stores_in
from storeds.backends.writer import StoreWriter
from storeds.errors import ConfigError, FormatError, RecordError, StoreNotFoundError
from storeds.ops.progress import Progress, ProgressHook, in_order
from storeds.protocols import JSON, Backend, Record
from storeds.redaction import redact

__all__ = ["Batch", "Task", "check_distinct", "copy", "read_batches"]

T = TypeVar("T")
R = TypeVar("R")


class Task(Protocol[T, R]):
    """What a copy reads, and what it makes of it.

    An interrupted copy keeps its last `note` with the records that are durable. A task that begins with this note goes on there.
    """

    def chunks(self) -> Iterator[T]:
        """Yield the items that are not copied yet, some at a time."""
        ...

    def work(self, chunk: T, /) -> R:
        """Do what takes long. Called in threads."""
        ...

    def take(self, chunk: T, result: R, /) -> list[Record]:
        """Count the items of a chunk, and return the records to store. Called in order."""
        ...

    def note(self) -> JSON:
        """Return what `take` has counted, to go on from."""
        ...

    def progress(self) -> Progress:
        """Return how far the task is."""
        ...


def copy(
    writer: StoreWriter, task: Task[T, R], threads: int, hook: ProgressHook | None, *, checked: bool = False
) -> None:
    """Append the records of a task; `checked` says that they fit their roles.

    Parameters
    ----------
    writer : StoreWriter
    task : Task
    threads : int
        0 means this thread.
    hook : callable, optional
        Called with a `Progress` after each chunk.
    checked : bool
    """
    for chunk, result in in_order(task.chunks(), task.work, threads):
        records = task.take(chunk, result)
        writer.append(records, note=task.note(), checked=checked)
        if hook is not None:
            hook(task.progress())


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
