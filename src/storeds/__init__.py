"""One PyTorch Dataset over HDF5, LMDB and MongoDB: the same samples, bit for bit, in every DataLoader mode.

Importing this package loads no storage engine and not torch; each name loads what it needs on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from storeds import errors
from storeds.protocols import Backend, Decoder, Field, Meta, Reader, Record, SampleContext, Writer
from storeds.registry import register_backend, register_decoder, register_layout, register_reader

if TYPE_CHECKING:
    from storeds._skipped import Skipped as Skipped
    from storeds.batching import collate as collate
    from storeds.config import Config as Config
    from storeds.config import build_dataset as build_dataset
    from storeds.config import build_loader as build_loader
    from storeds.config import load_config as load_config
    from storeds.dataset import StoreDataset as StoreDataset
    from storeds.iterable import StoreIterable as StoreIterable
    from storeds.loader import StoreLoader as StoreLoader
    from storeds.loader import to_device as to_device
    from storeds.ops import convert as convert
    from storeds.ops import info as info
    from storeds.ops import pack as pack
    from storeds.ops import repair as repair
    from storeds.ops import verify as verify
    from storeds.sampling import EpochSampler as EpochSampler
    from storeds.source import Source as Source
    from storeds.stores import open_backend as open_backend
    from storeds.stores import open_writer as open_writer
    from storeds.threads import ThreadLoader as ThreadLoader

__version__ = "0.1.0"

_LAZY = {
    "Config": "storeds.config",
    "EpochSampler": "storeds.sampling",
    "Skipped": "storeds._skipped",
    "Source": "storeds.source",
    "StoreDataset": "storeds.dataset",
    "StoreIterable": "storeds.iterable",
    "StoreLoader": "storeds.loader",
    "ThreadLoader": "storeds.threads",
    "build_dataset": "storeds.config",
    "build_loader": "storeds.config",
    "collate": "storeds.batching",
    "convert": "storeds.ops",
    "info": "storeds.ops",
    "load_config": "storeds.config",
    "open_backend": "storeds.stores",
    "open_writer": "storeds.stores",
    "pack": "storeds.ops",
    "repair": "storeds.ops",
    "to_device": "storeds.loader",
    "verify": "storeds.ops",
}

__all__ = [
    "Backend",
    "Config",
    "Decoder",
    "EpochSampler",
    "Field",
    "Meta",
    "Reader",
    "Record",
    "SampleContext",
    "Skipped",
    "Source",
    "StoreDataset",
    "StoreIterable",
    "StoreLoader",
    "ThreadLoader",
    "Writer",
    "build_dataset",
    "build_loader",
    "collate",
    "convert",
    "errors",
    "info",
    "load_config",
    "open_backend",
    "open_writer",
    "pack",
    "register_backend",
    "register_decoder",
    "register_layout",
    "register_reader",
    "repair",
    "to_device",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'storeds' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
