"""Makes the local copy of a store: verifies every file before it has its name, and says where to read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from storeds._utils.files import engine_of_file
from storeds._utils.urls import StoreURL, file_url, split_options
from storeds.backends.staged.cache import StageCache
from storeds.backends.staged.remote import SCHEMES, remote_at
from storeds.backends.staging import sync_path
from storeds.backends.versions.document import Member, Version
from storeds.backends.versions.folder import VersionFolder
from storeds.errors import FormatError, RecordError, StoreNotFoundError, UnavailableError
from storeds.protocols import Backend
from storeds.records.codec import ContentHash

__all__ = ["Staged", "stage"]

Moved = Callable[[int, int], object]
"""Called with the bytes that are copied so far, and all that will be."""


@dataclass(frozen=True)
class Staged:
    """A store on the local disk.

    Attributes
    ----------
    url : str
        What was asked for, secrets removed.
    local : str
        What to open.
    name : str
        Of the copy, for ``storeds stage --remove``.
    moved : int
        Bytes that were copied now.
    is_current : bool
        False if the store could not be reached, and an earlier copy serves.
    """

    url: str
    local: str
    name: str
    moved: int
    is_current: bool = True


def stage(
    url: str, cache: StageCache, options: Mapping[str, Any], open_local: Callable[..., Backend], progress: Moved | None
) -> Staged:
    """Copy a store to the local disk unless it is there, and return where.

    Parameters
    ----------
    url : str
        A file or a versioned store: a URL with one of the schemes of `storeds.backends.staged.remote.SCHEMES`, or a path.
    cache : StageCache
    options : mapping
        Such as ``version``.
    open_local : callable
        Opens a native store of this machine.
    progress : callable, optional

    Raises
    ------
    StoreNotFoundError, UnavailableError
        Nothing is there; it cannot be reached, and there is no copy.
    FormatError
        What was copied is damaged or no native store.
    StoredsError
        The disk or the limit has not enough room.
    """
    place, given = _divided(url)
    number = {**given, **options}.get("version")
    work = _Copy(cache, place, open_local, progress)
    if place.endswith("/") or not Path(place).suffix:  # a file has a suffix
        return work.versions(None if number is None else int(number))
    return work.file()


def _divided(url: str) -> tuple[str, Mapping[str, str]]:
    """Return a URL without its options, as a place of files, and the options."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in SCHEMES:
        parsed = StoreURL.parse(url)
        slash = "/" if parsed.path.endswith("/") else ""
        return parsed.file + slash, parsed.options
    path, query = split_options(rest)
    return f"{scheme}://{path}", StoreURL.parse(f"lmdb://x?{query}").options if query else {}


