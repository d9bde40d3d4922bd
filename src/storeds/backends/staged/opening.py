"""Which stores are staged, and where their local copy is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import xxhash

from storeds._utils.urls import StoreURL, file_url
from storeds.backends.staged.cache import StageCache
from storeds.backends.staged.copying import Moved, Staged, stage
from storeds.backends.staged.remote import SCHEMES
from storeds.backends.staging import sync_path
from storeds.errors import ConfigError, FormatError, RecordError, UnavailableError
from storeds.protocols import Backend, Writer
from storeds.redaction import redact

__all__ = ["is_remote", "stage_store"]

_BATCH = 64  # records


def is_remote(url: object) -> bool:
    """Whether a store lies where only staging reads it."""
    return isinstance(url, str) and url.partition("://")[0].lower() in SCHEMES and "://" in url


def stage_store(
    url: str | os.PathLike[str],
    given: Any,
    options: Mapping[str, Any],
    open_backend: Callable[..., Backend],
    open_writer: Callable[..., Writer],
    progress: Moved | None = None,
) -> Staged:
    """Return the local copy of a store, which is made now if it is not there; raises as `storeds.ops.stage`."""
    if given is None and not os.environ.get("STOREDS_STAGE"):
        raise ConfigError(
            f"{redact(os.fspath(url))} is read from a local copy: say where, stage='/local/cache', or set STOREDS_STAGE"
        )
    cache = StageCache.of(given)
    text = os.fspath(url)
    scheme = None if is_remote(text) else StoreURL.parse(text).scheme
    if scheme in (None, "lmdb", "hdf5"):
        return stage(text, cache, options, open_backend, progress)
    if not str(scheme).startswith("mongodb"):
        raise ConfigError(f"{redact(text)}: stores of {scheme} are not staged: leave out stage=")
    return _as_lmdb(text, cache, options, open_backend, open_writer, progress)


def _as_lmdb(
    url: str,
    cache: StageCache,
    options: Mapping[str, Any],
    open_backend: Callable[..., Backend],
    open_writer: Callable[..., Writer],
    progress: Moved | None,
) -> Staged:
    """Copy a collection of MongoDB into a store of LMDB with the same id."""
    cache.path.mkdir(parents=True, exist_ok=True)
    name = redact(url).partition("?")[0].rstrip("/").rpartition("/")[2]
    try:
        source = open_backend(url, **options)
    except UnavailableError:
        entry = cache.entry(redact(url), name)
        note = entry.read_note()
        if not note.get("complete"):
            raise
        return Staged(redact(url), str(note["local"]), entry.folder.name, 0, is_current=False)
    with source:
        entry = cache.entry(redact(url), name)
        target = entry.folder / f"{xxhash.xxh3_64_hexdigest(source.meta.build.encode())}.lmdb"
        with entry.locked():
            moved = 0
            if not target.exists():
                fresh = target.with_name(f".{target.name}.fresh")
                moved = _copied(source, file_url("lmdb", str(fresh)), open_writer, progress)
                sync_path(fresh)
                os.replace(fresh, target)
                entry.note(complete=True, local=str(target))
        return Staged(source.url, str(target), entry.folder.name, moved)


def _copied(source: Backend, url: str, open_writer: Callable[..., Writer], progress: Moved | None) -> int:
    moved, meta = 0, source.meta
    with open_writer(url, meta.fields, overwrite=True, check=False) as writer:
        for start in range(0, len(source), _BATCH):
            records: list[Any] = source.get_many(range(start, min(start + _BATCH, len(source))))
            for record in records:
                if isinstance(record, RecordError):
                    raise record
                moved += sum(len(value) for value in record.values() if isinstance(value, bytes))
            writer.append(records)
            if progress is not None:
                progress(start + len(records), len(source))
        copy = writer.publish(meta.attrs)
    if meta.layout == copy.layout and meta.id != copy.id:
        raise FormatError(f"{source.url} was copied, and the copy has another id: run storeds verify on it")
    return moved
