"""The runs of records that share a value: the videos of frames, and the episodes of steps."""

from __future__ import annotations

from functools import partial

import numpy as np

from storeds.protocols import Array, Backend
from storeds.records.columns import read_column
from storeds.records.index import Index

__all__ = ["runs_of"]


def runs_of(view: Backend, by: str, frame: str | None) -> Index:
    """Return the first position of each run of records with the same value in field `by`, followed by the end of the last.

    A run also ends where the number in field `frame` does not increase: several files opened as one may number their videos
    alike, so that adjacent videos have the same number.
    """
    return Index(partial(_bounds, view, by, frame), view.url, view.meta.build, "runs", by, frame)


def _bounds(view: Backend, by: str, frame: str | None) -> Array:
    count = len(view)
    if not count:
        return np.zeros(1, np.int64)
    names = read_column(view, by)
    starts = names[1:] != names[:-1]
    if frame is not None:
        frames = read_column(view, frame)
        starts |= frames[1:] <= frames[:-1]
    return np.concatenate([[0], np.flatnonzero(starts) + 1, [count]]).astype(np.int64)
