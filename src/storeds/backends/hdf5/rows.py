"""Reads rows of HDF5 datasets: by file offset if they are contiguous in the file, else through libhdf5.

Positional reads release the GIL and bypass libhdf5's global lock. Chunked or filtered datasets, such as those that
h5repack writes, are read correctly but more slowly. Batches of small rows are copied from a memory mapping.
"""

from __future__ import annotations

import itertools
import mmap
import os
import resource
from collections.abc import Sequence
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from storeds._utils.locations import file_system
from storeds.errors import FormatError
from storeds.protocols import Array

__all__ = ["FileMap", "FlatRows", "LibraryRows", "Rows", "gather", "gather_any", "open_rows", "read_spans"]


# Only these are mapped. On others, another machine or an ending FUSE process can make a page disappear, which ends this
# process by SIGBUS. An overlay may have such a file system below it.
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
_PAGE_SIZED = 512  # bytes; one page fault is likely to read many smaller rows
_ANNOUNCED = 15  # calls that use readahead after one that waited for the disk


class FileMap:
    """A read-only mapping of an open file, created on first use.

    Thread-safe. It belongs to a handle, which closes when no read is in progress. Arrays of rows keep the mapping
    alive, so they must not outlive the read call.

    Parameters
    ----------
    descriptor : int
        Of the file; the caller closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes: Array | None = None
        self._refused = False
        self._announce = 0

    def bytes(self, offset: int, size: int) -> Array | None:
        """Return `size` bytes of the file, uint8, or None if the mapping cannot be used."""
        if self._refused or os.fstat(self._descriptor).st_size < offset + size:
            return None
        mapped = self._bytes
        if mapped is None:
            mapped = self._bytes = self._open()
        if mapped is None or len(mapped) < offset + size:  # the file has grown since it was mapped
            return None
        return mapped[offset : offset + size]

    def take(self, first: Array, offset: int, size: int, count: int, wide: int) -> Array | None:
        """Return `wide` rows starting at each of the rows `first`, shape (n, wide * size), or None."""
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
        """Release the mapping; it is unmapped with the last array of its rows."""
        self._bytes, self._refused = None, True

    def _open(self) -> Array | None:
        try:
            if file_system(f"/proc/self/fd/{self._descriptor}") in _LOCAL:
                mapped = mmap.mmap(self._descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
                mapped.madvise(mmap.MADV_RANDOM)
                return np.frombuffer(mapped, np.uint8)
        except (OSError, ValueError):  # no address space left, or not allowed
            pass
        self._refused = True
        return None

    def _begin(self, first: Array, offset: int, size: int, wide: int) -> int:
        """Return how often this thread has waited for a disk; request readahead of all rows if it waited recently."""
        if self._announce:
            self._announce -= 1
            for at in first.tolist():
                os.posix_fadvise(self._descriptor, offset + at * size, wide * size, os.POSIX_FADV_WILLNEED)
        return _waits()


def _waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


_GAP = 4096  # bytes; reading an unneeded page is cheaper than another call
_GROUP = 1 << 20  # bytes of one read
_MANY = 128  # rows; for fewer, NumPy's calls cost more than they save
_MAPPED_MANY = 4  # the same for mapped rows
_MAPPED_MOST = 64 << 10  # bytes per row; for larger rows the copy dominates
_MAPPED_SPAN = 256  # mean bytes per span; indexing needs one index per byte


class Rows(Protocol):
    """A dataset as ``count`` rows of ``size`` bytes."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ascending row ranges ``[start, stop)``; fewer bytes if the file ends early."""
        ...


