"""Walks the markers of a JPEG: its header segments, its frame, its scans and tables, and where the walk ended.

See ITU-T T.81, annex B. `parse` walks a whole file, because ``FF D9`` at its end proves nothing: a thumbnail or a
comment may hold these bytes. `read_header` reads only what stands before the data of the first scan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = [
    "EOI",
    "MAX_PIXELS",
    "METADATA",
    "SOI",
    "Component",
    "Grid",
    "Header",
    "Scan",
    "Structure",
    "coverage",
    "parse",
    "read_header",
    "without_harmless",
]

MAX_PIXELS = 1 << 27
"""Maximum number of pixels for which storeds allocates memory. A phone's largest picture has 108 million."""

SOI, EOI = b"\xff\xd8", b"\xff\xd9"

METADATA = frozenset((*range(0xE0, 0xF0), 0xFE))
"""The markers of segments that no decoder needs: APPn and comments."""

_SOF0, _SOF1, _EOI, _SOS, _DRI, _APP1, _APP2, _COM = 0xC0, 0xC1, 0xD9, 0xDA, 0xDD, 0xE1, 0xE2, 0xFE
_FRAMES = frozenset(range(_SOF0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEGMENTS = METADATA | frozenset((*range(_SOF0, 0xD0), *range(_SOS, 0xE0))) - {0xC8}
_READ = _FRAMES | {_SOS, _DRI, _APP2}
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))
_PROCESSES = ("baseline", "extended", "progressive", "lossless")

# In entropy-coded data FF is followed by 00 (stuffing) or FF (fill), and by D0-D7 where there is a restart interval.
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_MARKER_BUT_RESTART = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class Component(NamedTuple):
    """A colour component: its identifier and its sampling factors."""

    id: int
    h: int
    v: int


class Scan(NamedTuple):
    """One scan: the range of its entropy-coded data, the places of its components in the frame, and its parameters."""

    start: int
    stop: int
    places: tuple[int, ...]
    ss: int
    se: int
    ah: int
    al: int
    interval: int


class Grid(NamedTuple):
    """The MCUs of a scan: the width and height of one in pixels, how many a row has, and how many rows there are."""

    width: int
    height: int
    columns: int
    rows: int

    @property
    def units(self) -> int:
        """How many MCUs there are."""
        return self.columns * self.rows


