"""Remembers which pictures decoded without a warning, so that a later epoch may leave out the rows that nobody sees."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import xxhash

__all__ = ["CheckedPictures"]

_MOST = 21  # bits: 32 MiB


class CheckedPictures:
    """A set of pictures by a 64-bit hash of their bytes, so that a store which changes is judged again.

    Parameters
    ----------
    count : int
        How many pictures there are. Of very many, some are forgotten.

    Notes
    -----
    Forked workers share it; a pickled copy begins empty. Thread-safe: each slot is one aligned word. Memory that no
    picture has been entered in takes none.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        pairs = 1 << min(count.bit_length() + 1, _MOST)
        self._hashes = np.frombuffer(mmap.mmap(-1, 16 * pairs), np.uint64).reshape(pairs, 2)

    def __contains__(self, blob: bytes) -> bool:
        digest = xxhash.xxh3_64_intdigest(blob)
        first, second = self._hashes[digest & (len(self._hashes) - 1)]
        return bool(digest in (first, second))

    def add(self, blob: bytes) -> None:
        """Remember a picture, in the place of another one where there is no room."""
        digest = xxhash.xxh3_64_intdigest(blob)
        pair = self._hashes[digest & (len(self._hashes) - 1)]
        pair[int(pair[0] != 0)] = digest

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._count,)
