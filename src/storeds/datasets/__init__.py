"""Datasets: `StoreDataset` by index, `StoreIterable` as a stream, and their policies for bad samples.

Start with ``map_dataset.py``, then ``pipeline.py``, which makes samples. ``stream.py`` is one epoch of a `StoreIterable`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.datasets.iterable_dataset import SourceLike, StoreIterable
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.datasets.pipeline import Event, Policy, SampleReport
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
        "iterable_dataset": ("SourceLike", "StoreIterable"),
        "map_dataset": ("StoreDataset",),
        "pipeline": ("Event", "Policy", "SampleReport"),
        "source": ("Source",),
        "stream": ("Remainder",),
    },
)
