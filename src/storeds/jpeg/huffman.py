"""Huffman tables as arrays over all 16-bit windows, and the windows of a scan's data.

What makes a walk in Python bearable: NumPy says, for *every* bit of the data, what a code that began there would be, and
the walk only hops from one to the next.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from storeds.jpeg.structure import Scan, Structure

__all__ = ["LONGEST", "Table", "Tables", "tables_of", "windows"]

# No code is longer. Nearer to the end than this, what is no code may be one that was cut.
LONGEST = 16
_WINDOWS = 1 << LONGEST

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
        passed = np.where((size == 0) & (run != 15), 64, run + 1)
        bits = np.where((self.length > 0) & (size <= 16), self.length + size, 0)
        return bits.astype(np.uint8), passed.astype(np.uint8)


Tables = dict[tuple[int, int], Table]


def tables_of(blob: bytes, structure: Structure, scan: Scan) -> Tables:
    """Return the tables in force for `scan`, by (class, identifier), class 1 being AC; broken ones are left out."""
    found: Tables = {}
    for start, stop in structure.tables[: scan.tables]:
        at = start
        while at + 17 <= stop:
            counts = blob[at + 1 : at + 17]
            end = at + 17 + sum(counts)
            table = _table(counts, blob[at + 17 : end]) if end <= stop else None
            if table is not None:
                found[blob[at] >> 4, blob[at] & 15] = table
            at = end
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


def windows(data: Any) -> npt.NDArray[np.uint16]:
    """Return the 16 bits that begin at each bit of `data`, which counts as followed by ones."""
    padded = np.full(len(data) + 2, 255, np.uint32)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    wide = padded[:-2] << 16 | padded[1:-1] << 8 | padded[2:]
    found = np.empty((len(data), 8), np.uint16)
    for bit in range(8):
        found[:, bit] = wide >> (8 - bit)
    return found.reshape(-1)
