"""Huffman tables of a JPEG: which code begins at each 16-bit window, and how far it leads.

See ITU-T T.81, annexes C, F and K.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from storeds.jpeg.markers import Scan

__all__ = ["END_OF_BLOCK", "LONGEST", "Table", "Tables", "tables_of"]

LONGEST = 16
"""Length of the longest code in bits."""

END_OF_BLOCK = 128
"""Number of coefficients that an end-of-block code counts as. It exceeds what all other codes of a block can reach."""

_WINDOWS = 1 << LONGEST

Bytes = npt.NDArray[np.uint8]


class Table:
    """A Huffman table: for each 16-bit window, length in bits (0: no code) and symbol of the code at its beginning."""

    def __init__(self, length: Bytes, symbol: Bytes) -> None:
        self.length, self.symbol = length, symbol
        self.dc_hops, self.ac_hops = self._hops(dc=True), self._hops(dc=False)

    def _hops(self, *, dc: bool) -> tuple[Bytes, Bytes]:
        """Return for each window the bits of code and value (0: no code) and the number of coefficients."""
        size = self.symbol if dc else self.symbol & 15
        run = self.symbol >> 4
        # libjpeg treats every symbol of size 0 as end of block, except a run of 16 zeros.
        passed = np.where((size == 0) & (run != 15), END_OF_BLOCK, run + 1)
        # No bits follow a difference of size 16, which is always 32768 (lossless files only).
        bits = np.where((self.length > 0) & (size <= 16), self.length + size % 16, 0)
        return bits.astype(np.uint8), passed.astype(np.uint8)


Tables = dict[tuple[int, int], Table]
"""Tables by (class, identifier), where class 1 is AC."""


def tables_of(blob: bytes, scan: Scan, *, standard: bool = False) -> Tables:
    """Return the valid tables of `scan` by (class, identifier), where class 1 is AC.

    Parameters
    ----------
    standard : bool
        Use the tables of ITU-T T.81, K.3 to K.6, if the file has none, as decoders do for sequential files: frames of
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
    """Return the table with `counts` codes of each length 1 to 16; None if the lengths do not allow so many."""
    lengths = np.repeat(np.arange(1, 17, dtype=np.uint8), list(counts))
    spans = 1 << (16 - lengths.astype(np.int64))
    total = int(spans.sum())
    if total > _WINDOWS or len(lengths) != len(symbols):
        return None
    length, symbol = np.zeros(_WINDOWS, np.uint8), np.zeros(_WINDOWS, np.uint8)
    length[:total] = np.repeat(lengths, spans)
    symbol[:total] = np.repeat(np.frombuffer(symbols, np.uint8), spans)
    return Table(length, symbol)


# ITU-T T.81, K.3 to K.6: for each (class, identifier), the number of codes of each length, and their symbols.
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
