"""Where `pack` takes records from: folders, manifests, tar shards, datasets, stores."""

from __future__ import annotations

from storeds.ops.sources._labels import LabelStyle
from storeds.ops.sources._open import KINDS, SourceKind, open_source
from storeds.ops.sources._paths import IMAGE_SUFFIXES
from storeds.ops.sources.base import BadItem, PackSource, Problem
from storeds.ops.sources.files import FilesSource
from storeds.ops.sources.folders import FlatFolderSource, ImageFolderSource
from storeds.ops.sources.manifests import JsonIndexSource, ManifestSource
from storeds.ops.sources.objects import DatasetSource
from storeds.ops.sources.stores import StoreSource
from storeds.ops.sources.tables import TableSource
from storeds.ops.sources.tars import TarSource

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
