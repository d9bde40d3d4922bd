"""Bounds what a chunk of an HDF5 file becomes in memory: libhdf5 inflates gzip to whatever size the chunk asks for."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Sequence

import h5py
import numpy as np

__all__ = [
    "DEFLATE",
    "FLETCHER",
    "SHUFFLE",
    "InflationCheck",
    "filters_of",
    "most_claimed",
    "stored_chunk",
    "undone",
]

SHUFFLE, DEFLATE, FLETCHER = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_FLETCHER32
_DENSEST = 1032  # bytes that deflate makes of one
_CHECKSUM = 4  # bytes of Fletcher-32
_LEAST_CLAIM = 16 << 20  # bytes that any file may claim
_MORE = 1 << 16  # bytes that filters may add to a chunk


def most_claimed(descriptor: int) -> int:
    """Return how many bytes of values an open file may hold, if gzip compresses them best."""
    return max(_DENSEST * os.fstat(descriptor).st_size, _LEAST_CLAIM)


def filters_of(dataset: h5py.Dataset) -> list[int]:
    """Return the codes of the filters of a dataset, in the order in which they were applied."""
    properties = dataset.id.get_create_plist()
    return [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]


def stored_chunk(dataset: h5py.Dataset, corner: tuple[int, ...]) -> tuple[int, bytes] | None:
    """Return the mask of filters and the bytes of a chunk; None if it was never written."""
    try:
        info = dataset.id.get_chunk_info_by_coord(corner)
    except (OSError, RuntimeError):
        return None
    if info.byte_offset is None:
        return None
    if info.size > dataset.file.id.get_filesize():
        raise ValueError(f"its chunk claims {info.size:,} bytes, more than its file has")
    mask, raw = dataset.id.read_direct_chunk(corner)
    return mask, raw


def undone(raw: bytes, filters: Sequence[int], mask: int, nbytes: int, itemsize: int) -> tuple[bytes, list[int]]:
    """Undo the last filters of a chunk of `nbytes`, up to one that is neither gzip's, shuffle nor Fletcher-32.

    Returns the bytes, and the filters before. Raises ValueError if gzip made more bytes than a chunk has, or is among the filters
    before.
    """
    data = raw
    for at, code in reversed([*enumerate(filters)]):
        if mask & 1 << at:
            continue
        if code == FLETCHER:
            data = data[:-_CHECKSUM]  # gzip has its own
        elif code == DEFLATE:
            data = _inflated(data, nbytes + nbytes // 64 + _MORE)  # other filters may add some
        elif code == SHUFFLE:
            whole = len(data) - len(data) % itemsize
            data = np.frombuffer(data, "u1", whole).reshape(itemsize, -1).T.tobytes() + data[whole:]
        elif any(code == DEFLATE and not mask & 1 << before for before, code in enumerate(filters[:at])):
            raise ValueError("its chunk is compressed again after gzip; convert the file with h5repack")
        else:
            return data, [*filters[: at + 1]]
    return data, []


class InflationCheck:
    """Checks the chunks that libhdf5 is to inflate, because it sets no limit to what they become."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset, self._filters = dataset, filters_of(dataset)
        self._itemsize = dataset.id.get_type().get_size()
        self._checked: set[tuple[int, ...]] = set()

    def __call__(self, selected: tuple[slice, ...]) -> None:
        """Raise ValueError if a chunk with some of the selected rows inflates to more than its size."""
        if DEFLATE not in self._filters or any(one.start == one.stop for one in selected):
            return
        chunks = self._dataset.chunks
        for part in self._dataset.iter_chunks(selected):
            corner = tuple(one.start - one.start % size for one, size in zip(part, chunks, strict=True))
            if corner in self._checked:
                continue
            stored = stored_chunk(self._dataset, corner)
            if stored is None:
                continue
            mask, raw = stored
            undone(raw, self._filters, mask, math.prod(chunks) * self._itemsize, self._itemsize)
            self._checked.add(corner)


def _inflated(data: bytes, most: int) -> bytes:
    """Return what deflate made of at most `most` bytes."""
    stream = zlib.decompressobj()
    try:
        out = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"its chunk is damaged: {error}") from None
    if len(out) > most or not stream.eof:
        raise ValueError(f"its chunk inflates to {'more than' if len(out) > most else 'a part of'} {most} bytes")
    return out
