"""Checks a run of records: checksums, columns, images. Reads one store, in whatever process it is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from storeds._columns import read_column
from storeds._verdicts import stored_fields
from storeds.errors import RecordError, StoredsError
from storeds.jpeg import Finding as JpegFinding
from storeds.ops.pictures import Picture, look
from storeds.protocols import Array, Backend, Record
from storeds.record import RecordCodec, checksum

__all__ = ["Checker", "Finding", "RunResult"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes
    ----------
    kind : str
        ``record`` (cannot be read, or its checksum differs), ``column`` (differs from the records), ``crash`` (reading
        it killed the process that checked, or made it hang), ``id`` (the content id differs); for a picture what
        `storeds.jpeg.Finding` calls it (``missing_eoi``, ``truncated_scan``, ``truncated_header``, ``corrupt_data``,
        ``trailing_data``), ``too_large`` (claims more pixels than are ever allocated) or ``image`` (does not decode).
    message : str
        What, in words.
    position : int or None
        Where.
    key : str or None
        The record's own name.
    image : str or None
        The field of the picture.
    recovered : float or None
        The share of the picture that is there, 0 to 1.
    exact : bool
        Whether `recovered` is that share; else it is a lower bound.
    format : str or None
        What it is instead of a JPEG: ``PNG``, ``HTML``, ``empty``, ….
    """

    kind: str
    message: str
    position: int | None = None
    key: str | None = None
    image: str | None = None
    recovered: float | None = None
    exact: bool = True
    format: str | None = None

    @property
    def severity(self) -> str:
        """How bad it is, for people: ``harmless``, the share that is there (``62 %``, ``at least 40 %``), or nothing."""
        if self.kind == "trailing_data":
            return "harmless"
        if self.recovered is None:
            return ""
        return JpegFinding("corrupt_data", "", recovered=self.recovered, exact=self.exact).share

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return {**asdict(self), "severity": self.severity}


@dataclass
class RunResult:
    """What was seen in the records ``[start, stop)``.

    Attributes
    ----------
    digests : bytes or None
        The checksums of the records, 8 bytes each; None if one of them could not be read.
    notes : list of Finding
        What is odd but no damage.
    """

    start: int
    stop: int
    digests: bytes | None = b""
    images: int = 0
    volume: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


class Checker:
    """Checks runs of records of one backend against its columns and against themselves.

    Parameters
    ----------
    backend : Backend
    skip : collection of str
        Columns that are not to be read.
    announce : callable, optional
        Called with the name of each column before it is read.
    alive : callable, optional
        Called before each picture is looked at.
    deep : bool
        Whether the codes of whole pictures are followed too.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        skip: Collection[str] = (),
        announce: Callable[[str], object] | None = None,
        alive: Callable[[], object] | None = None,
        deep: bool = False,
    ) -> None:
        self.backend = backend
        self.codec = RecordCodec(stored_fields(backend.meta))
        self.images = [name for name, field in backend.meta.fields.items() if field.kind == "image"]
        self._alive = alive or (lambda: None)
        self._effort: Literal["exact", "deep"] = "deep" if deep else "exact"
        self.findings: list[Finding] = []
        self.columns = dict(self._read_columns(skip, announce or (lambda name: None)))

    def _read_columns(self, skip: Collection[str], announce: Callable[[str], object]) -> Iterator[tuple[str, Array]]:
        for name, declared in stored_fields(self.backend.meta).items():
            if name not in skip and (declared.is_scalar or declared.kind == "str"):
                announce(name)
                try:
                    yield name, read_column(self.backend, name)
                except StoredsError as error:
                    self.findings.append(Finding("column", str(error)))

    def check(self, start: int, stop: int) -> RunResult:
        """Return what is wrong with the records ``[start, stop)``."""
        result = RunResult(start, stop)
        digests: list[bytes] = []
        for position, record in enumerate(self.backend.get_many(range(start, stop), tuple(self.codec.fields)), start):
            if isinstance(record, RecordError):
                result.findings.append(Finding("record", record.reason or str(record), position, record.key))
            else:
                digests.append(self._check_record(position, record, result))
        result.digests = b"".join(digests) if len(digests) == stop - start else None
        return result

    def _check_record(self, position: int, record: Record, result: RunResult) -> bytes:
        key = record.get("key") if isinstance(record.get("key"), str) else None
        result.volume += sum(len(value) for value in record.values() if isinstance(value, bytes))
        for name, column in self.columns.items():
            if not _same(column[position], record[name]):
                message = f"column {name!r} says {column[position]!r}, the record {record[name]!r}"
                result.findings.append(Finding("column", message, position, key))
        for name in self.images:
            self._check_image(name, record[name], position, key, result)
        return checksum(self.codec.pack(self.codec.canonical(record)))

    def _check_image(self, name: str, blob: bytes, position: int, key: str | None, result: RunResult) -> None:
        self._alive()
        picture = look(blob, effort=self._effort, decode=True)
        result.images += picture.problem is None
        told = _told(name, picture)
        if told is not None:
            finding = replace(told, position=position, key=key)
            (result.notes if finding.kind == "trailing_data" else result.findings).append(finding)


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) or (isinstance(b, float) and math.isnan(a) and math.isnan(b))


def _told(name: str, picture: Picture) -> Finding | None:
    """Return what there is to tell about the picture in field `name`."""
    seen = picture.finding
    found = Finding(seen.kind, f"{name}: {seen.reason}", None, None, name, seen.recovered, seen.exact, seen.format)
    if picture.too_large:
        return replace(found, kind="too_large", message=f"{name}: {picture.problem}", recovered=None)
    if seen.is_damaged:
        if picture.problem in (None, seen.reason):
            return found
        message = f"{found.message}; what is there does not decode: {picture.problem}"
        return replace(found, message=message, recovered=0.0, exact=True)
    if picture.problem is not None:
        message = f"{name} does not decode: {seen.reason}, {picture.problem}"
        return replace(found, kind="image", message=message, recovered=0.0, exact=True)
    return found if seen.kind == "trailing_data" else None
