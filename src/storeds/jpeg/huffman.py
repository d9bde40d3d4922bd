"""Huffman tables as arrays over all 16-bit windows, and the windows of a scan's data.

What makes a walk in Python bearable: NumPy says, for *every* bit of the data, what a code that began there would be, and
the walk only hops from one to the next.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from storeds.jpeg.structure import Scan

__all__ = ["END_OF_BLOCK", "LONGEST", "Table", "Tables", "tables_of", "windows"]

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
