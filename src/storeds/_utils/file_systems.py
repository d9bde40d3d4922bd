"""Tells on which file system a path lies."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["file_system_advice", "file_system_of"]


# File systems on which locks, mappings or caches of other machines make a database file unsafe or slow.
_NETWORK = ("9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs")


def file_system_of(path: str) -> tuple[str, str]:
    """Return the type of the file system that holds `path`, for example ``ext4``, and its mount point.

    The type is ``unknown`` if the system does not report it.
    """
    path, best, kind = os.path.realpath(path), os.path.sep, "unknown"
    with contextlib.suppress(OSError), open("/proc/self/mounts", "rb") as mounts:
        for line in map(os.fsdecode, mounts):
            _, place, found, *_ = line.split(" ")
            place = place.replace("\\040", " ")
            if len(place) >= len(best) and Path(path).is_relative_to(place):
                best, kind = place, found
    return kind, best


def file_system_advice(path: str) -> list[str]:
    """Return a warning if `path` lies on a network file system."""
    kind, _ = file_system_of(path)
    if kind in _NETWORK:
        return [f"it lies on a network file system ({kind}): copy it to a local disk for speed and safety"]
    return []
