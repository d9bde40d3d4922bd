"""Copies a store with every damaged JPEG repaired; the copy keeps the verdict on what each picture was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from storeds._utils.locations import redact
from storeds.backends.opening import open_backend, open_writer
from storeds.backends.writer import COMMIT_EVERY
from storeds.errors import ConfigError
from storeds.jpeg import Verdict
from storeds.jpeg import repair as repaired
from storeds.ops.common import check_distinct, examined, images_of, read_batches, resumable
from storeds.ops.progress import ProgressHook
from storeds.ops.verdict_counts import VerdictCounts, damaged, is_lost
from storeds.protocols import Backend, Record
from storeds.records.fields import verdict_field

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
        Kind of verdict on the pictures of the source → how many; a picture that was repaired earlier keeps the verdict
        that it had before.
    beyond : dict
        Kind → those of which nothing decodes; the copy has their bytes as they were.
    """

    url: str
    id: str
    build: str
    count: int
    kinds: dict[str, int] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something of every picture can be read from the copy."""
        return not self.beyond

    @property
    def repaired(self) -> int:
        """How many damaged pictures decode in the copy."""
        return sum(map(self.repaired_of, self.kinds))

    def repaired_of(self, kind: str) -> int:
        """Return how many of the pictures with this verdict are damaged, and decode in the copy as far as they are there."""
        return self.kinds[kind] - self.beyond.get(kind, 0) if kind in damaged(self.kinds) else 0

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
    """Copy the store at `src_url` to `dst_url` with every damaged JPEG repaired; the source is only read.

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
        ``report.ok`` says whether something of every picture can be read.

    Raises
    ------
    ConfigError
        Both are the same store, or it has no image field.
    RecordError
        A record of the source cannot be read; nothing is published.

    Notes
    -----
    Each picture of the copy has the verdict on what it was in the source: its new bytes look whole, and the share that was
    lost stays lost. So readers of the copy go by `min_recovered`, and ``where={"finding": "intact"}`` and ``column`` see
    it. Verdicts that the source has are kept; pictures without one are examined.

    Whole pictures keep their bytes, and so do those of which nothing is there. Fields, order and attrs stay the same.
    """
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        check_distinct(source, dst_url)
        images = _images(source)
        writer = open_writer(
            dst_url,
            source.meta.fields,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            check=False,  # records bring their verdicts
            plan={"repair": source.meta.id},
        )
        with resumable(writer):
            broken = lost = 0
            for records, state in examined(read_batches(source, writer.count), images):
                for record in records:
                    for image in images:
                        verdict = _repair(record, image)
                        broken, lost = broken + (not verdict.is_whole), lost + is_lost(verdict)
                writer.append(records)
                if progress is not None:
                    progress(replace(state, bad=lost, odd=broken))
            meta = writer.publish(source.meta.attrs)
    # From the copy, so that a resumed run counts all of them.
    with open_backend(dst_url) as copy:
        counts = VerdictCounts.of(copy)
    return RepairReport(redact(dst_url), meta.id, meta.build, meta.count, counts.kinds, counts.lost)


def _images(source: Backend) -> tuple[str, ...]:
    images = images_of(source)
    if not images:
        shown = ", ".join(f"{name} ({declared.kind})" for name, declared in source.meta.fields.items())
        raise ConfigError(f"{source.url} has no field of kind image to be repaired, only {shown}")
    return images


def _repair(record: Record, image: str) -> Verdict:
    """Repair field `image` of `record` in place; return the verdict on what it was."""
    verdict = Verdict.from_text(record[verdict_field(image)])
    assert verdict is not None  # every picture was examined
    if (
        not verdict.is_whole and verdict.recovered
    ):  # else a grey picture would take the place of bytes that may be saved yet
        record[image] = repaired(record[image])
    return verdict
