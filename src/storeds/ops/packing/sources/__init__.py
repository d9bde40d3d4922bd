"""Sources of records for `pack`: folders, manifests, tables, tar shards, videos, annotations, datasets and stores.

`open_source` detects the source, `PackSource` is the interface of one. Read `base` first, then `folders`.
"""

from __future__ import annotations

from storeds.ops.packing.sources.base import IMAGE_SUFFIXES, BadItem, PackSource, Problem, read_file
from storeds.ops.packing.sources.coco import CocoSource
from storeds.ops.packing.sources.columns import LabelStyle
from storeds.ops.packing.sources.exported import ExportedSource
from storeds.ops.packing.sources.folders import FlatFolderSource, ImageFolderSource
from storeds.ops.packing.sources.manifests import JsonIndexSource, ManifestSource
from storeds.ops.packing.sources.masks import MaskFolderSource
from storeds.ops.packing.sources.objects import DatasetSource
from storeds.ops.packing.sources.open import KINDS, SourceKind, open_source
from storeds.ops.packing.sources.originals import FilesSource
from storeds.ops.packing.sources.stores import StoreSource
from storeds.ops.packing.sources.tables import TableSource
from storeds.ops.packing.sources.tars import TarSource
from storeds.ops.packing.sources.videos import FrameFolderSource, VideoSource
from storeds.ops.packing.sources.voc import VocSource
from storeds.ops.packing.sources.yolo import YoloSource

__all__ = [
    "IMAGE_SUFFIXES",
    "KINDS",
    "BadItem",
    "CocoSource",
    "DatasetSource",
    "ExportedSource",
    "FilesSource",
    "FlatFolderSource",
    "FrameFolderSource",
    "ImageFolderSource",
    "JsonIndexSource",
    "LabelStyle",
    "ManifestSource",
    "MaskFolderSource",
    "PackSource",
    "Problem",
    "SourceKind",
    "StoreSource",
    "TableSource",
    "TarSource",
    "VideoSource",
    "VocSource",
    "YoloSource",
    "open_source",
    "read_file",
]
