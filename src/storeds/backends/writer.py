"""Writes native stores: `StoreWriter` turns records into packed bytes, and a `Sink` for each engine keeps them.

The writer checks and packs records, judges their pictures, collects their columns and the content id, and decides what a
resumed write continues with. A sink knows only bytes, so an engine implements few methods.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

from storeds._utils.text import counted
from storeds.errors import (
    ClosedError,
    ConfigError,
    FormatError,
    RecordError,
    StoredsError,
    StoreExistsError,
    UnavailableError,
)
from storeds.protocols import JSON, Array, Field, Meta, Record
from storeds.records.canonical_json import canonical_json
from storeds.records.classes import class_fields, classes_in, unnamed_class
from storeds.records.codec import ContentHash, RecordCodec, Seals, checksum, column_checksum
from storeds.records.columns import ColumnCollector
from storeds.records.fields import fields_to_json, parse_fields
from storeds.records.meta import NATIVE, meta_to_text, new_build
from storeds.records.role_checks import LOSSY, RoleChecker
from storeds.records.verdict_fields import UNCHECKED, pictures, verdict_fields, with_verdicts

__all__ = ["Sink", "StoreWriter"]

_LOG = logging.getLogger("storeds")

_WORTH_THREADS, _CHUNK = 8, 64  # records
_BYTES = (bytes, bytearray, memoryview)
_BATCH_BYTES = 16 << 20
_SEAL_BYTES = 8
_KEPT = "The records are kept: publish with other attrs, or continue later with resume=True (--resume)"


class Sink(Protocol):
    """Where one engine keeps the packed records of one target. Every method is durable when it returns.

    A sink builds the store in a place of its own, which no reader takes for a store. Used by one `StoreWriter`, in one
    thread of one process.

    Attributes
    ----------
    url : str
        The target, secrets removed.
    errors : tuple of type
        What the engine raises when it cannot write. The writer then keeps the durable records, and raises `StoredsError`.
    """

    @property
    def url(self) -> str: ...

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...

    def exists(self) -> bool:
        """Whether something is at the target. Raises StoreExistsError for what no writer may replace, such as a folder."""
        ...

    def begin(self) -> bytes | None:
        """Take the target, and return the note of the last `put` of an interrupted write, or None without one.

        After `close` too, to `drop` what this sink has put.

        Records that became durable after that note are forgotten.

        Raises
        ------
        StoreExistsError
            Another writer has the target.
        """
        ...

    def put(self, first: int, packed: Sequence[bytes], note: bytes) -> None:
        """Keep packed records with their seals, the first of which has position `first`, together with `note`.

        Idempotent. A death in the middle leaves the note of an earlier `put`, with the records of that time.
        """
        ...

    def scan(self) -> Iterator[bytes]:
        """Yield what `put` kept, in order; called after `begin` returned a note."""
        ...

    def finish(self, columns: Mapping[str, Array], meta: str, *, replace: bool) -> None:
        """Make the store visible at the target in one atomic step, and clean up.

        After an error the sink still has all records.

        Parameters
        ----------
        columns : mapping of str to array
            The values of each field of kind int, float or bool, dtypes ``<i8``, ``<f8``, ``?``, shape ``(count,)``. Of a
            field `name` of kind str, its texts end to end as UTF-8 bytes, uint8, and as ``name.offsets`` their bounds,
            ``<i8``, shape ``(count + 1,)``.
        meta : str
            Canonical JSON, see ``docs/format.md``.
        replace : bool
            Replace a store at the target; otherwise raise the error of `appeared` if there is one.
        """
        ...

    def drop(self) -> None:
        """Forget every record and note; the sink can be used on."""
        ...

    def close(self) -> None:
        """Release the target for other writers. Idempotent. What was put stays for a later writer, unless it was dropped."""
        ...

    def explain(self, error: Exception) -> str:
        """Return why a method raised one of `errors`, and what to do about it: ``the disk is full (…); make room``."""
        ...


def _read_header(blob: bytes) -> Any:
    from storeds.pictures import read_picture_header  # a writer without images needs no decoder

    return read_picture_header(blob)


class _Added(NamedTuple):
    """A record that is not durable yet: packed with its seal, its checksum, and the values that columns and classes need."""

    sealed: bytes
    digest: bytes
    values: Record


class StoreWriter:
    """The `storeds.protocols.Writer` of native stores.

    Parameters
    ----------
    sink : Sink
        The writer closes it.
    fields : mapping
    overwrite, resume, commit_every, check, plan
        As for `storeds.open_writer`. A batch also ends at 16 MiB.

    Attributes
    ----------
    fields : dict
        The declared fields, and two for the verdict on each image.
    roles
        What `append` checks records with; None if no field has a role. Thread-safe, so that others can check them earlier.

    Notes
    -----
    The values of int, float, bool and str fields stay in memory until the store is published: 8 bytes for each number. So
    does each class of labels, once.

    An exception at any place, such as Ctrl-C, leaves a prefix of the records, or a writer that refuses to go on: `append`
    changes only `_pending`, in one step, and what a step of the sink changes beside it is lost with the writer.
    """

    def __init__(
        self,
        sink: Sink,
        fields: Mapping[str, Any],
        *,
        overwrite: bool,
        resume: bool,
        commit_every: int,
        check: bool,
        plan: JSON,
    ) -> None:
        if isinstance(commit_every, bool) or not isinstance(commit_every, int) or commit_every < 1:
            raise ConfigError(f"commit_every must be a positive number of records, got {commit_every!r}")
        if not isinstance(check, bool):
            raise ConfigError(f"check is True or False, got {check!r}")
        self.url: str = sink.url
        self.fields: dict[str, Field] = with_verdicts(parse_fields(fields))
        self.meta: Meta | None = None
        self._sink, self._overwrite, self._commit_every = sink, overwrite, commit_every
        self._images = [*pictures(self.fields)]
        self._check_pictures = check
        has_roles = any(field.role is not None or field.of is not None for field in self.fields.values())
        self.roles: RoleChecker | None = (
            RoleChecker(self.fields, _read_header, self._warn_of_lossy) if has_roles else None
        )
        self._lossy: set[str] = set()
        self._codec = RecordCodec(self.fields)
        self._plan: JSON = {"fields": fields_to_json(self.fields), "plan": plan}
        self._seals = Seals()
        self._columns = ColumnCollector(self.fields)
        # Each class with the position of the first record that has it.
        self._classes: dict[str, dict[int | str, int]] = {name: {} for name in class_fields(self.fields)}
        self._collected = [name for name, field in self.fields.items() if field.is_scalar or field.kind == "str"]
        self._collected += [name for name in self._classes if name not in self._collected]
        self._content = ContentHash()
        self._pending: tuple[list[_Added], JSON] = [], None  # and the note that becomes durable with them
        self._batch_bytes = self._durable = 0
        self._sent: int | None = None  # records that may be durable; None if nothing is, not even a note
        self._state: Literal["open", "stopped", "published", "closed"] = "open"
        self._pid = os.getpid()
        try:
            with self._engine():
                self._begin(resume=resume)
        except BaseException:
            self.suspend()  # an interrupt may come after the step: a traceback must not keep the target
            raise

    def _begin(self, *, resume: bool) -> None:
        """Take the target: continue an interrupted write, or start a new one."""
        if self._sink.exists() and not self._overwrite:
            raise StoreExistsError(
                f"{self.url} exists, and a published store never changes. To add records, write them to a store of another name "
                f"and read both as one with open_backend([{self.url!r}, …]) or a pattern; convert copies both into one. To "
                "delete what is there and write the store again, pass overwrite=True (--overwrite); with resume=True (--resume) "
                "as well, that continues an interrupted write"
            )
        left = self._sink.begin()
        if left is not None and resume:
            self._continue(left)
            return
        if left is not None and not self._overwrite:
            raise StoreExistsError(
                f"there is an interrupted write of {self.url}; pass resume=True (--resume) to continue it, or overwrite=True "
                "(--overwrite) to start again"
            )
        if left is not None:
            self._sink.drop()
        self._sink.put(0, [], self._state_text(None))

    def _continue(self, left: bytes) -> None:
        """Continue the write with this note: compute from its records what a writer keeps in memory."""
        write, again = f"the interrupted write of {self.url}", "start again with overwrite=True (--overwrite)"
        try:
            state = json.loads(left)
            plan, count = state["plan"], int(state["count"])
            seals = Seals.of(state["salt"], 0, self.url)
        except (ValueError, KeyError, TypeError):
            raise FormatError(f"{write} is damaged; {again}") from None
        if plan != self._plan:
            raise _other_plan(self.url, plan, self._plan)
        self._seals, self._pending, self._sent = seals, ([], state["note"]), count
        for position, sealed in enumerate(self._sink.scan()):
            packed, seal = sealed[:-_SEAL_BYTES], sealed[-_SEAL_BYTES:]
            digest = checksum(packed)
            if seals.seal(digest, position) != seal:
                raise FormatError(f"record {position} of {write} is damaged; {again}")
            self._collect(self._codec.stored(packed), digest, position)
            self._durable += 1
        if self._durable != count:
            raise FormatError(f"{write} has {self._durable} of its {count} records; {again}")

    def _collect(self, values: Record, digest: bytes, position: int) -> None:
        self._content.update(digest)
        self._columns.add(values)
        for name, seen in self._classes.items():
            field, value = self.fields[name], values[name]
            for each in classes_in(field, json.loads(value) if field.kind == "json" else value):
                seen.setdefault(each, position)

    def _state_text(self, note: JSON) -> bytes:
        state = {"count": self.count, "note": note, "plan": self._plan, "salt": self._seals.text}
        return canonical_json(state).encode()

    @property
    def count(self) -> int:
        # docstring inherited
        return self._durable + len(self._pending[0])

    @property
    def note(self) -> JSON:
        # docstring inherited
        return self._pending[1]

    def append(self, records: Record | Iterable[Record], /, *, note: JSON = None, checked: bool = False) -> int:
        # docstring inherited; with `checked`, the caller has checked records with `roles`
        self._check_open()
        if isinstance(records, Mapping):
            records = [dict(records)]
        before = self.count
        # A note and its records are added in one step.
        batch = self._pending[0] if note is None else [*self._pending[0]]
        for record in self._examined(records):
            batch.append(self._packed(record, self._durable + len(batch), checked=checked))
            if note is None:
                self._commit_if_full()
        if note is not None:
            self._pending = batch, note
            self._commit_if_full()
        return self.count - before

    def _commit_if_full(self) -> None:
        if len(self._pending[0]) >= self._commit_every or self._batch_bytes >= _BATCH_BYTES:
            self._commit(self.note)

    def _examined(self, records: Iterable[Record]) -> Iterable[Record]:
        """Return the records with verdicts on their images; a record that has a verdict keeps it."""
        if not self._images:
            return records
        if not self._check_pictures or not isinstance(records, Sequence) or len(records) < _WORTH_THREADS:
            return map(self._with_verdicts, records)
        return self._examined_in_threads(records)

    def _examined_in_threads(self, records: Sequence[Record]) -> Iterator[Record]:
        # Decoding releases Python's lock. `map` would examine a whole list ahead of the first write.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "storeds-examine") as pool:
            for start in range(0, len(records), _CHUNK):
                yield from pool.map(self._with_verdicts, records[start : start + _CHUNK])

    def _with_verdicts(self, record: Any) -> Any:
        from storeds.pictures import examine, set_verdict  # a writer without images needs no decoder

        if not isinstance(record, Mapping):
            return record  # the codec rejects it with the reason
        judged = dict(record)
        for image in self._images:
            finding, _ = verdict_fields(image)
            if judged.get(finding, UNCHECKED) == UNCHECKED:
                blob = judged.get(image)
                found = examine(bytes(blob)) if self._check_pictures and isinstance(blob, _BYTES) else None
                set_verdict(judged, image, found)
        return judged

    def _packed(self, record: Record, position: int, *, checked: bool) -> _Added:
        try:
            stored = self._codec.canonical(record)
            if self.roles is not None and not checked:
                self.roles.check(record)
            packed = self._codec.pack(stored)
        except ValueError as error:
            key = record.get("key") if isinstance(record, Mapping) else None
            raise RecordError.at(self.url, position, str(error), key=key if isinstance(key, str) else None) from None
        digest = checksum(packed)
        self._batch_bytes += len(packed)
        values = {name: stored[name] for name in self._collected}
        return _Added(packed + self._seals.seal(digest, position), digest, values)

    def _warn_of_lossy(self, mask: str) -> None:
        if mask not in self._lossy:
            self._lossy.add(mask)
            _LOG.warning("%s: field %r holds a mask that is a JPEG: %s", self.url, mask, LOSSY)

    def _commit(self, note: JSON) -> None:
        batch = self._pending[0]
        with self._engine():
            self._sent = self._durable + len(batch)
            self._sink.put(self._durable, [added.sealed for added in batch], self._state_text(note))
            for position, added in enumerate(batch, self._durable):
                self._collect(added.values, added.digest, position)
            self._durable += len(batch)
            batch.clear()
            self._pending, self._batch_bytes = (batch, note), 0

    @contextmanager
    def _engine(self, after: Literal["open", "published"] = "open") -> Iterator[None]:
        """Make a step that is not complete until the body ends: after an exception in it, the writer refuses to go on.

        It then releases the target and keeps the durable records: a full disk or a lost server must not cost hours.
        """
        self._state = "stopped"
        try:
            yield
            self._state = after
        except BaseException as error:
            is_engines = isinstance(error, self._sink.errors) and not isinstance(error, StoredsError)
            reason = self._sink.explain(error) if is_engines else None  # type: ignore[arg-type]  # one of `errors`
            with suppress(UnavailableError):
                self.suspend()
            if reason is not None:
                kept = f"the first {self._durable} records are" if self._durable else "what was durable before is"
                then = "try again" if self._sent is None else f"continue with resume=True (--resume): {kept} safe"
                raise StoredsError(f"{self.url} cannot be written: {reason}, then {then}") from error
            raise

    def flush(self, note: JSON = None) -> None:
        # docstring inherited
        self._check_open()
        if note is not None or self._pending[0]:
            self._commit(self.note if note is None else note)

    def publish(self, attrs: Mapping[str, JSON] | None = None, *, fast_crops: int | None = None) -> Meta:
        """Make the complete store visible under its URL and return its `Meta`.

        Parameters
        ----------
        attrs : mapping, optional
            User data, as JSON.
        fast_crops : int, optional
            Number of pictures of which readers can decode a crop alone, for `Meta`. `Meta.id` does not depend on it.

        Raises
        ------
        ConfigError, RecordError
            `attrs` are not JSON; a class id has no name in them. The writer stays open for other attrs.
        """
        self.flush()
        attrs = dict(attrs or {})
        try:
            canonical_json(attrs)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"attrs of {self.url} must be JSON: {error}. {_KEPT}") from None
        unnamed = unnamed_class(self._classes, attrs.get("classes"))
        if unnamed is not None:
            position, fault = unnamed
            raise RecordError.at(self.url, position, f"{fault}. {_KEPT}")
        with self._engine("published"):
            content = self._content.finish(self.fields, attrs)
            meta = Meta(content, new_build(), self._durable, NATIVE, self.fields, attrs, fast_crops)
            columns = self._columns.columns()
            checksums: JSON = {name: column_checksum(column) for name, column in columns.items()}
            text = meta_to_text(meta, columns=checksums, salt=self._seals.text)
            self._sink.finish(columns, text, replace=self._overwrite)
            self.meta = meta
        self._sink.close()
        return meta

    def abort(self) -> None:
        # docstring inherited
        if self._pid != os.getpid() or self._state not in ("open", "stopped"):  # a child must not touch its parent's
            return
        was_open = self._state == "open"
        self._state, self._pending = "stopped", ([], self.note)  # until all is deleted: an interrupt may come
        try:
            if not was_open:
                self._take_again()
            self._sink.drop()
        finally:
            self._sink.close()
        self._state = "closed"

    def _take_again(self) -> None:
        """Take the target that an exception released; raise StoreExistsError if another writer has continued the write."""
        self._sink.close()  # again, because an interrupt may have ended it early
        left = self._sink.begin()
        if left is None:
            return
        try:
            state = json.loads(left)
            is_own = state["salt"] == self._seals.text and state["count"] <= (self._sent or 0)
        except (ValueError, KeyError, TypeError):
            is_own = False
        if not is_own:
            raise StoreExistsError(
                f"another writer has taken over the write of {self.url} since this one stopped, so nothing was deleted; "
                "open_writer(…, overwrite=True) (--overwrite) deletes it"
            )

    def suspend(self) -> None:
        # docstring inherited
        if self._pid == os.getpid():
            was_open = self._state == "open"
            self._state = "stopped" if was_open else self._state
            self._pending = [], self.note
            self._sink.close()
            self._state = "closed" if was_open else self._state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._state in ("open", "stopped"):  # publishing what was stopped raises
            self.publish()
        elif self._sent is None:
            # The first error matters more, and the next writer reports the leftovers.
            with suppress(StoredsError, *self._sink.errors):
                self.abort()
        else:
            if error is not None and self._state in ("open", "stopped") and "resume=True" not in str(error):
                self._say_kept(error)
            self.suspend()

    def _say_kept(self, error: BaseException) -> None:
        least = "at least " if self._sent != self._durable and self._state == "stopped" else ""
        kept = (
            f"{least}{counted(self._durable, 'record')} of {self.url} {'is' if self._durable == 1 else 'are'} kept, and "
            "resume=True (--resume) continues there"
        )
        if isinstance(error, StoredsError) and len(error.args) == 1:
            error.args = (f"{error.args[0]}\n{kept}",)
        else:
            error.add_note(kept)

    def __del__(self) -> None:
        # A writer that was dropped unclosed must not block the next one.
        if hasattr(self, "_pid"):
            try:  # noqa: SIM105  # at exit, `contextlib.suppress` may be gone
                self.suspend()
            except Exception:  # noqa: S110  # so may be what a writer needs
                pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, count={self.count}, {self._state})"

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(
                f"the writer of {self.url} is for the process that opened it; open another with open_writer"
            )
        if self._state != "open":
            self.suspend()  # again, because an interrupt may have ended it early
        if self._state == "stopped":
            raise ClosedError(
                f"the writer of {self.url} was stopped by an exception while it wrote; open_writer(…, resume=True) (--resume) "
                "continues after the last durable record"
            )
        if self._state != "open":
            raise ClosedError(f"the writer of {self.url} is {self._state}; open another with open_writer")


# What `pack` writes into its plan besides arguments.
_HASHES = {"plan.source.xxh3": " (a hash of the source: its files or annotations changed)"}


def _other_plan(url: str, begun: JSON, now: JSON) -> ConfigError:
    """Return the error for a writer that cannot resume an interrupted write, because its arguments differ."""
    differing = [
        f"{name} was {json.dumps(old)} and is {json.dumps(new)}{_HASHES.get(name, '')}"
        for name, old, new in _differences(begun, now)
    ]
    return ConfigError(
        f"{url} cannot be resumed, because it began with other arguments: {'; '.join(differing)}; use the same, or start again "
        "with overwrite=True (--overwrite), without resume=True"
    )


def _differences(old: JSON, new: JSON, name: str = "") -> Iterator[tuple[str, JSON, JSON]]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield name, old, new
        return
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
