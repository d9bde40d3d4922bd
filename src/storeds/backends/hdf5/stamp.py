"""Protects the metadata of HDF5 files from damage by a checksum behind the end of the file, and opens files with libhdf5."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Sequence

import h5py
import xxhash

from storeds._utils.locations import CutShortError
from storeds.errors import FormatError

__all__ = ["check_hdf5_file", "metadata_ranges", "open_hdf5_file", "stamp"]

_MAGIC = b"storeds\x02"
_RANGE = struct.Struct("<QQ")
_FOOT = struct.Struct("<8sQ8s")
_METADATA = 1 << 24  # bytes of a range; a store's header takes tens of kilobytes
_ALL_METADATA = 1 << 28  # bytes
_MOST = 1 << 16  # ranges; a field has at most three
_CUT = re.compile(r"truncated file: eof = (\d+).*stored_eof = (\d+)")


def open_hdf5_file(path: str, url: str, locking: str, cache_bytes: int) -> h5py.File:
    """Open a file with libhdf5; raises FormatError, with a plain message for a truncated file."""
    how = {"auto": None, "true": True, "false": False}.get(locking, locking)
    try:
        return h5py.File(path, "r", locking=how, rdcc_nbytes=cache_bytes)
    except Exception as error:  # a damaged header makes libhdf5 raise almost anything
        cut = _CUT.search(str(error))
        if cut is None:
            raise FormatError(f"{url} cannot be opened by HDF5: {error}") from error
        raise CutShortError(
            f"{url} is cut short: {int(cut[1]):,} of its {int(cut[2]):,} bytes are there; the copy or download was "
            "interrupted, or its writer never closed it: copy or download it again"
        ) from error


def stamp(descriptor: int, metadata: Sequence[tuple[int, int]]) -> bytes:
    """Return what to append to an HDF5 file with these byte ranges of metadata, which is all but the raw data of datasets.

    It lies behind the end that the HDF5 superblock knows of, so HDF5 tools ignore it, and a tool that opens the file for
    writing cuts it off: its changes are not reported as damage. ``docs/format.md`` specifies it.
    """
    table = b"".join(_RANGE.pack(*span) for span in metadata[:_MOST])
    return table + _FOOT.pack(_digest(descriptor, table), len(table) // _RANGE.size, _MAGIC)


def check_hdf5_file(descriptor: int, url: str) -> None:
    """Raise FormatError unless the stamp of an open HDF5 file holds; a file without one passes.

    Call it before libhdf5 sees the file, because libhdf5 may crash or hang on damaged metadata: a single flipped bit in
    a B-tree or a heap is enough (HDF5 2.0.0).
    """
    foot_at = os.fstat(descriptor).st_size - _FOOT.size
    foot = os.pread(descriptor, _FOOT.size, max(0, foot_at))
    if not foot.endswith(_MAGIC) or foot_at < 0:
        return
    digest, count, _ = _FOOT.unpack(foot)
    size = min(count, _MOST) * _RANGE.size
    table = os.pread(descriptor, size, max(0, foot_at - size))
    if _digest(descriptor, table[: len(table) // _RANGE.size * _RANGE.size]) != digest:
        raise FormatError(f"{url}: its metadata do not match their checksum; copy it again")


def metadata_ranges(raw: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the byte ranges of a file of `size` bytes that are not in the ranges `raw`."""
    gaps, end = [], 0
    for start, stop in [*sorted(raw), (size, size)]:
        if start > end:
            gaps.append((end, start))
        end = max(end, stop)
    return gaps


def _digest(descriptor: int, table: bytes) -> bytes:
    hasher, left = xxhash.xxh3_64(table), _ALL_METADATA
    for start, stop in _RANGE.iter_unpack(table):
        if start < stop < 1 << 63 and left > 0:  # a damaged table may name any range, and many
            found = os.pread(descriptor, min(stop - start, _METADATA), start)
            hasher.update(found)
            left -= len(found)
    return hasher.digest()
