"""Tells from an ordinary JPEG's segments alone that it is whole, or that Pillow opens it, where that is certain."""

from __future__ import annotations

from typing import NamedTuple

from PIL import Image

from storeds.jpeg import Finding
from storeds.jpeg.structure import EOI, MARKER, SOI

__all__ = ["is_surely_whole", "surely_opens"]

_BEGINNING = SOI + b"\xff"
_SOF0, _SOS, _DQT, _DRI, _APP2 = 0xC0, 0xDA, 0xDB, 0xDD, 0xE2
_FRAMES = frozenset((_SOF0, 0xC1, 0xC2))
# Huffman tables, restart interval, comment: Pillow takes them whatever they hold.
_TAKEN = frozenset((0xC4, _DRI, 0xFE))
# JFIF, a colour profile, Adobe: Pillow reads so many bytes of the segment, its length included.
_READ = {0xE0: 9, _APP2: 16, 0xEE: 9}
_PROFILE = b"ICC_PROFILE\x00"
_SAMPLING = frozenset(h << 4 | v for h in range(1, 5) for v in range(1, 5))
_WHOLE_BAND = b"\x00\x3f\x00"


class _Header(NamedTuple):
    """Where the frame's and the first scan's segments begin, and the first scan's ends."""

    frame: int
    scan: int
    stop: int
    has_interval: bool


def is_surely_whole(blob: bytes) -> bool:
    """Return whether `blob` surely is an intact baseline JPEG that Pillow opens; False says that triage is to tell.

    True for what most encoders write: one scan of all components, without restart markers, to the last byte. It says
    what `storeds.jpeg.triage` and Pillow's opening would say, in less than half their time.
    """
    header = _header(blob)
    if header is None or header.has_interval or blob[header.frame + 1] != _SOF0 or not blob.endswith(EOI):
        return False
    count = blob[header.frame + 9]
    frame, scan = blob[header.frame : header.frame + 10 + 3 * count], blob[header.scan : header.stop]
    if frame[2:4] != bytes((0, 8 + 3 * count)) or len(scan) != 8 + 2 * count or scan[4] != count:
        return False
    pixels = (frame[5] << 8 | frame[6]) * (frame[7] << 8 | frame[8])
    if not pixels or pixels > 512 * (len(blob) - len(EOI) - header.stop) or scan[-3:] != _WHOLE_BAND:
        return False
    components = frame[10::3]
    if components != scan[5:-3:2] or len(set(components)) != count or not _SAMPLING.issuperset(frame[11::3]):
        return False
    end = MARKER.search(blob, header.stop)
    return end is not None and end.start() == len(blob) - len(EOI)


def surely_opens(blob: bytes, finding: Finding) -> bool:
    """Return whether Pillow surely opens `blob`, of which triage found `finding`; False says that only Pillow can tell."""
    return finding.kind == "intact" and _header(blob) is not None


def _header(blob: bytes) -> _Header | None:
    """Return what there is before the first scan's data; None unless Pillow surely takes all of it."""
    at, frame, has_interval = 2, 0, False
    if not blob.startswith(_BEGINNING):
        return None
    while at + 4 <= len(blob) and blob[at] == 0xFF:
        marker, stop = blob[at + 1], at + 2 + (blob[at + 2] << 8 | blob[at + 3])
        if stop > len(blob):
            return None
        if marker == _SOS:
            return _Header(frame, at, stop, has_interval) if frame else None
        if marker in _FRAMES:
            if frame or not _is_frame_taken(blob, at, stop):
                return None
            frame = at
        elif not _is_taken(blob, marker, at, stop):
            return None
        has_interval = has_interval or marker == _DRI
        at = stop
    return None


def _is_frame_taken(blob: bytes, at: int, stop: int) -> bool:
    if stop - at < 10 or blob[at + 4] != 8 or blob[at + 9] not in (1, 3, 4):
        return False
    most = Image.MAX_IMAGE_PIXELS
    return most is None or (blob[at + 5] << 8 | blob[at + 6]) * (blob[at + 7] << 8 | blob[at + 8]) <= most


def _is_taken(blob: bytes, marker: int, at: int, stop: int) -> bool:
    if stop < at + 4:
        return False
    if marker in _TAKEN:
        return True
    if marker == _DQT:  # tables of one byte of number and 64 of 8 bits, and nothing after them
        return (stop - at - 4) % 65 == 0 and all(number < 16 for number in blob[at + 4 : stop : 65])
    if marker not in _READ or stop - at - 2 < _READ[marker]:
        return False
    return marker != _APP2 or blob.startswith(_PROFILE, at + 4)
