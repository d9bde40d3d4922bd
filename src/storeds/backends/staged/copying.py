"""Copies one file of a store, which has its name only after it was verified."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import xxhash

from storeds._utils.urls import StoreURL, file_url
from storeds.backends.staged.remote import Remote
from storeds.backends.staging import sync_path
from storeds.backends.versions.document import Member
from storeds.errors import FormatError, RecordError
from storeds.protocols import Meta
from storeds.records.codec import ContentHash
from storeds.registry import BACKENDS

__all__ = ["Moved", "check_column", "check_member", "check_native", "copy_file", "native_meta_of"]

_FREE = contextlib.nullcontext()
Moved = Callable[[int, int], object]
"""Called with the bytes that are copied so far, and all that will be."""


def copy_file(
    remote: Remote,
    name: str,
    target: Path,
    check: Callable[[Path], object],
    moved: Callable[[int], object],
    link: AbstractContextManager[object] = _FREE,
) -> None:
    """Copy a file, check it, and give it its name; once again if it is damaged on the way.

    `check` raises FormatError for a file that is not as it should be. While bytes come, this has the `link`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.fresh")
    try:
        for attempt in (1, 2):
            with link:
                state = remote.copy(name, fresh, moved)
            try:
                if fresh.stat().st_size != state.size:
                    raise FormatError(
                        f"{remote.url}/{name} was copied with {fresh.stat().st_size} of {state.size} bytes"
                    )
                check(fresh)
                break
            except FormatError:
                if attempt == 2:
                    raise
        sync_path(fresh)
        os.replace(fresh, target)
        sync_path(target.parent)
    finally:
        fresh.unlink(missing_ok=True)


def native_meta_of(engine: str, path: Path) -> Meta:
    """Return what a native store on this machine says of itself; raises FormatError."""
    with _native(engine, path) as store:
        meta: Meta = store.meta
        return meta


def check_native(engine: str, path: Path, url: str) -> Meta:
    """Return the meta of a native store of which every record, and its id, are intact; raises FormatError for another."""
    content = ContentHash()
    with _native(engine, path) as store:
        try:
            content.update(store.digests().tobytes())
        except RecordError as error:
            raise FormatError(f"{url}: what was copied is damaged: {error}") from None
        meta: Meta = store.meta
    if content.finish(meta.fields, meta.attrs) != meta.id:
        raise FormatError(f"{url}: what was copied is damaged: its records have another id")
    return meta


def check_member(engine: str, member: Member, url: str, path: Path) -> None:
    """Raise FormatError unless a file is the member of a version, intact."""
    meta = check_native(engine, path, url)
    if (meta.id, meta.build) != (member.id, member.build):
        raise FormatError(f"{url}: {member.name} is another store than its version says")


def check_column(name: str, path: Path) -> None:
    """Raise FormatError unless a file is the column with this name."""
    if xxhash.xxh3_128_hexdigest(path.read_bytes()) != name:
        raise FormatError(f"the column {name} is damaged")


def _native(engine: str, path: Path) -> Any:
    return BACKENDS.get(engine)(StoreURL.parse(file_url(engine, str(path))))
