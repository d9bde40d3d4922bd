"""Where `pack` takes records from: folders, manifests, tar shards, datasets, stores."""

from __future__ import annotations

from storeds.ops.packing.sources.base import IMAGE_SUFFIXES, BadItem, PackSource, Problem
from storeds.ops.packing.sources.columns import LabelStyle
from storeds.ops.packing.sources.files import FilesSource
from storeds.ops.packing.sources.folders import FlatFolderSource, ImageFolderSource
from storeds.ops.packing.sources.manifests import JsonIndexSource, ManifestSource
from storeds.ops.packing.sources.objects import DatasetSource
from storeds.ops.packing.sources.open import KINDS, SourceKind, open_source
from storeds.ops.packing.sources.stores import StoreSource
from storeds.ops.packing.sources.tables import TableSource
from storeds.ops.packing.sources.tars import TarSource

__all__ = [
    "IMAGE_SUFFIXES",
    "KINDS",
    "BadItem",
    "DatasetSource",
    "FilesSource",
    "FlatFolderSource",
    "ImageFolderSource",
    "JsonIndexSource",
    "LabelStyle",
    "ManifestSource",
    "PackSource",
    "Problem",
    "SourceKind",
    "StoreSource",
    "TableSource",
    "TarSource",
    "open_source",
]
