"""Follows the codes of a progressive scan of AC coefficients, first pass or refinement.

ITU-T T.81, annex G.1.2. A refinement has a bit for each coefficient that is not zero so far, so it can only be followed by
who knows them: the earlier scans of its component are followed first.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from storeds.jpeg.huffman import LONGEST, Table, windows
from storeds.jpeg.structure import Scan

__all__ = ["Band", "BandData", "Part"]


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
