"""Whether a URL names a versioned store."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from storeds._utils.urls import REMOTE, StoreURL
from storeds.backends.staged.opening import WRITTEN, cache_of
from storeds.backends.staged.publishing import CloudVersions
from storeds.backends.versions.folder import SUFFIXES, VersionFolder
from storeds.backends.versions.place import VersionPlace
from storeds.errors import ConfigError, FormatError, suggest
from storeds.registry import BACKENDS

__all__ = ["version_place"]

_LMDB_DATA = "data.mdb"


def version_place(url: StoreURL, options: Mapping[str, Any] | None = None) -> VersionPlace | None:
    """Return where the versioned store is that a URL names; None if it names anything else.

    It does if it ends in a slash and has the scheme of an engine, unless an LMDB environment is there or ``columns`` names the
    files of the folder; and if versions are in the folder, whatever the URL looks like.
    """
    given = {**url.options, **(options or {})}
    if not url.path or "columns" in given:
        return None
    if url.scheme in REMOTE:
        return _in_the_cloud(url) if url.path.endswith("/") else None
    if url.scheme not in (None, *SUFFIXES):
        find = getattr(BACKENDS.get(url.scheme), "versions", None) if url.scheme in BACKENDS.names() else None
        return None if find is None else find(url, given)
    path = url.file
    if os.path.exists(os.path.join(path, _LMDB_DATA)):
        return None
    if url.scheme is not None and url.path.endswith("/"):
        return VersionFolder(url.scheme, path)
    found = VersionFolder(url.scheme or "lmdb", path)
    return found if url.scheme is not None and found.numbers() else _found_by_content(found)


def _in_the_cloud(url: StoreURL) -> VersionPlace:
    engine = url.options.get("engine")
    if engine not in (None, *SUFFIXES):
        raise ConfigError(f"{url}: {suggest(engine, SUFFIXES, 'engines of files')}")
    cache = cache_of(url, None, WRITTEN)
    found = CloudVersions.of(f"{url.scheme}://{url.path}", cache, engine or "lmdb")
    return replace(found, engine=_engine_in(found)) if found.numbers() else found


def _found_by_content(folder: VersionFolder) -> VersionFolder | None:
    if not folder.numbers():
        return None
    engine = _engine_in(folder)
    return VersionFolder(engine, folder.path) if engine in SUFFIXES else None


def _engine_in(place: VersionPlace) -> Any:
    try:
        return json.loads(place.text())["engine"]
    except (ValueError, KeyError, TypeError):
        raise FormatError(f"{place.url}: its last version is damaged; name an older one with ?version=") from None
