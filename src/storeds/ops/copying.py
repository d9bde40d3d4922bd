"""Copies a store, record by record: `convert` changes nothing but the engine, `repair` repairs damaged JPEGs."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn, get_args

from storeds.backends.opening import COMMIT_EVERY, open_backend, open_writer
from storeds.backends.unread import SHOWN
from storeds.backends.view import describe
from storeds.errors import ConfigError, FormatError, RecordError, suggest
from storeds.ops import OnBadRecord
from storeds.ops.copy import Batch, check_distinct, copy, read_batches
from storeds.ops.pictures import Finished, PictureStep
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.verdicts import NOT_EXAMINED, VerdictCounts, damaged_kinds, images_of
from storeds.pictures.restarts import RestartMarker
from storeds.protocols import JSON, Backend, Field, Meta, Record
from storeds.records.meta import NATIVE
from storeds.records.roles import with_roles
from storeds.redaction import redact

__all__ = ["Converted", "RepairReport", "convert", "repair"]

_LOG = logging.getLogger("storeds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted(Meta):
    """`Meta` of a copied store, and what became of its pictures.

    Parameters
    ----------
    restarts : mapping of str to int
        With ``fast_crops=True``: outcome → number of pictures, the most frequent first. As for `storeds.ops.Packed`.
    left_out : int
        With ``on_bad="skip"``: number of records of the source that are not in the store.
    """

    restarts: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0


@dataclass(frozen=True)
class RepairReport:
    """The result of `repair`.

    Attributes
    ----------
    url, id, build : str
        Of the copy.
    count : int
        Number of records.
    kinds : dict
        Kind of verdict on the pictures of the source → how many. A picture that was repaired earlier keeps its first
        verdict.
    beyond : dict
        Kind → how many pictures of which nothing decodes. The copy has their original bytes.
    left_out : int
        With ``on_bad="skip"``: number of records of the source that are not in the copy.
    """

    url: str
    id: str
    build: str
    count: int
    kinds: dict[str, int] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    left_out: int = 0

    @property
    def ok(self) -> bool:
        """Whether at least a part of every picture can be read from the copy."""
        return not self.beyond

    @property
    def repaired(self) -> int:
        """How many damaged pictures decode in the copy."""
        return sum(map(self.repaired_of, self.kinds))

    def repaired_of(self, kind: str) -> int:
        """Return how many pictures with this verdict are damaged and decode in the copy."""
        return self.kinds[kind] - self.beyond.get(kind, 0) if kind in damaged_kinds(self.kinds) else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {"ok": self.ok, **asdict(self), "repaired": self.repaired}


def convert(
    src_url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dst_url: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = 1000,
    on_bad: OnBadRecord = "raise",
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
    overwrite, resume, commit_every
        As for `open_writer`. A resumed copy may have another `on_bad`.
    on_bad : str
        ``"raise"``: stop at a record of the source that cannot be read, and keep the durable ones. ``"skip"``: leave such
        records out, with a warning.
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
        A record of the source is bad and `on_bad` is ``"raise"``, or one does not fit the roles; nothing is published.
    FormatError
        Nothing should differ from a native source, and the id of the copy does: the source is damaged in a way that no
        checksum of a record shows.
    """
    dst_url = os.fspath(dst_url)
    step = PictureStep(check, marker=RestartMarker.find() if fast_crops else None)
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        check_distinct(source, dst_url)
        task = _Copying(source, step, on_bad)
        meta = task.into(
            dst_url,
            with_roles(_with_columns(source, roles or {}), roles or {}),
            {"convert": source.meta.id, "check": check, "fast_crops": fast_crops},
            progress,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
        )
        left_out = len(source) - meta.count
        is_equal = meta.fields == source.meta.fields and not (fast_crops or task.counts["examined"] or left_out)
        if source.meta.layout == NATIVE and is_equal and meta.id != source.meta.id:
            raise FormatError(
                f"{redact(dst_url)} contains what was read from {source.url}, but its content id {meta.id} differs from the "
                f"source's {source.meta.id}: the source is damaged; run storeds verify on it"
            )
    own = {one.name: getattr(meta, one.name) for one in dataclasses.fields(Meta)}
    return Converted(**own, restarts=dict(task.restarts.most_common()), left_out=left_out)


