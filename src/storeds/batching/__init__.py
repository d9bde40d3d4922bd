"""Batches: collating samples, and the memory that processes share for them.

Start with ``collate.py``; its function is `storeds.collate`. ``detection.py`` makes the batches of detectors, and
``roles.py`` fits both to a dataset. ``memory.py`` shares batches with workers, and
``buffers.py`` has memory that one process uses again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.batching.buffers import BufferPool
    from storeds.batching.collate import Skipped
    from storeds.batching.memory import SlotPool
    from storeds.batching.padding import Padded

__all__ = ["BufferPool", "Padded", "Skipped", "SlotPool"]

__getattr__ = export_lazily(
    __name__,
    {"collate": ("Skipped",), "buffers": ("BufferPool",), "memory": ("SlotPool",), "padding": ("Padded",)},
)
