"""Turns rows into records for a store: reads, examines and encodes pictures, in threads and in order."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from PIL import Image, ImageOps

from storeds._utils.text import counted
from storeds.backends.role_checks import RoleChecker
from storeds.jpeg import Verdict, examine, repair, set_verdict
from storeds.jpeg.formats import decode_reason
from storeds.jpeg.restarts import RestartMarker
from storeds.ops.common import NOT_EXAMINED, in_order, is_fast, mark_picture
from storeds.ops.packing.rows import Bad, BadItem, Listing, Row, Rows
from storeds.ops.packing.splits import Split
from storeds.protocols import Record

__all__ = ["Prepared", "Preparer", "prepared_chunks"]

_CHUNK_ITEMS = 256
_AHEAD_BYTES = 4 << 20  # that all threads together read ahead: as much as an engine writes at once
_MIN_CHUNK_BYTES = 256 << 10
_QUALITY = 90


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result for one item of a source.

    Attributes
    ----------
    record : dict or None
        The record with the verdicts on its pictures; None if there is nothing to store.
    reason : str or None
        What is wrong with it.
    damaged : bool
        Whether part of one of its pictures is missing or wrong.
    kinds : list of str
        The kind of the verdict on each of its pictures.
    fast_crops : int
        How many of its pictures are ready for fast crops.
    restarts : list of str
        For each of its pictures, the outcome of `RestartMarker.mark`, if that was called.
    """

    record: Record | None
    reason: str | None = None
    damaged: bool = False
    kinds: Sequence[str] = ()
    fast_crops: int = 0
    restarts: Sequence[str] = ()


@dataclass(frozen=True)
class Preparer:
    """Turns items of a source into records. Thread-safe.

    Parameters
    ----------
    rows : Rows
    max_side : int or None
        Scale larger images down to this many pixels on their longer side, and encode them again.
    quality : int or None
        Encode every image as JPEG of this quality.
    split : Split, optional
        Gives the value of the field ``split``.
    check : bool
        Examine each picture unless the source has a verdict on it.
    marker : RestartMarker, optional
        Puts restart markers into each JPEG.
    roles : RoleChecker, optional
        That of the writer, which then does not check records again.
    """

    rows: Rows
    max_side: int | None = None
    quality: int | None = None
    split: Split | None = None
    check: bool = True
    marker: RestartMarker | None = None
    roles: RoleChecker | None = None

    def prepare(self, index: int, item: Row | Bad) -> Prepared:
        """Read and finish item `index`; a bad item gives a reason instead of an error."""
        if isinstance(item, Bad):
            return Prepared(None, item.reason)
        try:
            record = dict(self.rows.read(item))
        except BadItem as error:
            return Prepared(None, str(error))
        if self.split is not None:
            record["split"] = self.split.of(index, record)
        reasons, kinds, damaged, fast_crops, outcomes = [], list[str](), False, 0, []
        pictures = {name: declared for name, declared in self.rows.fields.items() if declared.kind == "image"}
        for name, declared in pictures.items():
            reason = self._finish_picture(record, name)
            if reason is not None:
                reasons.append(reason if len(pictures) == 1 else f"field {name!r} {reason}")
            if self.marker is not None and declared.role != "mask":  # masks are decoded whole
                outcomes.append(mark_picture(self.marker, record, name))
            verdict = Verdict.of(record, name)
            kinds.append(NOT_EXAMINED if verdict is None else verdict.finding)
            damaged = damaged or not (verdict is None or verdict.is_whole)
            fast_crops += is_fast(record, name)
        if self.roles is not None:
            fault = next(self.roles.faults(record, self.rows.attrs.get("classes")), None)
            if fault is not None:
                return Prepared(None, fault)
        return Prepared(record, "; ".join(reasons) or None, damaged, kinds, fast_crops, outcomes)

    @property
    def encodes(self) -> bool:
        """Whether images may be encoded again."""
        return self.max_side is not None or self.quality is not None

    @property
    def is_busy(self) -> bool:
        """Whether preparing takes much more time than reading."""
        return self.check or self.encodes or self.marker is not None

    def _finish_picture(self, record: Record, image: str) -> str | None:
        """Put field `image` of `record` into its final form and add its verdict; return why it is bad."""
        blob = record[image]
        verdict = Verdict.of(record, image)
        if verdict is None and self.check:
            verdict = examine(blob)
        reason = _unreadable(blob, verdict)
        if reason is None and self.encodes:
            record[image], verdict, reason = self._encoded(blob, verdict)
        set_verdict(record, image, verdict)
        return reason

    def _encoded(self, blob: bytes, verdict: Verdict | None) -> tuple[bytes, Verdict | None, str | None]:
        """Return the picture to store, its verdict, and why it is bad.

        A damaged picture keeps the verdict on its original bytes, because the new ones look whole.
        """
        try:
            # Pillow reads only the header here.
            with Image.open(io.BytesIO(blob)) as image:
                large = self.max_side is not None and max(image.size) > self.max_side
            if not large and self.quality is None:
                return blob, verdict, None
            found = verdict or examine(blob)
            if verdict is None and not found.is_whole and found.finding != "missing_eoi":
                reason = (
                    f"is damaged: {found.reason}; encoded again it would look whole, so remove check=False (--no-check), "
                    "which stores no verdict, or pack it without max_side and quality"
                )
                return blob, None, reason
            encoded = self._encode(blob if found.is_whole else repair(blob))
        except Exception as error:  # decoders raise any exception on damaged bytes
            return blob, verdict, _unreadable_image(blob, decode_reason(error))
        return encoded, Verdict("intact", 1.0) if verdict is not None and verdict.is_whole else verdict, None

    def _encode(self, blob: bytes) -> bytes:
        with Image.open(io.BytesIO(blob)) as opened:
            image = ImageOps.exif_transpose(opened)
            profile = opened.info.get("icc_profile")
            if self.max_side is not None:
                image.thumbnail((self.max_side, self.max_side), Image.Resampling.LANCZOS)
            if image.mode not in ("L", "RGB", "CMYK"):
                image = image.convert("RGB")
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=self.quality or _QUALITY, icc_profile=profile)
        return buffer.getvalue()


