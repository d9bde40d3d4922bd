"""Copies a store with every damaged JPEG repaired. The copy keeps the verdict on each original picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from storeds._utils.locations import redact
from storeds.backends.opening import COMMIT_EVERY, open_backend, open_writer
from storeds.errors import ConfigError
from storeds.jpeg import Verdict
from storeds.jpeg import repair as repaired
from storeds.ops.common import (
    NOT_EXAMINED,
    ProgressHook,
    VerdictCounts,
    check_distinct,
    damaged_kinds,
    examined,
    images_of,
    read_batches,
    resumable,
)
from storeds.protocols import Backend, Record

__all__ = ["RepairReport", "repair"]


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
    """

    url: str
    id: str
    build: str
    count: int
    kinds: dict[str, int] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)

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
        A record of the source cannot be read; nothing is published.

    Notes
    -----
    Each picture of the copy keeps the verdict on its original bytes: the new bytes look whole, but the lost part stays
    lost. Readers of the copy apply `min_recovered` to this verdict, and ``where={"image_finding": "intact"}`` and ``column``
    use it. Pictures without a verdict are examined.

    Whole pictures keep their bytes, and so do pictures of which nothing is left. Fields, order and attrs stay the same.
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
            check=False,  # records already contain their verdicts
            plan={"repair": source.meta.id},
        )
        with resumable(writer):
            broken = lost = 0
            for records, state in examined(read_batches(source, writer.count), images):
                for record in records:
                    for image in images:
                        verdict = _repair(record, image)
                        broken, lost = broken + (not verdict.is_whole), lost + (not verdict.recovered)
                writer.append(records)
                if progress is not None:
                    progress(replace(state, bad=lost, damaged=broken))
            meta = writer.publish(source.meta.attrs, fast_crops=_fast_crops(source))
    # Counting in the copy includes what an interrupted run wrote.
    with open_backend(dst_url) as copy:
        counts = VerdictCounts.of(copy)
    return RepairReport(redact(dst_url), meta.id, meta.build, meta.count, counts.kinds, counts.lost)


def _images(source: Backend) -> tuple[str, ...]:
    images = images_of(source)
    if not images:
        shown = ", ".join(f"{name} ({declared.kind})" for name, declared in source.meta.fields.items())
        raise ConfigError(f"{source.url} has no field of kind image to repair, only {shown}")
    return images


def _fast_crops(source: Backend) -> int | None:
    """Return how many pictures of the copy are ready for fast crops: those of `source`, unless some were not examined."""
    if source.meta.fast_crops is None or NOT_EXAMINED in VerdictCounts.of(source).kinds:
        return None
    return source.meta.fast_crops


def _repair(record: Record, image: str) -> Verdict:
    """Repair field `image` of `record` in place; return the verdict on what it was."""
    verdict = Verdict.of(record, image)
    assert verdict is not None  # every picture was examined
    # If nothing is recovered, a grey picture must not replace bytes that another tool may still save.
    if not verdict.is_whole and verdict.recovered:
        record[image] = repaired(record[image])
    return verdict
