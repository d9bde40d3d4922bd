"""Batches: collating samples, and the memory that processes share for them.

Start with ``collate.py``; its function is `storeds.collate`. ``detection.py`` makes the batches of detectors, and
``roles.py`` fits both to a dataset. ``shared_memory.py`` and ``allocation.py`` send batches from workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.batching.padding import Padded
    from storeds.batching.shared_memory import (
        BufferPool,
        SharedBatchTensor,
        SharedBufferPool,
        batch_memory,
        use_buffer_pool,
    )
    from storeds.batching.skipped import Skipped

__all__ = [
    "BufferPool",
    "Padded",
    "SharedBatchTensor",
    "SharedBufferPool",
    "Skipped",
    "batch_memory",
    "use_buffer_pool",
]

__getattr__ = export_lazily(
    __name__,
    {
        "padding": ("Padded",),
        "shared_memory": ("BufferPool", "SharedBatchTensor", "SharedBufferPool", "batch_memory", "use_buffer_pool"),
        "skipped": ("Skipped",),
    },
)