def repair(
    src_url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dst_url: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = COMMIT_EVERY,
    on_bad: OnBadRecord = "raise",
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> RepairReport:
    """Copy the store at `src_url` to `dst_url` with every damaged JPEG repaired; the source is only read.

    Parameters
    ----------
    src_url : str or list of str
        As for `open_backend`: one store, or a pattern or list of several, which become one store.
    dst_url : str
        As for `open_writer`; the engines may differ.
    overwrite, resume, commit_every
        As for `open_writer`. A resumed copy may have another `on_bad`.
    on_bad : str
        ``"raise"``: stop at a record of the source that cannot be read, and keep the durable ones. ``"skip"``: leave such
        records out, with a warning.
    layout, options : str, mapping, optional
        Of the source, as for `open_backend`. The copy of a foreign store is a native one.
    progress : callable, optional
        Called with a `Progress` after each batch.

    Returns
    -------
    RepairReport
        ``report.ok`` is True if at least a part of every picture can be read.

    Raises
    ------
    ConfigError
        Source and target are the same store, or it has no image field.
    RecordError
        A record of the source cannot be read and `on_bad` is ``"raise"``; nothing is published.

    Notes
    -----
    Each picture of the copy keeps the verdict on its original bytes: the new bytes look whole, but the lost part stays
    lost. Readers of the copy apply `min_recovered` to this verdict, and ``where={"image_finding": "intact"}`` and ``column``
    use it. Pictures without a verdict are examined.

    Whole pictures keep their bytes, and so do pictures of which nothing is left. Fields, order and attrs stay the same.
    """
    dst_url = os.fspath(dst_url)
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        if not images_of(source):
            shown = ", ".join(f"{name} ({declared.kind})" for name, declared in source.meta.fields.items())
            raise ConfigError(f"{source.url} has no field of kind image to repair, only {shown}")
        check_distinct(source, dst_url)
        meta = _Copying(source, PictureStep(repairs=True), on_bad).into(
            dst_url,
            source.meta.fields,
            {"repair": source.meta.id},
            progress,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
        )
        left_out = len(source) - meta.count
    # Counting in the copy includes what an interrupted run wrote.
    with open_backend(dst_url) as copy:
        verdicts = VerdictCounts.of(copy)
    return RepairReport(redact(dst_url), meta.id, meta.build, meta.count, verdicts.kinds, verdicts.lost, left_out)


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


@dataclass
class _Copying:
    """The `storeds.ops.copy.Task` of a copy: the records of a store, with their pictures finished."""

    source: Backend
    step: PictureStep
    on_bad: OnBadRecord
    next: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # of pictures
    restarts: Counter[str] = field(default_factory=Counter)
    volume: int = 0

    def begin(self, note: Any) -> None:
        """Go on after what a writer has kept, which says None without that."""
        if note is not None:
            self.next, self.counts, self.restarts = note["next"], Counter(note["counts"]), Counter(note["restarts"])

    def chunks(self) -> Iterator[Batch]:
        # docstring inherited
        return read_batches(self.source, self.next, on_bad=_leave_out if self.on_bad == "skip" else _refuse)

    def work(self, chunk: Batch, /) -> list[Finished]:
        # docstring inherited
        images = [(name, declared) for name, declared in self.source.meta.fields.items() if declared.kind == "image"]
        return [self.step(record, *image) for record in chunk[0] for image in images]

    def take(self, chunk: Batch, result: list[Finished], /) -> list[Record]:
        # docstring inherited
        for each in result:
            self.counts["examined"] += each.is_new
            self.counts["fast_crops"] += each.is_fast
            if self.step.repairs and each.is_damaged:
                self.counts["damaged"] += 1
                self.counts["bad"] += each.verdict is not None and not each.verdict.recovered
            if each.restarts is not None:
                self.restarts[each.restarts] += 1
        records, state = chunk
        self.next, self.volume = state.done, state.bytes
        return records

    def note(self) -> JSON:
        # docstring inherited
        return {"next": self.next, "counts": dict(self.counts), "restarts": dict(self.restarts)}

    def progress(self) -> Progress:
        # docstring inherited
        return Progress(self.next, len(self.source), self.volume, self.counts["bad"], self.counts["damaged"])

    def is_busy(self) -> bool:
        """Whether the pictures take much more time than reading them."""
        if self.step.repairs or self.step.marker is not None:
            return True
        is_judged = self.source.meta.layout == NATIVE and not VerdictCounts.of(self.source).kinds.get(NOT_EXAMINED)
        return self.step.check and not is_judged

    def into(
        self, url: str, fields: Mapping[str, Field], plan: JSON, progress: ProgressHook | None, **how: Any
    ) -> Meta:
        """Copy every record, and return the meta of the new store."""
        if self.on_bad not in get_args(OnBadRecord):
            raise ConfigError(
                f"unknown on_bad {self.on_bad!r}; {suggest(self.on_bad, get_args(OnBadRecord), 'policies')}"
            )
        faults = describe(self.source).faults
        if faults and self.on_bad == "raise":
            _refuse(RecordError(f"{self.source.url}: not read: {'; '.join(faults[:SHOWN])}"))
        # Records already contain their verdicts.
        with open_writer(url, fields, plan=plan, check=False, **how) as writer:
            self.begin(writer.note)
            copy(writer, self, len(os.sched_getaffinity(0)) if self.is_busy() else 0, progress)
            return writer.publish(self.source.meta.attrs, fast_crops=self.counts["fast_crops"])


def _leave_out(error: RecordError) -> None:
    _LOG.warning("left out: %s", error)


def _refuse(error: RecordError) -> NoReturn:
    error.args = (f"{error}; write the source again, or leave bad records out with on_bad='skip' (--on-bad skip)",)
    raise error
