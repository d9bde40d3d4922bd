"""Mount a file system of a given size, which a test fills."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["small_disk"]


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of so many bytes at `folder` (as root) and give it."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        gc.collect()  # a mapping that is open would keep it busy
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
