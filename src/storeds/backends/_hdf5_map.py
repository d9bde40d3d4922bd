"""Maps an HDF5 file into memory for rows of fixed size, where that is safe: a copy then costs no system call.

Touching a page of a mapping that the file has no more kills the process. So the file's size is asked before every use, and
who finds it too short reads with system calls, which only return less. ``docs/decisions/0018`` weighs what is left.
"""

from __future__ import annotations

import mmap
import os
import resource

import numpy as np

from storeds._mounts import file_system
from storeds.protocols import Array

__all__ = ["FileMap"]

# On others a page may be lost to another machine, or to a program that ends, whatever the size says; an overlay may lie
# over any of them.
_LOCAL = {
    "bcachefs",
    "btrfs",
    "erofs",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "ramfs",
    "squashfs",
    "tmpfs",
    "xfs",
    "zfs",
}
_PAGE_SIZED = 512  # bytes; of smaller rows, many are likely to share what one fault reads
_ANNOUNCED = 15  # calls


class FileMap:
    """A read-only mapping of an open file, made when it is first needed.

    Thread-safe. It belongs to a handle, which is closed once nobody reads; arrays of rows keep the mapping alive, so they
    must not outlast the call that asked for them.

    Parameters
    ----------
    descriptor : int
        Of the file; stays the caller's.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes: Array | None = None
        self._refused = False
        self._announce = 0

    def bytes(self, offset: int, size: int) -> Array | None:
        """Return `size` bytes of the file, uint8, or None where they must be read otherwise."""
        if self._refused or os.fstat(self._descriptor).st_size < offset + size:
            return None
        mapped = self._bytes
        if mapped is None:
            mapped = self._bytes = self._open()
        if mapped is None or len(mapped) < offset + size:  # it was longer, then shorter, and is long again
            return None
        return mapped[offset : offset + size]

    def take(self, first: Array, offset: int, size: int, count: int, wide: int) -> Array | None:
        """Return `wide` of `count` rows from each of the rows `first` on, shape (n, wide * size), or None."""
        found = self.bytes(offset, size * count)
        if found is None:
            return None
        large = wide * size >= _PAGE_SIZED
        before = self._begin(first, offset, size, wide) if large else 0
        rows = first if wide == 1 else first[:, None] + np.arange(wide)
        taken = found.reshape(count, size).take(rows, axis=0).reshape(len(first), wide * size)
        if large and _waits() > before:
            self._announce = _ANNOUNCED
        return taken

    def close(self) -> None:
        """Let go of the mapping; it ends with the last array of its rows."""
        self._bytes, self._refused = None, True

    def _open(self) -> Array | None:
        try:
            if file_system(f"/proc/self/fd/{self._descriptor}") in _LOCAL:
                mapped = mmap.mmap(self._descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
                mapped.madvise(mmap.MADV_RANDOM)
                return np.frombuffer(mapped, np.uint8)
        except (OSError, ValueError):  # no address space for it is left, or none is allowed
            pass
        self._refused = True
        return None

    def _begin(self, first: Array, offset: int, size: int, wide: int) -> int:
        """Return how often this thread waited for a disk so far; where it did lately, have all rows read at once."""
        if self._announce:
            self._announce -= 1
            for at in first.tolist():
                os.posix_fadvise(self._descriptor, offset + at * size, wide * size, os.POSIX_FADV_WILLNEED)
        return _waits()


def _waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
