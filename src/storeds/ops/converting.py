"""Copies a store from any engine to any other, record by record, and checks that nothing changed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storeds._utils.locations import redact
from storeds.backends.opening import open_backend, open_writer
from storeds.errors import FormatError, RecordError
from storeds.jpeg.restarts import RestartMarker
from storeds.ops.common import (
    NOT_EXAMINED,
    Batch,
    ProgressHook,
    VerdictCounts,
    check_distinct,
    examine_pictures,
    images_of,
    in_threads,
    is_fast,
    mark_picture,
    published,
    read_batches,
    resumable,
)
from storeds.protocols import JSON, Backend, Field, Meta, Record, Writer
from storeds.records.codec import ContentHash, RecordCodec, checksum
from storeds.records.fields import NATIVE, pictures
from storeds.records.roles import with_roles

__all__ = ["Converted", "convert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted(Meta):
    """`Meta` of a copied store, and what became of its pictures.

    Parameters
    ----------
    restarts : mapping of str to int
        With ``fast_crops=True``: outcome → number of pictures, the most frequent first. As for `storeds.ops.Packed`.
    """

    restarts: Mapping[str, int] = field(default_factory=dict)


def convert(
    src_url: str | Sequence[str],
    dst_url: str,
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = 1000,
    index: Sequence[str] = (),
    check: bool = True,
    fast_crops: bool = False,
    roles: Mapping[str, str | Mapping[str, Any]] | None = None,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> Converted:
    """Copy the store at `src_url` to `dst_url`. Order, fields, attrs and verdicts on pictures stay the same.

    The `Meta.id` of a native store stays the same too, unless pictures without a verdict are examined: the id includes
    verdicts. With `fast_crops` the bytes of pictures change, with `roles` the declaration, and so does the id.

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
    fast_crops : bool
        Put restart markers into the JPEGs, as `storeds.pack` does.
    roles : mapping, optional
        Field → its role in the copy, or a mapping with ``role``, ``format``, ``relative`` and ``of``:
        ``{"boxes": {"role": "boxes", "format": "xywh"}}``. Other fields keep theirs. Values do not change, and must fit.
    layout, options : str, mapping, optional
        Of the source, as for `open_backend`. Foreign stores can be converted too.
    progress : callable, optional
        Called with a `Progress` after each batch.

    Returns
    -------
    Converted
        `Meta` of the new store, and what became of its pictures with `fast_crops`.

    Raises
    ------
    ConfigError
        The target is the source, or one of the stores that it concatenates; or a role does not fit its field.
    RecordError
        A record of the source is bad, or does not fit the roles; nothing is published.
    FormatError
        The records read from a native source do not match its `Meta.id`: the source is damaged in a way that no checksum
        of a record shows. This compares the records as they were read, before verdicts and markers.
    """
    marker = RestartMarker.find() if fast_crops else None
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        check_distinct(source, dst_url)
        fields = with_roles(_with_columns(source, roles or {}), roles or {})
        source_hash = _SourceHash.of(source, check, fast_crops or fields != source.meta.fields)
        writer = open_writer(
            dst_url,
            fields,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            check=False,  # records already contain their verdicts
            plan={"convert": source.meta.id, "check": check, "fast_crops": fast_crops},
            index=index,
        )
        with resumable(writer):
            run = _Run(writer)
            if source_hash is not None and run.next:  # the id includes what an interrupted copy wrote
                for records, _ in read_batches(source, 0, run.next):
                    source_hash.add(records)
            read: Iterable[Batch] = read_batches(source, run.next)
            if source_hash is not None:
                read = map(source_hash.add_batch, read)
            finish = _Finisher(images_of(source), check, marker)
            is_busy = marker is not None or (check and (source_hash is not None or source.meta.layout != NATIVE))
            for (records, state), counted in in_threads(read, finish) if is_busy else _finished(read, finish):
                run.write(records, counted, commit_every)
                if progress is not None:
                    progress(state)
            meta = published(writer, source.meta.attrs, run.fast_crops)
        found = meta.id if source_hash is None else source_hash.id
        if source.meta.layout == NATIVE and found != source.meta.id:
            raise FormatError(
                f"{redact(dst_url)} contains what was read from {source.url}, but its content id {found} differs from the "
                f"source's {source.meta.id}: the source is damaged; run storeds verify on it"
            )
        own = {one.name: getattr(meta, one.name) for one in dataclasses.fields(Meta)}
        return Converted(**own, restarts=dict(run.restarts.most_common()))


def _with_columns(source: Backend, roles: Mapping[str, str | Mapping[str, Any]]) -> dict[str, Field]:
    """Return the fields of a source, with as many columns of keypoints as its first record has.

    Files of other tools whose arrays differ in shape do not tell. The writer compares each array with the declaration.
    """
    fields = dict(source.meta.fields)
    for name, given in roles.items():
        shape = fields[name].shape if name in fields else None
        role = given.get("role") if isinstance(given, Mapping) else given
        if role == "keypoints" and shape is not None and shape[-1:] == (None,) and len(source):
            (record,) = source.get_many([0], fields=[name])
            if isinstance(record, RecordError):
                raise record
            fields[name] = dataclasses.replace(fields[name], shape=(*shape[:-1], record[name].shape[-1]))
    return fields


@dataclass(frozen=True)
class _Finisher:
    """Puts the pictures of a record into their final form, in any thread."""

    images: tuple[str, ...]
    check: bool
    marker: RestartMarker | None

    def __call__(self, record: Record) -> tuple[int, list[str]]:
        """Examine and change the pictures in place; return how many are ready for fast crops, and what became of each."""
        if self.check:
            examine_pictures(record, self.images)
        outcomes = [] if self.marker is None else [mark_picture(self.marker, record, name) for name in self.images]
        return sum(is_fast(record, name) for name in self.images), outcomes


def _finished(read: Iterable[Batch], finish: _Finisher) -> Iterator[tuple[Batch, list[tuple[int, list[str]]]]]:
    """Do the same as `in_threads` in this thread: counting alone takes less time than handing records over."""
    for batch in read:
        yield batch, [finish(record) for record in batch[0]]


class _Run:
    """Writes finished records, and notes what was counted in those that are durable."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        note: Any = writer.note or {"count": 0, "fast_crops": 0, "restarts": {}}
        self.next: int = note["count"]
        self.fast_crops: int = note["fast_crops"]
        self.restarts: Counter[str] = Counter(note["restarts"])
        self._noted = writer.count
        self._surplus = writer.count - self.next  # durable, but not counted in the note
        if self._surplus < 0:
            raise FormatError(
                f"the interrupted copy cannot be resumed: it wrote {self.next} records, and {writer.count} are left; start "
                "over with overwrite=True (--overwrite)"
            )

    def write(self, records: Sequence[Record], found: Sequence[tuple[int, list[str]]], commit_every: int) -> None:
        """Append the next records, except those that are durable already."""
        for ready, outcomes in found:
            self.fast_crops += ready
            self.restarts.update(outcomes)
        dropped = min(self._surplus, len(records))
        self._surplus -= dropped
        self._writer.append(records[dropped:])
        if self._writer.count - self._noted >= commit_every:
            self._noted = self._writer.count
            counts: dict[str, JSON] = {"fast_crops": self.fast_crops, "restarts": dict(self.restarts)}
            self._writer.flush({"count": self._noted, **counts})


class _SourceHash:
    """Computes the content id of a native source while it is read, for a copy with other bytes or more verdicts."""

    def __init__(self, source: Backend) -> None:
        self._meta = source.meta
        self._codec = RecordCodec(source.meta.fields)
        self._content = ContentHash()

    @classmethod
    def of(cls, source: Backend, check: bool, changes: bool) -> _SourceHash | None:
        """Return one, or None if the id of the copy must equal that of the source."""
        if source.meta.layout != NATIVE:
            return None
        lacks = set(images_of(source)) - set(pictures(source.meta.fields))
        more = lacks or (check and VerdictCounts.of(source).kinds.get(NOT_EXAMINED))
        return cls(source) if changes or more else None

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
