"""Copies files of another machine that are no store, such as photographs or tar shards, to pack them."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from storeds.backends.staged.cache import Entry, StageCache
from storeds.backends.staged.remote import Objects, State
from storeds.errors import ConfigError, StoreNotFoundError, UnavailableError

__all__ = ["copy_files", "holds_versions"]

_COPIED = "copied.jsonl"  # a line for each file: its name, and the size and the tag that it had there
_AT_ONCE = 16  # files


class _Source(NamedTuple):
    remote: Objects
    name: str
    state: State


def holds_versions(url: str) -> bool:
    """Whether a versioned store is at a URL that ends in a slash."""
    return bool(Objects(url.rstrip("/")).states("versions"))


def copy_files(urls: Sequence[str], cache: StageCache) -> Path:
    """Copy files, or all below a folder whose URL ends in a slash; return the folder that has them, or the only file.

    A file that is here as it is there is not copied again; one that is gone there goes here too.

    Raises
    ------
    StoreNotFoundError, UnavailableError
        Nothing is there; it cannot be reached.
    ConfigError
        A name cannot be that of a file.
    StoredsError
        There is not enough room.
    """
    first = Objects(urls[0].rstrip("/"))
    shown = first.url if len(urls) == 1 else f"{first.url} and {len(urls) - 1} more"
    entry = cache.entry(shown, first.url.rpartition("/")[2])
    is_folder = len(urls) == 1 and urls[0].endswith("/")
    with entry.locked():
        if is_folder:
            sources = {name: _Source(first, name, state) for name, state in first.walk() if not name.endswith("/")}
        else:
            each = {url.rpartition("/")[2]: Objects(url) for url in urls}
            sources = {name: _Source(remote, "", remote.state("")) for name, remote in each.items()}
        if not sources:
            raise StoreNotFoundError(f"there is nothing at {first.url}/")
        for name in sources:
            if not _is_below(name):
                raise ConfigError(f"{shown} has an object {name!r}, which is no path below a folder")
        _copy(sources, entry)
    folder = entry.folder / "files"
    return folder / next(iter(sources)) if not is_folder and len(urls) == 1 else folder


def _copy(sources: dict[str, _Source], entry: Entry) -> None:
    folder, copied = entry.folder / "files", entry.folder / _COPIED
    known = _known(copied)
    for name in known.keys() - sources.keys():
        if (folder / name).is_file():  # the name may be that of a folder now
            (folder / name).unlink()
    missing = [
        name
        for name, (_, _, state) in sources.items()
        if known.get(name) != (state.size, state.tag) or not (folder / name).is_file()
    ]
    entry.cache.check_room(sum(sources[name].state.size for name in missing), entry.url)
    entry.note(complete=False)
    lines, lock = copied.open("a"), threading.Lock()

    def copy(name: str) -> None:
        remote, there, _ = sources[name]
        target, fresh = folder / name, entry.folder / f".{secrets.token_hex(8)}.fresh"
        target.parent.mkdir(parents=True, exist_ok=True)
        state = remote.copy(there, fresh, lambda _: None)
        if fresh.stat().st_size != state.size:
            raise UnavailableError(f"{remote.url}/{there} was copied with {fresh.stat().st_size} of {state.size} bytes")
        os.replace(fresh, target)
        with lock:
            lines.write(json.dumps([name, state.size, state.tag]) + "\n")
            lines.flush()

    with lines, ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(copy, missing))
    entry.note(complete=True, local=str(folder))


def _known(copied: Path) -> dict[str, tuple[int, str]]:
    """Return the files that were copied, with what they were there; the last line of a process that died may be torn."""
    found: dict[str, tuple[int, str]] = {}
    try:
        lines = copied.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            name, size, tag = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(name, str) and _is_below(name):
            found[name] = size, tag
    return found


def _is_below(name: str) -> bool:
    """Whether a name is a path below a folder."""
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))
