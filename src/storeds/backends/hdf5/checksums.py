r"""Checks an HDF5 file's metadata before libhdf5 sees it, because libhdf5 may crash or hang on a damaged one.

A single flipped bit in a B-tree or a heap is enough (HDF5 2.0.0). A published store therefore ends with a *stamp*,
behind the end that the HDF5 superblock knows of: which byte ranges are metadata (all but the raw data of datasets,
which record and column checksums cover), and a checksum over them. HDF5 tools ignore the stamp, and a tool that
opens the file for writing cuts it off, so its changes are not reported as damage.

The stamp, numbers as little-endian uint64: start and stop of each range; xxh3-64 over these and the bytes of the
ranges; the number of ranges; ``storeds\x02``.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import xxhash

from storeds._utils.locations import CutShortError
from storeds.backends.hdf5.rows import Rows
from storeds.errors import FormatError
from storeds.protocols import Array, Field

__all__ = [
    "BLOCK",
    "BlockError",
    "Blocks",
    "Table",
    "block_count",
    "block_digests",
    "check_hdf5_file",
    "column_datasets",
    "not_opened",
    "stamp_hdf5_file",
]

_MAGIC = b"storeds\x02"
_RANGE = struct.Struct("<QQ")
_FOOT = struct.Struct("<8sQ8s")
_CUT = re.compile(r"truncated file: eof = (\d+).*stored_eof = (\d+)")
_MOST = 1 << 16  # ranges; a field has at most three


def check_hdf5_file(descriptor: int, url: str) -> None:
    """Raise FormatError unless the stamp of an open HDF5 file holds; a file without one passes."""
    size = os.fstat(descriptor).st_size
    foot = os.pread(descriptor, _FOOT.size, max(0, size - _FOOT.size))
    if len(foot) != _FOOT.size:
        return
    digest, count, magic = _FOOT.unpack(foot)
    if magic != _MAGIC:
        return
    table_at = size - _FOOT.size - min(count, _MOST) * _RANGE.size
    table = os.pread(descriptor, size - _FOOT.size - table_at, table_at) if table_at >= 0 else b""
    if _digest(descriptor, table) != digest:
        raise FormatError(f"{url}: its metadata do not match their checksum; copy it again")


def not_opened(url: str, error: Exception) -> FormatError:
    """Return the error for a file that libhdf5 does not open, with a plain message for a truncated file."""
    cut = _CUT.search(str(error))
    if cut is None:
        return FormatError(f"{url} cannot be opened by HDF5: {error}")
    there, due = int(cut[1]), int(cut[2])
    return CutShortError(
        f"{url} is cut short: {there:,} of its {due:,} bytes are there ({100 * there // due} %); the copy or download was "
        "interrupted, or its writer never closed it: copy or download it again"
    )


def stamp_hdf5_file(path: str, raw: Iterable[tuple[int, int]]) -> None:
    """Append the stamp to the HDF5 file at `path`, whose datasets keep their values in the byte ranges `raw`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        ranges = _complement(raw, size)
        if len(ranges) > _MOST:
            return
        table = b"".join(_RANGE.pack(*span) for span in ranges)
        os.pwrite(descriptor, table + _FOOT.pack(_digest(descriptor, table), len(ranges), _MAGIC), size)
    finally:
        os.close(descriptor)


def _complement(raw: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    gaps, end = [], 0
    for start, stop in [*sorted(raw), (size, size)]:
        if start > end:
            gaps.append((end, start))
        end = max(end, stop)
    return gaps


def _digest(descriptor: int, table: bytes) -> bytes:
    hasher = xxhash.xxh3_64(table)
    for start, stop in _RANGE.iter_unpack(table):
        # A damaged table may name any range, and must not be trusted.
        size = min(stop, os.fstat(descriptor).st_size) - start
        if size > 0:
            hasher.update(os.pread(descriptor, min(size, _METADATA), start))
    return hasher.digest()


_METADATA = 1 << 24  # bytes; a store's header takes tens of kilobytes


BLOCK = 1 << 16
_AT_ONCE = 16  # blocks; a column of fewer is checked whole


class BlockError(ValueError):
    """A block of a column, or the table of checksums, does not match its checksum."""


def column_datasets(fields: Mapping[str, Field]) -> Iterator[tuple[str, str]]:
    """Yield field and dataset of each column that has checksums (fixed-size values and texts), in table order."""
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
    """Return the xxh3-64 of each block of a dataset; every part but the last must be a multiple of the block size."""
    return [
        xxhash.xxh3_64_intdigest(memoryview(part)[at : at + BLOCK])
        for part in parts
        for at in range(0, len(part), BLOCK)
    ]


class Table:
    """The checksums of all blocks of a file, read on first use.

    Parameters
    ----------
    rows : Rows
        The checksums, 8 bytes each.
    checksum : str
        The xxh3-64 of all of them, in hexadecimal.
    """

    def __init__(self, rows: Rows, checksum: str) -> None:
        self._rows, self._checksum = rows, checksum

    def part(self, start: int, stop: int) -> Array:
        """Return checksums `start` to `stop`; raises BlockError if the table is damaged."""
        (data,) = self._rows.read([(0, self._rows.count)])
        if xxhash.xxh3_64_hexdigest(data) != self._checksum:
            raise BlockError("the checksums of its columns are damaged")
        return np.frombuffer(data, "<u8")[start:stop].copy()


class Blocks:
    """Verifies the blocks of one column, and remembers the good ones. Thread-safe, since all threads find the same.

    Parameters
    ----------
    rows : Rows
        The column.
    table : Table
    start : int
        The index of its first checksum in the table.

    Attributes
    ----------
    count : int
        The number of blocks.
    all_good : bool
        Whether all blocks have been verified, so that nothing is left to check.
    """

    def __init__(self, rows: Rows, table: Table, start: int) -> None:
        self._rows, self._table, self._start = rows, table, start
        self.count = block_count(rows.count * rows.size)
        self._digests: Array | None = None
        self._good = np.zeros(self.count, bool)
        self.all_good = not self.count

    def check_rows(self, starts: Array, stops: Array) -> None:
        """Raise BlockError unless the blocks that hold these row ranges match their checksums."""
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
        """Raise BlockError unless `data`, all bytes of the column, matches the checksums."""
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
