"""Sources of rows for `pack`: folders, lists, tables, tar shards, videos, annotations, datasets and stores.

`open_source` finds the source; each is a function of one module that returns `~storeds.ops.packing.rows.Rows`. Read
`folders` first.
"""

from __future__ import annotations

from storeds.ops.packing.sources.open import open_source
from storeds.ops.packing.sources.paths import IMAGE_SUFFIXES

__all__ = ["IMAGE_SUFFIXES", "open_source"]
