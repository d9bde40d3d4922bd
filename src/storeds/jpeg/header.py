"""Reads what stands before the data of a JPEG's first scan: its size, where that is written, and how many scans it needs."""

from __future__ import annotations

from typing import NamedTuple

from storeds.jpeg.structure import SOI

__all__ = ["Header", "read_header"]

_MAX_SEGMENTS = 10_000
_SOF0, _SOF1, _DHT, _JPG, _DAC, _SOI, _SOS, _DRI = 0xC0, 0xC1, 0xC4, 0xC8, 0xCC, 0xD8, 0xDA, 0xDD


class Header(NamedTuple):
    """What the segments before the first scan's data say.

    Attributes
    ----------
    height, width : int
        Pixels.
    components : int
        1 for grayscale, 3 for colour, 4 for CMYK and YCCK.
    height_at : int
        Where the two bytes of the height are.
    in_one_scan : bool
        Whether the first scan carries all components of a baseline or extended frame: then there is no other scan.
    has_restarts : bool
        Whether restart markers may stand in the data.
    """

    height: int
    width: int
    components: int
    height_at: int
    in_one_scan: bool
    has_restarts: bool


def read_header(blob: bytes) -> Header | None:
    """Return the header of a JPEG in a few microseconds, whatever its size; None where anything in it is out of order.

    Only segments are walked, so this says nothing about damage.
    """
    if not blob.startswith(SOI):
        return None
    at, frame, has_restarts, size = 2, 0, False, len(blob)
    for _ in range(_MAX_SEGMENTS):
        if at + 4 > size or blob[at] != 0xFF:
            return None
        marker, stop = blob[at + 1], at + 2 + (blob[at + 2] << 8 | blob[at + 3])
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker < _SOF0 or 0xD0 <= marker < _SOS or stop > size or stop < at + 4:
            return None
        if marker == _SOS:
            return _header(blob, frame, at, has_restarts) if frame else None
        if marker <= 0xCF and marker not in (_DHT, _JPG, _DAC):
            if frame:
                return None
            frame = at
        has_restarts = has_restarts or marker == _DRI
        at = stop
    return None


def _header(blob: bytes, frame: int, scan: int, has_restarts: bool) -> Header | None:
    """Return what the segments of the frame and of the first scan, at these places, say."""
    height, width = blob[frame + 5] << 8 | blob[frame + 6], blob[frame + 7] << 8 | blob[frame + 8]
    components = blob[frame + 9]
    if not height or not width or (blob[frame + 2] << 8 | blob[frame + 3]) != 8 + 3 * components:
        return None
    in_one_scan = blob[frame + 1] in (_SOF0, _SOF1) and blob[scan + 4] == components
    return Header(height, width, components, frame + 5, in_one_scan, has_restarts)
