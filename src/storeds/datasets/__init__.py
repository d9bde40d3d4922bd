"""Datasets: `StoreDataset` by index, `StoreIterable` as a stream, and their policies for bad samples.

Start with ``map_dataset.py``, then ``pipeline.py``, which makes samples. ``assembly.py`` builds a dataset's reader and
transforms, ``counters.py`` counts bad samples, and ``stream.py`` is one epoch of a `StoreIterable`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.datasets.counters import Event, SampleReport
    from storeds.datasets.iterable_dataset import SourceLike, StoreIterable
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.datasets.pipeline import Policy
    from storeds.datasets.source import Source
    from storeds.datasets.stream import Remainder

__all__ = [
    "Event",
    "Policy",
    "Remainder",
    "SampleReport",
    "Source",
    "SourceLike",
    "StoreDataset",
    "StoreIterable",
]

__getattr__ = export_lazily(
    __name__,
    {
        "counters": ("Event", "SampleReport"),
        "iterable_dataset": ("SourceLike", "StoreIterable"),
        "map_dataset": ("StoreDataset",),
        "pipeline": ("Policy",),
        "source": ("Source",),
        "stream": ("Remainder",),
    },
)
