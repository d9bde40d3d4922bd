"""Tells from an ordinary JPEG's segments alone that Pillow opens it, where that is certain."""

from __future__ import annotations

from PIL import Image

from storeds.jpeg.structure import SOI

__all__ = ["surely_opens"]

_BEGINNING = SOI + b"\xff"
_SOS, _DQT, _APP2 = 0xDA, 0xDB, 0xE2
_FRAMES = frozenset((0xC0, 0xC1, 0xC2))
# Huffman tables, restart interval, comment: Pillow takes them whatever they hold.
_TAKEN = frozenset((0xC4, 0xDD, 0xFE))
# JFIF, a colour profile, Adobe: Pillow reads so many bytes of the segment, its length included.
_READ = {0xE0: 9, _APP2: 16, 0xEE: 9}
_PROFILE = b"ICC_PROFILE\x00"


def surely_opens(blob: bytes) -> bool:
    """Return whether Pillow surely takes the header of `blob`; False says that only Pillow can tell."""
    at, frame = 2, False
    if not blob.startswith(_BEGINNING):
        return False
    while at + 4 <= len(blob) and blob[at] == 0xFF:
        marker, stop = blob[at + 1], at + 2 + (blob[at + 2] << 8 | blob[at + 3])
        if stop > len(blob):
            return False
        if marker == _SOS:
            return frame
        if marker in _FRAMES:
            if frame or not _is_frame_taken(blob, at, stop):
                return False
            frame = True
        elif not _is_taken(blob, marker, at, stop):
            return False
        at = stop
    return False


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
