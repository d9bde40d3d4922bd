"""Copies a store, record by record: `convert` changes nothing but the engine, `repair` repairs damaged JPEGs."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn, TypeAlias, get_args

from storeds.backends.opening import COMMIT_EVERY, open_backend, open_writer
from storeds.backends.unread import SHOWN
from storeds.backends.view import describe
from storeds.errors import ConfigError, FormatError, RecordError, suggest
from storeds.ops import OnBadRecord
from storeds.ops.common import (
    NOT_EXAMINED,
    Batch,
    ProgressHook,
    VerdictCounts,
    check_distinct,
    damaged_kinds,
    images_of,
    in_order,
    is_fast,
    mark_picture,
    read_batches,
)
from storeds.pictures import Verdict, examine, set_verdict
from storeds.pictures import repair as repaired
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
    step = _Step(check=check, marker=RestartMarker.find() if fast_crops else None)
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        check_distinct(source, dst_url)
        meta, counts, restarts = _copy(
            source,
            dst_url,
            with_roles(_with_columns(source, roles or {}), roles or {}),
            step,
            plan={"convert": source.meta.id, "check": check, "fast_crops": fast_crops},
            on_bad=on_bad,
            progress=progress,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
        )
        left_out = len(source) - meta.count
        is_equal = meta.fields == source.meta.fields and not (fast_crops or counts["examined"] or left_out)
        if source.meta.layout == NATIVE and is_equal and meta.id != source.meta.id:
            raise FormatError(
                f"{redact(dst_url)} contains what was read from {source.url}, but its content id {meta.id} differs from the "
                f"source's {source.meta.id}: the source is damaged; run storeds verify on it"
            )
    own = {one.name: getattr(meta, one.name) for one in dataclasses.fields(Meta)}
    return Converted(**own, restarts=dict(restarts.most_common()), left_out=left_out)


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
        meta, _, _ = _copy(
            source,
            dst_url,
            source.meta.fields,
            _Step(repairs=True),
            plan={"repair": source.meta.id},
            on_bad=on_bad,
            progress=progress,
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


_Counts: TypeAlias = tuple[Counter[str], Counter[str]]  # of pictures, and of the outcomes of restart markers


@dataclass(frozen=True)
class _Step:
    """What a copy does with the pictures of each record, in any thread."""

    check: bool = True
    marker: RestartMarker | None = None
    repairs: bool = False

    def is_busy(self, source: Backend) -> bool:
        """Whether the pictures of `source` take much more time than reading them."""
        if self.repairs or self.marker is not None:
            return True
        return self.check and (source.meta.layout != NATIVE or bool(VerdictCounts.of(source).kinds.get(NOT_EXAMINED)))

    def __call__(self, records: Sequence[Record], images: Sequence[str]) -> _Counts:
        """Finish the pictures of some records in place, and count them."""
        counts, restarts = Counter[str](), Counter[str]()
        for record in records:
            for image in images:
                verdict = Verdict.of(record, image)
                if verdict is None and self.check:
                    counts["examined"] += 1
                    verdict = examine(record[image])
                    set_verdict(record, image, verdict)
                if self.marker is not None:
                    restarts[mark_picture(self.marker, record, image)] += 1
                counts["fast_crops"] += is_fast(record, image)
                if self.repairs and verdict is not None and not verdict.is_whole:
                    counts["damaged"] += 1
                    counts["bad"] += not verdict.recovered
                    # If nothing is recovered, a grey picture must not replace bytes that another tool may still save.
                    if verdict.recovered:
                        record[image] = repaired(record[image])
        return counts, restarts


def _copy(
    source: Backend,
    url: str,
    fields: Mapping[str, Field],
    step: _Step,
    *,
    plan: JSON,
    on_bad: OnBadRecord,
    progress: ProgressHook | None,
    **how: Any,
) -> tuple[Meta, Counter[str], Counter[str]]:
    """Copy every record of `source` after `step`; return the new store's meta and what `step` counted."""
    if on_bad not in get_args(OnBadRecord):
        raise ConfigError(f"unknown on_bad {on_bad!r}; {suggest(on_bad, get_args(OnBadRecord), 'policies')}")
    faults = describe(source).faults
    if faults and on_bad == "raise":
        _refuse(RecordError(f"{source.url}: not read: {'; '.join(faults[:SHOWN])}"))
    # Records already contain their verdicts.
    with open_writer(url, fields, plan=plan, check=False, **how) as writer:
        note: Any = writer.note or {"next": 0, "counts": {}, "restarts": {}}
        counts, restarts = Counter[str](note["counts"]), Counter[str](note["restarts"])
        images = images_of(source)
        threads = len(os.sched_getaffinity(0)) if step.is_busy(source) else 0

        def finish(batch: Batch) -> _Counts:
            return step(batch[0], images)

        batches = read_batches(source, note["next"], on_bad=_leave_out if on_bad == "skip" else _refuse)
        for (records, state), (more, outcomes) in in_order(batches, finish, threads):
            counts.update(more)
            restarts.update(outcomes)
            writer.append(records, note={"next": state.done, "counts": dict(counts), "restarts": dict(restarts)})
            if progress is not None:
                progress(replace(state, bad=counts["bad"], damaged=counts["damaged"]))
        return writer.publish(source.meta.attrs, fast_crops=counts["fast_crops"]), counts, restarts


def _leave_out(error: RecordError) -> None:
    _LOG.warning("left out: %s", error)


def _refuse(error: RecordError) -> NoReturn:
    error.args = (f"{error}; write the source again, or leave bad records out with on_bad='skip' (--on-bad skip)",)
    raise error