def _unreadable(blob: bytes, verdict: Verdict | None) -> str | None:
    """Return why nothing of a picture can be read: from its verdict or, without one, from opening it with Pillow."""
    if not blob:
        return "is empty (0 bytes)"
    if verdict is not None:
        return None if verdict.recovered else _unreadable_image(blob, verdict.reason or verdict.finding)
    try:
        with Image.open(io.BytesIO(blob)):
            return None
    except Exception as error:  # decoders raise whatever they like on damaged bytes
        return _unreadable_image(blob, decode_reason(error))


def _unreadable_image(blob: bytes, why: str) -> str:
    return f"cannot be read as an image ({counted(len(blob), 'byte')} beginning {blob[:4].hex(' ')}): {why}"


Chunk: TypeAlias = tuple[range, list[Row | Bad], list[Prepared]]


def prepared_chunks(preparer: Preparer, listing: Listing, start: int, workers: int | None) -> Iterator[Chunk]:
    """Yield ranges of items from `start` on, in order, with the items and their results. Memory is bounded in bytes.

    Parameters
    ----------
    workers : int, optional
        Threads that read, examine and encode; 0 means one, and the default is one per CPU.
    """
    threads = max(workers or 1, 1) if workers is not None or not preparer.is_busy else len(os.sched_getaffinity(0))
    most = max(_AHEAD_BYTES // threads, _MIN_CHUNK_BYTES)

    def prepare(chunk: tuple[range, list[Row | Bad]]) -> list[Prepared]:
        return [preparer.prepare(index, item) for index, item in zip(*chunk, strict=True)]

    for (numbers, items), prepared in in_order(listing.chunks(start, most, _CHUNK_ITEMS), prepare, threads):
        yield numbers, items, prepared
