"""Copies a store from any engine to any other, record by record, and checks that nothing changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from storeds._utils.locations import redact
from storeds.backends.opening import open_backend, open_writer
from storeds.errors import FormatError
from storeds.ops.common import (
    NOT_EXAMINED,
    Batch,
    ProgressHook,
    VerdictCounts,
    check_distinct,
    examined,
    images_of,
    read_batches,
    resumable,
)
from storeds.protocols import Backend, Meta, Record
from storeds.records.codec import ContentHash, RecordCodec, checksum
from storeds.records.fields import NATIVE, stored_fields

__all__ = ["convert"]


def convert(
    src_url: str | Sequence[str],
    dst_url: str,
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = 1000,
    index: Sequence[str] = (),
    check: bool = True,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> Meta:
    """Copy the store at `src_url` to `dst_url`. Order, fields, attrs and verdicts on pictures stay the same.

    The `Meta.id` of a native store stays the same too, unless pictures without a verdict are examined: the id includes
    verdicts.

    Parameters
    ----------
    src_url : str or list of str
        As for `open_backend`: one store, or a pattern or list of several, which become one store.
    dst_url : str
        As for `open_writer`.
    overwrite, resume, commit_every, index
        As for `open_writer`.
    check : bool
        Examine each picture without a verdict: those of foreign stores, and of stores written with ``check=False``.
        Existing verdicts are copied either way.
    layout, options : str, mapping, optional
        Of the source, as for `open_backend`. Foreign stores can be converted too.
    progress : callable, optional
        Called with a `Progress` after each batch.

    Returns
    -------
    Meta
        Of the new store.

    Raises
    ------
    ConfigError
        The target is the source, or one of the stores that it concatenates.
    RecordError
        A record of the source is bad; nothing is published.
    FormatError
        The records read from a native source do not match its `Meta.id`: the source is damaged in a way that no checksum
        of a record shows. Verdicts added here are ignored in this comparison.
    """
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        check_distinct(source, dst_url)
        source_hash = _SourceHash.of(source, check)
        writer = open_writer(
            dst_url,
            source.meta.fields,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            check=False,  # records already contain their verdicts
            plan={"convert": source.meta.id, "check": check},
            index=index,
        )
        with resumable(writer):
            if source_hash is not None and writer.count:  # the id includes what an interrupted copy wrote
                for records, _ in read_batches(source, 0, writer.count):
                    source_hash.add(records)
            read: Iterable[Batch] = read_batches(source, writer.count)
            if source_hash is not None:
                read = map(source_hash.add_batch, read)
            for records, state in examined(read, images_of(source)) if check else read:
                writer.append(records)
                if progress is not None:
                    progress(state)
            meta = writer.publish(source.meta.attrs)
        found = meta.id if source_hash is None else source_hash.id
        if source.meta.layout == NATIVE and found != source.meta.id:
            raise FormatError(
                f"{redact(dst_url)} contains what was read from {source.url}, but its content id {found} differs from the "
                f"source's {source.meta.id}: the source is damaged; run storeds verify on it"
            )
        return meta


class _SourceHash:
    """Computes the content id of a native source while it is read, for a copy that gets more verdicts."""

    def __init__(self, source: Backend) -> None:
        self._meta = source.meta
        self._codec = RecordCodec(stored_fields(source.meta))
        self._content = ContentHash()

    @classmethod
    def of(cls, source: Backend, check: bool) -> _SourceHash | None:
        """Return one, or None if the id of the copy must equal that of the source."""
        if source.meta.layout != NATIVE:
            return None
        lacks = set(images_of(source)) - set(source.meta.verdicts)
        adds = lacks or (check and VerdictCounts.of(source).kinds.get(NOT_EXAMINED))
        return cls(source) if adds else None

    def add_batch(self, batch: Batch) -> Batch:
        """Add the records of a batch, and return the batch."""
        self.add(batch[0])
        return batch

    def add(self, records: Sequence[Record]) -> None:
        """Add the next records as they were read."""
        packed = (self._codec.pack(self._codec.canonical(record)) for record in records)
        self._content.update(b"".join(map(checksum, packed)))

    @property
    def id(self) -> str:
        """The `Meta.id` that the source should have."""
        return self._content.finish(self._codec.fields, self._meta.attrs)
