"""Reads a store from front to back, in batches, for what copies it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from storeds._verdict import UNCHECKED
from storeds._verdicts import stored_fields, verdict_field, wrong_verdict
from storeds.errors import RecordError
from storeds.jpeg import examine
from storeds.ops.progress import Progress
from storeds.protocols import Backend, Record

__all__ = ["Batch", "examined", "images_of", "read_batches"]

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
