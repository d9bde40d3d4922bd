"""Keeps lists of positions and small results in files that later runs read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np
import xxhash

from storeds.protocols import JSON, Array, Meta
from storeds.records.canonical_json import canonical_json

__all__ = ["cache_folder", "index_path", "load_index", "load_json", "save_index", "save_json", "stats_path"]

T = TypeVar("T")


_POSITIONS = np.dtype(np.int64)
_KEPT = 30 * 86_400  # seconds since the last use
_LOOKED_AT = 100  # files of the folder for each list that is written, on average
_WAITING: dict[Path, int] = {}  # folder → lists to write before the next look


_REMOVED = re.compile(r"storeds-[0-9a-f]{32}(\.npy|-\w{8}\.fresh)")  # names of lists and unfinished files in the cache


def cache_folder() -> Path:
    """Return the folder ``storeds`` in ``$STOREDS_CACHE``, ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Nothing can be written below the path that a user without a home folder gets, and so nothing is kept.
    """
    parent = os.environ.get("STOREDS_CACHE") or os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(parent or Path.home() / ".cache") / "storeds"
    except RuntimeError:  # a user id without an entry in /etc/passwd, as in containers
        return Path(os.devnull) / "storeds"


def index_path(*key: JSON) -> Path:
    """Return the cache file for `key`: the URL and build of the store, and the query."""
    return cache_folder() / f"storeds-{xxhash.xxh3_128_hexdigest(canonical_json(list(key)).encode())}.npy"


def load_index(path: Path, dtype: np.dtype[Any] = _POSITIONS) -> Array | None:
    """Return the positions, or other rows, in `path`, memory-mapped and read-only; None if it is missing or damaged."""
    try:
        positions: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        with open(path, "rb") as file:
            file.seek(positions.offset + positions.nbytes)
            checksum = file.read()
    except (OSError, ValueError, EOFError, AttributeError):
        return None
    if positions.dtype != dtype or positions.ndim != 1 or checksum != _checksum(positions):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    found: Array = positions
    return found


def _checksum(positions: Array) -> bytes:
    return xxhash.xxh3_64_digest(np.ascontiguousarray(positions).view(np.uint8).data)


def save_index(path: Path, positions: Array) -> Array:
    """Write `positions` to `path` in one step and return them memory-mapped, or unchanged if writing fails.

    Removes the lists in the folder that were not used for 30 days, because their stores may have changed.
    """
    with contextlib.suppress(OSError):
        _replace(path, partial(_write_index, positions))
        _remove_unused(path.parent)
        mapped = load_index(path)
        if mapped is not None:
            return mapped
    return positions


def _write_index(positions: Array, file: IO[bytes]) -> None:
    np.save(file, positions, allow_pickle=False)
    file.write(_checksum(positions))


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}-", suffix=".fresh")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise


def stats_path(meta: Meta, field: str, mode: str, where: str | None = None) -> Path:
    """Return the cache file for the statistics of the pictures in `field`, see `storeds.ops.stats`."""
    return index_path("stats", 1, meta.id, meta.build, field, mode, where).with_suffix(".json")


def load_json(path: Path, form: type[T]) -> T | None:
    """Return the value in `path` as a `form`, or None if the file is missing, damaged or holds another form."""
    try:
        return msgspec.convert(json.loads(path.read_bytes()), form)
    except (OSError, ValueError):  # which includes msgspec.ValidationError
        return None


def save_json(path: Path, value: JSON) -> bool:
    """Write `value` to `path` in one step; return whether that was possible. The file is small and kept for ever."""
    try:
        _replace(path, lambda file: file.write(json.dumps(value).encode()))
    except OSError:
        return False
    return True


def _remove_unused(folder: Path) -> None:
    """Remove old lists and unfinished files. Any other file in the folder belongs to the user."""
    _WAITING[folder] = _WAITING.get(folder, 0) - 1
    if _WAITING[folder] > 0:
        return
    oldest = time.time() - _KEPT
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            _WAITING[folder] = number // _LOOKED_AT
            if not _REMOVED.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):  # another process removes it too
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
