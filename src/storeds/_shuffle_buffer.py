"""The order in which a shuffle buffer gives what goes through it, taken up at any position without what came before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storeds._permutation import MAX_COUNT, permute, round_keys
from storeds.protocols import Array

__all__ = ["ShuffleBuffer"]

_CHUNK = 1024


class ShuffleBuffer:
    """Position in the shuffled order → position in the order that enters the buffer.

    Parameters
    ----------
    count : int
        How many elements go through.
    size : int
        How many the buffer holds; 0 and 1 shuffle nothing, `count` and more shuffle everything.
    key : object
        What the order is a function of.

    Notes
    -----
    The buffer is filled; then an element leaves it at random and the next one takes its slot, over and over; at the end
    what is left comes out in random order. Which slot is emptied at a position depends on the key and that position alone.
    So what a slot holds is known from when it was last emptied, and going on at a position takes about ``size * log(size)``
    draws, not all that came before.
    """

    def __init__(self, count: int, size: int, *key: object) -> None:
        self._count, self._size = count, max(1, min(size, count))
        self._refills = count - self._size
        self._draw_keys = round_keys("storeds.buffer", 1, *key)
        self._drain_keys = round_keys("storeds.buffer.drain", 1, *key)

    def walk(self, start: int) -> Iterator[int]:
        """Yield what leaves the buffer from position `start` on."""
        if self._size == 1:
            yield from range(start, self._count)
            return
        slots = self._slots(min(start, self._refills))
        for first in range(start, self._refills, _CHUNK):
            drawn = self._drawn(first, min(first + _CHUNK, self._refills))
            for entering, slot in enumerate(drawn.tolist(), first + self._size):
                yield int(slots[slot])
                slots[slot] = entering
        for first in range(max(start, self._refills), self._count, _CHUNK):
            places = np.arange(first, min(first + _CHUNK, self._count), dtype=np.uint64) - np.uint64(self._refills)
            yield from slots[permute(places, self._size, self._drain_keys)].tolist()

    def _drawn(self, first: int, last: int) -> Array:
        """Return the slots that are emptied at positions `first` to ``last - 1``."""
        positions = np.arange(first, last, dtype=np.uint64)
        return permute(positions, MAX_COUNT, self._draw_keys) % np.uint64(self._size)

    def _slots(self, position: int) -> Array:
        """Return what every slot holds before a position: what came in when it was last emptied, or what was there first."""
        emptied = np.full(self._size, -1, dtype=np.int64)
        last = position
        while last > 0 and (emptied < 0).any():
            first = max(0, last - max(self._size, _CHUNK))
            latest = np.full(self._size, -1, dtype=np.int64)
            latest[self._drawn(first, last)] = np.arange(first, last)  # of one slot's positions the last is kept
            np.copyto(emptied, latest, where=emptied < 0)
            last = first
        return np.where(emptied < 0, np.arange(self._size), emptied + self._size)
