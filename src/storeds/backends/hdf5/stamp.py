r"""Checks an HDF5 file's metadata before libhdf5 sees it, because libhdf5 may crash or hang on a damaged one.

A single flipped bit in a B-tree or a heap is enough (HDF5 2.0.0). A published store therefore ends with a *stamp*,
behind the end that the HDF5 superblock knows of: which byte ranges are metadata (all but the raw data of datasets,
which record and column checksums cover), and a checksum over them. HDF5 tools do not see the stamp, and one that
opens the file for writing cuts it off, so that what they change is not taken for damage.

The stamp, numbers as little-endian uint64: start and stop of each range; xxh3-64 over these and the bytes of the
ranges; the number of ranges; ``storeds\x02``.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable

import xxhash

from storeds._utils.paths import CutShortError
from storeds.errors import FormatError

__all__ = ["check_hdf5_file", "not_opened", "stamp_hdf5_file"]

_MAGIC = b"storeds\x02"
_RANGE = struct.Struct("<QQ")
_FOOT = struct.Struct("<8sQ8s")
_CUT = re.compile(r"truncated file: eof = (\d+).*stored_eof = (\d+)")
_MOST = 1 << 16  # ranges; a field makes three at most


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
    """Return the error for a file that libhdf5 does not open, in plain words where the file was cut short."""
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
        # A damaged table may name any range, and is to be found out, not obeyed.
        size = min(stop, os.fstat(descriptor).st_size) - start
        if size > 0:
            hasher.update(os.pread(descriptor, min(size, _METADATA), start))
    return hasher.digest()


_METADATA = 1 << 24  # bytes; a store's header takes tens of kilobytes
