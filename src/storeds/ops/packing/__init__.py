"""Packs a source of images or records into a store: in parallel, in order, resumable, bad items by policy."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from storeds._utils.locations import redact
from storeds._utils.text import counted, printable
from storeds.backends.opening import open_backend, open_writer
from storeds.backends.writer import COMMIT_EVERY
from storeds.errors import ConfigError, FormatError, RecordError, suggest
from storeds.ops.common import resumable
from storeds.ops.packing.prepare import Prepared, Preparer, prepared_chunks
from storeds.ops.packing.result import Packed, reasons
from storeds.ops.packing.sources import open_source
from storeds.ops.packing.sources.base import PackSource, Problem
from storeds.ops.packing.sources.videos import VideoSource
from storeds.ops.packing.splits import SplitBy, make_split
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.verdict_counts import VerdictCounts, damage_note
from storeds.protocols import JSON, Field, Meta, Writer

__all__ = ["OnBad", "pack"]

OnBad = Literal["raise", "skip", "keep"]
_NOTED = 1000  # problems kept in a resumable note
_LOG = logging.getLogger("storeds")


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
    workers: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = COMMIT_EVERY,
    index: Sequence[str] = (),
    progress: ProgressHook | None = None,
    on_problem: Callable[[Problem], None] | None = None,
    **source_options: Any,
) -> Packed:
    """Pack a source into a store.

    Parameters
    ----------
    source : path, URL or dataset
        A folder with one sub-folder per class (order and labels are those that torchvision's ImageFolder gives), a flat
        folder, a CSV or JSONL manifest, a JSON index, tar shards, another store, or a map-style dataset object; see
        `storeds.ops.packing.sources.open_source`.
    url : str
        Where the store goes, see `open_writer`. Images are stored as the bytes they are, unless re-encoded.
    kind : str, optional
        What `source` is, where that cannot be told by looking.
    on_bad : str
        ``"raise"``: look at everything, then raise one error that lists all bad items, and publish nothing.
        ``"skip"``: leave bad items out. ``"keep"``: leave out only what cannot be read at all.
    split : mapping, optional
        Name → share; adds a field ``split``: ``{"train": 0.9, "val": 0.1}``.
    split_by : str, optional
        ``"label"``: divide each class by these shares; ``"key"``: by a hash of the key alone, so that a record stays in
        its split whatever else is packed. By default by label where there is one; see `storeds.ops.packing.splits.make_split`.
    max_side : int, optional
        Scale larger images down to this many pixels on their longer side, and encode them anew as JPEG.
    quality : int, optional
        Encode every image again as JPEG of this quality, 1 to 95 (90 for those that `max_side` scales). A damaged picture
        keeps the verdict on what it was.
    check : bool
        Examine every picture once, as it comes, and store the verdict beside it (see `storeds.jpeg.examine`): readers
        then know what is damaged without looking again. Without it readers examine every picture they read, and a
        damaged picture that would be encoded again is bad: it would look whole from then on. Verdicts that a source
        store has are kept in any case.
    workers : int, optional
        Threads that read, examine and encode; one per CPU by default, and 0 is one. A source that is not known to be safe
        for threads, such as a dataset object, is by default read in the calling thread; a number of workers reads it in as
        many processes. The result does not depend on it.
    overwrite, resume, commit_every, index
        As for `open_writer`; a resumed pack needs the same source and options.
    progress : callable, optional
        Called with a `Progress` after each chunk.
    on_problem : callable, optional
        Called with each `~storeds.ops.packing.sources.Problem` as it is found.
    **source_options
        The source's own, see `storeds.ops.packing.sources.open_source`.

    Returns
    -------
    Packed
        `Meta` of the published store, how columns were understood, what was left out, and what to know about it. Its
        notes are logged as warnings too.

    Raises
    ------
    StoreNotFoundError, ConfigError
        There is no such source; it is none that can be packed; an option is wrong.
    RecordError
        Items are bad and `on_bad` is ``"raise"``; the message lists all of them.
    StoreExistsError
        The target, or what an interrupted pack left, is in the way.
    """
    shares = _check(on_bad, split, max_side, quality)
    if workers is not None and workers < 0:
        raise ConfigError(f"workers must be 0 or more, got {workers}")
    if split_by is not None and not shares:
        raise ConfigError(
            f"split_by={split_by!r} needs the shares too: split={{'train': 0.9, 'val': 0.1}} (--split train=0.9,val=0.1)"
        )
    opened = open_source(source, kind=kind, **source_options)
    fields = _fields(opened, shares)
    divided = make_split(opened, shares, split_by) if shares else None
    notes = (*getattr(opened, "notes", ()), *(divided.notes if divided is not None else ()))
    columns = dict(getattr(opened, "columns", {}))
    _tell_notes(_named(source), notes, columns)
    options: dict[str, JSON] = {"on_bad": on_bad, "split": dict(shares), "max_side": max_side, "quality": quality}
    options["check"] = check
    if divided is not None:
        options["split_by"] = "key" if divided.chosen is None else "label"
    plan: JSON = {"source": opened.fingerprint, "options": options}
    if isinstance(opened, VideoSource):  # it encodes each frame itself, once
        opened, max_side, quality = opened.encoded(max_side, quality), None, None
    preparer = Preparer(opened, max_side, quality, divided, check)
    how: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "commit_every": commit_every, "index": index}
    writer = open_writer(url, fields, plan=plan, check=False, **how)  # records bring their verdicts
    with resumable(writer):
        run = _Run(writer, opened, on_bad, progress, on_problem)
        run.feed(preparer, workers, commit_every)
        run.judge()
        meta = writer.publish(opened.attrs)
    with open_backend(url) as backend:  # counted there, so that a resumed pack counts all of them
        findings = VerdictCounts.of(backend).kinds
    note = damage_note(findings, meta)
    if note is not None:
        _tell_notes(redact(url), (note,), {})
        notes = (*notes, note)
    found = {brief: count for brief, (count, _) in reasons(run.problems).items()}
    own = {one.name: getattr(meta, one.name) for one in dataclasses.fields(Meta)}
    return Packed(**own, columns=columns, notes=notes, left_out=run.left_out, reasons=found, findings=findings)


def _check(
    on_bad: str, split: Mapping[str, float] | None, max_side: int | None, quality: int | None
) -> tuple[tuple[str, float], ...]:
    if on_bad not in get_args(OnBad):
        raise ConfigError(f"unknown on_bad {on_bad!r}; {suggest(on_bad, get_args(OnBad), 'policies')}")
    if max_side is not None and max_side < 1:
        raise ConfigError(f"max_side must be a positive number of pixels, got {max_side}")
    if quality is not None and not 1 <= quality <= 95:
        raise ConfigError(f"quality must be between 1 and 95, got {quality}")
    shares = tuple((split or {}).items())
    if shares and (any(share < 0 for _, share in shares) or abs(sum(share for _, share in shares) - 1) > 1e-6):
        raise ConfigError(f"the shares of split must be positive and sum to 1, got {dict(shares)}")
    return shares


def _tell_notes(where: str, notes: Sequence[str], columns: Mapping[str, str | None]) -> None:
    for note in notes:
        _LOG.warning("%s: %s", where, note)
    if columns:
        _LOG.info("%s: %s", where, ", ".join(f"{name} is {field}" for name, field in columns.items()))


def _named(source: Any) -> str:
    return (
        printable(redact(os.fspath(source)))
        if isinstance(source, (str, os.PathLike))
        else f"the {type(source).__name__}"
    )


def _fields(source: PackSource, shares: tuple[tuple[str, float], ...]) -> dict[str, Field]:
    fields = dict(source.fields)
    if shares:
        if "split" in fields:
            raise ConfigError("the source has a field 'split' already; leave split= out")
        fields["split"] = Field("str")
    return fields


class _Run:
    """One pass over a source: what was written, what is damaged, where to go on."""

    def __init__(
        self,
        writer: Writer,
        source: PackSource,
        on_bad: OnBad,
        progress: ProgressHook | None,
        on_problem: Callable[[Problem], None] | None,
    ) -> None:
        self.writer, self.source, self.on_bad = writer, source, on_bad
        self.progress, self.on_problem = progress, on_problem
        note: Any = writer.note or {"next": 0, "count": 0, "problems": [], "bad": 0, "odd": 0}
        self.next, self.odd, self.bad = note["next"], note["odd"], note["bad"]
        self.problems = [Problem(name, reason) for name, reason in note["problems"]]
        # Records that became durable after the note was written come by once more.
        self.surplus = writer.count - note["count"]
        if self.surplus < 0:
            raise FormatError(
                f"what is left of an interrupted pack cannot be resumed: {note['count']} records were written, of which {writer.count} are left; start "
                "anew with overwrite=True (--overwrite)"
            )
        self.noted, self.volume = writer.count, 0
        if not self.next:
            for problem in source.problems:
                self._tell(problem)

    def feed(self, preparer: Preparer, workers: int | None, commit_every: int) -> None:
        """Write what is left of the source."""
        for items, prepared in prepared_chunks(preparer, self.next, workers):
            records = [
                record
                for index, one in zip(items, prepared, strict=True)
                if (record := self._take(index, one)) is not None
            ]
            dropped = min(self.surplus, len(records))
            self.surplus -= dropped
            self.writer.append(records[dropped:])
            self.next = items.stop
            if self.writer.count - self.noted >= commit_every and not self.surplus:
                self._note()
            if self.progress is not None:
                self.progress(Progress(self.next, len(self.source), self.volume, self.bad, self.odd))

    @property
    def left_out(self) -> int:
        """Items of the source that are not in the store."""
        return len(self.source) + len(self.source.problems) - self.writer.count

    def _take(self, index: int, prepared: Prepared) -> dict[str, Any] | None:
        self.odd += prepared.damaged
        if prepared.reason is not None:
            self._tell(Problem(self.source.name(index), prepared.reason))
            if self.on_bad != "keep":
                return None
        if prepared.record is not None:
            self.volume += sum(len(value) for value in prepared.record.values() if isinstance(value, bytes))
        return prepared.record

    def _tell(self, problem: Problem) -> None:
        self.bad += 1
        self.problems.append(problem)
        if self.on_problem is not None:
            self.on_problem(problem)

    def _note(self) -> None:
        self.noted = self.writer.count
        self.writer.flush(
            {
                "next": self.next,
                "count": self.writer.count,
                "odd": self.odd,
                "bad": self.bad,
                "problems": [[problem.name, problem.reason] for problem in self.problems[:_NOTED]],
            }
        )

    def judge(self) -> None:
        """Raise RecordError if there were bad items and the policy says so."""
        if self.on_bad == "raise" and self.bad:
            lines = "\n".join(f"  {problem}" for problem in self.problems)
            more = (
                f"\n  and {self.bad - len(self.problems)} before the pack was resumed"
                if self.bad > len(self.problems)
                else ""
            )
            raise RecordError(
                f"{self.bad:,} of {counted(len(self.source) + len(self.source.problems), 'item')} cannot be packed, so nothing was "
                f"published; repair them, or pass on_bad='skip' (--on-bad skip):\n{lines}{more}"
            )
