"""Files of other machines and of mounted disks: lists them, says how large they are, reads, copies and writes one."""

from __future__ import annotations

import contextlib
import datetime
import errno
import filecmp
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from storeds._utils.files import nearest
from storeds._utils.urls import REMOTE
from storeds.errors import MissingDependencyError, StoredsError, StoreNotFoundError, UnavailableError
from storeds.redaction import redact, redact_message

__all__ = ["Disk", "Objects", "Remote", "State", "remote_at"]

T = TypeVar("T")
_USED_IN: dict[str, int] = {}  # the process that uses obstore

_WITHOUT_LISTS = ("https", "http", "hf")
_CHUNK = 8 << 20  # bytes
_OF_DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
)
"""Faults of the disk of this machine: trying again does not help."""
_DEADLINE = 120.0  # seconds of tries without a success
_SHORT = 10.0  # the same, where an earlier copy serves otherwise
_PAUSES = (0.1, 0.5, 2.0, 5.0, 10.0)  # seconds between them
_HUB = re.compile(r"hf://(datasets/)?([^/]+/[^/]+)/(.*)", re.DOTALL)


class State(NamedTuple):
    """What a file is now: its size in bytes, a text that changes with its content, and when it was written, in seconds."""

    size: int
    tag: str
    time: float


class Remote(Protocol):
    """Files below one place. Picklable."""

    given: str
    """The place. It may hold a password."""

    @property
    def url(self) -> str:
        """The place, secrets removed."""
        ...

    def states(self, folder: str) -> dict[str, State]:
        """Return the files in a folder below the place, by name; none if there is no such folder."""
        ...

    def state(self, name: str) -> State:
        """Return the state of a file; raises StoreNotFoundError or UnavailableError."""
        ...

    def read(self, name: str) -> bytes:
        """Return the bytes of a small file; raises as `state`."""
        ...

    def copy(self, name: str, target: Path, moved: Callable[[int], object]) -> State:
        """Write a file to `target`, and return the state that was copied; calls `moved` with the bytes of each part."""
        ...


