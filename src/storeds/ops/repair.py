"""Copies a store with every damaged JPEG mended, and keeps in the copy what was wrong with each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from storeds._url import redact
from storeds._writer import COMMIT_EVERY
from storeds.ops._batches import read_batches
from storeds.ops._itself import refuse_itself
from storeds.ops.finding_fields import DAMAGES, FindingFields, Tally
from storeds.ops.pictures import look
from storeds.ops.progress import ProgressHook
from storeds.ops.resumable import resumable
from storeds.protocols import Record
from storeds.stores import open_backend, open_writer

__all__ = ["RepairReport", "repair"]


@dataclass(frozen=True)
class RepairReport:
    """What `repair` did.

    Attributes
    ----------
    url, id, build : str
        Of the copy.
    count : int
        Its records.
    kinds : dict
        What triage called the pictures of the source → how many; a picture that an earlier repair mended is called what
        it was called then.
    beyond : dict
        Kind → those of which nothing is there; the copy has their bytes as they were.
    """

    url: str
    id: str
    build: str
    count: int
    kinds: dict[str, int] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every picture of the copy is whole or mended."""
        return not self.beyond

    @property
    def repaired(self) -> int:
        """How many damaged pictures decode in the copy."""
        return sum(map(self.repaired_of, self.kinds))

    def repaired_of(self, kind: str) -> int:
        """Return how many of the pictures with this finding were damaged, and decode in the copy."""
        return self.kinds[kind] - self.beyond.get(kind, 0) if kind in DAMAGES else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {"ok": self.ok, **asdict(self), "repaired": self.repaired}


def repair(
    src_url: str,
    dst_url: str,
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = COMMIT_EVERY,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> RepairReport:
    """Copy the store at `src_url` to `dst_url` with every damaged JPEG mended; the source is only read.

    Parameters
    ----------
    src_url, dst_url : str
        See `open_backend` and `open_writer`; the engines may differ.
    overwrite, resume, commit_every
        As for `open_writer`.
    layout, options : str, mapping, optional
        Of the source, as for `open_backend`: a foreign store is repaired into a native one.
    progress : callable, optional
        Called with a `Progress` now and then.

    Returns
    -------
    RepairReport
        ``report.ok`` says whether every picture is whole or mended.

    Raises
    ------
    ConfigError
        Both are the same store; it has no image field, or fields called ``finding`` or ``recovered`` of its own.
    RecordError
        A record of the source cannot be read; nothing is published.

    Notes
    -----
    The copy has two fields more for each image field. ``finding`` says what was wrong: a kind of
    `storeds.jpeg.Finding`. ``recovered`` is the share of the picture that is there, a lower bound for files with several
    scans: 1.0 for what is whole, and for other formats that decode; 0.0 for what does not decode. Where the source has
    several image fields, the names begin with theirs: ``left_finding``.

    Whole pictures keep their bytes, and so do those of which nothing is there. Fields, order and attrs stay the same.
    """
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        refuse_itself(source, dst_url)
        fields = FindingFields(source.meta.fields, source.url)
        writer = open_writer(
            dst_url,
            fields.fields,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            plan={"repair": source.meta.id},
        )
        with resumable(writer):
            damaged = lost = 0
            for records, state in read_batches(source, writer.count):
                for record in records:
                    broken, gone = _mend(record, fields)
                    damaged, lost = damaged + broken, lost + gone
                writer.append(records)
                if progress is not None:
                    progress(replace(state, bad=lost, odd=damaged))
            meta = writer.publish(source.meta.attrs)
    # From the copy, and not counted on the way, so that a resumed run tells of all.
    with open_backend(dst_url) as copy:
        tally = Tally.of(copy, fields)
    return RepairReport(redact(dst_url), meta.id, meta.build, meta.count, tally.kinds, tally.lost)


def _mend(record: Record, fields: FindingFields) -> tuple[int, int]:
    """Mend the pictures of `record` in place; return how many are damaged, and of how many nothing is there."""
    damaged = lost = 0
    for image in fields.names:
        picture = look(record[image])
        record.update(fields.values(record, image, picture))
        if picture.recovered:  # else a grey picture would take the place of what somebody may yet save
            record[image] = picture.mended
        damaged += picture.finding.is_damaged
        lost += not picture.recovered
    return damaged, lost
