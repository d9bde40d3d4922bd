"""Reads a whole store and reports everything that is wrong with it.

`verify` is the entry point. Read this file first, then `checks` (one record) and `workers` (child processes).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storeds._utils.tables import text_table
from storeds._utils.text import counted, html_table
from storeds.backends.opening import open_backend, scheme_of
from storeds.backends.view import describe
from storeds.errors import ConfigError
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.verifying.checks import BATCH, BatchResult, Checker, Finding, column_names
from storeds.ops.verifying.workers import ChildDied, WorkerPool
from storeds.protocols import Backend, Meta
from storeds.records.codec import ContentHash
from storeds.records.meta import NATIVE
from storeds.redaction import redact

__all__ = ["Finding", "Report", "verify"]

# Engines that another process can open by URL.
_SHARED = ("lmdb", "hdf5", "mongodb", "mongodb+srv")
_MAX_NOTES = 20  # lines; there may be a note for every record


@dataclass
class Report:
    """The result of `verify`.

    Attributes
    ----------
    url, id : str
    count : int
        Records checked.
    images : int
        Pictures of which at least a part decodes, by their verdict.
    examined : int
        Pictures that were examined, because they have no verdict or one other than ``intact``.
    findings : list of Finding
        Sorted by position. Findings about the whole store come first.
    notes : list of Finding
        Harmless findings, sorted by position: bytes after the end of a picture, masks that are JPEGs.
    """

    url: str
    id: str
    count: int
    images: int = 0
    examined: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no findings. Notes do not count."""
        return not self.findings

    @property
    def kinds(self) -> dict[str, int]:
        """Kind → how many findings and notes, the most frequent first."""
        return dict(Counter(finding.kind for finding in (*self.findings, *self.notes)).most_common())

    def worst(self, of_a_kind: int = 30) -> list[int]:
        """Return the positions of damaged records: of the most frequent kind first, and those of which least is left.

        Records that ended the checking process are left out, because reading them may end this one.
        """
        kinds: dict[str, list[Finding]] = {}
        for finding in self.findings:
            if finding.position is not None and finding.kind not in ("column", "crash"):
                kinds.setdefault(finding.kind, []).append(finding)
        frequent = sorted(kinds.values(), key=len, reverse=True)
        chosen = (sorted(found, key=lambda each: each.recovered or 0.0)[:of_a_kind] for found in frequent)
        return list(dict.fromkeys(each.position for found in chosen for each in found if each.position is not None))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        findings = [finding.to_json() for finding in self.findings]
        notes = [finding.to_json() for finding in self.notes]
        return {"ok": self.ok, **asdict(self), "findings": findings, "notes": notes, "kinds": self.kinds}

    def __str__(self) -> str:
        lines = []
        if self.kinds:
            columns = {"record": "right", "key": "left", "finding": "left", "severity": "left", "what": "left"}
            lines.append(text_table(columns, map(_row, (*self.findings, *self.notes[:_MAX_NOTES]))))
            if len(self.notes) > _MAX_NOTES:
                lines.append(f"… and {len(self.notes) - _MAX_NOTES:,} more harmless notes; --json lists them")
            kinds = text_table(
                {"finding": "left", "count": "right"}, ((each, f"{n:,}") for each, n in self.kinds.items())
            )
            lines += ["", kinds, ""]
        verdict = "no findings" if self.ok else counted(len(self.findings), "finding")
        verdict += f", {counted(len(self.notes), 'harmless note')}" if self.notes else ""
        images = f"{counted(self.images, 'image that decodes', 'images that decode')} ({self.examined:,} examined)"
        lines.append(f"{self.url}: {counted(self.count, 'record')}, {images}: {verdict}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        counts = {"findings": len(self.findings), "notes": len(self.notes)}
        return html_table({**vars(self), **counts, **self.kinds})


def _row(finding: Finding) -> tuple[str, ...]:
    at = "" if finding.position is None else str(finding.position)
    return at, finding.key or "", finding.kind, finding.severity, finding.message


def verify(
    url: str | os.PathLike[str],
    *,
    workers: int | None = None,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> Report:
    """Check every record's checksum, every image, every role, every column and the content id of the store at `url`.

    A picture with the verdict ``intact`` is not examined again: its checksum proves that it is unchanged. A damaged
    picture is a finding even after `repair`, because a part of it stays lost.

    Parameters
    ----------
    url : str
        See `open_backend`.
    workers : int, optional
        Child processes that read and check, one per CPU by default. A damaged store may crash or hang them, and the
        report names the record. 0 checks in this process, which a damaged store may then crash. Engines that no other
        process can open are always checked in this process.
    layout, options : str, mapping, optional
        As for `open_backend`. With either, a store is checked in this process, unless it is a folder or tar files.
    progress : callable, optional
        Called with a `Progress` after each batch.

    Returns
    -------
    Report
        ``report.ok`` is True if nothing is wrong.

    Raises
    ------
    StoredsError
        The store cannot be opened, or its engine becomes unavailable.
    """
    if workers is not None and workers < 0:
        raise ConfigError(f"workers must be 0 or more, got {workers}")
    url = os.fspath(url)
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    if count and layout is None and not options and scheme_of(url, writing=False) in _SHARED:
        return _by_children(url, redact(url), count, progress)
    with open_backend(url, layout=layout, **(options or {})) as backend:
        if count and backend.url.startswith(
            "files://"
        ):  # opening them cannot crash this process, and checking is shared
            report = _by_children(backend, backend.url, count, progress)
        else:
            report = _collect(backend.url, backend.meta, _check_here(backend), progress)
        report.findings[:0] = [Finding("unread", f"not read: {each}") for each in describe(backend).faults]
        return report


def _by_children(source: str | Backend, url: str, count: int, progress: ProgressHook | None) -> Report:
    with WorkerPool(source, count) as pool:
        try:
            meta = pool.open()
        except ChildDied as end:
            finding = Finding("crash", f"the process that opened the store {end}")
            return Report(url, "", 0, findings=[finding])
        return _collect(url, meta, pool.check(meta), progress)


def _check_here(backend: Backend) -> Iterator[BatchResult]:
    checker = Checker(backend)
    findings = map(checker.read_column, column_names(backend.meta))
    yield BatchResult(0, findings=[finding for finding in findings if finding])
    for start in range(0, len(backend), BATCH):
        yield checker.check(start, min(start + BATCH, len(backend)))


def _collect(url: str, meta: Meta, results: Iterator[BatchResult], progress: ProgressHook | None) -> Report:
    report = Report(url, meta.id, meta.count)
    content: ContentHash | None = ContentHash() if meta.layout == NATIVE else None
    volume = 0
    for result in results:
        report.images += result.images
        report.examined += result.examined
        report.findings += result.findings
        report.notes += result.notes
        volume += result.volume
        if result.digests is None:
            content = None
        elif content is not None:
            content.update(result.digests)
        if progress is not None:
            progress(Progress(result.stop, meta.count, volume, bad=len(report.findings)))
    if content is not None and content.finish(meta.fields, meta.attrs) != meta.id:
        message = f"the records are whole, but their content id is not {meta.id}: they are not the published ones"
        report.findings.insert(0, Finding("id", message))
    return report
