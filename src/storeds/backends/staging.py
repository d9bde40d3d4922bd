"""Builds a file store in a folder beside its target, with one writer at a time, and publishes it by one rename."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import shutil
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from storeds._utils.locations import file_system_of, sniff, staging_folder
from storeds._utils.text import byte_size
from storeds.backends.writer import other_plan, target_exists
from storeds.errors import ConfigError, FormatError, StoredsError, StoreExistsError
from storeds.records.codec import Places

__all__ = [
    "Owner",
    "Staging",
    "active_writer",
    "copy_range",
    "kept_places",
    "replace_text",
    "sync_path",
    "written_ranges",
]

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LITTLE = 1 << 16  # bytes; a disk with less free space counts as full
_ACTIVE: set[str] = set()  # POSIX locks do not exclude two writers of one process
# Reentrant: the garbage collector may end a dropped writer in the middle of another's critical section.
_ACTIVE_LOCK = threading.RLock()


def _renew_lock() -> None:
    global _ACTIVE_LOCK
    _ACTIVE_LOCK = threading.RLock()  # a thread of the parent may have held the old one


os.register_at_fork(after_in_child=_renew_lock)


def disk_space(folder: Path) -> int:
    """Return how many bytes may still be written to the file system of `folder`."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def sync_path(path: str | Path) -> None:
    """Wait until the file or folder at `path` is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Replace the content of `path` with `text`, durably and in one step."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_text(text)
    sync_path(fresh)
    os.replace(fresh, path)
    sync_path(path.parent)


def kept_places(folder: Path) -> Places:
    """Return the places for the writer in `folder`, with the salt of an interrupted write or a new, durable one."""
    file = folder / "salt"
    if not file.exists():
        replace_text(file, Places().text)
    return Places.of(file.read_text(), 0, str(file))


def copy_range(source: int, start: int, target: int, place: int, size: int) -> None:
    """Copy `size` bytes from `start` on in `source` to `place` in `target`."""
    done = 0
    with contextlib.suppress(OSError):  # not every file system copies in the kernel
        while done < size:
            copied = os.copy_file_range(source, target, size - done, start + done, place + done)
            if copied == 0:
                break
            done += copied
    while done < size:
        part = os.pread(source, min(1 << 20, size - done), start + done)
        if not part:
            raise OSError(f"a file of its folder lacks {size - done} of its last {size} bytes")
        done += os.pwrite(target, part, place + done)


def written_ranges(descriptor: int, at: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges from `at` on that contain data, not holes."""
    while True:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, at


def _write_owner(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # for example a full disk: messages then name no process
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(Owner.here().to_json()).encode(), 0)


def _read_owner(descriptor: int) -> Owner | None:
    try:
        return Owner.from_json(json.loads(os.pread(descriptor, 1 << 12, 0)))
    except (OSError, ValueError):
        return None


