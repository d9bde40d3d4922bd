"""Where the videos of a store begin and end: runs of consecutive records."""

from __future__ import annotations

from typing import Any

import numpy as np

from storeds._columns import read_column
from storeds._count import Count
from storeds._index import index_path, load_index, save_index
from storeds.protocols import Array, Backend

__all__ = ["Runs"]


class Runs:
    """The runs of records that have the same value in one field, while another one grows.

    Parameters
    ----------
    view : Backend
        A store, or a selection from one.
    by : str
        A video's number or name.
    frame : str or None
        The frame's number. A run ends also where it does not grow: where files that number their videos alike are
        opened as one, the first video of the next may have the number of the last one before it.

    Notes
    -----
    The bounds lie in a memory-mapped index file that all processes share, and a pickle carries only what leads there:
    reading the columns anew in each worker would cost a pass over every record of an engine without columns, and a
    pickle that carried them would grow with the store. Where no file can be written, each process reads the columns.
    """

    def __init__(self, view: Backend, by: str, frame: str | None) -> None:
        self._view, self._by, self._frame = view, by, frame
        where = getattr(view, "where", None)  # of a selection, whose url and build are its store's
        self._index = index_path(view.url, view.meta.build, repr(where), "runs", by, frame)
        self._bounds: Array | None = None
        self._count = Count(len(self.bounds) - 1)

    @property
    def bounds(self) -> Array:
        """Where each run begins, int64, and behind them where the last one ends."""
        if self._bounds is None:
            found = load_index(self._index)
            if found is None or not len(found) or found[-1] != len(self._view):
                found = save_index(self._index, self._find())
            self._bounds = np.asarray(found)  # the same memory; a memmap is slow to take items from
        return self._bounds

    def _find(self) -> Array:
        count = len(self._view)
        if not count:
            return np.zeros(1, np.int64)
        names = read_column(self._view, self._by)
        starts = names[1:] != names[:-1]
        if self._frame is not None:
            frames = read_column(self._view, self._frame)
            starts |= frames[1:] <= frames[:-1]
        return np.concatenate([[0], np.flatnonzero(starts) + 1, [count]]).astype(np.int64)

    def __len__(self) -> int:
        return self._count

    def span(self, index: int) -> tuple[int, int]:
        """Return the first position of run `index`, and how many records it has."""
        bounds = self.bounds
        start, stop = int(bounds[index]), int(bounds[index + 1])
        return start, stop - start

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bounds": None}
