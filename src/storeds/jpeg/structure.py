"""Walks the markers of a JPEG: its frame, its scans, its tables, and where and how the walk ended.

ITU-T T.81, annex B. Files are walked because an ``FF D9`` at their end proves nothing: a thumbnail or a comment may hold
it. The walk takes time in proportion to the bytes, whatever they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from storeds.jpeg.finding import Frame

__all__ = [
    "EOI",
    "MARKER",
    "SOI",
    "Component",
    "Scan",
    "Structure",
    "blocks_of",
    "coverage",
    "grid_of",
    "parse",
    "units_of",
]


SOI, EOI = b"\xff\xd8", b"\xff\xd9"

# No encoder comes near; libjpeg-turbo's own fuzzers refuse beyond 500, each costing a pass over the picture.
_MAX_SCANS = 100
_MAX_SEGMENTS = 10_000

_DHT, _EOI, _SOS, _DQT, _DRI, _APP2 = 0xC4, 0xD9, 0xDA, 0xDB, 0xDD, 0xE2
_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_PROCESSES = {0: "baseline", 1: "extended", 2: "progressive", 3: "lossless"}
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))
_SEGMENTS = frozenset((0xC4, 0xCC, *range(0xDA, 0xE0), *range(0xE0, 0xF0), 0xFE)) | _FRAMES

# In entropy-coded data FF is followed by 00 (stuffing) or FF (fill), and by D0-D7 where there is a restart interval.
MARKER = re.compile(rb"\xff[^\x00\xff]")
_STUFFING = b"\x00\xff"
_IN_DATA = _STUFFING + bytes(range(0xD0, 0xD8))
# Bytes looked at in one go: few enough that scans which end soon do not cost a pass over the file each.
_CHUNK = 1 << 16


class Component(NamedTuple):
    """A colour component: its identifier, its sampling factors, and its quantisation table."""

    id: int
    h: int
    v: int
    table: int


class Scan(NamedTuple):
    """One scan: what it carries, and where its entropy-coded data lies.

    ``parts`` holds, for each component in the scan, (place in the frame, DC table, AC table); ``tables`` says where the
    Huffman tables in force are, by (class, identifier), from the counts on. ``restarts`` are the restart markers in the
    data, each as its last byte, where there is an interval.
    """

    start: int
    stop: int
    parts: tuple[tuple[int, int, int], ...]
    ss: int
    se: int
    ah: int
    al: int
    interval: int
    tables: dict[tuple[int, int], tuple[int, int]]
    restarts: bytes = b""


@dataclass(slots=True)
class Structure:
    """What a walk over the markers met.

    Attributes
    ----------
    ending : str
        ``eoi``: an end marker was met. ``cut``: the bytes ran out. ``stray``: something stood where it cannot.
    end : int
        After the end marker; after the last whole part; or where the stray thing is.
    in_scan : bool
        Whether the bytes ran out inside the last scan's data.
    filled : int
        How many zeros at the end were left out, as they are no data.
    junk : (int, int) or None
        The first bytes outside a scan that belong to nothing, from and to.
    undefined : str
        Which quantisation table a scan needs that was not defined before it, if any.
    reason : str
        For ``stray``, what is wrong; for ``cut``, in what.
    """

    ending: Literal["eoi", "cut", "stray"] = "cut"
    end: int = 2
    in_scan: bool = False
    reason: str = ""
    frame: Frame | None = None
    components: list[Component] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    huffman: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    quantisation: set[int] = field(default_factory=set)
    undefined: str = ""
    interval: int = 0
    multi_picture: bool = False
    filled: int = 0
    junk: tuple[int, int] | None = None

    def stray(self, at: int, reason: str) -> Structure:
        """Return this walk, ended at something that cannot stand there."""
        self.ending, self.end, self.reason = "stray", at, reason
        return self

    def cut(self, at: int, reason: str, *, in_scan: bool = False) -> Structure:
        """Return this walk, ended because the bytes ran out."""
        self.ending, self.end, self.reason, self.in_scan = "cut", at, reason, in_scan
        return self


def parse(blob: bytes, start: int = 0) -> Structure:  # noqa: C901  # runs on every read, so no call for every segment
    """Walk `blob` from the start marker at byte `start` until its end marker or as far as it makes sense."""
    found = Structure()
    at, size = start + 2, len(blob)
    for _ in range(_MAX_SEGMENTS):
        if at + 2 > size:
            return found.cut(at, "between two segments")
        marker = blob[at + 1]
        if blob[at] != 0xFF or marker == 0:
            # Decoders look for the next marker, too.
            match = MARKER.search(blob, at)
            if match is None:
                return found.stray(at, f"byte {at} is {blob[at]:02x} where a marker must begin with ff")
            found.junk = found.junk or (at, match.start())
            at = match.start()
            continue
        if marker == _EOI:
            found.ending, found.end = "eoi", at + 2
            return found
        if marker == 0xFF:
            at += 1
            continue
        if marker in _STANDALONE:
            at += 2
            continue
        if marker not in _SEGMENTS:
            return found.stray(at, f"the marker ff {marker:02x} at byte {at} cannot stand there")
        if at + 4 > size:
            return found.cut(at, f"in the length of the segment at byte {at}")
        stop = at + 2 + (blob[at + 2] << 8 | blob[at + 3])
        if stop < at + 4:
            return found.stray(at, f"the segment at byte {at} claims a length of {stop - at - 2}")
        if stop > size:
            return found.cut(at, f"in the segment ff {marker:02x} at byte {at}")
        reason = _segment(found, blob, marker, at + 4, stop)
        if reason:
            return found.stray(at, f"{reason} at byte {at}")
        at = stop
        if marker == _SOS:
            at, restarts = _end_of_data(blob, at, found.interval)
            found.scans[-1] = found.scans[-1]._replace(stop=at, restarts=restarts)
            if at == size:
                return found.cut(at, "in the data of a scan", in_scan=True)
            if len(found.scans) > _MAX_SCANS:
                return found.stray(at, f"there are more than {_MAX_SCANS} scans")
    return found.stray(at, f"there are more than {_MAX_SEGMENTS:,} segments")


def _end_of_data(blob: bytes, at: int, interval: int) -> tuple[int, bytes]:
    """Return where the data of a scan end, and the restart markers in them."""
    if not interval:
        match = MARKER.search(blob, at)
        return (match.start() if match else len(blob)), b""
    # There may be a restart marker every few bytes: NumPy finds them all in less time than a search stops at each.
    restarts = []
    for first in range(at, len(blob), _CHUNK):
        data = np.frombuffer(blob, np.uint8, min(_CHUNK + 1, len(blob) - first), first)
        (places,) = (data[:-1] == 0xFF).nonzero()
        seconds = data[1:][places].tobytes()
        others = seconds.translate(None, _IN_DATA)
        stop = seconds.index(others[0]) if others else len(seconds)
        restarts.append(seconds[:stop].translate(None, _STUFFING))
        if others:
            return first + int(places[stop]), b"".join(restarts)
    return len(blob), b"".join(restarts)


def _segment(found: Structure, blob: bytes, marker: int, start: int, stop: int) -> str:
    """Take in the segment ``blob[start:stop]``; return what is wrong with it, or nothing."""
    if marker == _SOS:
        return _scan(found, blob[start:stop], stop)
    if marker in _FRAMES:
        return _frame(found, blob[start:stop], marker)
    if marker == _DHT:
        _huffman(found, blob, start, stop)
    elif marker == _DQT:
        _quantisation(found, blob, start, stop)
    elif marker == _DRI:
        if stop - start != 2:
            return "a restart interval of the wrong length"
        found.interval = int.from_bytes(blob[start:stop], "big")
    elif marker == _APP2:
        found.multi_picture = found.multi_picture or blob[start : start + 4] == b"MPF\x00"
    return ""


def _huffman(found: Structure, blob: bytes, start: int, stop: int) -> None:
    """Note the whole tables of a segment."""
    while start + 17 <= stop:
        end = start + 17 + sum(blob[start + 1 : start + 17])
        if end <= stop:
            found.huffman[blob[start] >> 4, blob[start] & 15] = start + 1, end
        start = end


def _quantisation(found: Structure, blob: bytes, start: int, stop: int) -> None:
    """Note the whole tables of a segment, of 64 values of one byte or two."""
    while start < stop:
        end = start + (129 if blob[start] >> 4 else 65)
        if end <= stop:
            found.quantisation.add(blob[start] & 15)
        start = end


def _frame(found: Structure, body: bytes, marker: int) -> str:
    if found.frame is not None:
        return "a second frame header"
    if len(body) < 6 or len(body) != 6 + 3 * body[5] or not body[5]:
        return "a frame header of the wrong length"
    number = marker - 0xC0
    process = _PROCESSES[number & 3] if not number & 4 else "hierarchical"
    process += ", arithmetic" if number & 8 else ""
    height, width = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    found.frame = Frame(width, height, body[5], process, body[0])
    if not width or not height:
        return f"a frame of {width} x {height} pixels"
    for at in range(6, len(body), 3):
        h, v = body[at + 1] >> 4, body[at + 1] & 15
        if not (1 <= h <= 4 and 1 <= v <= 4):
            return "a frame header with impossible sampling factors"
        found.components.append(Component(body[at], h, v, body[at + 2]))
    return ""


def _scan(found: Structure, body: bytes, start: int) -> str:
    if found.frame is None:
        return "a scan before any frame header"
    count = body[0] if body else 0
    if not 1 <= count <= 4 or len(body) != 4 + 2 * count:
        return "a scan header of the wrong length"
    places = {component.id: place for place, component in enumerate(found.components)}
    parts = []
    for at in range(1, 1 + 2 * count, 2):
        if body[at] not in places:
            return f"a scan of component {body[at]}, which the frame lacks,"
        parts.append((places[body[at]], body[at + 1] >> 4, body[at + 1] & 15))
    ss, se, approximation = body[-3:]
    if found.frame.process.startswith("progressive") and not (ss <= se <= 63 and (ss == 0) == (se == 0)):
        return "a scan header with an impossible band"
    if not found.undefined and not found.frame.process.startswith("lossless"):
        for place, _, _ in parts:
            if found.components[place].table not in found.quantisation:
                found.undefined = f"quantisation table {found.components[place].table} of component {place + 1}"
    ah, al = approximation >> 4, approximation & 15
    tables = dict(found.huffman)
    found.scans.append(Scan(start, start, tuple(parts), ss, se, ah, al, found.interval, tables))
    return ""


_BAND = 64


def coverage(structure: Structure, scans: Sequence[Scan]) -> float:
    """Return the share of the coefficients that `scans` carry; 1.0 exactly if every bit of every one.

    A coefficient of which n bits are still to come counts for 1 / 2**n.
    """
    sequential = structure.frame is None or not structure.frame.process.startswith("progressive")
    if sequential and any(len(scan.parts) == len(structure.components) for scan in scans):
        return 1.0
    # Bits still to come of each coefficient; a refinement counts only where all before it has come (Ah).
    missing: list[list[int | None]] = [[None] * _BAND for _ in structure.components]
    for scan in scans:
        ss, se, ah, al = (0, _BAND - 1, 0, 0) if sequential else (scan.ss, scan.se, scan.ah, scan.al)
        for place, _, _ in scan.parts:
            band = missing[place]
            for k in range(ss, se + 1):
                if not ah or band[k] == ah:
                    band[k] = al
    weights = [component.h * component.v for component in structure.components]
    carried = sum(
        weight * sum(0.5**bits for bits in band if bits is not None)
        for weight, band in zip(weights, missing, strict=True)
    )
    return carried / (_BAND * sum(weights))


def grid_of(structure: Structure, component: Component) -> tuple[int, int]:
    """Return the (columns, rows) of blocks, or of samples in a lossless file, that a scan of this component alone holds."""
    assert structure.frame is not None
    widest = max(other.h for other in structure.components)
    tallest = max(other.v for other in structure.components)
    width = -(-structure.frame.width * component.h // widest)
    height = -(-structure.frame.height * component.v // tallest)
    side = _side(structure)
    return -(-width // side), -(-height // side)


def units_of(structure: Structure, scan: Scan) -> int:
    """Return how many MCUs `scan` holds."""
    assert structure.frame is not None
    if len(scan.parts) == 1:
        columns, rows = grid_of(structure, structure.components[scan.parts[0][0]])
        return columns * rows
    side = _side(structure)
    widest = side * max(component.h for component in structure.components)
    tallest = side * max(component.v for component in structure.components)
    return -(-structure.frame.width // widest) * -(-structure.frame.height // tallest)


def _side(structure: Structure) -> int:
    """Return how many samples a side a block has."""
    assert structure.frame is not None
    return 1 if structure.frame.process.startswith("lossless") else 8


def blocks_of(structure: Structure, scan: Scan) -> list[tuple[int, int]]:
    """Return the (DC table, AC table) of each block of one MCU of `scan`."""
    if len(scan.parts) == 1:
        return [scan.parts[0][1:]]
    return [
        (dc, ac)
        for place, dc, ac in scan.parts
        for _ in range(structure.components[place].h * structure.components[place].v)
    ]
