"""Datasets: `StoreDataset`, and its policies for bad samples.

Start with ``map_dataset.py``, then ``pipeline.py``, which makes samples. ``assembly.py`` builds a dataset's reader and
transforms, and ``counters.py`` counts bad samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.datasets.counters import Event, Policy, SampleReport
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.datasets.mixture import StoreMixture
    from storeds.datasets.settings import DatasetSettings

__all__ = [
    "DatasetSettings",
    "Event",
    "Policy",
    "SampleReport",
    "StoreDataset",
    "StoreMixture",
]

__getattr__ = export_lazily(
    __name__,
    {
        "counters": ("Event", "Policy", "SampleReport"),
        "map_dataset": ("StoreDataset",),
        "mixture": ("StoreMixture",),
        "settings": ("DatasetSettings",),
    },
)
