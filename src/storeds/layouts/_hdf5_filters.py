"""Undoes the filters of HDF5 chunks that need nothing of libhdf5: deflate, shuffle and the Fletcher32 checksum."""

from __future__ import annotations

import zlib

import h5py
import numpy as np

__all__ = ["Filters"]

_DEFLATE, _SHUFFLE, _FLETCHER32 = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_UNDONE = {_DEFLATE, _SHUFFLE, _FLETCHER32}
_SUM = 4  # bytes that a checksum takes, behind the bytes that it is of
_BLOCK = 1 << 16  # words; the sums of so many stay far below 64 bits


class Filters:
    """The filters of a dataset, as pairs of a filter's number and its first parameter, in the order of writing."""

    def __init__(self, filters: list[tuple[int, int]]) -> None:
        self._filters = filters
        self._steps: dict[int, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._filters)

    @classmethod
    def of(cls, dataset: h5py.Dataset) -> Filters | None:
        """Return the filters of a dataset, or None if only libhdf5 can undo them."""
        plan = dataset.id.get_create_plist()
        found = [plan.get_filter(number) for number in range(plan.get_nfilters())]
        codes = [code for code, _, _, _ in found]
        if not _UNDONE.issuperset(codes) or len(set(codes)) < len(codes):
            return None
        return cls([(code, values[0] if values else 1) for code, _, values, _ in found])

    def undo(self, data: bytes, skipped: int, size: int) -> bytes | memoryview:
        """Return the bytes of a chunk that lies in the file as `data`: `size`, or more where the file has too many.

        Parameters
        ----------
        data : bytes
        skipped : int
            Filter mask of the chunk: bit 0 is set where the first filter was not applied, and so on.
        size : int

        Raises
        ------
        ValueError
            The bytes are damaged, fewer than `size`, or decompress to more than twice as many; no more are ever made by that.
        """
        steps = self._steps.get(skipped)
        if steps is None:
            steps = self._steps[skipped] = self._undone(skipped)
        out: bytes | memoryview = data
        for code, number in steps:
            if code == _DEFLATE:
                out = _inflate(out, size + number)
            elif code == _SHUFFLE:
                out = _unshuffle(out, number)
            else:
                out = _checked(out)
        if len(out) < size:
            raise ValueError(f"a chunk has {len(out)} bytes, not {size}")
        return out

    def _undone(self, skipped: int) -> list[tuple[int, int]]:
        """Return the filters, last one first: of deflate, how many bytes were added before; of shuffle, the items' size."""
        added, steps = 0, []
        for number, (code, width) in enumerate(self._filters):
            if not skipped >> number & 1:
                steps.append((code, added if code == _DEFLATE else width))
                added += _SUM if code == _FLETCHER32 else 0
        return steps[::-1]


def _inflate(data: bytes | memoryview, size: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        out = inflating.decompress(data, size + 1)  # with one byte to spare, the end is found in the same call
        if len(out) > size:
            out += inflating.decompress(inflating.unconsumed_tail, size)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be decompressed: {error}") from error
    if len(out) > 2 * size or not inflating.eof:
        raise ValueError(f"a chunk's compressed bytes do not end within {2 * size} bytes")
    return out


def _unshuffle(data: bytes | memoryview, width: int) -> bytes | memoryview:
    """Put bytes, all first ones of the items before all second ones, back together; what is no whole item comes last."""
    count = len(data) // width if width > 1 else 0
    if count < 2:
        return data
    planes = np.frombuffer(data, np.uint8)
    out = np.empty(len(data), np.uint8)
    items = out[: count * width].reshape(count, width)
    for at in range(width):  # several times as fast as a transposed copy
        items[:, at] = planes[at * count : (at + 1) * count]
    out[count * width :] = planes[count * width :]
    return out.data


def _checked(data: bytes | memoryview) -> memoryview:
    """Return what the checksum behind it is of; raises ValueError where it is not."""
    body, stored = memoryview(data)[:-_SUM], bytes(data[-_SUM:])
    first, second = _sums(body)
    # As libhdf5 does: versions before 1.6.3 wrote both the other way round.
    if all(stored != first.to_bytes(2, way) + second.to_bytes(2, way) for way in ("big", "little")):
        raise ValueError("a chunk does not match its checksum")
    return body


def _sums(data: memoryview) -> tuple[int, int]:
    """Return the two Fletcher sums over `data` as little-endian words.

    HDF5 sums big-endian ones. To swap the bytes of a word is to multiply it by 256, modulo 65,535, so its sums are these
    with their bytes swapped: written big-endian, these are the bytes of those written little-endian.
    """
    words = np.frombuffer(data if len(data) % 2 == 0 else bytes(data) + b"\0", "<u2")
    first = second = 0
    for start in range(0, len(words), _BLOCK):
        running = np.cumsum(words[start : start + _BLOCK], dtype=np.uint64)
        second += first * len(running) + int(running.sum())
        first += int(running[-1])
    return _folded(first), _folded(second)


def _folded(total: int) -> int:
    # Carries are added back in, so that only a sum of nothing is 0.
    return (total - 1) % 0xFFFF + 1 if total else 0
