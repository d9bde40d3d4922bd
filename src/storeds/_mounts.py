"""Tells which file system a path lies on, and what that means for a store."""

from __future__ import annotations

import os

__all__ = ["file_system", "file_system_advice", "file_system_of"]

# Where locks, mappings or caches of other machines make a database file unsafe or slow.
_NETWORK = ("9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs")


def file_system(path: str) -> str:
    """Return the type of the file system that holds `path`, for example ``ext4``; ``unknown`` where that is hidden."""
    return file_system_of(path)[0]


def file_system_of(path: str) -> tuple[str, str]:
    """Return the type of the file system that holds `path`, and where it is mounted."""
    path, best, kind = os.path.realpath(path), "", "unknown"
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                _, place, found, *_ = line.split(" ")
                place = place.replace("\\040", " ")
                inside = path == place or path.startswith(place.rstrip("/") + "/")
                if inside and len(place) >= len(best):
                    best, kind = place, found
    except OSError:
        pass
    return kind, best or os.path.sep


def file_system_advice(path: str) -> list[str]:
    """Return a warning if `path` lies on a network file system."""
    kind = file_system(path)
    if kind in _NETWORK:
        return [f"it lies on a network file system ({kind}): copy it to a local disk for speed and safety"]
    return []
