"""Which stores are staged, and how a staged store is opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from storeds._utils.urls import REMOTE, StoreURL, file_url
from storeds.backends.staged.cache import Entry, StageCache
from storeds.backends.staged.copying import Moved
from storeds.backends.staged.fetching import ArrivingOpener, Copier
from storeds.backends.staged.mirror import Mirror
from storeds.backends.staged.single import CollectionCopy, FileCopy, Staged
from storeds.backends.staging import reporting
from storeds.backends.store import Store
from storeds.backends.versions.document import Version
from storeds.backends.versions.reading import VersionedStore, tell_of_newer, version_number
from storeds.errors import ConfigError, UnavailableError
from storeds.protocols import Backend, Writer
from storeds.records.meta import NATIVE

__all__ = ["PACKED", "READ", "WRITTEN", "Copy", "VersionCopy", "cache_of", "copy_of", "open_copy"]

READ = "read from a local copy: say where, stage='/local/cache', or set STOREDS_STAGE"
WRITTEN = "written to a local folder first: set STOREDS_STAGE to one"
PACKED = "copied to a local folder first: set STOREDS_STAGE to one"


class Copy(Protocol):
    """The local copy of a store."""

    @property
    def entry(self) -> Entry:
        """Where it is."""
        ...

    def fill(self, progress: Moved | None = None) -> Staged:
        """Copy what is not here; raises as `storeds.ops.stage`."""
        ...

    def renew(self, name: str) -> None:
        """Copy a file again if it is damaged here; raises StoredsError if that does not help."""
        ...


@dataclass(frozen=True)
class VersionCopy:
    """The copy of a version of a versioned store."""

    mirror: Mirror
    version: Version
    is_current: bool

    @property
    def entry(self) -> Entry:
        # docstring inherited
        return self.mirror.entry

    def fill(self, progress: Moved | None = None) -> Staged:
        # docstring inherited
        with self.entry.locked():
            moved = self.mirror.fill(self.version, progress)
        local = f"{file_url(self.mirror.engine, self.mirror.path)}/?version={self.version.number}"
        return Staged(self.mirror.remote.url, local, self.entry.folder.name, moved, self.is_current)

    def renew(self, name: str) -> None:
        # docstring inherited
        with self.entry.locked(to_repair=True):
            self.mirror.renew(self.version, name)

    def open(self, options: Mapping[str, Any]) -> VersionedStore:
        """Open the version; its members are copied when they are read."""
        self.mirror.prepare(self.version)
        return VersionedStore(self.mirror, self.version, options)


def cache_of(url: StoreURL, given: Any, what: str) -> StageCache:
    """Return the folder of copies that is given or set; raises ConfigError, which says `what` it is for and how to name it."""
    if given is None and not os.environ.get("STOREDS_STAGE"):
        raise ConfigError(f"{url} is {what}")
    return StageCache.of(given)


def copy_of(
    url: str | os.PathLike[str] | StoreURL,
    cache: StageCache,
    options: Mapping[str, Any],
    open_backend: Callable[..., Backend],
    open_writer: Callable[..., Writer],
) -> Copy:
    """Return the copy of a store in a cache; raises ConfigError for a store that is not staged."""
    parsed = StoreURL.parse(url)
    number = {**parsed.options, **options}.get("version")
    if parsed.scheme in REMOTE:
        place = f"{parsed.scheme}://{parsed.path}"
    elif parsed.scheme in (None, "lmdb", "hdf5"):
        place = parsed.file + "/" * parsed.path.endswith("/")
    elif str(parsed.scheme).startswith("mongodb"):
        return CollectionCopy(parsed.text, cache, options, open_backend, open_writer)
    else:
        raise ConfigError(f"{parsed}: stores of {parsed.scheme} are not staged: leave out stage=")
    with reporting(str(cache.path), cache.path):
        cache.path.mkdir(parents=True, exist_ok=True)
    if place.endswith("/") or not Path(place).suffix:  # a file has a suffix
        mirror = Mirror.of(place, cache)
        copy = VersionCopy(*mirror.opened(None if number is None else version_number(number, mirror.url)))
        if number is not None and copy.is_current:
            with contextlib.suppress(UnavailableError):  # web servers list no versions
                tell_of_newer(mirror, copy.version)
        return copy
    return FileCopy(place, cache)


def open_copy(
    copy: Copy, url: StoreURL, options: Mapping[str, Any], open_local: Callable[[str, Mapping[str, Any]], Backend]
) -> Backend:
    """Open the store at `url` through its copy; `open_local` opens a file of this machine."""
    rest = {name: value for name, value in {**url.options, **options}.items() if name not in ("version", "engine")}
    if isinstance(copy, VersionCopy):
        return copy.open(rest)
    staged = copy.fill()
    backend = open_local(staged.local, rest)
    if isinstance(backend, Store) and backend.meta.layout == NATIVE:
        copier = Copier(url.text, copy.entry)
        backend = backend.through(lambda opener: ArrivingOpener(opener, copier, "", staged.local))
    return backend
