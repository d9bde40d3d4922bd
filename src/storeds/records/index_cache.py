"""Keeps long lists of positions in memory-mapped files of the user's cache folder, so that no process copies them."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import xxhash

from storeds.protocols import JSON, Array
from storeds.records.codec import canonical_json

__all__ = ["cache_folder", "index_path", "load_index", "save_index"]

_KEPT = 30 * 86_400  # seconds since it was last opened


def cache_folder() -> Path:
    """Return ``$STOREDS_CACHE``, or ``storeds`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if own := os.environ.get("STOREDS_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "storeds"


def index_path(*key: JSON) -> Path:
    """Return the file for a list that depends on `key` alone: the store's URL and build, and what was asked."""
    return cache_folder() / f"{xxhash.xxh3_128_hexdigest(canonical_json(list(key)).encode())}.npy"


def load_index(path: Path) -> Array | None:
    """Return the int64 positions in `path`, memory-mapped and read-only, or None if it is absent or damaged."""
    try:
        positions = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return positions if positions.dtype == np.int64 and positions.ndim == 1 else None


def save_index(path: Path, positions: Array) -> Array:
    """Write `positions` to `path` in one step and return them mapped; where nothing can be written, as they are.

    Files of the folder that nobody has opened for 30 days are removed: stores change, and their lists with them.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, suffix=".fresh")
        try:
            with os.fdopen(descriptor, "wb") as file:
                np.save(file, positions, allow_pickle=False)
            os.replace(fresh, path)
        except BaseException:
            os.unlink(fresh)
            raise
        _remove_unused(path.parent)
        mapped = load_index(path)
        if mapped is not None:
            return mapped
    return positions


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - _KEPT
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process removes it too
                if entry.name.endswith((".npy", ".fresh")) and entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)
