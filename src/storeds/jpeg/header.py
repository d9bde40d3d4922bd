"""Walks the markers of a JPEG: its header segments, its frame, its scans and tables, and where the walk ended.

See ITU-T T.81, annex B. `parse` walks a whole file, because ``FF D9`` at its end proves nothing: a thumbnail or a
comment may hold these bytes. `read_header` and `surely_opens` read only what stands before the data of the first scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from PIL import Image

__all__ = [
    "EOI",
    "MAX_PIXELS",
    "SOI",
    "Component",
    "Frame",
    "Header",
    "Scan",
    "Structure",
    "check_scans",
    "coverage",
    "grid_of",
    "parse",
    "read_header",
    "restart_codes",
    "surely_opens",
    "units_of",
    "without_harmless",
]

MAX_PIXELS = 1 << 27
"""Maximum number of pixels for which storeds allocates memory. A phone's largest picture has 108 million."""

SOI, EOI = b"\xff\xd8", b"\xff\xd9"

# No encoder comes near; libjpeg-turbo's own fuzzers refuse beyond 500, each costing a pass over the picture.
_MAX_SCANS = 100
_MAX_SEGMENTS = 10_000

_SOF0, _SOF1, _EOI, _SOS, _DQT, _DRI, _APP1, _APP2 = 0xC0, 0xC1, 0xD9, 0xDA, 0xDB, 0xDD, 0xE1, 0xE2
_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_PROCESSES = {0: "baseline", 1: "extended", 2: "progressive", 3: "lossless"}
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))
_SEGMENTS = frozenset((0xC4, 0xCC, *range(0xDA, 0xE0), *range(0xE0, 0xF0), 0xFE)) | _FRAMES

# Pillow accepts any content of Huffman tables, restart intervals and comments.
_ACCEPTED = frozenset((0xC4, 0xDD, 0xFE))
# Pillow reads this many bytes of JFIF, colour profile and Adobe segments, the length included.
_READ_BYTES = {0xE0: 9, _APP2: 16, 0xEE: 9}
_PROFILE = b"ICC_PROFILE\x00"

# In entropy-coded data FF is followed by 00 (stuffing) or FF (fill), and by D0-D7 where there is a restart interval.
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_MARKER_BUT_RESTART = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


