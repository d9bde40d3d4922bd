"""Tells what a file is by its first bytes, and refuses what is no regular file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from storeds._text import some
from storeds.errors import FormatError, StoredsError, StoreNotFoundError, UnavailableError

__all__ = ["CutShortError", "DamagedStoreError", "check_file", "nearest", "refused", "sniff"]


class DamagedStoreError(FormatError):
    """A native store is damaged; no foreign layout need be looked for."""


class CutShortError(FormatError):
    """A file ends before its own end: no layout can read it."""


_HDF5 = b"\x89HDF\r\n\x1a\n"
_ENVIRONMENT = "data.mdb"
_LMDB = b"\xde\xc0\xef\xbe"


def sniff(path: str) -> str | None:
    """Return ``"lmdb"``, ``"hdf5"`` or None for what the regular file at `path` is by its magic bytes."""
    with open(path, "rb") as file:
        head = file.read(32)
        if head[16:20] == _LMDB:
            return "lmdb"
        offset, size = 0, os.fstat(file.fileno()).st_size
        while offset < size:  # HDF5 allows a user block of 512, 1024, 2048 … bytes in front
            file.seek(offset)
            if file.read(8) == _HDF5:
                return "hdf5"
            offset = offset * 2 or 512
    return None


def staging_folder(target: str | Path) -> Path:
    """Return the folder in which a writer builds `target`."""
    target = Path(target)
    return target.with_name(f".{target.name}.partial")


def check_file(path: str, kind: str, url: str) -> os.stat_result:
    """Return the status of the `kind` store file at `path`.

    Raises
    ------
    StoreNotFoundError
        Nothing is there.
    UnavailableError
        The system refuses to look, or to read: for want of permission, for example.
    FormatError
        Something else is there; the message says what.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        left = staging_folder(path)
        begun = (
            f"; {left} holds what an interrupted writer left: go on with resume=True (--resume)"
            if left.is_dir()
            else ""
        )
        raise StoreNotFoundError(f"no store at {url}: {nearest(path)}{begun}") from None
    except OSError as error:
        raise refused(url, "looked at", error) from None
    if stat.S_ISDIR(status.st_mode):
        if kind == "lmdb" and os.path.isfile(os.path.join(path, _ENVIRONMENT)):
            raise FormatError(f"{url} is an LMDB environment of another tool, a folder with {_ENVIRONMENT}")
        raise FormatError(f"{url} is a folder; a native {kind} store is one file")
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(f"{url} is no regular file")
    try:
        found = sniff(path)
    except OSError as error:
        raise refused(url, "read", error) from None
    if found != kind:
        what = f"is a store of {found}; write {found}:// instead" if found else "does not begin as one"
        raise FormatError(f"{url} is no {kind} store: the file ({status.st_size} bytes) {what}")
    return status


def refused(what: str, done: str, error: OSError) -> StoredsError:
    """Return the error for a path at which the system does not let us look: nobody may take it for one where nothing is."""
    never = error.errno in (errno.ENAMETOOLONG, errno.ELOOP)  # no store can be there
    return (StoreNotFoundError if never else UnavailableError)(f"{what} cannot be {done}: {error.strerror}")


def nearest(path: str) -> str:
    """Say which part of `path`, an absolute path to nothing, does exist, and what is there."""
    missing, folder = path, os.path.dirname(path)
    while not os.path.isdir(folder):
        missing, folder = folder, os.path.dirname(folder)
    what = "" if missing == path else f"{missing} is {'no folder' if os.path.lexists(missing) else 'not there'}; "
    return what + _contents(folder)


def _contents(folder: str) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"{folder} cannot be listed ({error.strerror})"
    return f"{folder} holds {some(names, 8)}" if names else f"{folder} is empty"
