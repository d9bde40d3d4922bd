"""Copies stores to the local disk before training, and looks after the copies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from storeds._utils.urls import StoreURL
from storeds.backends.opening import open_backend, open_writer
from storeds.backends.staged.cache import Kept, StageCache
from storeds.backends.staged.opening import READ, cache_of, copy_of
from storeds.backends.staged.single import Staged
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.verifying import verify

__all__ = ["Staged", "remove_staged", "stage", "staged", "verify_staged"]


def stage(
    url: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    limit: str | int | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> Staged:
    """Copy a store to a local disk, unless it is there.

    Parameters
    ----------
    url : str
        A store in the cloud or on a web server: ``s3://``, ``gs://``, ``az://``, ``https://``, ``hf://``; on a mounted disk; or
        in MongoDB, which becomes a store of LMDB. A file, or a versioned store, whose URL ends in a slash.
    path : path, optional
        The folder of copies; by default that in ``$STOREDS_STAGE``.
    limit : str or int, optional
        Bytes that all copies there may have together, such as ``"500GB"``.
    options : mapping, optional
        Such as ``{"version": 7}``.
    progress : callable, optional
        Called with a `Progress` in bytes, or in records of MongoDB.

    Returns
    -------
    Staged
        ``local`` is what to open.

    Raises
    ------
    StoreNotFoundError, UnavailableError
        Nothing is there; it cannot be reached, and no complete copy is here.
    FormatError
        What was copied, twice, is damaged.
    StoredsError
        There is not enough room: checked before anything is copied.
    MissingDependencyError
        ``pip install 'storeds[remote]'``

    Notes
    -----
    One process of a machine copies, and the others wait for it. Each file is verified before it has its name: a native store by
    the seal of each record and its id, a column by its hash, a file of another tool by its size alone. So a death at any moment
    leaves nothing that is taken for whole, and the next run goes on with the files that are missing. Without a network, a
    complete copy serves. Only what was copied is ever removed.
    """
    given = {"path": path, "limit": limit} if path is not None or limit is not None else None
    hook = None if progress is None else lambda done, total: progress(Progress(done, total, done))
    parsed = StoreURL.parse(url)
    cache = cache_of(parsed, given, READ)
    return copy_of(parsed, cache, options or {}, open_backend, open_writer).fill(hook)


def staged(path: str | os.PathLike[str] | None = None) -> list[Kept]:
    """Return the local copies in a folder, by default that in ``$STOREDS_STAGE``."""
    return StageCache.of({"path": path}).kept()


def remove_staged(name: str, path: str | os.PathLike[str] | None = None) -> Kept:
    """Remove a local copy by its name; raises ConfigError if there is none."""
    return StageCache.of({"path": path}).remove(name)


def verify_staged(path: str | os.PathLike[str] | None = None) -> dict[str, bool]:
    """Return name → whether a local copy is intact, for all that are complete; reads them as `verify` does."""
    cache = StageCache.of({"path": path})
    found = {}
    for each in cache.kept():
        if each.is_complete:
            found[each.name] = all(verify(local).ok for local in cache.locals(each.name))
    return found
