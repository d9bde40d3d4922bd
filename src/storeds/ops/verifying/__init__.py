"""Reads a whole store and reports everything that is wrong with it.

`verify` is the entry point. Read this file first, then `checks` (one record) and `workers` (child processes).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storeds._utils.locations import redact
from storeds.backends.opening import open_backend, scheme_of
from storeds.errors import ConfigError
from storeds.ops.common import Progress, ProgressHook
from storeds.ops.verifying.checks import Checker, Finding, RunResult
from storeds.ops.verifying.workers import WorkerPool, open_to_check
from storeds.protocols import Backend, Meta
from storeds.records.codec import ContentHash
from storeds.records.fields import NATIVE

__all__ = ["Finding", "Report", "verify"]

_STEP = 64
# Engines that another process can open by URL.
_SHARED = ("lmdb", "hdf5", "mongodb", "mongodb+srv")


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

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        findings = [finding.to_json() for finding in self.findings]
        notes = [finding.to_json() for finding in self.notes]
        return {"ok": self.ok, **asdict(self), "findings": findings, "notes": notes, "kinds": self.kinds}


def verify(
    url: str,
    *,
    deep: bool = False,
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
    deep : bool
        Examine every picture again, and report where the stored verdict differs. This takes about ten times as long.
    workers : int, optional
        Child processes that read and check, one per CPU by default. A damaged store may crash or hang them, and the
        report names the record. 0 checks in this process, which a damaged store may then crash. Engines that no other
        process can open are always checked in this process.
    layout, options : str, mapping, optional
        As for `open_backend`. With either, the store is checked in this process.
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
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    if count and layout is None and not options and scheme_of(url, writing=False) in _SHARED:
        with WorkerPool(url, count, deep=deep) as pool:
            meta = pool.open()
            if isinstance(meta, Finding):
                return Report(redact(url), "", 0, findings=[meta])
            return _collect(Report(redact(url), meta.id, meta.count), meta, pool.check(), progress)
    plain = layout is None and not options
    with open_to_check(url) if plain else open_backend(url, layout=layout, **(options or {})) as backend:
        report = Report(backend.url, backend.meta.id, backend.meta.count)
        return _collect(report, backend.meta, _check_here(backend, deep), progress)


def _check_here(backend: Backend, deep: bool) -> Iterator[RunResult]:
    checker = Checker(backend, deep=deep)
    yield RunResult(0, 0, findings=checker.findings)
    for start in range(0, len(backend), _STEP):
        yield checker.check(start, min(start + _STEP, len(backend)))


def _collect(report: Report, meta: Meta, runs: Iterator[RunResult], progress: ProgressHook | None) -> Report:
    digests: dict[int, bytes] = {}
    done, volume = 0, 0
    for run in runs:
        report.images += run.images
        report.examined += run.examined
        report.findings += run.findings
        report.notes += run.notes
        if run.digests is not None:
            digests[run.start] = digests.get(run.start, b"") + run.digests
        done, volume = done + run.stop - run.start, volume + run.volume
        if progress is not None:
            progress(Progress(done, meta.count, volume, bad=len(report.findings)))
    content = ContentHash()
    for start in sorted(digests):
        content.update(digests[start])
    complete = sum(map(len, digests.values())) == 8 * meta.count
    if complete and meta.layout == NATIVE and content.finish(meta.fields, meta.attrs) != meta.id:
        message = f"the records are whole, but their content id is not {meta.id}: they are not the published ones"
        report.findings.append(Finding("id", message))
    for found in (report.findings, report.notes):
        found.sort(key=lambda finding: -1 if finding.position is None else finding.position)
    return report
