"""Drops the files of a store from the page cache, and says how much of them is in it."""

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

__all__ = ["CacheState", "PageCache", "cached_share", "store_files"]

_WINDOW = 1 << 28  # bytes mapped at a time: a private mapping of a whole large file would count as memory asked for
_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_MOSTLY = 0.5  # a file of which more stays is not cold


@dataclass(frozen=True)
class CacheState:
    """What dropping did.

    Attributes
    ----------
    is_cold : bool
        Whether what is read next comes from the device for the most part.
    left : float or None
        The share of the files that is in the page cache still; None where the kernel does not tell.
    reason : str
        Why it is not cold, or what is not known.
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
        Why there are none.
    """

    files: Sequence[str]
    reason: str = ""

    @classmethod
    def of(cls, backend: Backend) -> PageCache:
        """Return that of an open store; it has no files where its engine keeps none that this machine could drop."""
        files = list(dict.fromkeys(store_files(backend)))
        return cls(files, "" if files else _no_files(backend))

    def drop(self) -> CacheState:
        """Drop the files, which needs no privileges; pages that some process has mapped and uses are kept by the kernel."""
        if not self.files:
            return CacheState(False, reason=self.reason)
        for path in self.files:
            kind = file_system(path)
            if kind in _MEMORY:
                return CacheState(False, 1.0, f"it lies on {kind}, which is memory itself: there is nothing to drop")
        try:
            for path in self.files:
                _drop(path)
            left = cached_share(self.files)
        except OSError as error:
            return CacheState(False, reason=f"the page cache cannot be dropped: {error.strerror}")
        if left is None:
            return CacheState(True, reason="whether the page cache was dropped is told to a file's owner alone")
        if left > _MOSTLY:
            why = f"{left:.0%} of it stays in the page cache: some process has it mapped, or its file system keeps it"
            return CacheState(False, left, why)
        return CacheState(True, left)


def store_files(backend: Backend) -> Iterator[str]:
    """Yield the paths of the files that a store is read from, those of each member of a concatenation."""
    if isinstance(backend, ConcatenatedBackend):
        for member in backend.members():
            yield from store_files(member)
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
        return "the cache of MongoDB belongs to its server: restart that to see it cold"
    if scheme == "memory":
        return "it lies in the memory of this process"
    return "its engine keeps no file that storeds knows of"


def _drop(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # what a file system without fsync has not written stays, and is told
            os.fsync(descriptor)  # pages that are not yet written are never dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cached_share(files: Sequence[str]) -> float | None:
    """Return the share of the pages of `files` that is in the page cache; None where the kernel does not tell."""
    inside = total = 0
    for path in files:
        # To anyone else the kernel says of every page that it is there, so that nobody learns what others read.
        if not (os.access(path, os.W_OK) or os.stat(path).st_uid == os.geteuid()):
            return None
        for found in _resident(path):
            inside, total = inside + sum(found), total + len(found)
    return inside / total if total else 0.0


def _resident(path: str) -> Iterator[bytes]:
    """Yield, for each window of a file, one byte a page: 1 where it is in the page cache."""
    mincore: Any = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for start in range(0, size, _WINDOW):
            length = min(_WINDOW, size - start)
            # Private and writable, because ctypes takes the address of no other; nothing is read or written.
            with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=start) as mapped:
                pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
                anchor = ctypes.c_char.from_buffer(mapped)
                failed = mincore(ctypes.addressof(anchor), length, pages)
                del anchor  # a mapping that is referred to cannot be closed
                if failed:
                    error = ctypes.get_errno()
                    raise OSError(error, os.strerror(error))
                yield bytes(byte & 1 for byte in pages.raw)