class FlatRows:
    """Rows that are contiguous in the file, read with ``pread`` or copied from `mapped` if possible."""

    def __init__(
        self,
        descriptor: int,
        offset: int,
        size: int,
        count: int,
        mapped: FileMap | None = None,
    ) -> None:
        self.descriptor: int = descriptor
        self._offset = offset
        self.mapped: FileMap | None = mapped
        self.size: int = size
        self.count: int = count

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        size, offset, descriptor = self.size, self._offset, self.descriptor
        out: list[bytes] = []
        for group in _groups(spans, size):
            first = group[0][0]
            data = _pread(descriptor, (group[-1][1] - first) * size, offset + first * size)
            if len(group) == 1:
                out.append(data)
            else:
                out.extend(data[(start - first) * size : (stop - first) * size] for start, stop in group)
        return out

    def apart(self, starts: Array, stops: Array) -> list[bytes] | None:
        """Read each range with its own call; None if ranges are close together or the file ends early."""
        if (starts[1:] - stops[:-1] <= _GAP // max(self.size, 1)).any():
            return None
        sizes = ((stops - starts) * self.size).tolist()
        offsets = (starts * self.size + self._offset).tolist()
        out = list(map(os.pread, itertools.repeat(self.descriptor), sizes, offsets))
        return out if list(map(len, out)) == sizes else None

    def take(self, first: Array, wide: int = 1) -> Array | None:
        """Return `wide` rows starting at each of the rows `first`, in any order; None if the mapping does not help."""
        if self.mapped is None or len(first) < _MAPPED_MANY or not 0 < wide * self.size <= _MAPPED_MOST:
            return None
        return self.mapped.take(first, self._offset, self.size, self.count, wide)

    def cut(self, starts: Array, stops: Array) -> list[bytes] | None:
        """Return the bytes of short row ranges; None if the mapping does not help."""
        lengths = (stops - starts) * self.size
        ends = np.cumsum(lengths)
        if self.mapped is None or len(starts) < _MAPPED_MANY or ends[-1] > len(starts) * _MAPPED_SPAN:
            return None
        found = self.mapped.bytes(self._offset, self.size * self.count)
        if found is None:
            return None
        places = np.arange(ends[-1]) + np.repeat(starts * self.size - (ends - lengths), lengths)
        data = found.take(places).tobytes()
        return [data[begin:end] for begin, end in itertools.pairwise([0, *ends.tolist()])]

    def gather(self, first: Array, wide: int) -> tuple[Array, Array]:
        """Return the result of the function `gather`, reading neighbouring rows together."""
        starts, length = first * self.size, wide * self.size
        out, whole = np.zeros((len(first), length), np.uint8), np.ones(len(first), bool)
        # Group as `_groups` does: one read serves neighbouring rows, up to `_GROUP` bytes.
        apart = (np.diff(starts) > _GAP + length) | (np.diff((starts - starts[0]) // _GROUP) > 0)
        bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(first)]
        for low, high in itertools.pairwise(bounds):
            begin, places = int(starts[low]), starts[low:high] - starts[low]
            needed = int(places[-1]) + length
            data = _pread(self.descriptor, needed, self._offset + begin)
            if len(data) < needed:
                whole[low:high] = places + length <= len(data)
                data = data.ljust(needed, b"\0")
            out[low:high] = sliding_window_view(np.frombuffer(data, np.uint8), length)[places]
        out[~whole] = 0
        return out, whole


class LibraryRows:
    """Rows that only libhdf5 can read: chunked, compressed or otherwise filtered."""

    def __init__(self, dataset: h5py.Dataset, size: int, count: int) -> None:
        self._dataset = dataset
        self.size, self.count = size, count

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        # docstring inherited
        out: list[bytes] = []
        for group in _groups(spans, self.size):
            try:
                first = group[0][0]
                data = np.ascontiguousarray(self._dataset[first : group[-1][1]])
                out.extend(data[start - first : stop - first].tobytes() for start, stop in group)
            except OSError:  # a damaged chunk: rows in other chunks are still good
                out.extend(b"" if len(group) == 1 else self.read([span])[0] for span in group)
        return out


def gather(rows: Rows, first: Array, wide: int = 1) -> tuple[Array, Array]:
    """Read `wide` rows starting at each of the ascending rows `first`.

    Returns
    -------
    Array, Array
        The bytes, shape (n, wide * size), uint8, zero where unreadable; and which are complete, shape (n,), bool.
    """
    if isinstance(rows, FlatRows):
        taken = rows.take(first, wide)
        if taken is not None:
            return taken, np.ones(len(first), bool)
        if 0 < rows.size <= _GAP and len(first) >= _MANY:
            return rows.gather(first, wide)
    found, length = rows.read([(at, at + wide) for at in first.tolist()]), wide * rows.size
    whole = np.array([len(data) == length for data in found], bool)
    data = b"".join(data if good else bytes(length) for data, good in zip(found, whole.tolist(), strict=True))
    return np.frombuffer(data, np.uint8).reshape(len(found), length), whole


def gather_any(rows: Rows, positions: Array) -> Array | None:
    """Return the rows at `positions`, in any order, shape (n, size), writable; None if one is incomplete."""
    taken = rows.take(positions) if isinstance(rows, FlatRows) else None
    if taken is not None:
        return taken
    unique, inverse = np.unique(positions, return_inverse=True)
    found, whole = gather(rows, unique)
    return found[inverse] if whole.all() else None


def read_spans(rows: Rows, starts: Array, stops: Array) -> list[bytes]:
    """Return the bytes of ascending row ranges, as `Rows.read` does."""
    found = (rows.cut(starts, stops) or rows.apart(starts, stops)) if isinstance(rows, FlatRows) else None
    return rows.read(list(zip(starts.tolist(), stops.tolist(), strict=True))) if found is None else found


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    parts = [data]  # Linux reads at most 2 GiB at once
    while parts[-1]:
        size, offset = size - len(parts[-1]), offset + len(parts[-1])
        parts.append(os.pread(descriptor, size, offset))
    return b"".join(parts)


def _groups(spans: Sequence[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    """Join neighbouring spans into groups that need one read each."""
    gap, most = _GAP // max(size, 1), _GROUP // max(size, 1)
    groups: list[list[tuple[int, int]]] = []
    group: list[tuple[int, int]] = []
    first = last = 0
    for span in spans:
        start, stop = span
        if group and start - last <= gap and stop - first <= most:
            group.append(span)
        else:
            group, first = [span], start
            groups.append(group)
        last = stop
    return groups


def open_rows(
    file: h5py.File,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...],
    descriptor: int,
    mapped: FileMap,
    url: str,
) -> Rows:
    """Return the rows of dataset `name`; raises FormatError unless it has this dtype and shape (None: any length)."""
    dataset = _local_dataset(file, name, url)
    fits = len(dataset.shape) == len(shape) and all(w in (None, g) for w, g in zip(shape, dataset.shape, strict=True))
    if dataset.dtype != dtype or not fits:
        raise FormatError(f"{url}: dataset {name} is {dataset.dtype} {dataset.shape}, expected {dtype} {shape}")
    count = int(dataset.shape[0])
    size = int(np.prod(dataset.shape[1:], dtype=np.int64)) * dtype.itemsize
    offset = dataset.id.get_offset()
    if dataset.nbytes == 0:
        return FlatRows(descriptor, 0, size, count)
    if dataset.chunks is not None or offset is None:
        return LibraryRows(dataset, size, count)
    available = os.fstat(descriptor).st_size
    if offset + count * size > available:
        raise FormatError(
            f"{url} is cut short: dataset {name} ends at byte {offset + count * size}, the file has {available}; copy it again"
        )
    return FlatRows(descriptor, offset, size, count, mapped)


def _local_dataset(file: h5py.File, name: str, url: str) -> h5py.Dataset:
    at = ""
    for part in name.split("/"):
        at = f"{at}/{part}"
        link = file.get(at, getlink=True)
        if link is None:
            raise FormatError(f"{url}: {at} is missing; copy it again")
        if not isinstance(link, h5py.HardLink):
            # h5py would follow the link into any file.
            raise FormatError(f"{url}: {at} is a link to elsewhere, which a native store never holds")
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise FormatError(f"{url}: /{name} is not a dataset")
    if dataset.is_virtual or dataset.external:
        # A virtual dataset reads zeros for a missing source; external storage can name any file.
        raise FormatError(f"{url}: dataset {name} keeps its bytes in other files, which a native store never does")
    return dataset
