"""Gives a JPEG without an end marker the one it lacks, and touches no other byte string.

Files are walked by their markers: an ``FF D9`` at the end proves nothing, as a thumbnail or a comment may hold it, and
bytes after the end marker are no damage.
"""

from __future__ import annotations

import re

__all__ = ["repair"]

_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"
_SOS = 0xDA
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD8)))
# Inside entropy-coded data FF is followed by 00 (stuffing), D0-D7 (restart) or FF (fill); anything else is a marker.
_MARKER_IN_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def repair(blob: bytes) -> bytes:
    """Return `blob` with the end marker it lacks, or the identical object when nothing can or need be done.

    Parameters
    ----------
    blob : bytes
        Any bytes; only a JPEG whose data ends inside or after a scan is changed. A segment that is itself cut short is
        dropped first, because it would swallow the marker as its data.

    Returns
    -------
    bytes
        Never a guess about pixels: what was decodable before decodes to the same pixels.
    """
    if not blob.startswith(_SOI):
        return blob
    end, has_scan = _walk(blob)
    return blob[:end] + _EOI if end is not None and has_scan else blob


def _walk(blob: bytes) -> tuple[int | None, bool]:
    """Return where the last whole part ends, or None if an end marker was met, and whether a scan came by."""
    at, has_scan = 2, False
    while at + 1 < len(blob):
        if blob[at] != 0xFF:
            return None, has_scan  # no marker where one must be: other damage, which a marker would not mend
        marker = blob[at + 1]
        if marker == _EOI[1]:
            return None, has_scan
        if marker == 0xFF:
            at += 1
        elif marker in _STANDALONE:
            at += 2
        else:
            stop = at + 2 + int.from_bytes(blob[at + 2 : at + 4], "big")
            if stop > len(blob) or stop < at + 4:
                return at, has_scan
            at = stop
            if marker == _SOS:
                has_scan = True
                found = _MARKER_IN_SCAN.search(blob, at)
                if found is None:
                    return len(blob), has_scan
                at = found.start()
    return at, has_scan
