"""One store while storeds finds out how to read it: each file is opened and inspected once, by whoever comes first."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from storeds._utils.paths import check_status, refused, sniff_descriptor, stat_store

__all__ = ["OpenStore"]

T = TypeVar("T")


class OpenStore:
    """What the native backend and all candidate layouts share of one store that is being opened.

    `storeds.open_backend` creates one, passes it to each class that has ``shares_open_store = True``, and closes it.
    It opens nothing by itself. Used by one thread.
    """

    def __init__(self) -> None:
        self._shared: dict[Hashable, tuple[Any, Callable[[Any], object]]] = {}
        self._inspected: dict[str, tuple[os.stat_result, str | None]] = {}

    @classmethod
    @contextmanager
    def borrow(cls, opened: OpenStore | None) -> Iterator[OpenStore]:
        """Yield `opened`, left open at the end, or for None a new one that is closed at the end."""
        if opened is not None:
            yield opened
        else:
            with cls() as own:
                yield own

    def share(self, name: Hashable, open: Callable[[], T], close: Callable[[T], object]) -> T:
        """Return the object called `name`; the first caller opens it."""
        if name not in self._shared:
            self._shared[name] = open(), close
        found: T = self._shared[name][0]
        return found

    def take(self, name: Hashable) -> None:
        """Make the caller the owner of the object called `name`: it closes it from now on."""
        del self._shared[name]

    def descriptor(self, path: str) -> int:
        """Return a read-only descriptor of the file at `path`; ``take(path)`` keeps it. Raises OSError."""
        return self.share(path, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC), os.close)

    def inspect_file(self, path: str, url: str) -> tuple[os.stat_result, str | None]:
        """Return the status of what lies at `path`, and its engine by its magic bytes: ``lmdb``, ``hdf5`` or None.

        Raises
        ------
        StoreNotFoundError
            Nothing is there.
        UnavailableError
            The system does not allow access, for example for lack of permission.
        FormatError
            It is neither a file nor a folder.
        """
        if path not in self._inspected:
            status = stat_store(path, url)
            engine = None
            if not stat.S_ISDIR(status.st_mode):
                try:
                    descriptor = self.descriptor(path)
                    # Of the opened file, which may have replaced the one that `stat` saw.
                    status = os.fstat(descriptor)
                    engine = sniff_descriptor(descriptor, status.st_size)
                except OSError as error:
                    raise refused(url, "read", error) from None
            self._inspected[path] = status, engine
        return self._inspected[path]

    def check_file(self, path: str, kind: str, url: str) -> os.stat_result:
        """Return the status of the store file at `path`; raises unless it is a regular file of engine `kind`."""
        status, engine = self.inspect_file(path, url)
        check_status(path, status, engine, kind, url)
        return status

    def close(self) -> None:
        """Close everything that nobody has taken, in reverse order."""
        while self._shared:
            _, (found, close) = self._shared.popitem()
            close(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
