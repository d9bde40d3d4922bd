"""Packs a source of images or records into a store: in parallel, in order and resumable.

`pack` is the entry point. Read this file first, then `storeds.layouts.files.rows` (what a source gives) and `storeds.formats`.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from storeds._utils.text import counted, printable
from storeds.backends.opening import COMMIT_EVERY, open_writer
from storeds.errors import ConfigError, RecordError, suggest
from storeds.formats.opening import open_source
from storeds.layouts.files.rows import Bad, BadItem, Row, Rows
from storeds.ops import OnBad, SplitBy
from storeds.ops.copy import check_distinct, copy
from storeds.ops.growing import Plain, target_of
from storeds.ops.packing.listing import Listing
from storeds.ops.packing.splits import Split, divides_by_label, make_split
from storeds.ops.pictures import Finished, PictureStep
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.verdicts import damage_note, damaged_kinds, listed
from storeds.pictures import MAX_PIXELS, read_picture_header
from storeds.pictures.restarts import RestartMarker
from storeds.protocols import JSON, Field, Meta, Record
from storeds.records.role_checks import RoleChecker
from storeds.redaction import redact

__all__ = ["Packed", "pack"]

_CHUNK_ITEMS = 256
_AHEAD_BYTES = 4 << 20  # that all threads together read ahead: as much as an engine writes at once
_MIN_CHUNK_BYTES = 256 << 10
_SHOWN = 20  # bad items that an error lists
_LOG = logging.getLogger("storeds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed(Meta):
    """`Meta` of a packed store, and what `pack` reports about it.

    Parameters
    ----------
    columns : mapping of str to str or None
        For a source with columns: each column and its field, or None for a column that was left out.
    notes : tuple of str
        The warnings of `pack` as sentences: hidden folders left out, images encoded again.
    left_out : int
        Bad items that are not in the store. Hidden files do not count.
    reasons : mapping of str to int
        Why items are bad → how many. With ``on_bad="keep"`` this includes items that were kept.
    findings : mapping of str to int
        Kind of `storeds.pictures.Verdict`, or ``"not examined"`` → number of pictures in the store, the most frequent first.
    restarts : mapping of str to int
        With ``fast_crops=True``: outcome → number of pictures, the most frequent first. ``"added"``: they got restart
        markers. ``"had them"``: they came with suitable ones. Anything else is why the original was kept.
    """

    columns: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    findings: Mapping[str, int] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)

    @property
    def damaged(self) -> int:
        """How many pictures of the store are damaged."""
        return sum(damaged_kinds(self.findings).values())


def pack(
    source: str | os.PathLike[str] | Any,
    url: str | os.PathLike[str],
    *,
    kind: str | None = None,
    on_bad: OnBad = "raise",
    split: Mapping[str, float] | None = None,
    split_by: SplitBy | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    check: bool = True,
    fast_crops: bool = False,
    sizes: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = COMMIT_EVERY,
    progress: ProgressHook | None = None,
    on_problem: Callable[[Bad], None] | None = None,
    part: str | None = None,
    **source_options: Any,
) -> Packed:
    """Pack a source into a store.

    Parameters
    ----------
    source : path, URL or dataset
        A folder with one sub-folder per class (order and labels are those of torchvision's ImageFolder), a flat folder,
        a CSV or JSONL list, a data set of COCO, YOLO or Pascal VOC, tar shards, tables, videos, another store, or a map-style
        dataset object; see `storeds.formats.open_source`.
    url : str
        The new store, see `open_writer`. Images keep their bytes unless they are encoded again.
    kind : str, optional
        The kind of `source`, if it cannot be detected.
    on_bad : str
        ``"raise"``: read everything, then raise one error that lists the first bad items and counts all by reason, and
        publish nothing. The durable records stay: ``resume=True`` with ``"skip"`` continues after them. ``"skip"``: leave
        bad items out. ``"keep"``: leave out only what cannot be read at all.
    split : mapping, optional
        Name → share; adds a field ``split``: ``{"train": 0.9, "val": 0.1}``.
    split_by : str, optional
        ``"label"``: divide each class by these shares. ``"key"``: divide by a hash of the key alone, so that a record
        stays in its split whatever else is packed. The default is by label if there is one.
    max_side : int, optional
        Scale larger images down to this many pixels on their longer side, and encode them as JPEG. What a JPEG cannot
        hold is kept as it is, and counted in a note: more than 8 bits, floats, transparency.
    quality : int, optional
        Encode every image as JPEG of this quality, 1 to 95, likewise. Images scaled by `max_side` alone get 90. A damaged
        picture keeps the verdict on its original bytes.
    check : bool
        Examine every picture once while packing, and store the verdict with it (see `storeds.pictures.examine`). Readers
        then know which pictures are damaged without examining them. With False, readers examine every picture they
        read. With `max_side` or `quality`, every picture is examined either way: encoded again, a damaged one looks whole.
        Verdicts of a source store are kept.
    fast_crops : bool
        Put restart markers into each JPEG that gains from them, with the program ``jpegtran``. Readers then decode only
        the part of a picture that a crop needs. No coefficient changes, and each picture must decode to the same pixels,
        but its bytes change, and so does `Meta.id`. A picture that would grow by more than 2 or 3 % is kept.
    sizes : bool
        Add fields ``width`` and ``height``: the pixels of the first picture that is no mask, as stored. Batches of
        pictures of like shape need them: ``bucket_by=["width", "height"]``.
    workers : int, optional
        Threads that read, examine and encode; one per CPU by default, and 0 means one. A dataset object is read in the
        calling thread. The result does not depend on it.
    overwrite, resume, commit_every
        As for `open_writer`. Resuming needs the same source and options; `on_bad` may change from ``"raise"`` to ``"skip"``
        and back, since both write the same records.
    progress : callable, optional
        Called with a `Progress` after each chunk.
    on_problem : callable, optional
        Called with each `~storeds.formats.Bad` item when it is found.
    part : str, optional
        ``"3/16"``: the third of 16 equal parts of the source, for a versioned store. Any machine may write any part, at any time;
        `storeds.ops.commit` publishes them when all are there. The id does not depend on the number of parts.
    **source_options
        Options of the source, see `storeds.formats.open_source`.

    Returns
    -------
    Packed
        `Meta` of the published store, how columns were interpreted, what was left out, and notes. Notes are logged as
        warnings too.

    Raises
    ------
    StoreNotFoundError, ConfigError
        The source does not exist or is not supported; an option is wrong; `fast_crops` needs ``jpegtran``; or the target
        is a store that the source reads.
    RecordError
        Items are bad and `on_bad` is ``"raise"``. `on_problem` gets all of them.
    StoreExistsError
        The target exists, or an interrupted pack left its work there.
    """
    return pack_into(
        target_of(os.fspath(url), part=part),
        source,
        kind=kind,
        on_bad=on_bad,
        split=split,
        split_by=split_by,
        max_side=max_side,
        quality=quality,
        check=check,
        fast_crops=fast_crops,
        sizes=sizes,
        workers=workers,
        overwrite=overwrite,
        resume=resume,
        commit_every=commit_every,
        progress=progress,
        on_problem=on_problem,
        **source_options,
    )


def append(
    url: str | os.PathLike[str], source: str | os.PathLike[str] | Any, *, message: str = "", **options: Any
) -> Packed:
    """Add the records of a source to a versioned store, as a new member and a new version; a missing store is created.

    Parameters
    ----------
    url : str
        Of a versioned store: it ends in a slash, as in ``lmdb://data/train/``.
    source : path, URL or dataset
        As for `pack`. Its fields are those of the store. Classes are numbered by name: known ones have the number of the store,
        new ones come after them.
    message : str
        For `log`.
    **options
        As for `pack`, except `overwrite`.

    Returns
    -------
    Packed
        With the id, count and attrs of the new version.

    Raises
    ------
    StoreExistsError
        The store has these records already; or another process has added other classes meanwhile.
    ConfigError, FormatError, RecordError
        As for `pack`; `url` is no versioned store; the source has other fields.

    Notes
    -----
    A run that was killed is repeated by the same call, and goes on where it was. Any number of processes may append at once.
    """
    known = inspect.signature(pack).parameters
    settings = {name: each.default for name, each in known.items() if each.default is not each.empty} | options
    if settings["overwrite"]:
        raise ConfigError("append adds records, and overwrites none: leave out overwrite=")
    return pack_into(target_of(os.fspath(url), message, part=settings.pop("part"), append=True), source, **settings)


def pack_into(
    target: Plain,
    source: Any,
    *,
    kind: str | None,
    on_bad: OnBad,
    split: Mapping[str, float] | None,
    split_by: SplitBy | None,
    max_side: int | None,
    quality: int | None,
    check: bool,
    fast_crops: bool,
    sizes: bool,
    workers: int | None,
    overwrite: bool,
    resume: bool,
    commit_every: int,
    progress: ProgressHook | None,
    on_problem: Callable[[Bad], None] | None,
    **source_options: Any,
) -> Packed:
    """Do what `pack` does, for a target that may be a member of a versioned store."""
    shares = _check(on_bad, split, split_by, max_side, quality, workers)
    marker = RestartMarker.find() if fast_crops else None
    rows = open_source(source, kind=kind, max_side=max_side, quality=quality, **source_options)
    for store in rows.stores:
        check_distinct(store, target.url)
    rows = target.fitted(rows)
    fields = _fields(rows, has_split=bool(shares), encodes=max_side is not None or quality is not None, has_sizes=sizes)
    by_label = bool(shares) and divides_by_label(fields, split_by)
    listing = Listing(rows, strata=by_label)
    divided = make_split(listing, shares, by_label=by_label) if shares else None
    notes = [*rows.notes, *rows.late_notes(), *(divided.notes if divided is not None else ())]
    _log_notes(source, notes, rows.columns)
    options: dict[str, JSON] = {"split": dict(shares), "max_side": max_side, "quality": quality}
    options["keep_bad"] = on_bad == "keep"  # "raise" writes the same records as "skip", and may resume so
    options["check"], options["fast_crops"], options["sizes"] = check, fast_crops, sizes
    if shares:
        options["split_by"] = "label" if by_label else "key"
    plan: JSON = {"source": listing.fingerprint, "options": options}
    start, stop = target.share(listing.count)
    left = target.left(plan)
    if left is not None:
        notes.append("an earlier run had written these records")
        return Packed(**_as_meta(target.published(left)), columns=rows.columns, notes=tuple(notes))
    writer = open_writer(
        target.url,
        fields,
        overwrite=overwrite,
        resume=resume or target.resumes,
        commit_every=commit_every,
        check=False,  # records already contain their verdicts
        plan=plan,
    )
    state = _State.of(writer.note, start)
    with writer:
        scaled = (None, None) if rows.is_encoded else (max_side, quality)
        step = PictureStep(check, *scaled, marker=marker)
        preparer = _Preparer(rows, step, divided, writer.roles, _sized(fields) if sizes else None)
        # Reading alone takes less time than handing the bytes to other threads.
        threads = max(workers or 1, 1) if workers is not None or not preparer.is_busy else len(os.sched_getaffinity(0))
        task = _Packing(
            listing, stop, preparer, state, on_bad, on_problem, max(_AHEAD_BYTES // threads, _MIN_CHUNK_BYTES)
        )
        copy(writer, task, threads, progress, checked=True)
        if on_bad == "raise" and state.bad:
            raise state.error(stop - start)
        written = writer.publish(rows.attrs, fast_crops=state.fast_crops)
    meta = target.published(written)
    later = [*(note for note in rows.late_notes() if note not in notes), *state.notes()]
    _log_notes(source, later, {})
    findings = dict(Counter(dict(sorted(state.kinds.items()))).most_common())
    damage = damage_note(findings, written)
    if damage is not None:
        _log_notes(target.url, [damage], {})
        later.append(damage)
    return Packed(
        **_as_meta(meta),
        columns=rows.columns,
        notes=(*notes, *later),
        left_out=stop - start - written.count,
        reasons=dict(state.reasons.most_common()),
        findings=findings,
        restarts=dict(state.restarts.most_common()),
    )


def _as_meta(meta: Meta) -> dict[str, Any]:
    return {one.name: getattr(meta, one.name) for one in dataclasses.fields(Meta)}


def _check(
    on_bad: str,
    split: Mapping[str, float] | None,
    split_by: str | None,
    max_side: int | None,
    quality: int | None,
    workers: int | None,
) -> tuple[tuple[str, float], ...]:
    """Return the shares of the splits; raise ConfigError for an option that is wrong."""
    if on_bad not in get_args(OnBad):
        raise ConfigError(f"unknown on_bad {on_bad!r}; {suggest(on_bad, get_args(OnBad), 'policies')}")
    if max_side is not None and max_side < 1:
        raise ConfigError(f"max_side must be a positive number of pixels, got {max_side}")
    if quality is not None and not 1 <= quality <= 95:
        raise ConfigError(f"quality must be between 1 and 95, got {quality}")
    if workers is not None and workers < 0:
        raise ConfigError(f"workers must be 0 or more, got {workers}")
    try:
        shares = {name: float(share) for name, share in (split or {}).items()}
    except (TypeError, ValueError):
        raise ConfigError(f"the shares of split must be numbers, got {split!r}") from None
    # Comparing with NaN gives False.
    if shares and not (min(shares.values()) >= 0 and math.isclose(sum(shares.values()), 1, abs_tol=1e-6)):
        raise ConfigError(f"the shares of split must be positive and sum to 1, got {shares}")
    if split_by is not None and not shares:
        raise ConfigError(
            f"split_by={split_by!r} needs shares: split={{'train': 0.9, 'val': 0.1}} (--shares train=0.9,val=0.1)"
        )
    return tuple(shares.items())


def _fields(rows: Rows, *, has_split: bool, encodes: bool, has_sizes: bool) -> dict[str, Field]:
    """Return the fields of the store; raise ConfigError if options do not fit those of the source."""
    added = {"split": Field("str")} if has_split else {}
    added |= {"width": Field("int"), "height": Field("int")} if has_sizes else {}
    for name in added:
        if name in rows.fields:
            option = "split" if name == "split" else "sizes"
            raise ConfigError(f"the source already has a field {name!r}; remove {option}=")
    if has_sizes and _sized(rows.fields) is None:
        raise ConfigError("sizes are those of a picture, and the records of this source have none; remove sizes=")
    bound = [name for name, each in rows.fields.items() if each.role in ("mask", "boxes", "keypoints")]
    if encodes and bound:
        raise ConfigError(
            f"max_side and quality (--max-side, --quality) scale and turn images, but not {', '.join(bound)}; pack without "
            "them, and resize when reading with transforms="
        )
    return {**rows.fields, **added}


def _sized(fields: Mapping[str, Field]) -> str | None:
    """Return the picture whose size is stored."""
    return next((name for name, each in fields.items() if each.kind == "image" and each.role != "mask"), None)


def _log_notes(source: Any, notes: Sequence[str], columns: Mapping[str, str | None]) -> None:
    if not notes and not columns:
        return
    is_path = isinstance(source, (str, os.PathLike))
    where = printable(redact(os.fspath(source))) if is_path else f"the {type(source).__name__}"
    for note in notes:
        _LOG.warning("%s: %s", where, note)
    if columns:
        _LOG.info("%s: %s", where, ", ".join(f"{name} is {field}" for name, field in columns.items()))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The result for one item of a source.

    Attributes
    ----------
    record : dict or None
        The record with the verdicts on its pictures; None if there is nothing to store.
    reason : str or None
        What is wrong with it.
    pictures : sequence of Finished
    large : list of int
        The numbers of pixels of its pictures that have more than `MAX_PIXELS`.
    """

    record: Record | None
    reason: str | None = None
    pictures: Collection[Finished] = ()
    large: Sequence[int] = ()


@dataclass(frozen=True)
class _Preparer:
    """Turns items of a source into records. Thread-safe.

    Parameters
    ----------
    rows : Rows
    step : PictureStep
    split : Split, optional
        Gives the value of the field ``split``.
    roles : RoleChecker, optional
        That of the writer, which then does not check records again.
    sized : str, optional
        The picture whose width and height become fields.
    """

    rows: Rows
    step: PictureStep
    split: Split | None = None
    roles: RoleChecker | None = None
    sized: str | None = None

    def prepare(self, index: int, item: Row | Bad) -> _Prepared:
        """Read and finish item `index`; a bad item gives a reason instead of an error."""
        if isinstance(item, Bad):
            return _Prepared(None, item.reason)
        try:
            record = dict(self.rows.read(item))
        except BadItem as error:
            return _Prepared(None, str(error))
        if self.split is not None:
            record["split"] = self.split.of(index, record)
        pictures = {name: declared for name, declared in self.rows.fields.items() if declared.kind == "image"}
        done = {name: self.step(record, name, declared) for name, declared in pictures.items()}
        found = {name: each.reason for name, each in done.items()}
        reasons = [why if len(done) == 1 else f"field {name!r} {why}" for name, why in found.items() if why is not None]
        if self.sized is not None:
            record["width"], record["height"] = _size_of(record[self.sized])
        if self.roles is not None:
            fault = self.roles.fault(record, self.rows.attrs.get("classes"))
            if fault is not None:
                return _Prepared(None, fault)
        return _Prepared(record, "; ".join(reasons) or None, done.values(), _large(record[name] for name in done))

    @property
    def is_busy(self) -> bool:
        """Whether preparing takes much more time than reading."""
        return self.step.check or self.step.encodes or self.step.marker is not None


def _large(blobs: Iterable[bytes]) -> list[int]:
    """Return the numbers of pixels of the pictures that have more than `MAX_PIXELS`."""
    return [pixels for pixels in map(math.prod, map(_size_of, blobs)) if pixels > MAX_PIXELS]


def _size_of(blob: bytes) -> tuple[int, int]:
    """Return the width and the height of a picture; 0 of one that cannot be read."""
    header = read_picture_header(blob)
    return (0, 0) if header is None else (header.width, header.height)


@dataclass
class _State:
    """How far a pack is and what it found: the note that the writer keeps with the records, to resume from."""

    next: int = 0  # item
    bad: int = 0
    damaged: int = 0
    fast_crops: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # of the verdicts on all pictures in the store
    restarts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why items are bad
    problems: list[Bad] = field(default_factory=list)  # the first ones
    large: int = 0  # pictures of more than MAX_PIXELS
    largest: int = 0  # their most pixels
    unencoded: Counter[str] = field(default_factory=Counter)  # why pictures are kept that were to be encoded
    volume: int = 0  # bytes of pictures

    @classmethod
    def of(cls, note: Any, start: int) -> _State:
        """Return the state that `to_json` returned, or for None the first one, before item `start`."""
        if note is None:
            return cls(start)
        counters = {name: Counter(note[name]) for name in ("kinds", "restarts", "reasons", "unencoded")}
        return cls(**{**note, **counters, "problems": [Bad(name, reason) for name, reason in note["problems"]]})

    def to_json(self) -> JSON:
        """Return the state as JSON."""
        problems: list[JSON] = [[problem.name, problem.reason] for problem in self.problems]
        return {
            **vars(self),
            "volume": 0,
            "kinds": dict(self.kinds),
            "restarts": dict(self.restarts),
            "unencoded": dict(self.unencoded),
            "reasons": dict(self.reasons),
            "problems": problems,
        }

    def take(
        self, name: str, prepared: _Prepared, on_bad: OnBad, on_problem: Callable[[Bad], None] | None
    ) -> Record | None:
        """Count an item; return the record to store, or None."""
        self.damaged += any(each.is_damaged for each in prepared.pictures)
        record = prepared.record
        if prepared.reason is not None:
            record = record if on_bad == "keep" else None
            self.bad += 1
            self.reasons[_brief(prepared.reason)] += 1
            problem = Bad(name, prepared.reason, kept=record is not None)
            if len(self.problems) < _SHOWN:
                self.problems.append(problem)
            if on_problem is not None:
                on_problem(problem)
        if record is not None:
            self.large, self.largest = self.large + len(prepared.large), max(self.largest, *prepared.large, 0)
            for each in prepared.pictures:
                self.fast_crops += each.is_fast
                self.kinds[each.kind] += 1  # `Counter.update` takes longer than all else here
                if each.restarts is not None:
                    self.restarts[each.restarts] += 1
                if each.unencoded is not None:
                    self.unencoded[each.unencoded] += 1
            self.volume += sum(len(value) for value in record.values() if isinstance(value, bytes))
        return record

    def notes(self) -> Iterator[str]:
        """Yield sentences about pictures of the store."""
        if self.large:
            yield (
                f"{counted(self.large, 'picture claims', 'pictures claim')} more than {MAX_PIXELS:,} pixels, up to {self.largest:,}: stored as "
                f"they are, and read only with reader_options={{'max_pixels': {self.largest}}}"
            )

        if self.unencoded:
            kept = listed(dict(self.unencoded.most_common()))
            yield (
                f"{counted(self.unencoded.total(), 'picture is', 'pictures are')} neither scaled nor encoded, since a JPEG "
                f"cannot hold them: {kept}"
            )

    def error(self, count: int) -> RecordError:
        """Return the error that lists the first bad ones of `count` items, and counts all by reason."""
        lines = [f"  {problem}" for problem in self.problems]
        if self.bad > len(lines):
            lines.append(f"  … and {self.bad - len(lines):,} more")
        lines += [f"  {counted(bad, 'item')}: {reason}" for reason, bad in self.reasons.most_common()]
        return RecordError(
            f"{self.bad:,} of {counted(count, 'item')} cannot be packed, so nothing was published; repair them, or pass "
            "on_bad='skip' (--on-bad skip):\n" + "\n".join(lines)
        )


_Chunk: TypeAlias = tuple[range, Sequence[Row | Bad]]


@dataclass(frozen=True)
class _Packing:
    """The `storeds.ops.copy.Task` of `pack`: items of a source become records."""

    listing: Listing
    stop: int  # item
    preparer: _Preparer
    state: _State
    on_bad: OnBad
    on_problem: Callable[[Bad], None] | None
    most_bytes: int

    def chunks(self) -> Iterator[_Chunk]:
        # docstring inherited
        return self.listing.chunks(self.state.next, self.stop, self.most_bytes, _CHUNK_ITEMS)

    def work(self, chunk: _Chunk, /) -> list[_Prepared]:
        # docstring inherited
        return [self.preparer.prepare(index, item) for index, item in zip(*chunk, strict=True)]

    def take(self, chunk: _Chunk, result: list[_Prepared], /) -> list[Record]:
        # docstring inherited
        numbers, items = chunk
        pairs = zip(items, result, strict=True)
        taken = (self.state.take(item.name, prepared, self.on_bad, self.on_problem) for item, prepared in pairs)
        records = [record for record in taken if record is not None]
        self.state.next = numbers.stop
        return records

    def note(self) -> JSON:
        # docstring inherited
        return self.state.to_json()

    def progress(self) -> Progress:
        # docstring inherited
        state = self.state
        return Progress(state.next, self.stop, state.volume, state.bad, state.damaged)


def _brief(reason: str) -> str:
    """Return a reason without what differs from item to item: text in brackets or after a colon, quoted values, numbers."""
    return re.sub(r"'[^']*'|\b\d+\b", "…", re.split(r" \(|: ", reason, maxsplit=1)[0])
