"""Checks a range of records of one store: checksums, columns and pictures, in the calling process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from PIL import Image

from storeds.backends.view import place_text
from storeds.errors import DecodeError, RecordError, StoredsError
from storeds.ops.verdicts import images_of
from storeds.pictures import MAX_PIXELS, Verdict, examine, format_of_picture, read_picture_header
from storeds.pictures.decoders import check_pixels
from storeds.pictures.formats import open_picture
from storeds.pictures.header import SOI
from storeds.protocols import Backend, Meta, Record
from storeds.records.codec import RecordCodec, checksum
from storeds.records.columns import read_column
from storeds.records.role_checks import LOSSY, RoleChecker

__all__ = ["BATCH", "BatchResult", "Checker", "Finding", "column_names"]

BATCH = 64
"""Records that are read together."""

_INTACT = "intact"
_MIN_BYTES = MAX_PIXELS // 64 // 8  # of a whole JPEG of that many pixels: one bit per block


@dataclass(frozen=True)
class Finding:
    """One problem that `verify` found.

    Attributes
    ----------
    kind : str
        ``record`` (cannot be read, or its checksum differs), ``column`` (differs from the records), ``crash`` (reading
        it crashed or hung the checking process), ``id`` (the content id differs), ``unread`` (a file or an archive that should
        give records cannot be read), ``verdict`` (examining a picture gives
        another verdict than the stored one), ``too_large`` (a picture claims more pixels than storeds allocates), or the
        kind of the picture's `storeds.pictures.Verdict`.
    message : str
        The problem in words.
    position : int or None
        The position of the record.
    key : str or None
        The key of the record.
    image : str or None
        The field of the picture.
    recovered : float or None
        The share of the picture that is left, 0 to 1.
    format : str or None
        The format of a damaged picture that is not a JPEG: ``PNG``, ``HTML``, ``empty``, ….
    """

    kind: str
    message: str
    position: int | None = None
    key: str | None = None
    image: str | None = None
    recovered: float | None = None
    format: str | None = None

    @property
    def severity(self) -> str:
        """The severity for people: ``harmless``, the share that is left (``62 %``), or nothing."""
        if self.kind == "trailing_data":
            return "harmless"
        if self.recovered is None:
            return ""
        return Verdict(self.kind, self.recovered).share

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return {**asdict(self), "severity": self.severity}


@dataclass
class BatchResult:
    """The result of checking the records up to ``stop`` that no batch before it has.

    Attributes
    ----------
    digests : bytes or None
        The checksums of the records, 8 bytes each; None if a record could not be read.
    images, examined : int
        Pictures of which at least a part decodes, and pictures that were examined.
    volume : int
        Bytes of blobs.
    notes : list of Finding
        Harmless findings: bytes after the end of a picture, masks that are JPEGs.
    """

    stop: int
    digests: bytes | None = b""
    images: int = 0
    examined: int = 0
    volume: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


def column_names(meta: Meta) -> list[str]:
    """Return the fields that engines store as columns too."""
    return [name for name, declared in meta.fields.items() if declared.is_scalar or declared.kind == "str"]


class Checker:
    """Checks ranges of records of one backend, and compares them with `columns`, which it reads first."""

    def __init__(self, backend: Backend, columns: Sequence[str] = ()) -> None:
        self._backend = backend
        self._codec = RecordCodec(backend.meta.fields)
        self._images = images_of(backend)
        self._lossy: list[str] = []
        self._roles = RoleChecker(backend.meta.fields, read_picture_header, self._lossy.append)
        self._columns = {name: read_column(backend, name) for name in columns}

    def read_column(self, name: str) -> Finding | None:
        """Read a column, and compare it with the records from now on; return what is wrong with it."""
        try:
            self._columns[name] = read_column(self._backend, name)
        except StoredsError as error:
            return Finding("column", str(error))
        return None

    def check(self, start: int, stop: int) -> BatchResult:
        """Check the records ``[start, stop)``."""
        result = BatchResult(stop)
        digests: list[bytes] = []
        for position, record in enumerate(self._backend.get_many(range(start, stop), tuple(self._codec.fields)), start):
            if isinstance(record, RecordError):
                result.findings.append(Finding("record", record.reason or str(record), position, record.key))
            else:
                before = len(result.findings)
                digests.append(self._check_record(position, record, result))
                self._name(result.findings, before)
        result.digests = b"".join(digests) if len(digests) == stop - start else None
        return result

    def _name(self, findings: list[Finding], start: int) -> None:
        """Add to the findings from `start` on what else names their records."""
        for at, found in enumerate(findings[start:], start):
            if found.position is not None:
                findings[at] = replace(found, message=found.message + place_text(self._backend, found.position))

    def _check_record(self, position: int, record: Record, result: BatchResult) -> bytes:
        key = record.get("key") if isinstance(record.get("key"), str) else None
        result.volume += sum(len(value) for value in record.values() if isinstance(value, bytes))
        for name, column in self._columns.items():
            if not _same(column[position], record[name]):
                message = f"column {name!r} has {column[position]!r}, the record has {record[name]!r}"
                result.findings.append(Finding("column", message, position, key))
        for name in self._images:
            self._check_image(name, record, position, key, result)
        if self._roles:
            self._check_roles(position, record, key, result)
        return checksum(self._codec.pack(self._codec.canonical(record)))

    def _check_roles(self, position: int, record: Record, key: str | None, result: BatchResult) -> None:
        self._lossy.clear()
        fault = self._roles.fault(record, self._backend.meta.attrs.get("classes"))
        if fault is not None:
            result.findings.append(Finding("value", fault, position, key))
        for mask in self._lossy:
            result.notes.append(Finding("lossy_mask", f"field {mask!r}: {LOSSY}", position, key, mask))

    def _check_image(self, name: str, record: Record, position: int, key: str | None, result: BatchResult) -> None:
        blob, stored = record[name], Verdict.of(record, name)
        is_intact = stored is not None and stored.finding == _INTACT
        large = _too_large(blob, is_whole=is_intact)
        if large is not None:
            result.findings.append(Finding("too_large", f"{name}: {large}", position, key, name))
            return
        if is_intact:  # its checksum proves that it is the examined picture
            result.images += 1
            return
        result.examined += 1
        now = examine(blob)
        verdict, kind, message = _compare(stored, now)
        result.images += verdict.recovered > 0
        if kind == _INTACT:
            return
        form = None if verdict.is_whole or blob.startswith(SOI) else format_of_picture(blob)
        message = f"{name}: {message}"
        found = Finding(kind, message, position, key, name, verdict.recovered, form)
        (result.notes if kind == "trailing_data" else result.findings).append(found)


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) or (isinstance(b, float) and math.isnan(a) and math.isnan(b))


def _compare(stored: Verdict | None, now: Verdict) -> tuple[Verdict, str, str]:
    """Return the verdict that counts, the kind of the finding and its message.

    Parameters
    ----------
    stored : Verdict or None
    now : Verdict
        The verdict on the picture as it is.
    """
    if stored is None or (stored.finding, stored.recovered) == (now.finding, now.recovered):
        return now, now.finding, now.reason
    if stored.is_whole:
        said = f"its stored verdict is {stored.finding}"
        return now, "verdict", f"{said}, but examining it gives {now.finding}: {now.reason}"
    # A picture that was repaired or encoded again looks different from its original.
    since = "its bytes were repaired since" if now.is_whole else f"its bytes are {now.finding} now: {now.reason}"
    return stored, stored.finding, f"the picture was damaged when it was stored; {since}"


def _too_large(blob: bytes, *, is_whole: bool) -> str | None:
    """Return why a picture has too many pixels to be read, or None; bytes that are not a picture give None.

    Parameters
    ----------
    is_whole : bool
        Whether it is undamaged; then the header of a small JPEG need not be read.
    """
    if is_whole and len(blob) < _MIN_BYTES and blob.startswith(SOI):
        return None
    try:
        with open_picture(blob) as image:
            check_pixels(*image.size, MAX_PIXELS)
    except DecodeError as error:
        return str(error)
    except Image.DecompressionBombError as error:
        return f"it claims more pixels than storeds allocates: {error}"
    except Exception:  # decoders raise any exception on damaged bytes
        return None
    return None
