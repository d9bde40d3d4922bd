"""Reads a whole store and tells everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from storeds._columns import read_column
from storeds._meta import NATIVE
from storeds.decode import decode_pil
from storeds.errors import RecordError, StoredsError
from storeds.jpeg import repair
from storeds.ops.progress import Progress, ProgressHook
from storeds.protocols import Array, Backend, Record
from storeds.record import ContentHash, RecordCodec, checksum
from storeds.stores import open_backend

__all__ = ["Finding", "Report", "verify"]

_BATCH = 64


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes
    ----------
    kind : str
        ``record`` (cannot be read, or its checksum differs), ``image`` (does not decode), ``repairable`` (decodes once
        its end marker is restored), ``column`` (differs from the records) or ``id`` (the content id differs).
    message : str
        What, in words.
    position : int or None
        Where.
    key : str or None
        The record's own name.
    """

    kind: str
    message: str
    position: int | None = None
    key: str | None = None


@dataclass
class Report:
    """What `verify` found.

    Attributes
    ----------
    url, id : str
    count : int
        Records looked at.
    images : int
        Images decoded.
    findings : list of Finding
    """

    url: str
    id: str
    count: int
    images: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {"ok": self.ok, **asdict(self)}


def verify(url: str, *, progress: ProgressHook | None = None) -> Report:
    """Check every record's checksum, every image, every column and the content id of the store at `url`.

    Returns
    -------
    Report
        ``report.ok`` says whether all is well.

    Raises
    ------
    StoredsError
        The store cannot be opened at all.
    """
    with open_backend(url) as backend:
        report = Report(backend.url, backend.meta.id, len(backend))
        check = _Check(backend, report)
        for done, volume in check.run():
            if progress is not None:
                progress(Progress(done, len(backend), volume))
        return report


class _Check:
    def __init__(self, backend: Backend, report: Report) -> None:
        self.backend, self.report = backend, report
        self.codec = RecordCodec(backend.meta.fields)
        self.content = ContentHash()
        self.images = [name for name, field in backend.meta.fields.items() if field.kind == "image"]
        self.columns = {
            name: column
            for name, field in backend.meta.fields.items()
            if field.is_scalar or field.kind == "str"
            if (column := self._column(name)) is not None
        }

    def run(self) -> Iterator[tuple[int, int]]:
        """Check everything; yield records and bytes done, batch by batch."""
        volume, complete = 0, True
        for start in range(0, len(self.backend), _BATCH):
            stop = min(start + _BATCH, len(self.backend))
            for position, record in enumerate(self.backend.get_many(range(start, stop)), start):
                if isinstance(record, RecordError):
                    complete = False
                    self._find("record", record.reason or str(record), position, record.key)
                else:
                    volume += self._check_record(position, record)
            yield stop, volume
        meta = self.backend.meta
        if complete and meta.layout == NATIVE and self.content.finish(meta.fields, meta.attrs) != meta.id:
            self._find(
                "id", f"the records are whole, but their content id is not {meta.id}: some were added, removed or moved"
            )

    def _check_record(self, position: int, record: Record) -> int:
        key = record.get("key") if isinstance(record.get("key"), str) else None
        self.content.update(checksum(self.codec.pack(self.codec.canonical(record))))
        for name, column in self.columns.items():
            if not _same(column[position], record[name]):
                self._find(
                    "column", f"column {name!r} says {column[position]!r}, the record {record[name]!r}", position, key
                )
        for name in self.images:
            self._check_image(name, record[name], position, key)
        return sum(len(value) for value in record.values() if isinstance(value, bytes))

    def _check_image(self, name: str, blob: bytes, position: int, key: str | None) -> None:
        whole = repair(blob)
        try:
            decode_pil(whole, "RGB")
        except Exception as error:  # decoders raise whatever they like on damaged bytes
            self._find("image", f"{name} does not decode: {type(error).__name__}: {error}", position, key)
            return
        self.report.images += 1
        if whole is not blob:
            self._find("repairable", f"{name} is a JPEG without an end marker; it decodes with one", position, key)

    def _column(self, name: str) -> Array | None:
        try:
            return read_column(self.backend, name)
        except StoredsError as error:
            self._find("column", str(error))
            return None

    def _find(self, kind: str, message: str, position: int | None = None, key: str | None = None) -> None:
        self.report.findings.append(Finding(kind, message, position, key))


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) or (isinstance(b, float) and np.isnan(a) and np.isnan(b))
