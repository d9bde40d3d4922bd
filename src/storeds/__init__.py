"""One PyTorch Dataset over HDF5, LMDB and MongoDB: the same samples, bit for bit, in every DataLoader mode.

Importing this package loads no storage engine and not torch; each name loads what it needs on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds import errors
from storeds.protocols import Backend, Field, Meta, Reader, Record, SampleContext, Writer
from storeds.registry import (
    export_lazily,
    register_backend,
    register_decoder,
    register_format,
    register_layout,
    register_reader,
)

if TYPE_CHECKING:
    from storeds.backends.opening import open_backend as open_backend
    from storeds.backends.opening import open_writer as open_writer
    from storeds.batching.collate import Skipped as Skipped
    from storeds.batching.collate import collate as collate
    from storeds.batching.detection import collate_detection as collate_detection
    from storeds.config import Config as Config
    from storeds.config import build_dataset as build_dataset
    from storeds.config import build_loader as build_loader
    from storeds.config import load_config as load_config
    from storeds.datasets.map_dataset import StoreDataset as StoreDataset
    from storeds.datasets.mixture import StoreMixture as StoreMixture
    from storeds.datasets.settings import DatasetSettings as DatasetSettings
    from storeds.loaders.device import to_device as to_device
    from storeds.loaders.iterable import StoreIterable as StoreIterable
    from storeds.loaders.loader import StoreLoader as StoreLoader
    from storeds.loaders.sampler import EpochSampler as EpochSampler
    from storeds.ops import append as append
    from storeds.ops import convert as convert
    from storeds.ops import edit as edit
    from storeds.ops import export as export
    from storeds.ops import info as info
    from storeds.ops import pack as pack
    from storeds.ops import repair as repair
    from storeds.ops import show as show
    from storeds.ops import stats as stats
    from storeds.ops import verify as verify
    from storeds.readers.patches import stitch as stitch

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "Config",
    "DatasetSettings",
    "EpochSampler",
    "Field",
    "Meta",
    "Reader",
    "Record",
    "SampleContext",
    "Skipped",
    "StoreDataset",
    "StoreIterable",
    "StoreLoader",
    "StoreMixture",
    "Writer",
    "append",
    "build_dataset",
    "build_loader",
    "collate",
    "collate_detection",
    "convert",
    "edit",
    "errors",
    "export",
    "info",
    "load_config",
    "open_backend",
    "open_writer",
    "pack",
    "register_backend",
    "register_decoder",
    "register_format",
    "register_layout",
    "register_reader",
    "repair",
    "show",
    "stats",
    "stitch",
    "to_device",
    "verify",
]


__getattr__ = export_lazily(
    __name__,
    {
        "backends.opening": ("open_backend", "open_writer"),
        "batching.collate": ("Skipped", "collate"),
        "batching.detection": ("collate_detection",),
        "config": ("Config", "build_dataset", "build_loader", "load_config"),
        "datasets.map_dataset": ("StoreDataset",),
        "datasets.mixture": ("StoreMixture",),
        "datasets.settings": ("DatasetSettings",),
        "loaders.device": ("to_device",),
        "loaders.iterable": ("StoreIterable",),
        "loaders.loader": ("StoreLoader",),
        "loaders.sampler": ("EpochSampler",),
        "ops": ("append", "convert", "edit", "export", "info", "pack", "repair", "show", "stats", "verify"),
        "readers.patches": ("stitch",),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