def active_writer(target: str | Path) -> str | None:
    """Return which process is writing `target`, or None if none is or the system does not report it."""
    folder = staging_folder(target)
    # Closing the file ends this process's own lock on it, so no writer may start here meanwhile.
    with _ACTIVE_LOCK, contextlib.suppress(OSError):
        if str(folder) in _ACTIVE:
            return "another writer of this process"
        if sys.platform == "linux":
            descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
            try:
                asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                if struct.unpack("hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK:
                    return str(_read_owner(descriptor) or "another process")
            finally:
                os.close(descriptor)
    return None


class Staging:
    """The folder in which one writer builds one target.

    Parameters
    ----------
    target : str
        Absolute path of the store.
    url : str
        For messages.
    plan : JSON
        Describes the write; a resuming writer must pass an equal plan.
    overwrite, resume : bool
        Replace an existing target; continue an interrupted write.

    Attributes
    ----------
    resumed : bool
        Whether the folder contains an interrupted write.
    """

    def __init__(self, target: str, url: str, plan: Any, *, overwrite: bool, resume: bool) -> None:
        self.target: Path = Path(target)
        self.url: str = url
        self.overwrite: bool = overwrite
        self.folder: Path = staging_folder(target)
        self._check_target()
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = self._lock()
        except StoredsError:  # some storeds errors are OSErrors too
            raise
        except OSError as error:
            raise self._refused(error) from None
        try:
            self.resumed: bool = self._enter(plan, overwrite=overwrite, resume=resume)
        except BaseException as error:
            self.release()
            if isinstance(error, OSError) and not isinstance(error, StoredsError):
                raise self._refused(error) from None
            raise

    def _refused(self, error: OSError) -> StoredsError:
        if error.errno in _FULL:
            return StoredsError(f"{self.url} cannot be written: {self.explain(error, 0)}; make room and try again")
        return ConfigError(f"{self.url} cannot be written: {error}")

    def _check_target(self) -> None:
        if self.target.is_dir():
            raise StoreExistsError(f"{self.url} is a folder; a store is one file, so choose another path")
        if self.target.is_file() and self.target.stat().st_size and self._is_foreign():
            raise StoreExistsError(f"{self.url} is a file, but no store, so it is not replaced; remove it yourself")
        if os.path.lexists(self.target) and not self.overwrite:
            raise target_exists(self.url, (self.folder / "plan.json").exists())

    def _is_foreign(self) -> bool:
        try:
            return sniff(str(self.target)) is None
        except OSError as error:
            raise StoreExistsError(
                f"{self.url} exists and cannot be read ({error.strerror}), so it is not replaced; remove it yourself"
            ) from None

    def _lock(self) -> int:
        with _ACTIVE_LOCK:
            if str(self.folder) in _ACTIVE:
                raise StoreExistsError(
                    f"{self.url} is being written by another writer of this process; close that one first"
                )
            while True:
                self.folder.mkdir(exist_ok=True)
                try:
                    descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                except FileNotFoundError:
                    continue  # its last writer has just removed the folder
                try:
                    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    owner = _read_owner(descriptor) or "another process"
                    os.close(descriptor)
                    if error.errno not in (errno.EACCES, errno.EAGAIN):  # a file system without locks
                        raise
                    raise StoreExistsError(
                        f"{self.url} is being written by {owner}. Wait until it ends, or end it; if it is dead, its lock on "
                        f"{self.folder / 'lock'} has ended too, and resume=True (--resume) continues its work"
                    ) from None
                if self._is_current(descriptor):
                    _ACTIVE.add(str(self.folder))
                    _write_owner(descriptor)
                    return descriptor
                os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.folder / "lock"))
        except FileNotFoundError:
            return False

    def _enter(self, plan: Any, *, overwrite: bool, resume: bool) -> bool:
        plan_file = self.folder / "plan.json"
        if plan_file.exists() and resume:
            self._check_plan(plan_file, plan)
            return True
        if plan_file.exists() and not overwrite:
            raise StoreExistsError(
                f"{self.folder} holds an interrupted write of {self.url}; pass resume=True (--resume) to continue "
                "it, or overwrite=True (--overwrite) to start again"
            )
        self._empty()
        replace_text(plan_file, json.dumps(plan))
        return False

    def _check_plan(self, plan_file: Path, plan: Any) -> None:
        try:
            found = json.loads(plan_file.read_text())
        except ValueError:
            raise FormatError(
                f"{plan_file} is damaged, so {self.url} cannot be resumed; start again with overwrite=True"
            ) from None
        if found != plan:
            raise other_plan(self.url, found, plan)

    def _empty(self) -> None:
        # The plan first: without it, no writer resumes from a folder that was emptied in part.
        (self.folder / "plan.json").unlink(missing_ok=True)
        for entry in self.folder.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def publish(self, built: Path) -> None:
        """Make the file `built` the target, atomically and durably, and remove the folder."""
        sync_path(built)
        if self.overwrite:
            self._replace(built)
        else:
            self._link(built)
        sync_path(self.target.parent)
        self.discard()

    def _replace(self, built: Path) -> None:
        # The folder keeps the file under its own name, so that a writer can resume after a crash at this point.
        second = built.with_name(f"{built.name}.second")
        second.unlink(missing_ok=True)
        try:
            os.link(built, second)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            second = built
        os.replace(second, self.target)

    def separate(self, file: Path) -> None:
        """Give `file` of the folder its own copy if it is the target too, because a writer crashed after publishing it."""
        if file.exists() and file.stat().st_nlink > 1:
            fresh = file.with_name(f"{file.name}.fresh")
            try:
                shutil.copyfile(file, fresh)
                sync_path(fresh)
            except BaseException:
                fresh.unlink(missing_ok=True)  # an incomplete copy, on a disk that may be full
                raise
            os.replace(fresh, file)

    def _link(self, built: Path) -> None:
        # A rename would replace a target that appeared since the writer began; a link fails.
        try:
            os.link(built, self.target)
        except FileExistsError:
            raise StoreExistsError(f"{self.url} appeared while it was being written; nothing was replaced") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._check_target()
            os.rename(built, self.target)

    def explain(self, error: BaseException, needed: int) -> str:
        """Return why a step that needed about this many bytes failed, and explain a full disk."""
        try:
            free = disk_space(self.target.parent)
        except OSError:
            return str(error)
        # LMDB reports an incomplete write as "Input/output error".
        is_full = "No space left" in str(error) or ("Input/output" in str(error) and free < max(needed, _LITTLE))
        if not is_full and getattr(error, "errno", None) not in _FULL:
            return str(error)
        kind, place = file_system_of(str(self.target.parent))
        step = f", and this step needs about {byte_size(needed)}" if needed else ""
        return f"the disk is full ({error}): the {kind} file system at {place} has {byte_size(free)} free{step}"

    def discard(self) -> None:
        """Remove the folder."""
        # The lock goes last: without it, the files may belong to another writer.
        with contextlib.suppress(OSError):
            self._empty()
            (self.folder / "lock").unlink()
            self.folder.rmdir()
        self.release()

    def __del__(self, exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # A writer that was dropped unclosed must not block the next one. When the interpreter exits, this module's globals
        # may be gone, and the kernel releases the lock.
        if hasattr(self, "_lock_file") and not exiting():
            self.release()

    def release(self) -> None:
        """Release the lock for another writer; the folder stays."""
        with _ACTIVE_LOCK:
            if self._lock_file >= 0:
                _ACTIVE.discard(str(self.folder))
                os.close(self._lock_file)
                self._lock_file = -1


@dataclass(frozen=True)
class Owner:
    """A writer's process.

    Attributes
    ----------
    host, pid, since : str, int, str
        For messages; `since` is when the writer was opened, in UTC.
    machine : str
        The boot id of the kernel and the PID namespace; empty without ``/proc``.
    ticks : int
        Start time of the process by its kernel's clock, because process ids are reused.
    """

    host: str
    pid: int
    since: str
    machine: str
    ticks: int

    @classmethod
    def here(cls) -> Self:
        """Return the owner of a writer that this process opens now."""
        since = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return cls(socket.gethostname(), os.getpid(), since, _machine(), _start(os.getpid())[0])

    @classmethod
    def from_json(cls, found: Any) -> Self | None:
        """Return the owner that `to_json` described, or None for anything else."""
        try:
            return cls(**{name: kind(found[name]) for name, kind in _KINDS.items()})
        except (TypeError, KeyError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return asdict(self)

    @property
    def is_here(self) -> bool:
        """Whether this is the current process."""
        return (self.pid, self.machine, self.host) == (os.getpid(), _machine(), socket.gethostname()) and (
            self.ticks == _start(self.pid)[0]
        )

    @property
    def has_ended(self) -> bool:
        """Whether the process has certainly ended; False for processes of other machines and containers."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # another user's process
        ticks, state = _start(self.pid)
        return ticks != 0 and (ticks != self.ticks or state in "ZX")

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


_KINDS: Mapping[str, type] = {"host": str, "pid": int, "since": str, "machine": str, "ticks": int}


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start(pid: int) -> tuple[int, str]:
    """Return when a process started and its state; (0, "") where that cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[19]), fields[0]
