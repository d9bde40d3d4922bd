"""Common behaviour of writers: validates and batches records, from the first append to publishing."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from storeds.backends.role_checks import LOSSY, ClassIds, RoleChecker
from storeds.errors import ClosedError, ConfigError, RecordError, StoredsError, StoreExistsError, UnavailableError
from storeds.protocols import JSON, Field, Meta, Record
from storeds.records.codec import ContentHash, RecordCodec, checksum
from storeds.records.fields import (
    NATIVE,
    UNCHECKED,
    Count,
    Verdict,
    canonical_json,
    new_build,
    parse_fields,
    pictures,
    set_verdict,
    verdict_fields,
    with_verdicts,
)

__all__ = ["BATCH_BYTES", "COMMIT_EVERY", "EncodedRecord", "StoreWriter", "other_plan", "target_exists"]

_LOG = logging.getLogger("storeds")

COMMIT_EVERY = 1000
_WORTH_THREADS, _CHUNK = 8, 64  # records
_BYTES = (bytes, bytearray, memoryview)
_CLASS_IDS = "_class_ids"
BATCH_BYTES = 32 << 20


def target_exists(url: str, is_left: bool) -> StoreExistsError:
    """Return the error for a target that must not be replaced; `is_left` means that an interrupted write of it exists."""
    goes_on = "; with resume=True (--resume) as well, that continues the interrupted writer's work" if is_left else ""
    return StoreExistsError(
        f"{url} exists, and a published store never changes. To add records, write them to a store of another name and read "
        f"both as one with open_backend([{url!r}, …]) or a pattern; convert copies both into one. To delete what is there and "
        f"write the store again, pass overwrite=True (--overwrite){goes_on}"
    )


def other_plan(url: str, begun: JSON, now: JSON) -> ConfigError:
    """Return the error for a writer that cannot resume an interrupted write, because its arguments differ."""
    differing = [
        f"{name} was {json.dumps(old)} and is {json.dumps(new)}{_HASHES.get(name, '')}"
        for name, old, new in _differences(begun, now)
    ]
    return ConfigError(
        f"{url} cannot be resumed, because it began with other arguments: {'; '.join(differing)}; use the same, or start again "
        "with overwrite=True (--overwrite), without resume=True"
    )


# What `pack` writes into its plan besides arguments.
_HASHES = {"plan.source.xxh3": " (a hash of the source: its files or annotations changed)"}


def _differences(old: JSON, new: JSON, name: str = "") -> Iterator[tuple[str, JSON, JSON]]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield name, old, new
        return
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)


@dataclass(frozen=True, slots=True)
class EncodedRecord:
    """One validated and encoded record.

    Attributes
    ----------
    packed : bytes
        Its msgpack map; empty if the engine does not need it.
    size : int
        Bytes of that map.
    """

    stored: Record
    packed: bytes
    digest: bytes
    size: int


class StoreWriter(ABC):
    """Base of the native writers: an engine implements how a batch becomes durable, and how the store becomes visible.

    Parameters
    ----------
    url : str
        The target, secrets removed.
    fields : mapping
        The declaration, see `storeds.records.fields.parse_fields`.
    commit_every : int
        Records per durable batch; a batch also ends at 32 MiB.
    check : bool
        Examine each image without a verdict, in threads if several records arrive at once.

    Attributes
    ----------
    fields : dict
        The declared fields, and two for the verdict on each image.
    note : JSON
        The note of the last `flush` that had one, in this writer or in the write that it resumes.
    """

    def __init__(self, url: str, fields: Mapping[str, Any], commit_every: int, *, check: bool = True) -> None:
        if isinstance(commit_every, bool) or not isinstance(commit_every, int) or commit_every < 1:
            raise ConfigError(f"commit_every must be a positive number of records, got {commit_every!r}")
        self.url = url
        if not isinstance(check, bool):
            raise ConfigError(f"check is True or False, got {check!r}")
        self.fields: dict[str, Field] = with_verdicts(parse_fields(fields))
        self._images = [*pictures(self.fields)]
        self._check_pictures = check
        self._roles = RoleChecker(self.fields, self._warn_of_lossy)
        self._lossy: set[str] = set()
        self._class_ids = ClassIds(self.fields)
        self._noted_ids: JSON = {}
        self.commit_every = commit_every
        self.meta: Meta | None = None
        self._note: JSON = None
        self._codec = RecordCodec(self.fields)
        self._content = ContentHash()
        self._batch: list[EncodedRecord] = []  # without the records that `_write_part` took
        self._batch_bytes = self._part_bytes = 0
        self._durable = self._taken = 0
        self._state: Literal["open", "published", "closed"] = "open"
        self._pid = os.getpid()

    engine_errors: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """The exceptions that the engine raises when it cannot write."""

    part_bytes: ClassVar[int] = BATCH_BYTES
    """Approximate number of bytes that `_write_part` takes at a time; an engine that keeps the default needs no parts."""

    needs_packed: ClassVar[bool] = True
    """Whether the engine uses `EncodedRecord.packed`; otherwise it is not kept, which halves the memory of a batch."""

    @abstractmethod
    def _commit(self, batch: list[EncodedRecord], first: int) -> None:
        """Make `batch`, whose first record has position `first`, durable, with the parts that `_write_part` took before."""

    def _write_part(self, part: list[EncodedRecord], first: int) -> None:
        """Write the next part of a batch early, to save memory; it may become durable with the rest of the batch."""
        raise NotImplementedError

    @abstractmethod
    def _save_note(self, note: JSON) -> None:
        """Make `note` durable, for the `note` of a writer that resumes."""

    @abstractmethod
    def _publish(self, meta: Meta) -> None:
        """Make all committed records visible at the target in one step, and clean up."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove everything written."""

    @abstractmethod
    def _suspend(self) -> None:
        """Close the engine and keep the durable records, for a later ``resume=True``."""

    @property
    def note(self) -> JSON:
        # docstring inherited
        return self._note

    @note.setter
    def note(self, stored: Any) -> None:
        """Take what `_save_note` made durable in the write that this writer resumes."""
        if isinstance(stored, dict) and stored.keys() == {_CLASS_IDS, "note"}:
            self._class_ids.restore(stored[_CLASS_IDS])
            self._noted_ids, stored = stored[_CLASS_IDS], stored["note"]
        self._note = stored

    @property
    def stored_note(self) -> JSON:
        """What `_save_note` makes durable: the note, and the class ids so far, if a field holds any."""
        ids = self._class_ids.to_json()
        return {_CLASS_IDS: ids, "note": self._note} if ids else self._note

    @property
    def count(self) -> int:
        # docstring inherited
        return self._durable + self._taken + len(self._batch)

    def append(self, records: Iterable[Record], /) -> int:
        # docstring inherited
        self._check_open()
        before = self.count
        for record in self._examined(records):
            self._batch.append(self._seal(record))
            if (
                self._taken + len(self._batch) >= self.commit_every
                or self._batch_bytes + self._part_bytes >= BATCH_BYTES
            ):
                self.flush()
            elif self._part_bytes >= self.part_bytes:
                self._hand_over(self._write_part)
                self._batch_bytes += self._part_bytes
                self._part_bytes = 0
        return self.count - before

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
        if not isinstance(record, Mapping):
            return record  # the codec rejects it with the reason
        judged = dict(record)
        for image in self._images:
            finding, _ = verdict_fields(image)
            if judged.get(finding, UNCHECKED) == UNCHECKED:
                set_verdict(judged, image, self._examine(judged.get(image)))
        return judged

    def _examine(self, blob: Any) -> Verdict | None:
        if not self._check_pictures or not isinstance(blob, _BYTES):
            return None
        from storeds.jpeg import examine  # a writer without images needs no decoder

        return examine(bytes(blob))

    def _hand_over(self, take: Callable[[list[EncodedRecord], int], None]) -> None:
        with self._writing():
            take(self._batch, self._durable + self._taken)
        self._content.update(b"".join(sealed.digest for sealed in self._batch))
        self._taken += len(self._batch)
        self._batch = []

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep the durable records when the engine fails: a full disk or a lost server must not cost hours of work."""
        try:
            yield
        except UnavailableError:
            self.suspend()
            raise
        except StoredsError:
            raise
        except self.engine_errors as error:
            reason = self._reason(error)
            self.suspend()
            raise StoredsError(
                f"{self.url} cannot be written: {reason}; the first {self._durable} records are safe: make room, then continue "
                "with resume=True (--resume)"
            ) from error

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Release the target when the engine cannot begin or resume."""
        try:
            yield
        except BaseException as error:
            reason = self._reason(error)
            self.suspend()
            if isinstance(error, self.engine_errors) and not isinstance(error, StoredsError):
                raise StoredsError(
                    f"{self.url} cannot be written: {reason}; the durable records of the interrupted write are safe: make room, then "
                    "continue with resume=True (--resume)"
                ) from error
            raise

    def _reason(self, error: BaseException) -> str:
        """Return why the engine cannot write; engines that keep files check whether the disk is full."""
        return str(error)

    def flush(self, note: JSON = None) -> None:
        """Make all appended records durable, then `note`, in which a caller can save where to continue."""
        self._check_open()
        if self._batch or self._taken:
            self._hand_over(self._commit)
            self._durable += self._taken
            self._taken = self._batch_bytes = self._part_bytes = 0
        ids = self._class_ids.to_json()
        if note is not None or ids != self._noted_ids:
            self._note = self._note if note is None else note
            with self._writing():
                self._save_note(self.stored_note)
            self._noted_ids = ids

    def publish(self, attrs: Mapping[str, JSON] | None = None, *, fast_crops: int | None = None) -> Meta:
        """Make the complete store visible under its URL and return its `Meta`.

        Parameters
        ----------
        attrs : mapping, optional
            User data, as JSON.
        fast_crops : int, optional
            Number of pictures of which readers can decode a crop alone, for `Meta`. `Meta.id` does not depend on it.
        """
        self._check_open()
        attrs = dict(attrs or {})
        try:
            canonical_json(attrs)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"attrs of {self.url} must be JSON: {error}") from None
        self.flush()
        self._check_classes(attrs)
        meta = Meta(
            self._content.finish(self.fields, attrs),
            new_build(),
            Count(self._durable),
            NATIVE,
            self.fields,
            attrs,
            fast_crops,
        )
        try:
            with self._writing():
                self._publish(meta)
        except BaseException:
            self.suspend()
            raise
        self._state = "published"
        self.meta = meta
        return meta

    def _check_classes(self, attrs: Mapping[str, JSON]) -> None:
        """Raise RecordError if a class id has no name in `attrs`; the records are kept, since other attrs may name it."""
        found = self._class_ids.unnamed(attrs.get("classes"))
        if found is not None:
            self.suspend()
            position, fault = found
            raise RecordError.at(self.url, position, f"{fault}. The records are kept for resume=True (--resume)")

    def abort(self) -> None:
        # docstring inherited
        if self._is_mine_and_open():
            self._state = "closed"
            self._batch = []
            self._discard()

    def suspend(self) -> None:
        """Stop without publishing and keep the durable records; ``open_writer(…, resume=True)`` continues from there."""
        if self._is_mine_and_open():
            self._state = "closed"
            self._batch = []
            self._suspend()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._state == "open":
            self.publish()
        elif isinstance(error, Exception):
            with suppress(UnavailableError):  # the first error matters more; the next writer reports the leftovers
                self.abort()
        else:  # Ctrl-C and SystemExit: keep hours of durable work
            self.suspend()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, count={self.count}, {self._state})"

    def _seal(self, record: Record) -> EncodedRecord:
        try:
            stored = self._codec.canonical(record)
        except ValueError as error:
            raise RecordError.at(self.url, self.count, str(error)) from None
        if self._roles:
            self._check_roles(record)
        packed = self._codec.pack(stored)
        self._part_bytes += len(packed)
        return EncodedRecord(stored, packed if self.needs_packed else b"", checksum(packed), len(packed))

    def _check_roles(self, record: Record) -> None:
        try:
            self._roles.check(record)
        except ValueError as error:
            key = record.get("key")
            named = key if isinstance(key, str) else None
            raise RecordError.at(self.url, self.count, str(error), key=named) from None
        self._class_ids.add(record, self.count)

    def _warn_of_lossy(self, mask: str) -> None:
        if mask not in self._lossy:
            self._lossy.add(mask)
            _LOG.warning("%s: field %r holds a mask in record %d that is a JPEG: %s", self.url, mask, self.count, LOSSY)

    def _resume_from(self, count: int, checksums: Iterable[bytes]) -> None:
        """Continue after `count` durable records with these concatenated checksums."""
        for part in checksums:
            self._content.update(part)
        self._durable = count

    def _is_mine_and_open(self) -> bool:
        return self._state == "open" and self._pid == os.getpid()  # a forked child must not touch its parent's writer

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(
                f"the writer of {self.url} is for the process that opened it; open another with open_writer"
            )
        if self._state != "open":
            raise ClosedError(f"the writer of {self.url} is {self._state}; open another with open_writer")
