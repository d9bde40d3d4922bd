"""Protects the metadata of HDF5 files from damage by a checksum behind the end of the file, and opens files with libhdf5."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import h5py
import xxhash

from storeds._utils.files import os_failure
from storeds.errors import FormatError, StoredsError, UnavailableError

__all__ = [
    "check_hdf5_file",
    "has_stamp",
    "library_errors",
    "metadata_ranges",
    "open_hdf5_file",
    "stamp",
    "system_failure",
]

_MAGIC = b"storeds\x02"
_RANGE = struct.Struct("<QQ")
_FOOT = struct.Struct("<8sQ8s")
_MARK_AT = 20  # in the superblock of version 0, which native stores have: the file consistency flags
_METADATA = 1 << 24  # bytes of a range; a store's header takes tens of kilobytes
_ALL_METADATA = 1 << 27  # bytes; a file that does not match is hashed twice
_MOST = 1 << 16  # ranges; a field has at most three
_SYSTEM_CALL = re.compile(r"errno = (\d+)")
_CUT = re.compile(r"truncated file: eof = (\d+).*stored_eof = (\d+)")


def open_hdf5_file(path: str, url: str, locking: str, cache_bytes: int) -> h5py.File:
    """Open a file with libhdf5.

    Raises
    ------
    UnavailableError
        Another program has it open for writing, or a system call failed.
    FormatError
        It is damaged, or cut short.
    """
    how = {"auto": None, "true": True, "false": False}.get(locking, locking)
    try:
        return h5py.File(path, "r", locking=how, rdcc_nbytes=cache_bytes)
    except Exception as error:  # a damaged header makes libhdf5 raise almost anything
        raise _failure(error, url) from error


def _failure(error: Exception, url: str) -> StoredsError:
    reason = str(error)
    if "unable to lock file" in reason:
        return UnavailableError(
            f"{url} is locked: another program has it open for writing. Close it there. Where nothing writes, such as on a "
            f"network file system without locks, pass locking='false' ({reason})"
        )
    if "already open for" in reason:
        return _in_use(url)
    cut = _CUT.search(reason)
    if cut is None:
        return system_failure(error, url) or FormatError(f"{url} cannot be opened by HDF5: {reason}")
    return FormatError(
        f"{url} is cut short: {int(cut[1]):,} of its {int(cut[2]):,} bytes are there; the copy or download was "
        "interrupted, or its writer never closed it: copy or download it again"
    )


def _in_use(url: str) -> UnavailableError:
    return UnavailableError(
        f"{url} is open for writing in another program, or that program died. Close it there, or after a death run "
        "`h5clear --status` on the file"
    )


def system_failure(error: Exception, url: str) -> StoredsError | None:
    """Return the error for a failed system call, which libhdf5 reports in exceptions of many types; None for any other."""
    found = _SYSTEM_CALL.search(str(error))
    number = int(found[1]) if found else getattr(error, "errno", None)
    return None if number is None else os_failure(url, "read", OSError(number, os.strerror(number)))


@contextmanager
def library_errors(url: str) -> Iterator[None]:
    """Convert what libhdf5 raises about a damaged file, which is almost anything, to FormatError."""
    try:
        yield
    except StoredsError:
        raise
    except Exception as error:
        damaged = FormatError(f"{url} is damaged: {type(error).__name__}: {error}; copy it again")
        raise system_failure(error, url) or damaged from error


def stamp(descriptor: int, metadata: Sequence[tuple[int, int]]) -> bytes:
    """Return what to append to an HDF5 file with these byte ranges of metadata, which is all but the raw data of datasets.

    It lies behind the end that the HDF5 superblock knows of, so HDF5 tools ignore it, and a tool that opens the file for
    writing cuts it off: its changes are not reported as damage. ``docs/format.md`` specifies it.
    """
    table = b"".join(_RANGE.pack(*span) for span in metadata[:_MOST])
    return table + _FOOT.pack(_digest(descriptor, table), len(table) // _RANGE.size, _MAGIC)


def check_hdf5_file(descriptor: int, url: str) -> None:
    """Raise FormatError unless the stamp of an open HDF5 file holds; a file without one passes.

    Raises UnavailableError where only the mark of libhdf5 differs that a program has the file open for writing.

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
    table = table[: len(table) // _RANGE.size * _RANGE.size]
    if _digest(descriptor, table) != digest:
        if _digest(descriptor, table, unmarked=True) == digest:
            raise _in_use(url)
        raise FormatError(f"{url}: its metadata do not match their checksum; copy it again")


def has_stamp(path: str, url: str) -> bool:
    """Whether an HDF5 file ends with a stamp, as every store does that no tool has written to since."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(-len(_MAGIC), os.SEEK_END)
            return file.read() == _MAGIC
    except OSError as error:
        raise os_failure(url, "read", error) from error


def metadata_ranges(raw: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the byte ranges of a file of `size` bytes that are not in the ranges `raw`."""
    gaps, end = [], 0
    for start, stop in [*sorted(raw), (size, size)]:
        if start > end:
            gaps.append((end, start))
        end = max(end, stop)
    return gaps


def _digest(descriptor: int, table: bytes, *, unmarked: bool = False) -> bytes:
    """Return the checksum of a table and its ranges; with `unmarked`, as if no program had the file open for writing."""
    hasher, left = xxhash.xxh3_64(table), _ALL_METADATA
    for start, stop in _RANGE.iter_unpack(table):
        if start < stop < 1 << 63 and left > 0:  # a damaged table may name any range, and many
            found = os.pread(descriptor, min(stop - start, _METADATA), start)
            if unmarked and start == 0:
                found = found[:_MARK_AT] + b"\0" + found[_MARK_AT + 1 :]
            hasher.update(found)
            left -= len(found)
    return hasher.digest()
