"""Checks a run of records: checksums, columns, images. Reads one store, in whatever process it is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from storeds._columns import read_column
from storeds.decode import decode_pil, decode_reason
from storeds.errors import RecordError, StoredsError
from storeds.jpeg import repair
from storeds.protocols import Array, Backend, Record
from storeds.record import RecordCodec, checksum

__all__ = ["Checker", "Finding", "RunResult"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes
    ----------
    kind : str
        ``record`` (cannot be read, or its checksum differs), ``image`` (does not decode), ``repairable`` (decodes once
        its end marker is restored), ``column`` (differs from the records), ``crash`` (reading it killed the process
        that checked, or made it hang) or ``id`` (the content id differs).
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
class RunResult:
    """What was seen in the records ``[start, stop)``.

    Attributes
    ----------
    digests : bytes or None
        The checksums of the records, 8 bytes each; None if one of them could not be read.
    """

    start: int
    stop: int
    digests: bytes | None = b""
    images: int = 0
    volume: int = 0
    findings: list[Finding] = field(default_factory=list)


class Checker:
    """Checks runs of records of one backend against its columns and against themselves.

    Parameters
    ----------
    backend : Backend
    skip : collection of str
        Columns that are not to be read.
    announce : callable, optional
        Called with the name of each column before it is read.
    """

    def __init__(
        self, backend: Backend, *, skip: Collection[str] = (), announce: Callable[[str], object] | None = None
    ) -> None:
        self.backend = backend
        self.codec = RecordCodec(backend.meta.fields)
        self.images = [name for name, field in backend.meta.fields.items() if field.kind == "image"]
        self.findings: list[Finding] = []
        self.columns = dict(self._read_columns(skip, announce or (lambda name: None)))

    def _read_columns(self, skip: Collection[str], announce: Callable[[str], object]) -> Iterator[tuple[str, Array]]:
        for name, declared in self.backend.meta.fields.items():
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
        for position, record in enumerate(self.backend.get_many(range(start, stop)), start):
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
        whole = repair(blob)
        try:
            decode_pil(whole, "RGB")
        except Exception as error:  # decoders raise whatever they like on damaged bytes
            message = f"{name} does not decode: {decode_reason(error)}"
            result.findings.append(Finding("image", message, position, key))
            return
        result.images += 1
        if whole is not blob:
            message = f"{name} is a JPEG without an end marker; it decodes with one"
            result.findings.append(Finding("repairable", message, position, key))


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) or (isinstance(b, float) and math.isnan(a) and math.isnan(b))
