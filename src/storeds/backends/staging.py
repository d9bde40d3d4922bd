"""Builds a file store in a folder beside its target, with one writer at a time, and publishes it by one rename."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from storeds._utils.file_systems import file_system_of
from storeds._utils.files import engine_of_file, staging_folder
from storeds._utils.text import byte_size
from storeds.errors import ConfigError, StoredsError, StoreExistsError, appeared

__all__ = ["ActiveWriterError", "Staging", "active_writer", "explain", "replace_file", "reporting", "sync_path"]

_COPY = "copy"  # of a file that has another name
_NAMES = ("note", "log", _COPY)  # of files beside the one that becomes the store
_FRESH = ".storeds-{}.fresh"  # the name of a file that will replace another one
# What to do about a failed system call. Those of the second table may pass; the others are wrong paths or rights.
_WRONG = {
    errno.EACCES: "allow this user to write there, or choose another path",
    errno.EPERM: "allow this user to write there, or choose another path",
    errno.EROFS: "mount the file system for writing, or choose another path",
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "a folder of its path is a file, so choose another path"),
}
_PASSING = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or ask for a larger quota",
    errno.EFBIG: "choose a file system that takes larger files, or raise the limit (ulimit -f)",
    errno.EMFILE: "close files, or raise the limit of this process (ulimit -n)",
    errno.ENFILE: "close files of other programs, or raise the limit of the machine (sysctl fs.file-max)",
    errno.ENOMEM: "free memory",
    errno.EIO: "check the disk (dmesg)",
    errno.ESTALE: "mount the file system again",
}
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_TAKEN = (errno.EACCES, errno.EAGAIN)
_TRIES = 100
_PAUSE = 0.01  # seconds
_LITTLE = 1 << 16  # bytes; a disk with less free space counts as full


def sync_path(path: str | Path) -> None:
    """Wait until the file or folder at `path` is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of `path`, or of the file to which it links, with `data`, durably and in one step."""
    path = Path(os.path.realpath(path))
    fresh = path.with_name(_FRESH.format(secrets.token_hex(8)))
    with open(fresh, "xb") as file:  # a file of that name is somebody else's
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    sync_path(path.parent)


@contextlib.contextmanager
def reporting(name: str, folder: Path) -> Iterator[None]:
    """Turn an OSError into an error that says why `name`, which belongs into `folder`, cannot be written."""
    try:
        yield
    except StoredsError:  # some storeds errors are OSErrors too
        raise
    except OSError as error:
        kind = StoredsError if error.errno in _PASSING else ConfigError
        raise kind(f"{name} cannot be written: {explain(error, folder)}, then try again") from None


def explain(error: BaseException, folder: Path) -> str:
    """Return why a step failed that writes in `folder`, and what to do about it."""
    known = {**_WRONG, **_PASSING}
    code = getattr(error, "errno", None)
    if code is None:  # LMDB's errors have only the text
        code = next((one for one in known if os.strerror(one) in str(error)), None)
    try:
        status = os.statvfs(folder)
    except OSError:
        free = None
    else:
        free = status.f_bavail * status.f_frsize
    if code == errno.EIO and free is not None and free < _LITTLE:
        code = errno.ENOSPC  # as LMDB reports an incomplete write
    advice = known.get(code or 0, "choose another path, or remove the cause")
    if code != errno.ENOSPC or free is None:
        return f"{error}; {advice}"
    kind, place = file_system_of(str(folder))
    return f"the disk is full ({error}): the {kind} file system at {place} has {byte_size(free)} free; {advice}"


def active_writer(target: str | Path) -> str | None:
    """Return which process is writing `target`, or None if none is."""
    with contextlib.suppress(OSError), open(staging_folder(target) / "lock", "rb", buffering=0) as file:
        if _lock(file.fileno(), fcntl.F_OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK:
            return _owner(file.fileno())
    return None


def _lock(descriptor: int, command: int, kind: int) -> int:
    """Call fcntl for a lock of the whole file; return the kind of the lock that it reports."""
    # Locks of the open file description: unlike POSIX locks, they exclude two writers of one process, through links too,
    # and survive when another descriptor of the file is closed.
    found = fcntl.fcntl(descriptor, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
    return int(struct.unpack("hhqqi4x", found)[0])


def _take(descriptor: int) -> None:
    """Lock the file of a writer; raise OSError if another one has it.

    Processes that a writer was just starting when it was killed hold its lock until their program begins: milliseconds.
    """
    for _ in range(_TRIES):
        try:
            _lock(descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
        except OSError as error:
            if error.errno not in _TAKEN or not _is_dead(_owner(descriptor)):
                raise
            time.sleep(_PAUSE)
        else:
            return
    _lock(descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)


def _is_dead(owner: str) -> bool:
    """Whether the owner of a lock was a process of this machine that is gone."""
    found = re.match(r"process (\d+) on (.+), since ", owner)
    return found is not None and found[2] == socket.gethostname() and not os.path.exists(f"/proc/{found[1]}")


def _owner(descriptor: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        return os.pread(descriptor, 1 << 12, 0).decode() or "another writer"
    return "another writer"


class ActiveWriterError(StoreExistsError):
    """Another process is writing the same store; it may end soon."""


class Staging:
    """The folder in which one writer builds one target.

    Parameters
    ----------
    target : str
        Absolute path of the store. Where it is a symbolic link, or goes through some, the file behind them is written.
    url : str
        For messages.
    name : str
        The file in the folder that becomes the store.

    Attributes
    ----------
    built : Path
        That file.
    """

    def __init__(self, target: str, url: str, name: str) -> None:
        self.target: Path = Path(os.path.realpath(target))
        self.url: str = url
        self.folder: Path = staging_folder(target)
        self.built: Path = self.folder / name
        self._lock_file = -1
        self._is_locked = False

    def exists(self) -> bool:
        """Whether a store is at the target; raises StoreExistsError for a folder or a file that is no store."""
        with reporting(self.url, self.target.parent):
            if self.target.is_symlink():
                raise StoreExistsError(f"{self.url} is a symbolic link in a circle; remove it, or choose another path")
            if self.target.is_dir():
                raise StoreExistsError(f"{self.url} is a folder; a store is one file, so choose another path")
            if self.target.is_file() and self.target.stat().st_size:
                try:
                    engine = engine_of_file(str(self.target))
                except OSError as error:
                    raise StoreExistsError(
                        f"{self.url} exists and cannot be read ({error.strerror}), so it is not replaced; remove it yourself"
                    ) from None
                if engine is None:
                    raise StoreExistsError(
                        f"{self.url} is a file, but no store, so it is not replaced; remove it yourself"
                    )
            return os.path.lexists(self.target)

    def begin(self) -> None:
        """Create the folder and lock it for this writer; an interrupted write that is in it stays.

        Raises
        ------
        StoreExistsError
            Another writer has it.
        """
        with reporting(self.url, self.target.parent):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            while self._lock_file < 0:
                self.folder.mkdir(exist_ok=True)
                self._try_to_lock()
            if self.built.exists() and self.target.exists() and self.built.samefile(self.target):
                self.drop()  # its writer died after it had published the file, which must not change now
            self._unshare()

    def _unshare(self) -> None:
        """Give each file in the folder that has another name a copy of its own.

        The other name may be a snapshot, or a published store that was renamed. It must not change, and no record is lost.
        """
        copy = self.folder / _COPY
        for path in self._files():
            if path.is_file() and path.stat().st_nlink > 1:
                shutil.copyfile(path, copy)
                sync_path(copy)
                os.replace(copy, path)

    def _try_to_lock(self) -> None:
        """Lock the folder, or leave it unlocked if its last writer removed it meanwhile."""
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            return
        try:
            _take(descriptor)
            if self._is_current(descriptor):
                self._sign(descriptor)
                self._lock_file, self._is_locked = descriptor, True
        except OSError as error:
            if error.errno not in _TAKEN:  # a file system without locks
                raise
            owner = _owner(descriptor)
            if owner.startswith(f"process {os.getpid()} on {socket.gethostname()},"):
                raise StoreExistsError(
                    f"{self.url} is being written by another writer of this process; publish, suspend or abort that one first"
                ) from None
            raise ActiveWriterError(
                f"{self.url} is being written by {owner}. Wait until it ends, or end it; if it is dead, its lock on "
                f"{self.folder / 'lock'} has ended too, and resume=True (--resume) continues its work"
            ) from None
        finally:
            if descriptor != self._lock_file:
                os.close(descriptor)

    def _sign(self, descriptor: int) -> None:
        since = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        with contextlib.suppress(OSError):  # for example a full disk: messages then name no process
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}, since {since}".encode(), 0)

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.folder / "lock"))
        except FileNotFoundError:
            return False

    def publish(self, *, replace: bool) -> None:
        """Make the file `built` the target, atomically and durably, and remove the folder."""
        sync_path(self.built)
        if replace:
            os.replace(self.built, self.target)
        else:
            self._link()
        sync_path(self.target.parent)
        self.drop()

    def _link(self) -> None:
        # A rename would replace a target that appeared since the writer began; a link fails.
        try:
            os.link(self.built, self.target)
        except FileExistsError:
            raise appeared(self.url) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(self.target):
                raise appeared(self.url) from None
            os.rename(self.built, self.target)

    def drop(self) -> None:
        """Remove from the folder what sinks write there, but the lock. Any other file belongs to the user."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        own = [self.built, self.built.with_suffix(".fresh"), *(self.folder / name for name in _NAMES)]
        return [*own, *self.folder.glob(_FRESH.format("[0-9a-f]" * 16))]

    def close(self) -> None:
        """Release the lock for another writer, and remove the folder if it is empty. Idempotent."""
        if self._lock_file < 0:
            return
        is_locked, self._is_locked = self._is_locked, False
        if is_locked:  # not again if an interrupt ended this: the folder may be another writer's by then
            with contextlib.suppress(OSError):
                if [entry.name for entry in self.folder.iterdir()] == ["lock"]:
                    (self.folder / "lock").unlink()
                    self.folder.rmdir()
        # Explicitly, because a forked child may have inherited the description.
        with contextlib.suppress(OSError):
            _lock(self._lock_file, fcntl.F_OFD_SETLK, fcntl.F_UNLCK)
        descriptor, self._lock_file = self._lock_file, -1
        os.close(descriptor)
