"""Follows the Huffman codes of scans, to count the MCUs that are there.

See ITU-T T.81, annexes F, G and H. It computes no coefficients, and does not follow arithmetic coding.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from storeds.jpeg.huffman import END_OF_BLOCK, LONGEST, Table, tables_of
from storeds.jpeg.intervals import LOST, place_parts
from storeds.jpeg.markers import Scan, Structure, blocks_of, has_all_restarts, units_of
from storeds.protocols import Array

__all__ = ["ZERO_RUN", "Follower", "Walk"]


def _windows(data: Any) -> npt.NDArray[np.uint16]:
    """Return the 16 bits that begin at each bit of `data`, as if ones followed."""
    padded = np.full(len(data) + 2, 255, np.uint32)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    wide = padded[:-2] << 16 | padded[1:-1] << 8 | padded[2:]
    found = np.empty((len(data), 8), np.uint16)
    for bit in range(8):
        found[:, bit] = wide >> (8 - bit)
    return found.reshape(-1)


class _Part(NamedTuple):
    """Result of a walk between two restart markers: whole MCUs, how it ended, and the bits left over."""

    units: int
    ending: Literal["done", "cut", "bad"]
    left: int = 0


class _BandData:
    """The data of a scan: for each bit, length and symbol of a code that begins there."""

    def __init__(self, data: bytes, table: Table) -> None:
        seen = _windows(data)
        ends = bytes(64)  # no codes after the last bit, however far the last code reaches
        self.first, self.size = 0, len(seen)
        self.window = memoryview(np.concatenate([seen, np.full(64, 0xFFFF, np.uint16)]).tobytes()).cast("H")
        self.length = table.length[seen].tobytes() + ends
        self.symbol = table.symbol[seen].tobytes() + ends

    def part(self, first: int, size: int) -> _BandData:
        """Set the range of bits to follow; return self."""
        self.first, self.size = first, size
        return self

    def run(self, at: int, bits: int) -> int:
        """Return the number of blocks in an end-of-band run, stored in the `bits` at `at`."""
        return (1 << bits) + (self.window[at] >> (16 - bits) if bits else 0)

    def ended(self, units: int, at: int) -> _Part:
        """Return the result of a walk that met an invalid code at `at`. Near the end, it may be a cut one."""
        return _Part(units, "cut" if at > self.size - LONGEST else "bad")


class _Band:
    """The AC coefficients of one component: for each block, one bit per coefficient that is not zero so far."""

    def __init__(self, blocks: int) -> None:
        self.nonzero = [0] * blocks

    def follow(self, data: _BandData, scan: Scan, start: int, units: int) -> _Part:
        """Follow `units` blocks from block `start` on."""
        follow = self._refine if scan.ah else self._first
        return follow(data, scan, start, start + units)

    def _first(self, data: _BandData, scan: Scan, start: int, stop: int) -> _Part:
        length, symbol, nonzero = data.length, data.symbol, self.nonzero
        p, block = data.first, start
        while block < stop:
            k, ended = scan.ss, 1
            while k <= scan.se:
                step = length[p]
                if not step:
                    return data.ended(block - start, p)
                code = symbol[p]
                p += step
                bits = code & 15
                if bits:
                    k += (code >> 4) + 1
                    if k > scan.se + 1:  # a coefficient outside the band: the walk is out of step
                        return data.ended(block - start, p)
                    nonzero[block] |= 1 << (k - 1)
                    p += bits
                elif code == 0xF0:
                    k += 16
                else:
                    if p > data.size:
                        return data.ended(block - start, p)
                    ended = data.run(p, code >> 4)
                    p += code >> 4
                    break
            if p > data.size:
                return data.ended(block - start, p)
            block += ended
        return _Part(stop - start, "done", data.size - p)

    def _refine(self, data: _BandData, scan: Scan, start: int, stop: int) -> _Part:  # noqa: C901  # calls would be slow
        length, symbol, nonzero = data.length, data.symbol, self.nonzero
        p, ended = data.first, 0  # ended: number of blocks without new coefficients, including this one
        for block in range(start, stop):
            known, new, k = nonzero[block], 0, scan.ss
            while not ended and k <= scan.se:
                step = length[p]
                if not step:
                    return data.ended(block - start, p)
                code = symbol[p]
                p += step
                zeros = code >> 4
                if code & 15:
                    p += 1  # the sign
                elif zeros < 15:
                    if p > data.size:
                        return data.ended(block - start, p)
                    ended = data.run(p, zeros)
                    p += zeros
                    break
                while k <= scan.se:
                    if known >> k & 1:
                        p += 1
                    elif zeros:
                        zeros -= 1
                    else:
                        break
                    k += 1
                if code & 15 and k > scan.se:
                    return data.ended(block - start, p)
                if code & 15:
                    new |= 1 << k
                k += 1
            if ended:
                p += (known >> k & (1 << (scan.se + 1 - k)) - 1).bit_count()
                ended -= 1
            if p > data.size:
                return data.ended(block - start, p)
            nonzero[block] = known | new
        return _Part(stop - start, "done", data.size - p)


ZERO_RUN = 16
"""This many zero bytes are not data but an unwritten part of the file, unless zeros encode empty blocks."""

_MARKER = re.compile(rb"\xff+[^\x00\xff]")
_STUFFED = re.compile(rb"\xff+\x00")
# Follow the data in pieces of this size, which limits the memory to about 40 times as much. No MCU exceeds the margin.
_CHUNK, _MARGIN = 1 << 16, 1 << 12
# A walk through a band holds all windows of a scan in memory, and one number per block.
_MAX_BAND_BYTES, _MAX_BAND_BLOCKS = 1 << 21, 1 << 22
_PADDING = b"\x00\xff"
# A part whose last bits differ is damaged if at least this many times as many are padded with ones.
_USUAL = 7
# After a stretch of wrong codes only few MCUs are missing. With more missing, a regular end is a coincidence.
_NEARLY = 0.9


class Walk(NamedTuple):
    """Result of a walk through a scan.

    Attributes
    ----------
    units : int
        Number of MCUs, excluding those after an invalid code. With restart markers, all MCUs between two of them are
        excluded if one is wrong there.
    ending : str
        ``done``: every MCU is there, and nothing else. ``cut``: the data end too early. ``bad``: part of the data is
        invalid. ``surplus``: every MCU is there, and surplus bytes follow. ``unknown``: the scan cannot be followed.
    left : int
        Bits left over after the last MCU.
    doubtful : int
        Number of `units` that may be wrong. Either surplus bytes follow that are not only zeros and ff, or MCUs are
        missing although the last byte is padded as at a regular end.
    """

    units: int
    ending: Literal["done", "cut", "bad", "surplus", "unknown"]
    left: int = 0
    doubtful: int = 0


_UNKNOWN = Walk(0, "unknown")
# Follows part of the data of a scan: (first bit, last bit, first unit, units).
_Follow = Callable[[int, int, int, int], _Part]


class Follower:
    """Follows the codes of each scan of a JPEG at most once, in time proportional to the bytes."""

    def __init__(self, blob: bytes, structure: Structure) -> None:
        self._blob, self._structure = blob, structure
        self._walks: dict[int, Walk] = {}
        self._bands: dict[int, _Band] = {}
        self._places: dict[int, list[int]] = {}
        self._walks_bands = structure.frame is not None and structure.frame.process == "progressive"
        self._blocks = _MAX_BAND_BLOCKS  # number of blocks that may still be visited

    def walk(self, number: int) -> Walk:
        """Return the result of the walk through ``structure.scans[number]``."""
        if number not in self._walks:
            self._walks[number] = self._walk(number, self._structure.scans[number])
        return self._walks[number]

    def places(self, number: int) -> list[int] | None:
        """Return the restart interval of each part of the data of a scan, or `LOST`; None if it cannot be followed.

        A part is what lies between two markers.
        """
        self.walk(number)
        return self._places.get(number)

    def _walk(self, number: int, scan: Scan) -> Walk:
        assert self._structure.frame is not None
        process = self._structure.frame.process
        if process not in ("baseline", "extended", "progressive", "lossless"):
            return _UNKNOWN
        progressive = process == "progressive"
        if progressive and scan.ss > 0:
            return self._walk_band(number, scan)
        data, ends = _parts(self._blob, scan)
        blocks = blocks_of(self._structure, scan)
        if progressive and scan.ah:
            return self._over(number, data, ends, lambda at, end, _, units: _bits(at, end, len(blocks), units))
        tables = tables_of(self._blob, scan, standard=not progressive)
        only_dc = progressive or process == "lossless"
        pairs = [(tables.get((0, dc)), None if only_dc else tables.get((1, ac))) for dc, ac in blocks]
        if any(dc is None or (ac is None and not only_dc) for dc, ac in pairs):
            return _UNKNOWN
        return self._over(number, data, ends, _Sequential(data, pairs).follow)

    def _walk_band(self, number: int, scan: Scan) -> Walk:
        """Follow a scan of AC coefficients, after the earlier scans of its component."""
        if len(scan.parts) != 1:
            return _UNKNOWN
        place = scan.parts[0][0]
        blocks = units_of(self._structure, scan)
        for before, other in enumerate(self._structure.scans[:number]):
            if scan.ah and other.ss > 0 and other.parts[0][0] == place and not self._is_usable(before, scan):
                return _UNKNOWN
        table = tables_of(self._blob, scan).get((1, scan.parts[0][2]))
        self._blocks -= blocks
        if table is None or scan.stop - scan.start > _MAX_BAND_BYTES or self._blocks < 0:
            return _UNKNOWN
        band = self._bands.setdefault(place, _Band(blocks))
        data, ends = _parts(self._blob, scan)
        seen = _BandData(data, table)
        return self._over(
            number, data, ends, lambda at, end, start, units: band.follow(seen.part(at, end), scan, start, units)
        )

    def _is_usable(self, before: int, scan: Scan) -> bool:
        """Return whether `scan` can be followed after an earlier scan of its component. It uses the same intervals."""
        ending = self.walk(before).ending
        same = scan.interval and scan.interval == self._structure.scans[before].interval
        return ending == "done" or (ending == "bad" and bool(same))

    def _over(self, number: int, data: bytes, ends: list[int], follow: _Follow) -> Walk:
        """Follow each part between restart markers separately, as decoders do."""
        scan = self._structure.scans[number]
        units, interval = units_of(self._structure, scan), scan.interval
        places = self._places[number] = self._placed(scan, ends, follow)
        kept = [at for at, place in enumerate(places) if place != LOST and (not at or place * interval < units)]
        bad, surplus = places != list(range(len(places))), len(kept) < len(places)
        begins, last = [0, *ends], len(ends) - 1
        done, endings = 0, _Endings(data)
        for at in kept:
            begin, end, start = begins[at], ends[at], places[at] * interval
            due = min(interval or units, units - start)
            part = follow(begin, end, start, due)
            if at == last:
                stop = _filled_from(data, begin, end, part)
                if stop < end:
                    part = follow(begin, stop, start, due)
                    part = _Part(part.units, "done" if part.ending == "done" else "cut", part.left + end - stop)
            if part.ending == "bad" or (part.ending == "cut" and at < last):
                bad, part = True, part._replace(units=part.units if due == units else 0)
            done += part.units
            endings.add(part, end)
        doubtful = endings.doubtful()
        surplus = surplus or endings.surplus or doubtful > 0
        whole = len(kept) < len(places) or start + due >= units
        if bad or (surplus and not whole):
            return Walk(done, "bad", part.left, doubtful)
        if surplus:
            return Walk(done, "surplus", part.left, doubtful)
        if done == units:
            return Walk(done, "done", part.left)
        few = whole and done >= _NEARLY * units
        return Walk(done, "cut", part.left, part.units if few and _is_finished(data, part.left) else 0)

    def _placed(self, scan: Scan, ends: list[int], follow: _Follow) -> list[int]:
        """Return the restart interval that each part holds, or `LOST`."""
        parts = len(ends)
        if has_all_restarts(self._structure, scan):
            return list(range(parts))
        units, interval = units_of(self._structure, scan), scan.interval
        count = -(-units // interval)
        begins = [0, *ends]

        # A second walk through a band would find other codes: the first one changes it.
        is_band = scan.ss > 0 and self._walks_bands

        def is_whole(part: int, place: int) -> bool:
            start = place * interval
            found = follow(begins[part], ends[part], start, min(interval, units - start))
            return found.ending == "done" and found.left < 8

        is_cut = scan is self._structure.scans[-1] and self._structure.in_scan
        has_end = not is_cut and (is_band or is_whole(parts - 1, count - 1))
        return place_parts(scan.restarts, count, has_end=has_end, is_whole=(lambda *_: True) if is_band else is_whole)


class _Endings:
    """How the parts of a scan end of which all MCUs are there.

    Encoders fill up the last byte with ones. Where nearly all parts do, any other bits, or surplus bytes, show a part
    whose codes have changed and got back in step.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.surplus = False
        self._changed, self._odd, self._odd_units, self._regular = 0, 0, 0, 0

    def add(self, part: _Part, end: int) -> None:
        """Count a part that ends at bit `end`."""
        if part.ending != "done":
            return
        if part.left >= 8:
            self.surplus = True
            if self._data[(end - part.left + 7) // 8 : end // 8].strip(_PADDING):
                self._changed += part.units
        elif part.left:
            ones = (1 << part.left) - 1
            if self._data[end // 8 - 1] & ones == ones:
                self._regular += 1
            else:
                self._odd, self._odd_units = self._odd + 1, self._odd_units + part.units

    def doubtful(self) -> int:
        """Return the number of MCUs in parts that may be wrong."""
        return self._changed + (self._odd_units if self._regular >= _USUAL * self._odd else 0)


def _filled_from(data: bytes, begin: int, end: int, part: _Part) -> int:
    """Return the bit where filling zeros at the end of a scan begin; `part` is the walk through its last part."""
    if part.ending == "done" and part.left < 8 * ZERO_RUN:
        return end
    stop = 8 * len(data[begin // 8 : end // 8].rstrip(b"\x00")) + begin
    return stop if end - stop >= 8 * ZERO_RUN else end


def _is_finished(data: bytes, left: int) -> bool:
    """Return whether the bits left over are the ones with which encoders pad the last byte of a scan."""
    return 0 < left < 8 and data[-1] & ((1 << left) - 1) == (1 << left) - 1


def _parts(blob: bytes, scan: Scan) -> tuple[bytes, list[int]]:
    """Return the data of a scan without stuffing and markers, and the bits where its parts end."""
    data = blob[scan.start : scan.stop]
    parts = [_unstuff(part) for part in (_MARKER.split(data) if scan.interval else [data])]
    return b"".join(parts), [8 * end for end in itertools.accumulate(map(len, parts))]


def _unstuff(part: bytes) -> bytes:
    """Remove the stuffing, and the first byte of a cut marker at the end."""
    part = part.rstrip(b"\xff") if part.endswith(b"\xff") else part
    return _STUFFED.sub(b"\xff", part) if b"\xff\xff" in part else part.replace(b"\xff\x00", b"\xff")


def _bits(at: int, end: int, blocks: int, units: int) -> _Part:
    """Follow a refinement of DC coefficients, which has one bit per block."""
    there = min(units, (end - at) // blocks)
    return _Part(there, "done" if there == units else "cut", end - at - there * blocks)


_Pairs = Sequence[tuple[Table | None, Table | None]]
_Hops = list[tuple[bytes, bytes, bytes]]


class _Sequential:
    """Follows the MCUs of a sequential scan. A block is a DC code and, with an AC table, codes up to coefficient 64."""

    def __init__(self, data: bytes, pairs: _Pairs) -> None:
        self._data, self._pairs = data, pairs
        self._first, self._hops = -1, list[tuple[bytes, bytes, bytes]]()
        # If zeros encode empty blocks, many zeros may be a flat part of the picture.
        self._flat = all(ac is None or ac.ac_hops[1][0] == END_OF_BLOCK for _, ac in pairs)

    def follow(self, at: int, end: int, _: int, units: int) -> _Part:
        """Follow `units` MCUs from bit `at` to bit `end`."""
        zeros = -1 if self._flat else self._data.find(bytes(ZERO_RUN), at // 8, end // 8)
        if zeros < 0:
            return self._follow(at, end, units)[0]
        before, at = self._follow(at, 8 * zeros, units)
        if before.ending == "bad":
            return before
        more, enough = units - before.units, min(end, 8 * (zeros + ZERO_RUN))
        into, _ = self._follow(at, enough, more)
        if into.units == more:
            return _Part(units, "done", into.left + end - enough)
        return _Part(before.units, "bad", end - at)

    def _follow(self, at: int, end: int, units: int) -> tuple[_Part, int]:
        """Return the result, and the bit after the last MCU."""
        done = 0
        while done < units and at < end:
            first = 8 * _CHUNK * (at // (8 * _CHUNK))
            if first != self._first:
                self._first = first
                seen = _windows(self._data[first // 8 : first // 8 + _CHUNK + _MARGIN])
                self._hops = _hops_of(seen, self._pairs)
            at, count, stop = _hop(self._hops, at - first, 8 * _CHUNK, end - first, units - done)
            at, done = at + first, done + count
            if stop is not None:
                return _Part(done, "cut" if stop > end - first - LONGEST else "bad", end - at), at
        return _Part(done, "done" if done == units else "cut", end - at), at


def _hops_of(seen: Array, pairs: _Pairs) -> _Hops:
    """Return for each block the lengths of DC and AC codes at each bit, and the numbers of coefficients."""
    ends = bytes(64)  # no codes after the last bit, however far the last code reaches
    dc_hops = {dc: dc.dc_hops[0][seen].tobytes() + ends for dc in {dc for dc, _ in pairs} if dc is not None}
    ac_hops = {
        ac: (ac.ac_hops[0][seen].tobytes() + ends, ac.ac_hops[1][seen].tobytes() + ends)
        for ac in {ac for _, ac in pairs}
        if ac is not None
    }
    return [(dc_hops[dc], *(ac_hops[ac] if ac is not None else (b"", b""))) for dc, ac in pairs if dc is not None]


def _hop(hops: _Hops, at: int, limit: int, size: int, units: int) -> tuple[int, int, int | None]:
    """Follow units from `at` until `limit`; return the end, their number, and the bit of an invalid code, if any."""
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
            if 64 < k < END_OF_BLOCK:  # a 65th coefficient: the walk is out of step
                return at, done, p
        if p > size:
            return at, done, p
        at = p
        done += 1
    return at, done, None