class Disk:
    """Files below a folder of this machine, such as a network mount."""

    def __init__(self, path: str) -> None:
        self.given = self.path = path

    @property
    def url(self) -> str:
        # docstring inherited
        return self.path

    def states(self, folder: str) -> dict[str, State]:
        # docstring inherited
        try:
            with os.scandir(os.path.join(self.path, folder)) as found:
                return {each.name: _state_on_disk(each.stat()) for each in found if each.is_file()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise UnavailableError(f"{self.path} cannot be listed: {error.strerror}") from None

    def state(self, name: str) -> State:
        # docstring inherited
        path = os.path.join(self.path, name) if name else self.path
        try:
            found = os.stat(path)
        except FileNotFoundError:
            raise StoreNotFoundError(f"there is no file {path}: {nearest(path)}") from None
        except OSError as error:
            raise UnavailableError(f"{path} cannot be looked at: {error.strerror}") from None
        return _state_on_disk(found)

    def read(self, name: str) -> bytes:
        # docstring inherited
        self.state(name)
        try:
            return Path(self.path, name).read_bytes()
        except OSError as error:
            raise UnavailableError(f"{self.path}/{name} cannot be read: {error.strerror}") from None

    def copy(self, name: str, target: Path, moved: Callable[[int], object]) -> State:
        # docstring inherited
        before = self.state(name)
        path = os.path.join(self.path, name) if name else self.path
        try:
            with open(path, "rb") as source, open(target, "wb") as file:
                while data := source.read(_CHUNK):
                    file.write(data)
                    moved(len(data))
        except OSError as error:
            if error.filename == os.fspath(target) or not os.path.exists(path):
                raise
            raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None
        return before


def _state_on_disk(found: os.stat_result) -> State:
    return State(found.st_size, f"{found.st_size:x}-{found.st_mtime_ns:x}", found.st_mtime)


class Objects:
    """Objects of a store in the cloud, or files of a web server. Credentials are those that obstore finds."""

    def __init__(self, url: str, *, is_needed: bool = True) -> None:
        self.given, self._is_needed = url, is_needed

    @property
    def url(self) -> str:
        # docstring inherited
        return redact(self.given)

    def _store(self) -> Any:
        # Its threads do not survive a fork, and a call in the child would wait for them for ever.
        if _USED_IN.setdefault("process", os.getpid()) != os.getpid():
            raise UnavailableError(
                f"{self.url}: this process was forked from one that had read from the cloud, and cannot: open the store before "
                "the fork, or start processes by spawn"
            )
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise MissingDependencyError(f"{self.url} needs obstore ({error}): pip install 'storeds[remote]'") from None
        hub = _HUB.fullmatch(self.given)
        url = f"https://huggingface.co/{hub[1] or ''}{hub[2]}/resolve/main/{hub[3]}" if hub else self.given
        options: Any = {"allow_http": True} if url.startswith("http://") or _is_local_endpoint() else {}
        few: Any = {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=20)}  # `_tried` does more
        return from_url(url, client_options=options, retry_config=few)

    def _tried(self, what: str, work: Callable[[], T], done: str = "read") -> T:
        """Return what `work` returns; tries again until the deadline, with longer and longer pauses."""
        from obstore import exceptions

        lost = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, exceptions.InvalidPathError)
        deadline = _DEADLINE if self._is_needed else min(_SHORT, _DEADLINE)
        began, number = time.monotonic(), 0
        while True:
            try:
                return work()
            except (exceptions.NotFoundError, FileNotFoundError):
                raise StoreNotFoundError(f"there is no {what} at {self.url}") from None
            except StoredsError:
                raise
            except Exception as error:
                shown = redact_message(str(error).split("\n")[0][:300])
                if isinstance(error, lost) or time.monotonic() - began > deadline:
                    tries = f"{number + 1} tries in {time.monotonic() - began:.0f} s"
                    raise UnavailableError(f"{what} of {self.url} cannot be {done} after {tries}: {shown}") from None
                if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_DISK):
                    raise
            time.sleep(_PAUSES[min(number, len(_PAUSES) - 1)])
            number += 1

    def states(self, folder: str) -> dict[str, State]:
        # docstring inherited
        import obstore

        if self.given.partition("://")[0] in _WITHOUT_LISTS:
            raise UnavailableError(
                f"{self.url}: web servers list no files: name a file, or a version of a store, as in …/train/?version=1"
            )

        def listed() -> dict[str, State]:
            found = obstore.list_with_delimiter(self._store(), f"{folder}/")["objects"]
            return {str(each["path"]).rpartition("/")[2]: _state(each) for each in found}

        return self._tried(f"folder {folder}", listed, "listed")

    def walk(self) -> list[tuple[str, State]]:
        """Return the name and the state of every file below the place."""
        import obstore

        def listed() -> list[tuple[str, State]]:
            batches = obstore.list(self._store(), chunk_size=1000)
            return [(str(each["path"]), _state(each)) for batch in batches for each in batch]

        return self._tried("folder", listed, "listed")

    def state(self, name: str) -> State:
        # docstring inherited
        import obstore

        return self._tried(f"file {name or 'there'}", lambda: _state(obstore.head(self._store(), name)))

    def read(self, name: str) -> bytes:
        # docstring inherited
        import obstore

        return self._tried(f"file {name or 'there'}", lambda: bytes(obstore.get(self._store(), name).bytes()))

    def copy(self, name: str, target: Path, moved: Callable[[int], object]) -> State:
        # docstring inherited
        import obstore

        def copied() -> State:
            found = obstore.get(self._store(), name)
            size, parts = 0, iter(found.stream(min_chunk_size=_CHUNK))
            with open(target, "wb") as file:
                for part in parts:
                    file.write(part)
                    moved(len(part))
                    size += len(part)
            if size != found.meta["size"]:
                raise ConnectionError(f"the answer has {size} of {found.meta['size']} bytes")
            return _state(found.meta)

        return self._tried(f"file {name or 'there'}", copied)

    def put(self, name: str, content: bytes | Path) -> bool:
        """Write a file in one step, unless there is one of that name; return whether this call, or a try of it, wrote it."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def written() -> bool:
            try:
                obstore.put(self._store(), name, content, mode="create")
            except AlreadyExistsError:
                return False
            return True

        # The answer to an earlier try may have been lost.
        return self._tried(f"file {name}", written, "written") or self._has(name, content)

    def _has(self, name: str, content: bytes | Path) -> bool:
        if isinstance(content, bytes):
            return self.read(name) == content
        with tempfile.NamedTemporaryFile(dir=content.parent) as there:
            self.copy(name, Path(there.name), lambda _: None)
            return filecmp.cmp(there.name, content, shallow=False)

    def remove(self, name: str) -> None:
        """Remove a file, which may be gone already."""
        import obstore

        with contextlib.suppress(StoreNotFoundError):
            self._tried(f"file {name}", lambda: obstore.delete(self._store(), name), "removed")


def _state(meta: Any) -> State:
    changed = meta["last_modified"]
    return State(int(meta["size"]), str(meta.get("e_tag") or changed), changed.timestamp())


def _is_local_endpoint() -> bool:
    return any(os.environ.get(name, "").startswith("http://") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"))


def remote_at(place: str, *, is_needed: bool = True) -> Remote:
    """Return the files at a URL, or below a path of this machine; tries are few unless it `is_needed`."""
    return Objects(place, is_needed=is_needed) if place.partition("://")[0] in REMOTE else Disk(place)
