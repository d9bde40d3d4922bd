"""Loaders and samplers: batches for the training loop, their order, and resuming within an epoch.

Start with ``loader.py``, then ``sampler.py``. ``iterable.py`` is the order of a sampler as a stream, and ``tf.py``
hands samples to TensorFlow. `EpochOrder` computes
the order of an epoch alone, for a loader of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds._utils.permutation import EpochOrder, Order, permute, round_keys
from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.loaders.device import to_device
    from storeds.loaders.iterable import StoreIterable
    from storeds.loaders.loader import StoreLoader
    from storeds.loaders.plan import Plan
    from storeds.loaders.sampler import EpochSampler
    from storeds.loaders.settings import LoaderSettings
    from storeds.loaders.tf import to_tf_dataset

__all__ = [
    "EpochOrder",
    "EpochSampler",
    "LoaderSettings",
    "Order",
    "Plan",
    "StoreIterable",
    "StoreLoader",
    "permute",
    "round_keys",
    "to_device",
    "to_tf_dataset",
]

__getattr__ = export_lazily(
    __name__,
    {
        "device": ("to_device",),
        "iterable": ("StoreIterable",),
        "loader": ("StoreLoader",),
        "plan": ("Plan",),
        "sampler": ("EpochSampler",),
        "settings": ("LoaderSettings",),
        "tf": ("to_tf_dataset",),
    },
)
