"""Follows the Huffman codes of scans to their end: how many of their MCUs are there.

ITU-T T.81, annexes F, G and H. No coefficient is computed. Arithmetic coding is not followed.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from storeds.jpeg.structure import Scan, Structure, blocks_of, units_of
from storeds.protocols import Array

__all__ = [
    "END_OF_BLOCK",
    "LONGEST",
    "ZERO_RUN",
    "Band",
    "BandData",
    "Follower",
    "Part",
    "Table",
    "Tables",
    "Walk",
    "has_all_restarts",
    "tables_of",
    "windows",
]


# No code is longer. Nearer to the end than this, what is no code may be one that was cut.
LONGEST = 16
_WINDOWS = 1 << LONGEST
# The coefficients that the code for the end of a block passes: more than any other codes together pass too many.
END_OF_BLOCK = 128

Bytes = npt.NDArray[np.uint8]


class Table:
    """One table: for each 16-bit window, the length in bits of the code it begins with (0: none) and its symbol."""

    def __init__(self, length: Bytes, symbol: Bytes) -> None:
        self.length, self.symbol = length, symbol
        self.dc_hops, self.ac_hops = self._hops(dc=True), self._hops(dc=False)

    def _hops(self, *, dc: bool) -> tuple[Bytes, Bytes]:
        """Return, for each window, the bits that code and value take (0: no such code) and the coefficients passed."""
        size = self.symbol if dc else self.symbol & 15
        run = self.symbol >> 4
        # libjpeg takes any other size-less symbol but a run of sixteen zeros for the end of the block.
        passed = np.where((size == 0) & (run != 15), END_OF_BLOCK, run + 1)
        # A difference of 16 bits, which only lossless files have, is 32768, and no bits follow.
        bits = np.where((self.length > 0) & (size <= 16), self.length + size % 16, 0)
        return bits.astype(np.uint8), passed.astype(np.uint8)


Tables = dict[tuple[int, int], Table]


def tables_of(blob: bytes, scan: Scan, *, standard: bool = False) -> Tables:
    """Return the tables in force for `scan`, by (class, identifier), class 1 being AC; broken ones are left out.

    Parameters
    ----------
    standard : bool
        Put those of ITU-T T.81, K.3 to K.6, where a file has none, as decoders do for sequential files: frames of
        Motion JPEG have no tables.
    """
    found = dict(_standard()) if standard else {}
    for key, (start, stop) in scan.tables.items():
        table = _table(blob[start : start + 16], blob[start + 16 : stop])
        if table is None:
            found.pop(key, None)
        else:
            found[key] = table
    return found


@functools.lru_cache(maxsize=64)
def _table(counts: bytes, symbols: bytes) -> Table | None:
    """Return the table with `counts` codes of each length 1 to 16; None if there are more than the lengths allow."""
    lengths = np.repeat(np.arange(1, 17, dtype=np.uint8), list(counts))
    spans = 1 << (16 - lengths.astype(np.int64))
    total = int(spans.sum())
    if total > _WINDOWS or len(lengths) != len(symbols):
        return None
    length, symbol = np.zeros(_WINDOWS, np.uint8), np.zeros(_WINDOWS, np.uint8)
    length[:total] = np.repeat(lengths, spans)
    symbol[:total] = np.repeat(np.frombuffer(symbols, np.uint8), spans)
    return Table(length, symbol)


# ITU-T T.81, K.3 to K.6: for each (class, identifier), how many codes of each length there are, and their symbols.
_STANDARD = {
    (0, 0): ("00010501010101010100000000000000", "000102030405060708090a0b"),
    (0, 1): ("00030101010101010101010000000000", "000102030405060708090a0b"),
    (1, 0): (
        "0002010303020403050504040000017d",
        "01020300041105122131410613516107227114328191a1082342b1c11552d1f02433627282090a161718191a25262728"
        "292a3435363738393a434445464748494a535455565758595a636465666768696a737475767778797a83848586878889"
        "8a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2"
        "e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9fa",
    ),
    (1, 1): (
        "00020102040403040705040400010277",
        "000102031104052131061241510761711322328108144291a1b1c109233352f0156272d10a162434e125f11718191a26"
        "2728292a35363738393a434445464748494a535455565758595a636465666768696a737475767778797a828384858687"
        "88898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9da"
        "e2e3e4e5e6e7e8e9eaf2f3f4f5f6f7f8f9fa",
    ),
}


@functools.cache
def _standard() -> Tables:
    found = {}
    for key, (counts, symbols) in _STANDARD.items():
        table = _table(bytes.fromhex(counts), bytes.fromhex(symbols))
        assert table is not None
        found[key] = table
    return found


def windows(data: Any) -> npt.NDArray[np.uint16]:
    """Return the 16 bits that begin at each bit of `data`, which counts as followed by ones."""
    padded = np.full(len(data) + 2, 255, np.uint32)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    wide = padded[:-2] << 16 | padded[1:-1] << 8 | padded[2:]
    found = np.empty((len(data), 8), np.uint16)
    for bit in range(8):
        found[:, bit] = wide >> (8 - bit)
    return found.reshape(-1)


class Part(NamedTuple):
    """How the walk through the data between two restart markers went: whole MCUs, how it ended, and the bits left over."""

    units: int
    ending: Literal["done", "cut", "bad"]
    left: int = 0


class BandData:
    """The data of a scan, as what a code that began at each bit would be."""

    def __init__(self, data: bytes, table: Table) -> None:
        seen = windows(data)
        ends = bytes(64)  # beyond the last bit no code begins, however far the last hop went
        self.first, self.size = 0, len(seen)
        self.window = memoryview(np.concatenate([seen, np.full(64, 0xFFFF, np.uint16)]).tobytes()).cast("H")
        self.length = table.length[seen].tobytes() + ends
        self.symbol = table.symbol[seen].tobytes() + ends

    def part(self, first: int, size: int) -> BandData:
        """Set the first bit and the one after the last to follow; return this."""
        self.first, self.size = first, size
        return self

    def run(self, at: int, bits: int) -> int:
        """Return how many blocks end here, by the `bits` at `at` that say so."""
        return (1 << bits) + (self.window[at] >> (16 - bits) if bits else 0)

    def ended(self, units: int, at: int) -> Part:
        """Return the walk that found no sense at `at`."""
        return Part(units, "cut" if at > self.size - LONGEST else "bad")


class Band:
    """The AC coefficients of one component: for each block, a bit for each coefficient that is not zero so far."""

    def __init__(self, blocks: int) -> None:
        self.nonzero = [0] * blocks

    def follow(self, data: BandData, scan: Scan, start: int, units: int) -> Part:
        """Follow `units` blocks from block `start` on."""
        follow = self._refine if scan.ah else self._first
        return follow(data, scan, start, start + units)

    def _first(self, data: BandData, scan: Scan, start: int, stop: int) -> Part:
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
                    if k > scan.se + 1:  # a coefficient beyond the band: the walk is in the middle of other codes
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
        return Part(stop - start, "done", data.size - p)

    def _refine(self, data: BandData, scan: Scan, start: int, stop: int) -> Part:  # noqa: C901  # a hop may cost no call
        length, symbol, nonzero = data.length, data.symbol, self.nonzero
        p, ended = data.first, 0  # ended: how many blocks have no new coefficient any more, this one included
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
                    p += 1  # its sign
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
        return Part(stop - start, "done", data.size - p)


ZERO_RUN = 16
"""So many zero bytes are no data, unless zeros mean empty blocks: what a file that was never filled holds."""

_RESTART = re.compile(rb"\xff+[\xd0-\xd7]")
_STUFFED = re.compile(rb"\xff+\x00")
# Bytes looked at in one go, which bounds the memory to some 40 times as much; no MCU takes as much as the margin.
_CHUNK, _MARGIN = 1 << 16, 1 << 12
# A walk through bands keeps all windows of a scan in memory at once, and something for each block.
_MAX_BAND_BYTES, _MAX_BAND_BLOCKS = 1 << 21, 1 << 22
_PADDING = b"\x00\xff"
# Where codes were wrong for a while, few MCUs are missing; and a cut may by chance look like a regular end.
_NEARLY = 0.9


class Walk(NamedTuple):
    """How the walk through a scan went.

    Attributes
    ----------
    units : int
        MCUs met, between all restart markers; those behind nonsense, up to the next marker, do not count.
    ending : str
        ``done``: every MCU is there, and nothing else. ``cut``: the data end too early. ``bad``: they make no sense
        somewhere. ``surplus``: every MCU is there, and bytes follow that belong to none. ``unknown``: the scan cannot be
        followed.
    left : int
        Bits left over after the last MCU.
    doubtful : int
        Those of `units` that something is wrong with or before: they are followed by surplus that is more than zeros and
        ff, or by a last byte that is filled up as if no MCU were missing.
    """

    units: int
    ending: Literal["done", "cut", "bad", "surplus", "unknown"]
    left: int = 0
    doubtful: int = 0


_UNKNOWN = Walk(0, "unknown")
# Follows the part of a scan's data between two bits: (first bit, last bit, first unit, units).
_Follow = Callable[[int, int, int, int], Part]


class Follower:
    """Follows the codes of the scans of one JPEG, each once, in time proportional to the bytes."""

    def __init__(self, blob: bytes, structure: Structure) -> None:
        self._blob, self._structure = blob, structure
        self._walks: dict[int, Walk] = {}
        self._bands: dict[int, Band] = {}
        self._blocks = _MAX_BAND_BLOCKS  # which may still be visited

    def walk(self, number: int) -> Walk:
        """Return how the walk through ``structure.scans[number]`` goes."""
        if number not in self._walks:
            self._walks[number] = self._walk(number, self._structure.scans[number])
        return self._walks[number]

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
            return self._over(scan, data, ends, lambda at, end, _, units: _bits(at, end, len(blocks), units))
        tables = tables_of(self._blob, scan, standard=not progressive)
        only_dc = progressive or process == "lossless"
        pairs = [(tables.get((0, dc)), None if only_dc else tables.get((1, ac))) for dc, ac in blocks]
        if any(dc is None or (ac is None and not only_dc) for dc, ac in pairs):
            return _UNKNOWN
        return self._over(scan, data, ends, _Sequential(data, pairs).follow)

    def _walk_band(self, number: int, scan: Scan) -> Walk:
        """Follow a scan of AC coefficients, after those of its component that come before it."""
        if len(scan.parts) != 1:
            return _UNKNOWN
        place = scan.parts[0][0]
        blocks = units_of(self._structure, scan)
        for before, other in enumerate(self._structure.scans[:number]):
            if scan.ah and other.ss > 0 and other.parts[0][0] == place and self.walk(before).ending != "done":
                return _UNKNOWN
        table = tables_of(self._blob, scan).get((1, scan.parts[0][2]))
        self._blocks -= blocks
        if table is None or scan.stop - scan.start > _MAX_BAND_BYTES or self._blocks < 0:
            return _UNKNOWN
        band = self._bands.setdefault(place, Band(blocks))
        data, ends = _parts(self._blob, scan)
        seen = BandData(data, table)
        return self._over(
            scan, data, ends, lambda at, end, start, units: band.follow(seen.part(at, end), scan, start, units)
        )

    def _over(self, scan: Scan, data: bytes, ends: list[int], follow: _Follow) -> Walk:
        """Follow the data between restart markers, each on its own, as decoders do."""
        units, interval = units_of(self._structure, scan), scan.interval
        done, doubtful, bad, surplus, part = 0, 0, False, False, Part(0, "cut", 0)
        begin, last = 0, len(ends) - 1
        for number, end in enumerate(ends):
            start = number * interval
            if number and start >= units:
                surplus = True
                break
            due = min(interval or units, units - start)
            part = follow(begin, end, start, due)
            if number == last:
                stop = _filled_from(data, begin, end, part)
                if stop < end:
                    part = follow(begin, stop, start, due)
                    part = Part(part.units, "done" if part.ending == "done" else "cut", part.left + end - stop)
            begin, done = end, done + part.units
            bad = bad or part.ending == "bad" or (part.ending == "cut" and number < last)
            if part.ending == "done" and part.left >= 8:
                surplus = True
                if data[(end - part.left + 7) // 8 : end // 8].strip(_PADDING):
                    doubtful += part.units
        if bad or (surplus and last * interval + (interval or units) < units):
            return Walk(done, "bad", part.left, doubtful)
        if surplus:
            return Walk(done, "surplus", part.left, doubtful)
        if done == units:
            return Walk(done, "done", part.left)
        few = start + (interval or units) >= units and done >= _NEARLY * units
        return Walk(done, "cut", part.left, part.units if few and _is_finished(data, part.left) else 0)


def _filled_from(data: bytes, begin: int, end: int, part: Part) -> int:
    """Return the bit where zeros begin that fill up the end of a scan, of whose last data the walk was `part`."""
    if part.ending == "done" and part.left < 8 * ZERO_RUN:
        return end
    stop = 8 * len(data[begin // 8 : end // 8].rstrip(b"\x00")) + begin
    return stop if end - stop >= 8 * ZERO_RUN else end


def _is_finished(data: bytes, left: int) -> bool:
    """Return whether the bits left over are those that encoders fill the last byte of a scan up with."""
    return 0 < left < 8 and data[-1] & ((1 << left) - 1) == (1 << left) - 1


def has_all_restarts(structure: Structure, scan: Scan) -> bool:
    """Return whether the restart markers of a scan are those that are due."""
    if not scan.interval:
        return True
    due = (units_of(structure, scan) - 1) // scan.interval
    cycle = bytes(range(0xD0, 0xD8)) * (len(scan.restarts) // 8 + 1)
    return len(scan.restarts) == due and scan.restarts == cycle[:due]


def _parts(blob: bytes, scan: Scan) -> tuple[bytes, list[int]]:
    """Return the data of a scan without stuffing and markers, and the bits at which its parts end."""
    data = blob[scan.start : scan.stop]
    parts = [_unstuff(part) for part in (_RESTART.split(data) if scan.interval else [data])]
    return b"".join(parts), [8 * end for end in itertools.accumulate(map(len, parts))]


def _unstuff(part: bytes) -> bytes:
    """Return the data without its stuffing, and without the first half of a marker that was cut in two."""
    part = part.rstrip(b"\xff") if part.endswith(b"\xff") else part
    return _STUFFED.sub(b"\xff", part) if b"\xff\xff" in part else part.replace(b"\xff\x00", b"\xff")


def _bits(at: int, end: int, blocks: int, units: int) -> Part:
    """Follow a refinement of DC coefficients: one bit a block."""
    there = min(units, (end - at) // blocks)
    return Part(there, "done" if there == units else "cut", end - at - there * blocks)


_Pairs = Sequence[tuple[Table | None, Table | None]]
_Hops = list[tuple[bytes, bytes, bytes]]


class _Sequential:
    """Follows MCUs of blocks, each a DC code and, where there is an AC table, codes up to the 64th coefficient."""

    def __init__(self, data: bytes, pairs: _Pairs) -> None:
        self._data, self._pairs = data, pairs
        self._first, self._hops = -1, list[tuple[bytes, bytes, bytes]]()
        # Where zeros end every block, many of them may be a flat part of the picture.
        self._flat = all(ac is None or ac.ac_hops[1][0] == END_OF_BLOCK for _, ac in pairs)

    def follow(self, at: int, end: int, _: int, units: int) -> Part:
        """Follow `units` MCUs from bit `at` on, whose data end at bit `end`."""
        zeros = -1 if self._flat else self._data.find(bytes(ZERO_RUN), at // 8, end // 8)
        if zeros < 0:
            return self._follow(at, end, units)[0]
        before, at = self._follow(at, 8 * zeros, units)
        if before.ending == "bad":
            return before
        more, enough = units - before.units, min(end, 8 * (zeros + ZERO_RUN))
        into, _ = self._follow(at, enough, more)
        if into.units == more:
            return Part(units, "done", into.left + end - enough)
        return Part(before.units, "bad", end - at)

    def _follow(self, at: int, end: int, units: int) -> tuple[Part, int]:
        """Return also the bit after the last MCU."""
        done = 0
        while done < units and at < end:
            first = 8 * _CHUNK * (at // (8 * _CHUNK))
            if first != self._first:
                self._first = first
                seen = windows(self._data[first // 8 : first // 8 + _CHUNK + _MARGIN])
                self._hops = _hops_of(seen, self._pairs)
            at, count, stop = _hop(self._hops, at - first, 8 * _CHUNK, end - first, units - done)
            at, done = at + first, done + count
            if stop is not None:
                return Part(done, "cut" if stop > end - first - LONGEST else "bad", end - at), at
        return Part(done, "done" if done == units else "cut", end - at), at


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
    """Hop from `at` to the end of the last unit that begins before `limit`; the third is where nonsense was, if so."""
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
            if 64 < k < END_OF_BLOCK:  # a 65th coefficient: the walk is in the middle of other codes
                return at, done, p
        if p > size:
            return at, done, p
        at = p
        done += 1
    return at, done, None
