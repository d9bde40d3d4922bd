"""Checksums of columns in blocks, for reading a column without its records.

A record's seal covers whole records. A label that is read alone is therefore checked with its block: 64 KiB of its column,
which are read and hashed when a handle first needs them. ``docs/decisions/0028`` gives the measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import xxhash

from storeds.backends.hdf5.rows import Rows
from storeds.protocols import Array, Field

__all__ = ["BLOCK", "BlockError", "Blocks", "Table", "block_count", "block_digests", "column_datasets"]

BLOCK = 1 << 16
_AT_ONCE = 16  # blocks; a column of fewer is checked whole


class BlockError(ValueError):
    """A block of a column, or the table of checksums, is not what was written."""


def column_datasets(fields: Mapping[str, Field]) -> Iterator[tuple[str, str]]:
    """Yield field and dataset, in the order of the table, of all columns: values of fixed size, and texts."""
    for name, field in fields.items():
        if field.is_fixed:
            yield name, name
        elif field.kind in ("str", "json"):
            yield name, f"{name}/data"
            yield name, f"{name}/offsets"


def block_count(size: int) -> int:
    """Return how many blocks a dataset of `size` bytes has."""
    return -(-size // BLOCK)


def block_digests(parts: Iterable[bytes]) -> list[int]:
    """Return the xxh3-64 of each block of a dataset, of which each part but the last is whole blocks."""
    return [
        xxhash.xxh3_64_intdigest(memoryview(part)[at : at + BLOCK])
        for part in parts
        for at in range(0, len(part), BLOCK)
    ]


class Table:
    """The checksums of all blocks of a file, read when they are first needed.

    Parameters
    ----------
    rows : Rows
        Numbers of 8 bytes.
    checksum : str
        The xxh3-64 of all of them, in hexadecimal.
    """

    def __init__(self, rows: Rows, checksum: str) -> None:
        self._rows, self._checksum = rows, checksum

    def part(self, start: int, stop: int) -> Array:
        """Return some of the numbers; raises BlockError unless all are what was written."""
        (data,) = self._rows.read([(0, self._rows.count)])
        if xxhash.xxh3_64_hexdigest(data) != self._checksum:
            raise BlockError("the checksums of its columns are damaged")
        return np.frombuffer(data, "<u8")[start:stop].copy()


class Blocks:
    """The blocks of one column, and which of them were found to be good. Thread-safe: all threads find the same.

    Parameters
    ----------
    rows : Rows
        The column.
    table : Table
    start : int
        Of its checksums in the table.

    Attributes
    ----------
    count : int
        How many there are.
    all_good : bool
        Whether all were found to be good, so that nothing is left to check.
    """

    def __init__(self, rows: Rows, table: Table, start: int) -> None:
        self._rows, self._table, self._start = rows, table, start
        self.count = block_count(rows.count * rows.size)
        self._digests: Array | None = None
        self._good = np.zeros(self.count, bool)
        self.all_good = not self.count

    def check_rows(self, starts: Array, stops: Array) -> None:
        """Raise BlockError unless the blocks that hold the row ranges between `starts` and `stops` are what was written."""
        if self.all_good:
            return
        filled = stops > starts
        first = starts[filled] * self._rows.size // BLOCK
        last = (stops[filled] * self._rows.size - 1) // BLOCK
        if self.count <= _AT_ONCE:
            needed = np.ones(self.count, bool)
        else:
            needed = np.zeros(self.count, bool)
            needed[first] = needed[last] = True
            for low, high in zip(first[last > first + 1], last[last > first + 1], strict=True):
                needed[low:high] = True
        for number in np.flatnonzero(needed & ~self._good).tolist():
            self._check(number, self._read(number))
        self.all_good = bool(self._good.all())

    def check_all(self, data: bytes) -> None:
        """Raise BlockError unless `data`, all bytes of the column, are what was written."""
        for number in range(self.count):
            self._check(number, memoryview(data)[number * BLOCK : (number + 1) * BLOCK])
        self.all_good = True

    def _read(self, number: int) -> bytes | memoryview:
        size, total = self._rows.size, self._rows.size * self._rows.count
        begin, end = number * BLOCK, min((number + 1) * BLOCK, total)
        first = begin // size
        (data,) = self._rows.read([(first, -(-end // size))])
        return memoryview(data)[begin - first * size : end - first * size]

    def _check(self, number: int, data: bytes | memoryview) -> None:
        if self._digests is None:
            self._digests = self._table.part(self._start, self._start + self.count)
        if xxhash.xxh3_64_intdigest(data) != int(self._digests[number]):
            raise BlockError(f"block {number} of {self.count} does not match its checksum")
        self._good[number] = True