@dataclass(slots=True)
class Structure:
    """Result of a walk over the markers.

    Attributes
    ----------
    ending : str
        ``eoi``: the walk reached an end marker. ``cut``: the bytes ran out. ``stray``: it met something invalid.
    end : int
        Position after the end marker, after the last whole part, or of what is invalid.
    in_scan : bool
        Whether the bytes ran out in the data of the last scan.
    reason : str
        For ``stray``, what is wrong; for ``cut``, in which part the bytes ran out.
    process : str
        ``baseline``, ``extended``, ``progressive``, ``lossless`` or ``hierarchical``, followed by ``, arithmetic`` for
        arithmetic coding. Empty without a frame header.
    precision : int
        Bits per sample.
    width, height : int
        Pixels.
    components : list of Component
        1 for grayscale, 3 for colour, 4 for CMYK and YCCK.
    scans : list of Scan
    segments : list of (int, int, int)
        Marker, start and stop of each segment.
    interval : int
        MCUs between two restart markers, 0 if there are none, as the last segment says.
    multi_picture : bool
        Whether the file has an index of several pictures.
    has_junk : bool
        Whether there are surplus bytes between two segments, which decoders skip with a warning.
    """

    ending: Literal["eoi", "cut", "stray"] = "cut"
    end: int = 2
    in_scan: bool = False
    reason: str = ""
    process: str = ""
    precision: int = 0
    width: int = 0
    height: int = 0
    components: list[Component] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    segments: list[tuple[int, int, int]] = field(default_factory=list)
    interval: int = 0
    multi_picture: bool = False
    has_junk: bool = False

    @property
    def pixels(self) -> int:
        """How many pixels the frame has."""
        return self.width * self.height

    @property
    def is_sequential(self) -> bool:
        """Whether each scan holds all bits of its coefficients."""
        return self.process.startswith(("baseline", "extended"))

    @property
    def is_arithmetic(self) -> bool:
        """Whether the codes are not Huffman codes."""
        return self.process.endswith("arithmetic")

    def grid(self, places: Sequence[int]) -> Grid:
        """Return the MCUs of a scan of the components at `places`."""
        side = 1 if self.process.startswith("lossless") else 8
        across, down = max(each.h for each in self.components), max(each.v for each in self.components)
        if len(places) > 1:
            width, height = side * across, side * down
            return Grid(width, height, -(-self.width // width), -(-self.height // height))
        # A scan of one component has one block per MCU, and none for rows and columns that only complete an MCU.
        only = self.components[places[0]]
        columns, rows = -(-self.width * only.h // across), -(-self.height * only.v // down)
        return Grid(side * across // only.h, side * down // only.v, -(-columns // side), -(-rows // side))

    def stopped(self, ending: Literal["cut", "stray"], at: int, reason: str) -> Structure:
        """End the walk where the bytes ran out, or at something invalid."""
        self.ending, self.end, self.reason = ending, at, reason
        return self


def parse(blob: bytes) -> Structure:  # noqa: C901  # one loop without calls is faster
    """Walk `blob` from its start marker to its end marker, or as far as it is valid.

    Takes time in proportion to the bytes.
    """
    found = Structure()
    at, size = 2, len(blob)
    while at + 2 <= size:
        marker = blob[at + 1]
        if blob[at] != 0xFF or marker == 0:
            # Search for the next marker, as decoders do.
            match = _MARKER.search(blob, at)
            if match is None:
                return found.stopped("stray", at, f"byte {at} is {blob[at]:02x}, where a marker must begin with ff")
            found.has_junk, at = True, match.start()
        elif marker == _EOI:
            found.ending, found.end = "eoi", at + 2
            return found
        elif marker == 0xFF:
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker not in _SEGMENTS:
            return found.stopped("stray", at, f"the marker ff {marker:02x} at byte {at} is invalid there")
        else:
            stop = at + 2 + (blob[at + 2] << 8 | blob[at + 3]) if at + 4 <= size else size + 1
            if stop > size:
                return found.stopped("cut", at, f"in the segment ff {marker:02x} at byte {at}")
            reason = _segment(found, marker, blob[at + 4 : stop], stop) if marker in _READ else ""
            if reason or stop < at + 4:
                return found.stopped("stray", at, f"{reason or 'a segment without a length'} at byte {at}")
            found.segments.append((marker, at, stop))
            at = stop
            if marker == _SOS:
                match = (_MARKER_BUT_RESTART if found.interval else _MARKER).search(blob, at)
                at = match.start() if match else size
                found.scans[-1] = found.scans[-1]._replace(stop=at)
                if match is None:
                    found.in_scan = True
                    return found.stopped("cut", at, "in the data of a scan")
    return found.stopped("cut", at, "between two segments")


def _segment(found: Structure, marker: int, body: bytes, stop: int) -> str:
    """Add the segment with this body, which ends at `stop`; return what is wrong with it, or an empty text."""
    if marker == _SOS:
        return _scan(found, body, stop)
    if marker in _FRAMES:
        return _frame(found, body, marker)
    if marker == _DRI:
        if len(body) != 2:
            return "a restart interval of the wrong length"
        found.interval = int.from_bytes(body)
    elif marker == _APP2:
        found.multi_picture = found.multi_picture or body.startswith(b"MPF\x00")
    return ""


def _frame(found: Structure, body: bytes, marker: int) -> str:
    if found.process:
        return "a second frame header"
    if len(body) < 6 or len(body) != 6 + 3 * body[5] or not body[5]:
        return "a frame header of the wrong length"
    number = marker - _SOF0
    found.process = _PROCESSES[number & 3] if not number & 4 else "hierarchical"
    found.process += ", arithmetic" if number & 8 else ""
    found.precision = body[0]
    found.height, found.width = body[1] << 8 | body[2], body[3] << 8 | body[4]
    found.components = [Component(body[at], body[at + 1] >> 4, body[at + 1] & 15) for at in range(6, len(body), 3)]
    if not found.pixels:
        return f"a frame of {found.width} x {found.height} pixels"
    if not all(1 <= each.h <= 4 and 1 <= each.v <= 4 for each in found.components):
        return "a frame header with impossible sampling factors"
    return ""


def _scan(found: Structure, body: bytes, start: int) -> str:
    if not found.process:
        return "a scan before any frame header"
    count = body[0] if body else 0
    if not 1 <= count <= 4 or len(body) != 4 + 2 * count:
        return "a scan header of the wrong length"
    known = {component.id: place for place, component in enumerate(found.components)}
    places = []
    for number in body[1:-3:2]:
        if number not in known:
            return f"a scan of component {number}, which the frame lacks,"
        places.append(known[number])
    ss, se, approximation = body[-3:]
    if found.process.startswith("progressive") and not (ss <= se <= 63 and (ss == 0) == (se == 0)):
        return "a scan header with an impossible band"
    ah, al = approximation >> 4, approximation & 15
    found.scans.append(Scan(start, start, tuple(places), ss, se, ah, al, found.interval))
    return ""


_BAND = 64


def coverage(found: Structure, scans: Sequence[Scan]) -> float:
    """Return the share of the coefficients that `scans` hold; exactly 1.0 if they hold every bit of each.

    A coefficient that lacks n bits counts as 1 / 2**n.
    """
    is_progressive = found.process.startswith("progressive")
    if not is_progressive and any(len(scan.places) == len(found.components) for scan in scans):
        return 1.0
    # Bits that each coefficient lacks. A refinement counts only after the scans before it (Ah).
    missing: list[list[int | None]] = [[None] * _BAND for _ in found.components]
    for scan in scans:
        ss, se, ah, al = (scan.ss, scan.se, scan.ah, scan.al) if is_progressive else (0, _BAND - 1, 0, 0)
        for band in map(missing.__getitem__, scan.places):
            for k in range(ss, se + 1):
                if not ah or band[k] == ah:
                    band[k] = al
    weights = [component.h * component.v for component in found.components]
    carried = sum(
        weight * sum(0.5**bits for bits in band if bits is not None)
        for weight, band in zip(weights, missing, strict=True)
    )
    return carried / (_BAND * sum(weights))


def without_harmless(blob: bytes, found: Structure) -> bytes:
    """Return a copy without what libjpeg warns of and ignores.

    Comments replace the metadata, and the first scan of a sequential frame gets its only parameters.
    """
    copy = bytearray(blob)
    for marker, at, stop in found.segments:
        if marker in METADATA:
            copy[at + 1] = _COM
        elif marker == _SOS:
            if found.process in ("baseline", "extended"):
                copy[stop - 3 : stop] = b"\x00\x3f\x00"
            break
    return bytes(copy)


class Header(NamedTuple):
    """Contents of the segments before the data of the first scan.

    Attributes
    ----------
    height, width : int
        Pixels.
    components : int
        1 for grayscale, 3 for colour, 4 for CMYK and YCCK.
    height_at : int
        Position of the two bytes of the height.
    in_one_scan : bool
        Whether the first scan holds all components of a baseline or extended frame. Then there is no other scan.
    interval : int
        MCUs between two restart markers; 0 if there are none.
    data_at : int
        Position of the data of the first scan.
    has_exif : bool
        Whether there is a segment that may hold an EXIF orientation.
    """

    height: int
    width: int
    components: int
    height_at: int
    in_one_scan: bool
    interval: int
    data_at: int
    has_exif: bool


def read_header(blob: bytes) -> Header | None:
    """Return the header of a JPEG, or None where a segment of it is out of order.

    Takes a few microseconds, whatever the size of the file, and detects no damage.
    """
    frame, interval, has_exif = 0, 0, False
    at, size = 2, len(blob) if blob.startswith(SOI) else 0
    while at + 4 <= size and blob[at] == 0xFF:
        marker, stop = blob[at + 1], at + 2 + (blob[at + 2] << 8 | blob[at + 3])
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker not in _SEGMENTS or stop > size or stop < at + 4:
            return None
        if marker == _SOS:
            return _header(blob, frame, at, interval, stop, has_exif) if frame else None
        if marker in _FRAMES:
            if frame:
                return None
            frame = at
        elif marker == _DRI and stop - at == 6:
            interval = blob[at + 4] << 8 | blob[at + 5]
        elif marker == _APP1:
            has_exif = True
        at = stop
    return None


def _header(blob: bytes, frame: int, scan: int, interval: int, data: int, has_exif: bool) -> Header | None:
    height, width = blob[frame + 5] << 8 | blob[frame + 6], blob[frame + 7] << 8 | blob[frame + 8]
    components = blob[frame + 9]
    if not height or not width or (blob[frame + 2] << 8 | blob[frame + 3]) != 8 + 3 * components:
        return None
    in_one_scan = blob[frame + 1] in (_SOF0, _SOF1) and blob[scan + 4] == components
    return Header(height, width, components, frame + 5, in_one_scan, interval, data, has_exif)
