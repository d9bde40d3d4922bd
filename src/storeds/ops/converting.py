"""Copies a store from any backend to any other, record by record, and checks that nothing changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from storeds._utils.locations import redact
from storeds.backends.opening import open_backend, open_writer
from storeds.errors import FormatError
from storeds.ops.common import Batch, check_distinct, examined, images_of, read_batches, resumable
from storeds.ops.progress import ProgressHook
from storeds.ops.verdict_counts import NOT_EXAMINED, VerdictCounts
from storeds.protocols import Backend, Meta, Record
from storeds.records.codec import ContentHash, RecordCodec, checksum
from storeds.records.fields import stored_fields
from storeds.records.meta import NATIVE

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
    """Copy the store at `src_url` to `dst_url`; order, fields, attrs and verdicts on pictures stay the same.

    So does a native store's `Meta.id`, unless pictures that had no verdict were examined: verdicts are part of it.

    Parameters
    ----------
    src_url : str or list of str
        As for `open_backend`: one store, or a pattern or list of several, which become one.
    dst_url : str
        As for `open_writer`.
    overwrite, resume, commit_every, index
        As for `open_writer`.
    check : bool
        Examine each picture on which the source has no verdict: those of foreign stores, and of stores that were written
        with ``check=False``. Verdicts that the source has are copied in any case.
    layout, options : str, mapping, optional
        Of the source, as for `open_backend`: a foreign store is converted as any other.
    progress : callable, optional
        Called with a `Progress` now and then.

    Returns
    -------
    Meta
        Of the new store.

    Raises
    ------
    ConfigError
        The target is the source, or one of the stores that it reads as one.
    RecordError
        A record of the source is bad; nothing is published.
    FormatError
        What was read from a native source has not its `Meta.id`, so the source is damaged where no checksum of a record
        shows it. What was examined here does not count.
    """
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        check_distinct(source, dst_url)
        proof = _Proof.of(source, check)
        writer = open_writer(
            dst_url,
            source.meta.fields,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            check=False,  # records bring their verdicts
            plan={"convert": source.meta.id, "check": check},
            index=index,
        )
        with resumable(writer):
            if proof is not None and writer.count:  # the id covers what an interrupted copy took, too
                for records, _ in read_batches(source, 0, writer.count):
                    proof.take(records)
            read: Iterable[Batch] = read_batches(source, writer.count)
            if proof is not None:
                read = map(proof.watch, read)
            for records, state in examined(read, images_of(source)) if check else read:
                writer.append(records)
                if progress is not None:
                    progress(state)
            meta = writer.publish(source.meta.attrs)
        found = meta.id if proof is None else proof.id
        if source.meta.layout == NATIVE and found != source.meta.id:
            raise FormatError(
                f"{redact(dst_url)} holds what was read from {source.url}, but its content id {found} differs from the "
                f"source's {source.meta.id}: the source is damaged; run storeds verify on it"
            )
        return meta


class _Proof:
    """The content id of what is read from a native store, computed on the way where the copy has more verdicts."""

    def __init__(self, source: Backend) -> None:
        self._meta = source.meta
        self._codec = RecordCodec(stored_fields(source.meta))
        self._content = ContentHash()

    @classmethod
    def of(cls, source: Backend, check: bool) -> _Proof | None:
        """Return one, or None where the copy's own id tells."""
        if source.meta.layout != NATIVE:
            return None
        lacks = set(images_of(source)) - set(source.meta.verdicts)
        adds = lacks or (check and VerdictCounts.of(source).kinds.get(NOT_EXAMINED))
        return cls(source) if adds else None

    def watch(self, batch: Batch) -> Batch:
        """Take the records of a batch, and return it."""
        self.take(batch[0])
        return batch

    def take(self, records: Sequence[Record]) -> None:
        """Take the next records, as they were read."""
        packed = (self._codec.pack(self._codec.canonical(record)) for record in records)
        self._content.update(b"".join(map(checksum, packed)))

    @property
    def id(self) -> str:
        """What `Meta.id` of the source should be."""
        return self._content.finish(self._codec.fields, self._meta.attrs)
