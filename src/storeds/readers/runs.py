"""The runs of records that share a value: the videos of frames, and the episodes of steps."""

from __future__ import annotations

from functools import partial

import numpy as np

from storeds.protocols import Array, Backend
from storeds.records.columns import read_column
from storeds.records.index import Index

__all__ = ["Runs"]


class Runs:
    """The runs of records with the same value in one field. Each run is a video.

    Parameters
    ----------
    view : Backend
        A store, or a selection from one.
    by : str
        Field with the number or name of the video.
    frame : str or None
        Field with the number of the frame. A run also ends where this number does not increase: several files opened as
        one may number their videos alike, so that adjacent videos have the same number.

    Notes
    -----
    All processes share the bounds in an `Index`. Otherwise each worker would read the columns again, or the pickle would
    grow with the store.
    """

    def __init__(self, view: Backend, by: str, frame: str | None) -> None:
        self._index = Index(partial(bounds_of_runs, view, by, frame), view.url, view.meta.build, "runs", by, frame)
        self._count = len(self.bounds) - 1

    @property
    def bounds(self) -> Array:
        """The first position of each run, followed by the end of the last run, int64."""
        return self._index.positions

    def __len__(self) -> int:
        return self._count

    def span(self, index: int) -> tuple[int, int]:
        """Return the first position of run `index`, and its number of records."""
        bounds = self.bounds
        start, stop = int(bounds[index]), int(bounds[index + 1])
        return start, stop - start


def bounds_of_runs(view: Backend, by: str, frame: str | None) -> Array:
    """Return what `Runs.bounds` is."""
    count = len(view)
    if not count:
        return np.zeros(1, np.int64)
    names = read_column(view, by)
    starts = names[1:] != names[:-1]
    if frame is not None:
        frames = read_column(view, frame)
        starts |= frames[1:] <= frames[:-1]
    return np.concatenate([[0], np.flatnonzero(starts) + 1, [count]]).astype(np.int64)