class Frame(NamedTuple):
    """Contents of a JPEG's frame header.

    Attributes
    ----------
    width, height : int
        Pixels.
    components : int
        1 for grayscale, 3 for colour, 4 for CMYK and YCCK.
    process : str
        ``baseline``, ``extended``, ``progressive``, ``lossless`` or ``hierarchical``, followed by ``, arithmetic`` for
        arithmetic coding.
    precision : int
        Bits per sample.
    """

    width: int
    height: int
    components: int
    process: str
    precision: int


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
    has_junk : bool
        Whether there are surplus bytes between two segments, which decoders skip with a warning.
    multi_picture : bool
        Whether the file has an index of several pictures.
    reason : str
        For ``stray``, what is wrong; for ``cut``, in which part the bytes ran out.
    """

    ending: Literal["eoi", "cut", "stray"] = "cut"
    end: int = 2
    in_scan: bool = False
    reason: str = ""
    frame: Frame | None = None
    components: list[Component] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    interval: int = 0
    multi_picture: bool = False
    has_junk: bool = False

    def stray(self, at: int, reason: str) -> Structure:
        """End the walk at something invalid."""
        self.ending, self.end, self.reason = "stray", at, reason
        return self

    def cut(self, at: int, reason: str, *, in_scan: bool = False) -> Structure:
        """End the walk where the bytes ran out."""
        self.ending, self.end, self.reason, self.in_scan = "cut", at, reason, in_scan
        return self


def parse(blob: bytes) -> Structure:  # noqa: C901  # one loop without calls is faster
    """Walk `blob` from its start marker to its end marker, or as far as it is valid.

    Takes time in proportion to the bytes.
    """
    found = Structure()
    at, size = 2, len(blob)
    for _ in range(_MAX_SEGMENTS):
        if at + 2 > size:
            return found.cut(at, "between two segments")
        marker = blob[at + 1]
        if blob[at] != 0xFF or marker == 0:
            # Search for the next marker, as decoders do.
            match = _MARKER.search(blob, at)
            if match is None:
                return found.stray(at, f"byte {at} is {blob[at]:02x}, where a marker must begin with ff")
            found.has_junk, at = True, match.start()
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
            return found.stray(at, f"the marker ff {marker:02x} at byte {at} is invalid there")
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
            match = (_MARKER_BUT_RESTART if found.interval else _MARKER).search(blob, at)
            at = match.start() if match else size
            found.scans[-1] = found.scans[-1]._replace(stop=at)
            if at == size:
                return found.cut(at, "in the data of a scan", in_scan=True)
            if len(found.scans) > _MAX_SCANS:
                return found.stray(at, f"there are more than {_MAX_SCANS} scans")
    return found.stray(at, f"there are more than {_MAX_SEGMENTS:,} segments")


def _segment(found: Structure, blob: bytes, marker: int, start: int, stop: int) -> str:
    """Add the segment ``blob[start:stop]``; return what is wrong with it, or an empty text."""
    if marker == _SOS:
        return _scan(found, blob[start:stop], stop)
    if marker in _FRAMES:
        return _frame(found, blob[start:stop], marker)
    if marker == _DRI:
        if stop - start != 2:
            return "a restart interval of the wrong length"
        found.interval = int.from_bytes(blob[start:stop], "big")
    elif marker == _APP2:
        found.multi_picture = found.multi_picture or blob[start : start + 4] == b"MPF\x00"
    return ""


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
        found.components.append(Component(body[at], h, v))
    return ""


def _scan(found: Structure, body: bytes, start: int) -> str:
    if found.frame is None:
        return "a scan before any frame header"
    count = body[0] if body else 0
    if not 1 <= count <= 4 or len(body) != 4 + 2 * count:
        return "a scan header of the wrong length"
    known = {component.id: place for place, component in enumerate(found.components)}
    places = []
    for number in body[1 : 1 + 2 * count : 2]:
        if number not in known:
            return f"a scan of component {number}, which the frame lacks,"
        places.append(known[number])
    ss, se, approximation = body[-3:]
    if found.frame.process.startswith("progressive") and not (ss <= se <= 63 and (ss == 0) == (se == 0)):
        return "a scan header with an impossible band"
    ah, al = approximation >> 4, approximation & 15
    found.scans.append(Scan(start, start, tuple(places), ss, se, ah, al, found.interval))
    return ""


_BAND = 64


def coverage(structure: Structure, scans: Sequence[Scan]) -> float:
    """Return the share of the coefficients that `scans` hold; exactly 1.0 if they hold every bit of each.

    A coefficient that lacks n bits counts as 1 / 2**n.
    """
    sequential = structure.frame is None or not structure.frame.process.startswith("progressive")
    if sequential and any(len(scan.places) == len(structure.components) for scan in scans):
        return 1.0
    # Bits that each coefficient lacks. A refinement counts only after the scans before it (Ah).
    missing: list[list[int | None]] = [[None] * _BAND for _ in structure.components]
    for scan in scans:
        ss, se, ah, al = (0, _BAND - 1, 0, 0) if sequential else (scan.ss, scan.se, scan.ah, scan.al)
        for place in scan.places:
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


def check_scans(blob: bytes) -> None:
    """Raise ValueError for a JPEG that lacks scans or its end marker, whatever its data are."""
    found = parse(blob)
    if found.ending != "eoi" or coverage(found, found.scans) < 1.0:
        raise ValueError(found.reason or "its scans lack some coefficients")


def grid_of(structure: Structure, component: Component) -> tuple[int, int]:
    """Return (columns, rows) of blocks (samples in a lossless file) in a scan of this component alone."""
    assert structure.frame is not None
    widest = max(other.h for other in structure.components)
    tallest = max(other.v for other in structure.components)
    width = -(-structure.frame.width * component.h // widest)
    height = -(-structure.frame.height * component.v // tallest)
    side = _side(structure)
    return -(-width // side), -(-height // side)


def units_of(structure: Structure, scan: Scan) -> int:
    """Return the number of MCUs in `scan`."""
    assert structure.frame is not None
    if len(scan.places) == 1:
        columns, rows = grid_of(structure, structure.components[scan.places[0]])
        return columns * rows
    side = _side(structure)
    widest = side * max(component.h for component in structure.components)
    tallest = side * max(component.v for component in structure.components)
    return -(-structure.frame.width // widest) * -(-structure.frame.height // tallest)


_RESTARTS = bytes(range(0xD0, 0xD8)) * (1 << 11)


def restart_codes(count: int) -> bytes:
    """Return the second bytes of the first `count` restart markers of a scan."""
    return _RESTARTS[:count] if count <= len(_RESTARTS) else (_RESTARTS * (count // len(_RESTARTS) + 1))[:count]


def _side(structure: Structure) -> int:
    """Return the side of a block in samples."""
    assert structure.frame is not None
    return 1 if structure.frame.process.startswith("lossless") else 8


def _header_segments(blob: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, stop) of the segments up to the first scan header; end where one is out of order."""
    at, size = 2, len(blob) if blob.startswith(SOI) else 0
    for _ in range(_MAX_SEGMENTS):
        if at + 4 > size or blob[at] != 0xFF:
            return
        marker, stop = blob[at + 1], at + 2 + (blob[at + 2] << 8 | blob[at + 3])
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker < _SOF0 or 0xD0 <= marker < _SOS or stop > size or stop < at + 4:
            return
        yield marker, at, stop
        if marker == _SOS:
            return
        at = stop


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
    for marker, at, stop in _header_segments(blob):
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
    return None