class _Copy:
    """One call of `stage`."""

    def __init__(
        self, cache: StageCache, place: str, open_local: Callable[..., Backend], progress: Moved | None
    ) -> None:
        self.cache, self.place, self._open, self._progress = cache, place, open_local, progress
        self.remote = remote_at(place.rstrip("/"))
        name = place.rstrip("/").rpartition("/")[2]
        self.entry = cache.entry(self.remote.url, name)
        self.moved = self._total = 0
        cache.path.mkdir(parents=True, exist_ok=True)

    # --- One file ---

    def file(self) -> Staged:
        """Stage a store that is one file."""
        with self.entry.locked():
            note = self.entry.read_note()
            try:
                state = self.remote.state("")
            except UnavailableError:
                if not note.get("complete"):
                    raise
                return self._result(str(note["local"]), is_current=False)
            target = self.entry.folder / f"{xxhash.xxh3_64_hexdigest(state.tag.encode())}{Path(self.place).suffix}"
            if not (target.exists() and note.get("complete") and note.get("local") == str(target)):
                self._needs(state.size)
                self._fetch("", target, self._check_file)
                self.entry.note(complete=True, local=str(target))
                for old in self.entry.folder.glob(f"*{Path(self.place).suffix}"):
                    if old != target and old.name != "lock" and _is_ours(old):
                        old.unlink()
            return self._result(str(target))

    def _check_file(self, path: Path) -> None:
        engine = engine_of_file(str(path))
        if engine is None:
            raise FormatError(f"{self.remote.url} is neither an LMDB nor an HDF5 file")
        try:
            store = self._open(file_url(engine, str(path)), layout="native")
        except FormatError:  # of another tool, which has no checksums; opening it says what else is wrong
            return
        with store:
            self._check_store(store)

    # --- Versions ---

    def versions(self, number: int | None) -> Staged:
        """Stage a version of a versioned store, by default the last one."""
        with self.entry.locked():
            try:
                known = self._numbers() if number is None else [number]  # web servers list no folders
                is_current = True
            except UnavailableError:
                known, is_current = self._kept(), False
                if not known:
                    raise
            if not known:
                raise StoreNotFoundError(
                    f"no versioned store at {self.remote.url}/: it has no file versions/00000001.json"
                )
            chosen = known[-1]
            version = self._version(chosen)
            folder = VersionFolder(version.engine, str(self._data))
            if chosen not in self._kept():
                self._fill(folder, version)
            self.entry.note(complete=True)
            return self._result(f"{folder.url}?version={chosen}", is_current=is_current)

    @property
    def _data(self) -> Path:
        return self.entry.folder / "store"

    def _numbers(self) -> list[int]:
        names = self.remote.names("versions")
        return sorted(
            int(name[:8]) for name in names if len(name) == 13 and name.endswith(".json") and name[:8].isdigit()
        )

    def _kept(self) -> list[int]:
        """Return the versions that are here, complete."""
        return VersionFolder("lmdb", str(self._data)).numbers()

    def _version(self, number: int) -> Version:
        kept = VersionFolder("lmdb", str(self._data))
        if number in kept.numbers():
            return Version.from_text(kept.text(number), self.remote.url)
        file = self.entry.folder / "version.fresh"
        self.remote.copy(f"versions/{number:08}.json", file, lambda _: None)
        return Version.from_text(file.read_text(encoding="utf-8"), self.remote.url)

    def _fill(self, folder: VersionFolder, version: Version) -> None:
        """Copy what a version needs, and the version last."""
        columns = sorted({name for member in version.members for name in member.files})
        files: list[tuple[str, Path, Member | None]] = [
            (f"columns/{name}.npy", Path(folder.column_path(name)), None) for name in columns
        ]
        files += [(f"members/{each.name}", Path(folder.member_path(each.name)), each) for each in version.members]
        missing = [each for each in files if not each[1].exists()]
        sizes = [self.remote.state(name).size for name, _, _ in missing]
        self._needs(sum(sizes))
        self.entry.note(complete=False)
        for name, path, member in missing:
            path.parent.mkdir(parents=True, exist_ok=True)
            check = (
                partial(_check_column, path.stem)
                if member is None
                else partial(self._check_member, folder.engine, member)
            )
            self._fetch(name, path, check)
        if not folder.publish(version.number, version.to_text()):
            raise UnavailableError(f"{folder.path} was changed by another program")

    # --- Files ---

    def _needs(self, size: int) -> None:
        self._total = size
        self.cache.check_room(size, self.remote.url)

    def _fetch(self, name: str, target: Path, check: Callable[[Path], object]) -> None:
        """Copy a file, check it, and give it its name; once again if it is damaged on the way."""
        fresh = target.with_name(f".{target.name}.fresh")
        for attempt in (1, 2):
            state = self.remote.copy(name, fresh, self._count)
            try:
                if fresh.stat().st_size != state.size:
                    raise FormatError(
                        f"{self.remote.url}/{name} was copied with {fresh.stat().st_size} of {state.size} bytes"
                    )
                check(fresh)
                break
            except FormatError:
                fresh.unlink()
                if attempt == 2:
                    raise
        sync_path(fresh)
        os.replace(fresh, target)
        sync_path(target.parent)

    def _count(self, size: int) -> None:
        self.moved += size
        if self._progress is not None:
            self._progress(self.moved, max(self._total, self.moved))

    def _check_member(self, engine: str, member: Member, path: Path) -> None:
        with self._open(file_url(engine, str(path)), layout="native") as store:
            self._check_store(store)
            if (store.meta.id, store.meta.build) != (member.id, member.build):
                raise FormatError(f"{self.remote.url}: {member.name} is another store than its version says")

    def _check_store(self, store: Backend) -> None:
        """Raise FormatError unless a native store is intact: every record, and its id."""
        content = ContentHash()
        try:
            content.update(store.digests().tobytes())  # type: ignore[attr-defined]  # it is a Store
        except RecordError as error:
            raise FormatError(f"{self.remote.url}: what was copied is damaged: {error}") from None
        if content.finish(store.meta.fields, store.meta.attrs) != store.meta.id:
            raise FormatError(f"{self.remote.url}: what was copied is damaged: its records have another id")

    def _result(self, local: str, *, is_current: bool = True) -> Staged:
        return Staged(self.remote.url, local, self.entry.folder.name, self.moved, is_current)


def _check_column(name: str, path: Path) -> None:
    if xxhash.xxh3_128_hexdigest(path.read_bytes()) != name:
        raise FormatError(f"the column {name} is damaged")


def _is_ours(path: Path) -> bool:
    return len(path.stem) == 16 and all(each in "0123456789abcdef" for each in path.stem)
