"""Reads a store from front to back, in batches, for what copies it."""

from __future__ import annotations

from collections.abc import Iterator

from storeds._verdicts import stored_fields
from storeds.errors import RecordError
from storeds.ops.progress import Progress
from storeds.protocols import Backend, Record

__all__ = ["read_batches"]

_BATCH = 64


def read_batches(source: Backend, start: int) -> Iterator[tuple[list[Record], Progress]]:
    """Yield the records from position `start` on, with the verdicts on their pictures, and how far that is.

    Raises
    ------
    RecordError
        A record is bad.
    """
    volume, fields = 0, tuple(stored_fields(source.meta))
    for first in range(start, len(source), _BATCH):
        records: list[Record] = []
        for record in source.get_many(range(first, min(first + _BATCH, len(source))), fields):
            if isinstance(record, RecordError):
                raise record
            records.append(record)
            volume += sum(len(value) for value in record.values() if isinstance(value, bytes))
        yield records, Progress(first + len(records), len(source), volume)
