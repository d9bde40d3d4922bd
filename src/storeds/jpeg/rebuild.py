"""Puts the restart intervals of a damaged JPEG back to their places, and grey ones where some are lost."""

from __future__ import annotations

import re

from storeds.jpeg.entropy import Follower
from storeds.jpeg.huffman import Table, tables_of
from storeds.jpeg.intervals import LOST
from storeds.jpeg.markers import MAX_PIXELS, Scan, Structure, blocks_of, has_all_restarts, parse, units_of

__all__ = ["with_intervals_in_place"]

_MARKER = re.compile(rb"\xff+[^\x00\xff]")


def with_intervals_in_place(blob: bytes) -> bytes:
    """Return a JPEG with the intervals that are left at their places; the identical object if they are there.

    Decoders continue after damage by the numbers of restart markers, which count modulo 8. So they put the rest of a
    picture at a wrong place if several intervals are lost, and stop at any other marker.

    Notes
    -----
    Restart markers get their right numbers, other markers in the data disappear, and a lost interval becomes grey in a
    sequential file. A damaged interval keeps its data. Nothing is added for intervals missing at the end, nor for a
    picture of more than `MAX_PIXELS`.
    """
    found = parse(blob)
    if found.frame is None or found.frame.width * found.frame.height > MAX_PIXELS:
        return blob
    follower = Follower(blob, found)
    pieces, at = [], 0
    for number, scan in enumerate(found.scans):
        if has_all_restarts(found, scan):
            continue
        places = follower.places(number)
        if places is None:
            continue
        pieces += [blob[at : scan.start], _rebuilt(blob, found, scan, places)]
        at = scan.stop
    if not pieces:
        return blob
    rebuilt = b"".join((*pieces, blob[at:]))
    return blob if rebuilt == blob else rebuilt


def _rebuilt(blob: bytes, found: Structure, scan: Scan, places: list[int]) -> bytes:
    """Return the data of a scan whose parts have these places."""
    units = units_of(found, scan)
    written: list[bytes] = []
    flat = _flat_unit(blob, found, scan)
    for part, place in zip(_MARKER.split(blob[scan.start : scan.stop]), places, strict=True):
        if place == LOST:
            continue
        while len(written) < place:
            lost = min(scan.interval, units - len(written) * scan.interval)
            written.append(_packed(flat * lost))
        written.append(part)
    numbered = (b"\xff" + bytes([0xD0 + (number - 1) % 8]) + data for number, data in enumerate(written[1:], 1))
    return b"".join((written[0], *numbered))


def _flat_unit(blob: bytes, found: Structure, scan: Scan) -> str:
    """Return the bits of an MCU of which all coefficients are 0; none if the tables lack the codes for that."""
    if found.frame is None or found.frame.process not in ("baseline", "extended"):
        return ""
    tables = tables_of(blob, scan, standard=True)
    codes = [
        (_code_of_zero(tables.get((0, dc))), _code_of_zero(tables.get((1, ac)))) for dc, ac in blocks_of(found, scan)
    ]
    return "".join(dc + ac for dc, ac in codes) if all(dc and ac for dc, ac in codes) else ""


def _code_of_zero(table: Table | None) -> str:
    """Return the bits of the code for symbol 0: no difference, or the end of a block. Empty if there is none."""
    if table is None:
        return ""
    (windows,) = ((table.symbol == 0) & (table.length > 0)).nonzero()
    return f"{windows[0]:016b}"[: table.length[windows[0]]] if len(windows) else ""


def _packed(bits: str) -> bytes:
    """Return bits as bytes of a scan: padded with ones, stuffed."""
    bits += "1" * (-len(bits) % 8)
    return int(bits or "0", 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\x00")
