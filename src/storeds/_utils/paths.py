"""Tells what a file is by its first bytes, and refuses what is no regular file."""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storeds._utils.text import some
from storeds._utils.urls import FILE_ENGINES, StoreURL
from storeds.errors import FormatError, StoredsError, StoreNotFoundError, UnavailableError

__all__ = [
    "CutShortError",
    "DamagedStoreError",
    "Glob",
    "check_file",
    "file_system",
    "file_system_advice",
    "file_system_of",
    "glob_of",
    "nearest",
    "refused",
    "sniff",
]


class DamagedStoreError(FormatError):
    """A native store is damaged; no foreign layout need be looked for."""


class CutShortError(FormatError):
    """A file ends before its own end: no layout can read it."""


_HDF5 = b"\x89HDF\r\n\x1a\n"
_ENVIRONMENT = "data.mdb"
_LMDB = b"\xde\xc0\xef\xbe"


def sniff(path: str) -> str | None:
    """Return ``"lmdb"``, ``"hdf5"`` or None for the regular file at `path`, by its magic bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return sniff_descriptor(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def sniff_descriptor(descriptor: int, size: int) -> str | None:
    """Return what `sniff` does, for an open file of `size` bytes."""
    if os.pread(descriptor, 32, 0)[16:20] == _LMDB:
        return "lmdb"
    offset = 0
    while offset < size:  # HDF5 allows a user block of 512, 1024, 2048, … bytes in front
        if os.pread(descriptor, len(_HDF5), offset) == _HDF5:
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
        The system does not allow access, for example for lack of permission.
    FormatError
        Something else is there; the message says what.
    """
    status = stat_store(path, url)
    try:
        engine = sniff(path) if stat.S_ISREG(status.st_mode) else None
    except OSError as error:
        raise refused(url, "read", error) from None
    check_status(path, status, engine, kind, url)
    return status


def stat_store(path: str, url: str) -> os.stat_result:
    """Return the status of the file or folder at `path`; raises as `check_file` does."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        left = staging_folder(path)
        begun = f"; {left} holds an interrupted write; continue it with resume=True (--resume)" if left.is_dir() else ""
        raise StoreNotFoundError(f"no store at {url}: {nearest(path)}{begun}") from None
    except OSError as error:
        raise refused(url, "looked at", error) from None
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise FormatError(f"{url} is no regular file")
    return status


def check_status(path: str, status: os.stat_result, engine: str | None, kind: str, url: str) -> None:
    """Raise FormatError unless `status` and `engine` are those of a file of engine `kind`."""
    if stat.S_ISDIR(status.st_mode):
        if kind == "lmdb" and os.path.isfile(os.path.join(path, _ENVIRONMENT)):
            raise FormatError(f"{url} is an LMDB environment of another tool, a folder with {_ENVIRONMENT}")
        raise FormatError(f"{url} is a folder; a native {kind} store is one file")
    if engine != kind:
        what = f"is a store of {engine}; write {engine}:// instead" if engine else "does not begin as one"
        raise FormatError(f"{url} is no {kind} store: the file ({status.st_size} bytes) {what}")


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


_PIECE = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_MAGIC = re.compile(r"\*|\[!?\]?[^\]]*\]")


@dataclass(frozen=True)
class Glob:
    """A pattern for files, and how to open what matches it.

    Attributes
    ----------
    scheme : str or None
        The engine, if the URL names one.
    pattern : str
        Absolute.
    options : mapping
        What is behind the ``?`` of the URL.
    written : str
        The absolute path that would be meant if nothing in it were magic.
    """

    scheme: str | None
    pattern: str
    options: Mapping[str, str] = field(default_factory=dict)
    written: str = ""

    def paths(self) -> list[str]:
        """Return what matches, in the order of the paths' bytes.

        Raises
        ------
        StoreNotFoundError
            Nothing does, or a folder on the way cannot be listed.
        """
        found = sorted(set(_walk("/", self.pattern.strip("/").split("/"))), key=os.fsencode)
        if not found:
            raise StoreNotFoundError(f"no file matches {self.pattern}: {nearest(self.written)}")
        return found


def glob_of(url: str | os.PathLike[str] | StoreURL) -> Glob | None:
    """Return the pattern that a URL or a bare path is, or None where it names one store.

    It names one if it has no special characters, if its engine keeps no files, or if a file of exactly that name exists.
    """
    parsed = StoreURL.parse(url)
    scheme, path = parsed.scheme, parsed.path
    if scheme not in (None, *FILE_ENGINES) or not _MAGIC.search(path):
        return None
    written = os.path.abspath(os.path.expanduser(path))
    if os.path.lexists(written):
        return None
    if path.startswith("~"):
        home, slash, path = path.partition("/")
        path = glob.escape(os.path.expanduser(home)) + slash + path
    # What stands in front of a relative path was not written by the user, so nothing in it is magic.
    return Glob(scheme, os.path.normpath(os.path.join(glob.escape(os.getcwd()), path)), parsed.options, written)


def _walk(folder: str, parts: Sequence[str]) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _descend(folder, rest)
        return
    for name in _names(folder, part):
        path = os.path.join(folder, name)
        if not rest and os.path.lexists(path):
            yield path
        elif rest and os.path.isdir(path):
            yield from _walk(path, rest)


def _names(folder: str, part: str) -> list[str]:
    if not _MAGIC.search(part) or os.path.lexists(os.path.join(folder, part)):
        return [part]
    plain = "".join("[?]" if piece == "?" else piece for piece in _PIECE.findall(part))
    accepts = re.compile(fnmatch.translate(plain)).match
    # As in a shell, * matches no leading dot: behind it are what interrupted writers left.
    return [
        entry.name
        for entry in _list(folder)
        if accepts(entry.name) and (part.startswith(".") or not entry.name.startswith("."))
    ]


def _descend(folder: str, rest: Sequence[str]) -> Iterator[str]:
    """Yield what `rest` matches in `folder` and in every folder below; links are not entered, since they may lead back."""
    if rest:
        yield from _walk(folder, rest)
    for entry in _list(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _descend(entry.path, rest)
        elif not rest and not entry.is_dir():
            yield entry.path


def _list(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise refused(folder, "listed", error) from None


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