def _header(blob: bytes, frame: int, scan: int, interval: int, data: int, has_exif: bool) -> Header | None:
    height, width = blob[frame + 5] << 8 | blob[frame + 6], blob[frame + 7] << 8 | blob[frame + 8]
    components = blob[frame + 9]
    if not height or not width or (blob[frame + 2] << 8 | blob[frame + 3]) != 8 + 3 * components:
        return None
    in_one_scan = blob[frame + 1] in (_SOF0, _SOF1) and blob[scan + 4] == components
    return Header(height, width, components, frame + 5, in_one_scan, interval, data, has_exif)


def surely_opens(blob: bytes) -> bool:
    """Return whether Pillow certainly accepts the header of `blob`. If False, only Pillow can tell."""
    expected, has_frame = 2, False
    for marker, at, stop in _header_segments(blob):
        if at != expected:  # fill bytes
            return False
        expected = stop
        if marker == _SOS:
            return has_frame
        if marker in (0xC0, 0xC1, 0xC2):
            if has_frame or not _accepts_frame(blob, at, stop):
                return False
            has_frame = True
        elif not _accepts_segment(blob, marker, at, stop):
            return False
    return False


def _accepts_frame(blob: bytes, at: int, stop: int) -> bool:
    if stop - at < 10 or blob[at + 4] != 8 or blob[at + 9] not in (1, 3, 4):
        return False
    most = Image.MAX_IMAGE_PIXELS
    return most is None or (blob[at + 5] << 8 | blob[at + 6]) * (blob[at + 7] << 8 | blob[at + 8]) <= most


def _accepts_segment(blob: bytes, marker: int, at: int, stop: int) -> bool:
    if marker in _ACCEPTED:
        return True
    if marker == _DQT:  # tables of an identifier and 64 values of 8 bits, and nothing after them
        return (stop - at - 4) % 65 == 0 and all(number < 16 for number in blob[at + 4 : stop : 65])
    if marker not in _READ_BYTES or stop - at - 2 < _READ_BYTES[marker]:
        return False
    return marker != _APP2 or blob.startswith(_PROFILE, at + 4)


def without_harmless(blob: bytes) -> bytes:
    """Return a copy without what libjpeg warns of and ignores.

    Comments replace the APPn segments before the first scan, and the scan of a sequential frame gets its only parameters.
    """
    copy, is_sequential = bytearray(blob), False
    for marker, at, stop in _header_segments(blob):
        if 0xE0 <= marker <= 0xEF:
            copy[at + 1] = 0xFE
        elif marker in _FRAMES:
            is_sequential = marker in (_SOF0, _SOF1)
        elif marker == _SOS and is_sequential:
            copy[stop - 3 : stop] = b"\x00\x3f\x00"
    return bytes(copy)
