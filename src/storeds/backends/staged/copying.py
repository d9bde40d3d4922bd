"""Copies one file of a store, which has its name only after it was verified."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from storeds._utils.urls import StoreURL, file_url
from storeds.backends.staged.remote import Remote
from storeds.backends.staging import sync_path
from storeds.backends.versions.document import Member
from storeds.errors import FormatError, RecordError
from storeds.protocols import Meta
from storeds.records.codec import ContentHash
from storeds.registry import BACKENDS

__all__ = [
    "Fetched",
    "Moved",
    "check_column",
    "check_member",
    "check_native",
    "copy_file",
    "fetch",
    "native_meta_of",
    "settle",
]

Moved = Callable[[int, int], object]
"""Called with the bytes that are copied so far, and all that will be."""


class Fetched(NamedTuple):
    """A file that was copied, and is not checked yet.

    Attributes
    ----------
    remote, name
        Where it is from.
    fresh, target : Path
        Where it is, and will be.
    is_whole : bool
        Whether it has as many bytes as there.
    """

    remote: Remote
    name: str
    fresh: Path
    target: Path
    is_whole: bool


def fetch(remote: Remote, name: str, target: Path, moved: Callable[[int], object]) -> Fetched:
    """Copy a file to a name of its own beside `target`; `settle` checks it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.fresh")
    try:
        state = remote.copy(name, fresh, moved)
        return Fetched(remote, name, fresh, target, fresh.stat().st_size == state.size)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def settle(fetched: Fetched, check: Callable[[Path], object], moved: Callable[[int], object]) -> None:
    """Check a file that was copied, and give it its name; copy it once again if it was damaged on the way.

    `check` raises FormatError for a file that is not as it should be.
    """
    for is_last in (False, True):
        try:
            if not fetched.is_whole:
                raise FormatError(f"{fetched.remote.url}/{fetched.name} was copied in part")
            check(fetched.fresh)
            sync_path(fetched.fresh)
            os.replace(fetched.fresh, fetched.target)
            break
        except FormatError:
            if is_last:
                raise
        finally:
            fetched.fresh.unlink(missing_ok=True)
        fetched = fetch(fetched.remote, fetched.name, fetched.target, moved)
    sync_path(fetched.target.parent)


def copy_file(
    remote: Remote, name: str, target: Path, check: Callable[[Path], object], moved: Callable[[int], object]
) -> None:
    """Copy a file, check it, and give it its name; see `fetch` and `settle`."""
    settle(fetch(remote, name, target, moved), check, moved)


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
