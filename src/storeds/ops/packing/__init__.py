"""Packs a source of images or records into a store: in parallel, in order and resumable.

`pack` is the entry point. Read this file first, then `rows` (what a source gives), `prepare` (threads) and a source.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from storeds._utils.locations import redact
from storeds._utils.text import counted, printable, some
from storeds.backends.opening import COMMIT_EVERY, open_writer
from storeds.errors import ConfigError, RecordError, suggest
from storeds.jpeg.restarts import RestartMarker
from storeds.ops.common import (
    Progress,
    ProgressHook,
    check_distinct,
    damage_note,
    damaged_kinds,
    resumable,
)
from storeds.ops.packing.prepare import Prepared, Preparer, prepared_chunks
from storeds.ops.packing.rows import Bad, Listing, Rows
from storeds.ops.packing.sources import open_source
from storeds.ops.packing.splits import SplitBy, choose_split, divides_by_label, make_split
from storeds.protocols import JSON, Field, Meta, Record

__all__ = ["OnBad", "Packed", "SplitBy", "choose_split", "make_split", "pack", "reasons", "reasons_line"]

OnBad = Literal["raise", "skip", "keep"]
_EXAMPLES = 3
_MAX_NOTED = 1000  # problems kept in a resumable note
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
        Kind of `storeds.jpeg.Verdict`, or ``"not examined"`` → number of pictures in the store, the most frequent first.
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
    url: str,
    *,
    kind: str | None = None,
    on_bad: OnBad = "raise",
    split: Mapping[str, float] | None = None,
    split_by: SplitBy | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    check: bool = True,
    fast_crops: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = COMMIT_EVERY,
    progress: ProgressHook | None = None,
    on_problem: Callable[[Bad], None] | None = None,
    **source_options: Any,
) -> Packed:
    """Pack a source into a store.

    Parameters
    ----------
    source : path, URL or dataset
        A folder with one sub-folder per class (order and labels are those of torchvision's ImageFolder), a flat folder,
        a CSV or JSONL list, a data set of COCO, YOLO or Pascal VOC, tar shards, tables, videos, another store, or a map-style
        dataset object; see `storeds.ops.packing.sources.open_source`.
    url : str
        The new store, see `open_writer`. Images keep their bytes unless they are encoded again.
    kind : str, optional
        The kind of `source`, if it cannot be detected.
    on_bad : str
        ``"raise"``: read everything, then raise one error that lists all bad items, and publish nothing. ``"skip"``:
        leave bad items out. ``"keep"``: leave out only what cannot be read at all.
    split : mapping, optional
        Name → share; adds a field ``split``: ``{"train": 0.9, "val": 0.1}``.
    split_by : str, optional
        ``"label"``: divide each class by these shares. ``"key"``: divide by a hash of the key alone, so that a record
        stays in its split whatever else is packed. The default is by label if there is one.
    max_side : int, optional
        Scale larger images down to this many pixels on their longer side, and encode them as JPEG.
    quality : int, optional
        Encode every image as JPEG of this quality, 1 to 95. Images scaled by `max_side` alone get 90. A damaged picture
        keeps the verdict on its original bytes.
    check : bool
        Examine every picture once while packing, and store the verdict with it (see `storeds.jpeg.examine`). Readers
        then know which pictures are damaged without examining them. With False, readers examine every picture they
        read, and a damaged picture that would be encoded again is a bad item, because it would look whole. Verdicts of
        a source store are kept either way.
    fast_crops : bool
        Put restart markers into each JPEG that gains from them, with the program ``jpegtran``. Readers then decode only
        the part of a picture that a crop needs. No coefficient changes, and each picture must decode to the same pixels,
        but its bytes change, and so does `Meta.id`. A picture that would grow by more than 2 or 3 % is kept.
    workers : int, optional
        Threads that read, examine and encode; one per CPU by default, and 0 means one. A dataset object is read in the
        calling thread. The result does not depend on it.
    overwrite, resume, commit_every
        As for `open_writer`. Resuming needs the same source and options.
    progress : callable, optional
        Called with a `Progress` after each chunk.
    on_problem : callable, optional
        Called with each `~storeds.ops.packing.rows.Bad` item when it is found.
    **source_options
        Options of the source, see `storeds.ops.packing.sources.open_source`.

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
        Items are bad and `on_bad` is ``"raise"``. The message lists all of them.
    StoreExistsError
        The target exists, or an interrupted pack left its work there.
    """
    shares = _check(on_bad, split, split_by, max_side, quality, workers)
    marker = RestartMarker.find() if fast_crops else None
    rows = open_source(source, kind=kind, max_side=max_side, quality=quality, **source_options)
    for store in rows.stores:
        check_distinct(store, url)
    fields = _fields(rows, has_split=bool(shares), encodes=max_side is not None or quality is not None)
    by_label = bool(shares) and divides_by_label(fields, split_by)
    listing = Listing(rows, strata=by_label)
    divided = make_split(listing, shares, by_label=by_label) if shares else None
    notes = [*rows.notes, *rows.late_notes(), *(divided.notes if divided is not None else ())]
    _log_notes(source, notes, rows.columns)
    options: dict[str, JSON] = {"on_bad": on_bad, "split": dict(shares), "max_side": max_side, "quality": quality}
    options["check"], options["fast_crops"] = check, fast_crops
    if shares:
        options["split_by"] = "label" if by_label else "key"
    writer = open_writer(
        url,
        fields,
        overwrite=overwrite,
        resume=resume,
        commit_every=commit_every,
        check=False,  # records already contain their verdicts
        plan={"source": listing.fingerprint, "options": options},
    )
    state = _State.of(writer.note)
    with resumable(writer):
        scaled = (None, None) if rows.is_encoded else (max_side, quality)
        preparer = Preparer(rows, *scaled, divided, check, marker, writer.roles)
        for numbers, items, prepared in prepared_chunks(preparer, listing, state.next, workers):
            taken = (state.take(item.name, one, on_bad, on_problem) for item, one in zip(items, prepared, strict=True))
            records = [record for record in taken if record is not None]
            state.next = numbers.stop
            writer.append(records, note=state.to_json(), checked=True)
            if progress is not None:
                progress(Progress(state.next, listing.count, state.volume, state.bad, state.damaged))
        if on_bad == "raise" and state.bad:
            raise state.error(listing.count)
        meta = writer.publish(rows.attrs, fast_crops=state.fast_crops)
    later = [note for note in rows.late_notes() if note not in notes]
    _log_notes(source, later, {})
    findings = dict(Counter(dict(sorted(state.kinds.items()))).most_common())
    damage = damage_note(findings, meta)
    if damage is not None:
        _log_notes(url, [damage], {})
        later.append(damage)
    return Packed(
        **{one.name: getattr(meta, one.name) for one in dataclasses.fields(Meta)},
        columns=rows.columns,
        notes=(*notes, *later),
        left_out=listing.count - meta.count,
        reasons={brief: count for brief, (count, _) in reasons(state.problems).items()},
        findings=findings,
        restarts=dict(state.restarts.most_common()),
    )


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
            f"split_by={split_by!r} needs shares: split={{'train': 0.9, 'val': 0.1}} (--split train=0.9,val=0.1)"
        )
    return tuple(shares.items())


def _fields(rows: Rows, *, has_split: bool, encodes: bool) -> dict[str, Field]:
    """Return the fields of the store; raise ConfigError if options do not fit those of the source."""
    if has_split and "split" in rows.fields:
        raise ConfigError("the source already has a field 'split'; remove split=")
    bound = [name for name, each in rows.fields.items() if each.role in ("mask", "boxes", "keypoints")]
    if encodes and bound:
        raise ConfigError(
            f"max_side and quality (--max-side, --quality) scale and turn images, but not {', '.join(bound)}; pack without "
            "them, and resize when reading with transforms="
        )
    return {**rows.fields, "split": Field("str")} if has_split else dict(rows.fields)


def _log_notes(source: Any, notes: Sequence[str], columns: Mapping[str, str | None]) -> None:
    if not notes and not columns:
        return
    is_path = isinstance(source, (str, os.PathLike))
    where = printable(redact(os.fspath(source))) if is_path else f"the {type(source).__name__}"
    for note in notes:
        _LOG.warning("%s: %s", where, note)
    if columns:
        _LOG.info("%s: %s", where, ", ".join(f"{name} is {field}" for name, field in columns.items()))


@dataclass
class _State:
    """How far a pack is and what it found: the note that the writer keeps with the records, to resume from."""

    next: int = 0  # item
    bad: int = 0
    damaged: int = 0
    fast_crops: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # of the verdicts on all pictures in the store
    restarts: Counter[str] = field(default_factory=Counter)
    problems: list[Bad] = field(default_factory=list)
    volume: int = 0  # bytes of pictures

    @classmethod
    def of(cls, note: Any) -> _State:
        """Return the state that `to_json` returned, or the first one for None."""
        if note is None:
            return cls()
        counters = {name: Counter(note[name]) for name in ("kinds", "restarts")}
        return cls(**{**note, **counters, "problems": [Bad(name, reason) for name, reason in note["problems"]]})

    def to_json(self) -> JSON:
        """Return the state as JSON, with the first problems."""
        problems: list[JSON] = [[problem.name, problem.reason] for problem in self.problems[:_MAX_NOTED]]
        return {
            **vars(self),
            "volume": 0,
            "kinds": dict(self.kinds),
            "restarts": dict(self.restarts),
            "problems": problems,
        }

    def take(
        self, name: str, prepared: Prepared, on_bad: OnBad, on_problem: Callable[[Bad], None] | None
    ) -> Record | None:
        """Count an item; return the record to store, or None."""
        self.damaged += prepared.damaged
        record = prepared.record
        if prepared.reason is not None:
            record = record if on_bad == "keep" else None
            self.bad += 1
            self.problems.append(Bad(name, prepared.reason, kept=record is not None))
            if on_problem is not None:
                on_problem(self.problems[-1])
        if record is not None:
            self.fast_crops += prepared.fast_crops
            for counter, values in ((self.restarts, prepared.restarts), (self.kinds, prepared.kinds)):
                for value in values:  # `Counter.update` takes longer than all else here
                    counter[value] += 1
            self.volume += sum(len(value) for value in record.values() if isinstance(value, bytes))
        return record

    def error(self, count: int) -> RecordError:
        """Return the error that lists the bad ones of `count` items."""
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        earlier = self.bad - len(self.problems)
        more = f"\n  and {earlier} before the pack was resumed" if earlier > 0 else ""
        return RecordError(
            f"{self.bad:,} of {counted(count, 'item')} cannot be packed, so "
            f"nothing was published; repair them, or pass on_bad='skip' (--on-bad skip):\n{lines}{more}"
        )


def reasons(problems: Iterable[Bad]) -> dict[str, tuple[int, str]]:
    """Return why items are bad: reason → how many, and the names of the first. The most frequent reason comes first."""
    names: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for problem in problems:
        # Text in brackets or after a colon differs from item to item, and so do quoted values and numbers.
        brief = re.split(r" \(|: ", problem.reason, maxsplit=1)[0]
        brief = re.sub(r"'[^']*'|\b\d+\b", "…", brief)
        counts[brief] += 1
        if len(names.setdefault(brief, [])) <= _EXAMPLES:
            names[brief].append(problem.name)
    return {brief: (count, some(names[brief], _EXAMPLES)) for brief, count in counts.most_common()}


def reasons_line(found: Mapping[str, tuple[int, str]]) -> str:
    """Return the reasons in one line."""
    return "; ".join(f"{counted(count, 'item')}: {brief} ({names})" for brief, (count, names) in found.items())
