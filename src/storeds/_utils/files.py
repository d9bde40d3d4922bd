"""Looks at the files of stores: what they are by their first bytes, and why one cannot be read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from storeds._utils.text import some
from storeds.errors import FormatError, StoredsError, StoreNotFoundError, UnavailableError

__all__ = ["TAR", "engine_of_file", "nearest", "os_failure", "read_at", "read_into"]


_HDF5 = b"\x89HDF\r\n\x1a\n"
TAR = b"ustar"
"""What a tar file has at offset 257."""
_ENVIRONMENT = "data.mdb"
_LMDB = b"\xde\xc0\xef\xbe"


def engine_of_file(path: str) -> str | None:
    """Return ``"lmdb"``, ``"hdf5"`` or None for the regular file at `path`, by its magic bytes."""
    with open(path, "rb", buffering=0) as file:
        descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
        head = os.pread(descriptor, 262, 0)
        if head[16:20] == _LMDB:
            return "lmdb"
        if head[257:] == TAR:  # a member may be an HDF5 file, at one of the offsets below
            return None
        offset = 0
        while offset < size:  # HDF5 allows a user block of 512, 1024, 2048, … bytes in front
            if os.pread(descriptor, len(_HDF5), offset) == _HDF5:
                return "hdf5"
            offset = offset * 2 or 512
    return None


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Return `size` bytes of an open file from `offset` on, fewer at its end. Linux reads at most 2 GiB at once."""
    data = os.pread(descriptor, size, offset)
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1]:
        offset, size = offset + len(parts[-1]), size - len(parts[-1])
        parts.append(os.pread(descriptor, size, offset) if size else b"")
    return b"".join(parts)


def read_into(buffer: memoryview, descriptor: int, offset: int) -> int:
    """Fill `buffer` with the bytes of an open file from `offset` on; return how many there are."""
    done = os.preadv(descriptor, [buffer], offset)
    while 0 < done < len(buffer) and (more := os.preadv(descriptor, [buffer[done:]], offset + done)):
        done += more
    return done


def staging_folder(target: str | Path) -> Path:
    """Return the folder in which a writer builds `target`: beside the file to which symbolic links lead."""
    target = Path(os.path.realpath(target))
    return target.with_name(f".{target.name}.partial")


def stat_store(path: str, url: str) -> os.stat_result:
    """Return the status of the file or folder at `path`; raises StoreNotFoundError, UnavailableError or FormatError."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        left = staging_folder(path)
        begun = f"; {left} holds an interrupted write; continue it with resume=True (--resume)" if left.is_dir() else ""
        raise StoreNotFoundError(f"no store at {url}: {nearest(path)}{begun}") from None
    except OSError as error:
        raise os_failure(url, "looked at", error) from None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise FormatError(f"{url} is not a regular file")
    return status


def check_status(path: str, status: os.stat_result, engine: str | None, kind: str, url: str) -> None:
    """Raise FormatError unless `status` and `engine` are those of a file of engine `kind`."""
    if stat.S_ISDIR(status.st_mode):
        if kind == "lmdb" and os.path.isfile(os.path.join(path, _ENVIRONMENT)):
            raise FormatError(f"{url} is an LMDB environment of another tool, a folder with {_ENVIRONMENT}")
        raise FormatError(f"{url} is a folder; a native {kind} store is one file")
    if engine != kind:
        what = f"is a store of {engine}; write {engine}:// instead" if engine else "does not begin as one"
        raise FormatError(f"{url} is not an {kind} store: the file ({status.st_size} bytes) {what}")


def os_failure(what: str, done: str, error: OSError) -> StoredsError:
    """Return the error for a failed system call: permission errors are not reported as missing files."""
    never = error.errno in (errno.ENAMETOOLONG, errno.ELOOP)  # no store can exist there
    return (StoreNotFoundError if never else UnavailableError)(f"{what} cannot be {done}: {error.strerror or error}")


def nearest(path: str) -> str:
    """Return which part of a missing absolute `path` exists, and what its folder contains."""
    missing, folder = path, os.path.dirname(path)
    while not os.path.isdir(folder):
        missing, folder = folder, os.path.dirname(folder)
    what = "" if missing == path else f"{missing} is {'no folder' if os.path.lexists(missing) else 'not there'}; "
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return f"{what}{folder} cannot be listed ({error.strerror})"
    return what + (f"{folder} holds {some(names, 8)}" if names else f"{folder} is empty")
