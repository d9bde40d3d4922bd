"""Follows the Huffman codes of a scan to its end: how many of its MCUs are there.

ITU-T T.81, annexes F and G. No coefficient is computed. Arithmetic coding is not followed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from storeds.jpeg.coverage import blocks_of, units_of
from storeds.jpeg.huffman import LONGEST, Table, tables_of, windows
from storeds.jpeg.progressive import Band, Walk
from storeds.jpeg.structure import Scan, Structure
from storeds.protocols import Array

__all__ = ["Walk", "lost_restart", "walk"]

_RESTART = re.compile(rb"\xff+[\xd0-\xd7]")
_STUFFED = re.compile(rb"\xff+\x00")
# Bytes looked at in one go, which bounds the memory to some 40 times as much; no MCU takes as much as the margin.
_CHUNK, _MARGIN = 1 << 16, 1 << 12
# A walk through bands keeps all windows of a scan in memory at once, and something for each block.
_MAX_BAND_BYTES, _MAX_BAND_BLOCKS = 1 << 21, 1 << 22


def walk(blob: bytes, structure: Structure, scan: Scan, *, deep: bool = False) -> Walk:
    """Follow the codes of `scan`, one of ``structure.scans``.

    Parameters
    ----------
    deep : bool
        Follow them between all restart markers; else what lies before the last one counts as whole, unseen.

    Returns
    -------
    Walk
        ``bad`` with 0 units too where the scan cannot be followed: arithmetic coding, a missing table, an extreme size.
    """
    assert structure.frame is not None
    process = structure.frame.process
    if process not in ("baseline", "extended", "progressive"):
        return Walk(0, "bad")
    if process == "progressive" and scan.ss > 0:
        return _walk_band(blob, structure, scan)
    tables = tables_of(blob, structure, scan)
    blocks = blocks_of(structure, scan)
    pairs = [(tables.get((0, dc)), tables.get((1, ac))) for dc, ac in blocks]
    if process == "progressive":
        pairs = [(dc, None) for dc, _ in pairs]
        if scan.ah:
            return _over_parts(blob, structure, scan, deep, lambda data, _, units: _walk_bits(data, len(blocks), units))
    if any(dc is None or (ac is None and process != "progressive") for dc, ac in pairs):
        return Walk(0, "bad")
    return _over_parts(blob, structure, scan, deep, lambda data, _, units: _walk_blocks(data, pairs, units))


def lost_restart(structure: Structure, scan: Scan) -> int | None:
    """Return which restart marker of a whole scan, counted from 0, is not the one that is due; None if all are."""
    if not scan.interval:
        return None
    due = (units_of(structure, scan) - 1) // scan.interval
    found = scan.restarts
    cycle = bytes(range(0xD0, 0xD8)) * (due // 8 + 1)
    if found == cycle[:due]:
        return None
    return next(
        (at for at, (one, other) in enumerate(zip(found, cycle[:due], strict=False)) if one != other),
        min(due, len(found)),
    )


def _over_parts(
    blob: bytes, structure: Structure, scan: Scan, deep: bool, follow: Callable[[bytes, int, int], Walk]
) -> Walk:
    """Call ``follow(data, first unit, units)`` for the data between restart markers."""
    units = units_of(structure, scan)
    data = blob[scan.start : scan.stop]
    parts = _RESTART.split(data) if scan.interval else [data]
    done, found = 0, Walk(0, "cut")
    for number, part in enumerate(parts):
        start = number * scan.interval
        due = min(scan.interval or units, units - start)
        if due <= 0:
            break
        seen = deep or number == len(parts) - 1
        found = follow(_unstuff(part), start, due) if seen else Walk(due, "done")
        done += found.units
        if found.ending == "bad":
            return Walk(done, "bad")
    return Walk(done, "done" if done == units else "cut", found.left)


def _walk_band(blob: bytes, structure: Structure, scan: Scan) -> Walk:
    """Follow the scans of the component that lead up to `scan`, then that."""
    if len(scan.parts) != 1:
        return Walk(0, "bad")
    place = scan.parts[0][0]
    blocks = units_of(structure, scan)
    before = structure.scans[: structure.scans.index(scan)]
    same = [other for other in before if other.ss > 0 and other.parts[0][0] == place] if scan.ah else []
    size = sum(other.stop - other.start for other in (*same, scan))
    if size > _MAX_BAND_BYTES or blocks * (len(same) + 1) > _MAX_BAND_BLOCKS:
        return Walk(0, "bad")
    band = Band(blocks)
    found = Walk(0, "bad")
    for other in (*same, scan):
        table = tables_of(blob, structure, other).get((1, other.parts[0][2]))
        if table is None:
            return Walk(0, "bad")
        follow = functools.partial(_follow_band, band, table, other)
        found = _over_parts(blob, structure, other, True, follow)
        if found.ending != "done" and other is not scan:
            return Walk(0, "bad")
    return found


def _follow_band(band: Band, table: Table, scan: Scan, data: bytes, start: int, units: int) -> Walk:
    return band.follow(data, table, scan, start, units)


def _walk_bits(data: bytes, blocks: int, units: int) -> Walk:
    """Follow a refinement of DC coefficients: one bit a block."""
    there = min(units, 8 * len(data) // blocks)
    return Walk(there, "done" if there == units else "cut", 8 * len(data) - there * blocks)


def _unstuff(part: bytes) -> bytes:
    """Return the data without its stuffing, and without the first half of a marker that was cut in two."""
    part = part.rstrip(b"\xff") if part.endswith(b"\xff") else part
    return _STUFFED.sub(b"\xff", part) if b"\xff\xff" in part else part.replace(b"\xff\x00", b"\xff")


_Pairs = Sequence[tuple[Table | None, Table | None]]


def _walk_blocks(data: bytes, pairs: _Pairs, units: int) -> Walk:
    """Follow MCUs of blocks, each a DC code and, where there is an AC table, codes up to the 64th coefficient."""
    size, at, done = 8 * len(data), 0, 0
    for first, limit, hops in _chunks(data, pairs):
        at -= 8 * first
        ending: int | None
        at, count, ending = _hop(hops, at, limit, size - 8 * first, units - done)
        at, done = at + 8 * first, done + count
        if ending is not None:
            return Walk(done, "cut" if ending > size - 8 * first - LONGEST else "bad", max(size - at, 0))
        if done == units:
            return Walk(done, "done", size - at)
    return Walk(done, "cut", size - at)


_Hops = list[tuple[bytes, bytes, bytes]]


def _chunks(data: bytes, pairs: _Pairs) -> Iterator[tuple[int, int, _Hops]]:
    """Yield, chunk by chunk: its first byte, the bit to stop before, and for each block what hops its bits allow."""
    for first in range(0, len(data), _CHUNK):
        yield first, 8 * _CHUNK, _hops_of(windows(data[first : first + _CHUNK + _MARGIN]), pairs)


def _hops_of(seen: Array, pairs: _Pairs) -> _Hops:
    """Return, for each block, the bits that a DC and an AC code take at each bit, and the coefficients passed."""
    ends = bytes(64)  # beyond the last bit no code begins, however far the last hop went
    dc_hops = {dc: dc.dc_hops[0][seen].tobytes() + ends for dc in {dc for dc, _ in pairs} if dc is not None}
    ac_hops = {
        ac: (ac.ac_hops[0][seen].tobytes() + ends, ac.ac_hops[1][seen].tobytes() + ends)
        for ac in {ac for _, ac in pairs}
        if ac is not None
    }
    return [(dc_hops[dc], *(ac_hops[ac] if ac is not None else (b"", b""))) for dc, ac in pairs if dc is not None]


def _hop(hops: _Hops, at: int, limit: int, size: int, units: int) -> tuple[int, int, int | None]:
    """Hop from `at` to the end of the last unit that begins before `limit`; the third is where no code was, if so."""
    limit = min(limit, size)
    done = 0
    while done < units and at < limit:
        p = at
        for dc, ac, passed in hops:
            step = dc[p]
            if not step:
                return at, done, p
            p += step
            if not ac:
                continue
            k = 1
            while k < 64:
                step = ac[p]
                if not step:
                    return at, done, p
                k += passed[p]
                p += step
        if p > size:
            return at, done, p
        at = p
        done += 1
    return at, done, None
