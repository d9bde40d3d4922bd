"""What a worker process of a DataLoader does once, before its first read."""

from __future__ import annotations

import gc
import os

from torch.utils.data import get_worker_info

__all__ = ["freeze_inherited"]

_frozen_in = 0


def freeze_inherited() -> None:
    """Keep a forked worker's garbage collector from writing to, and so copying, what it inherited (pytorch#13246)."""
    global _frozen_in
    if _frozen_in != os.getpid():
        _frozen_in = os.getpid()
        if get_worker_info() is not None:
            gc.freeze()
