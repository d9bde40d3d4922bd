"""Drops the files of a store from the page cache, and measures how much of them is cached."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from storeds._utils.locations import StoreURL, file_path, file_system
from storeds.backends.concatenated import ConcatenatedBackend
from storeds.errors import ConfigError
from storeds.protocols import Backend

__all__ = ["CacheState", "PageCache"]

_WINDOW = 1 << 28  # bytes mapped at once; a private mapping of a large file counts as committed memory
_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_MAX_CACHED = 0.5  # share of a cold file


@dataclass(frozen=True)
class CacheState:
    """The result of dropping.

    Attributes
    ----------
    is_cold : bool
        Whether the next reads come mostly from the device.
    left : float or None
        The share of the files that is still cached; None if the kernel does not report it.
    reason : str
        Why it is not cold, or what is unknown.
    """

    is_cold: bool
    left: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class PageCache:
    """The page cache of one store's files.

    Parameters
    ----------
    files : sequence of str
    reason : str
        Why there are no files.
    """

    files: Sequence[str]
    reason: str = ""

    @classmethod
    def of(cls, backend: Backend) -> PageCache:
        """Return the page cache of an open store. It has no files if its engine has none on this machine."""
        files = list(dict.fromkeys(_store_files(backend)))
        return cls(files, "" if files else _no_files(backend))

    def drop(self) -> CacheState:
        """Drop the files. This needs no privileges, but the kernel keeps pages that a process has mapped."""
        if not self.files:
            return CacheState(False, reason=self.reason)
        for path in self.files:
            kind = file_system(path)
            if kind in _MEMORY:
                return CacheState(False, 1.0, f"it is on {kind}, which is memory: there is nothing to drop")
        try:
            for path in self.files:
                _drop(path)
            left = _cached_share(self.files)
        except OSError as error:
            return CacheState(False, reason=f"the page cache cannot be dropped: {error.strerror}")
        if left is None:
            return CacheState(True, reason="only the owner of a file can see whether its page cache was dropped")
        if left > _MAX_CACHED:
            why = f"{left:.0%} of it stays in the page cache: a process has it mapped, or its file system keeps it"
            return CacheState(False, left, why)
        return CacheState(True, left)


def _store_files(backend: Backend) -> Iterator[str]:
    """Yield the files of a store, or of each member of a concatenation."""
    if isinstance(backend, ConcatenatedBackend):
        for member in backend.members():
            yield from _store_files(member)
        return
    path = getattr(getattr(backend, "_opener", None), "data_path", None)
    if path is None and StoreURL.parse(backend.url).scheme is not None:
        with suppress(ConfigError):
            path = file_path(backend.url)[0]
    if path is not None and os.path.isfile(path):
        yield path


def _no_files(backend: Backend) -> str:
    scheme = StoreURL.parse(backend.url).scheme or ""
    if scheme.startswith("mongodb"):
        return "the cache of MongoDB belongs to its server: restart the server to measure cold reads"
    if scheme == "memory":
        return "it is in the memory of this process"
    return "storeds knows no file of its engine"


def _drop(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Unwritten pages are never dropped. Without fsync they stay cached, and the result reports that.
        with suppress(OSError):
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _cached_share(files: Sequence[str]) -> float | None:
    """Return the share of the pages of `files` that is cached; None if the kernel does not report it."""
    inside = total = 0
    for path in files:
        # For other users the kernel reports every page as cached, to hide what others read.
        if not (os.access(path, os.W_OK) or os.stat(path).st_uid == os.geteuid()):
            return None
        for found in _resident(path):
            inside, total = inside + sum(found), total + len(found)
    return inside / total if total else 0.0


def _resident(path: str) -> Iterator[bytes]:
    """Yield one byte per page for each window of a file: 1 if the page is cached."""
    mincore: Any = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for start in range(0, size, _WINDOW):
            length = min(_WINDOW, size - start)
            # ctypes needs a writable mapping to take its address. Nothing is read or written.
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=start) as mapped:
                pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
                anchor = ctypes.c_char.from_buffer(mapped)
                failed = mincore(ctypes.addressof(anchor), length, pages)
                del anchor  # a mapping with a reference cannot be closed
                if failed:
                    error = ctypes.get_errno()
                    raise OSError(error, os.strerror(error))
                yield bytes(byte & 1 for byte in pages.raw)
