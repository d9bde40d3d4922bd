"""`Mirror`: a versioned store elsewhere, with a folder of this machine that has what was copied of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from storeds._utils.urls import file_url
from storeds.backends.raw import Opener
from storeds.backends.staged.cache import Entry, StageCache
from storeds.backends.staged.copying import (
    Moved,
    check_column,
    check_member,
    copy_file,
    fetch,
    native_meta_of,
    settle,
)
from storeds.backends.staged.fetching import ArrivingOpener, Copier
from storeds.backends.staged.remote import Remote, State, remote_at
from storeds.backends.versions.document import Member, Version
from storeds.backends.versions.folder import VersionFolder
from storeds.errors import FormatError, StoredsError, StoreNotFoundError, UnavailableError
from storeds.protocols import Array

__all__ = ["Mirror"]

_ORDER = "order.json"
_AT_ONCE = 16  # small files


@dataclass(frozen=True)
class Mirror(VersionFolder):
    """A versioned store that is read from a local copy.

    The folder has a version once it has all that the version needs. A member is read as soon as it is there.

    Parameters
    ----------
    engine, path : str
        Of the local folder.
    remote : Remote
    entry : Entry
    """

    remote: Remote
    entry: Entry

    @classmethod
    def of(cls, place: str, cache: StageCache, engine: str = "lmdb") -> Self:
        """Return the mirror of a URL or path, whose engine its versions say."""
        remote = remote_at(place.rstrip("/"))
        entry = cache.entry(remote.url, place.rstrip("/").rpartition("/")[2])
        return cls(engine, str(entry.folder / "store"), remote, entry)

    def opened(self, number: int | None) -> tuple[Mirror, Version, bool]:
        """Return the mirror with its engine, a version, by default the last one, and whether it was asked for elsewhere.

        Raises
        ------
        StoreNotFoundError
            There is no such store or version.
        UnavailableError
            It cannot be reached, and no copy of it is here.
        """
        kept, is_current = self.kept(), True
        asked = replace(self, remote=remote_at(self.remote.given, is_needed=not kept))
        try:
            text = asked.text(number)
            version = Version.from_text(text, self.url)
            self._forget_another(version.number, text)
        except (UnavailableError, FormatError):
            if not kept or (number or kept[-1]) not in kept:
                raise
            version, is_current = Version.from_text(VersionFolder._read(self, number or kept[-1]), self.url), False
        return replace(self, engine=version.engine), version, is_current

    def _forget_another(self, number: int, text: str) -> None:
        """Remove the versions of a store that was elsewhere before, and is another one now."""
        if number in self.kept() and VersionFolder._read(self, number) != text:
            for each in self.kept():
                Path(self._version(each)).unlink(missing_ok=True)

    @property
    def url(self) -> str:
        # docstring inherited
        return f"{self.remote.url}/"

    # --- Versions ---

    def numbers(self) -> list[int]:
        # docstring inherited
        names = self.remote.states("versions")
        return sorted(int(name[:8]) for name in names if len(name) == 13 and name[:8].isdigit() and name[8:] == ".json")

    def kept(self) -> list[int]:
        """Return the versions of which everything is here."""
        return VersionFolder.numbers(self)

    def text(self, number: int | None = None) -> str:
        # docstring inherited
        return super().text() if number is None else self._read(number)  # web servers list no versions

    def _read(self, number: int) -> str:
        try:
            return self.remote.read(f"versions/{number:08}.json").decode(errors="replace")
        except StoreNotFoundError:
            raise StoreNotFoundError(f"{self.url} has no version {number}") from None

    def _found_instead(self) -> str:
        return "it has no file versions/00000001.json"

    def published(self, number: int) -> float:
        # docstring inherited
        return self.remote.state(f"versions/{number:08}.json").time

    # --- Columns ---

    def get(self, name: str) -> Array:
        # docstring inherited
        self._bring([name])
        try:
            return super().get(name)
        except FormatError:  # it has decayed here
            Path(self.column_path(name)).unlink(missing_ok=True)
            self._bring([name])
            self.entry.count_repair()
            return super().get(name)

    def get_each(self, names: Sequence[str]) -> Iterator[Array]:
        # docstring inherited
        self._bring(names)
        return map(self.get, names)

    def _bring(self, columns: Sequence[str], moved: Callable[[int], object] = lambda _: None) -> None:
        def bring(name: str) -> None:
            copy_file(
                self.remote, f"columns/{name}.npy", Path(self.column_path(name)), partial(check_column, name), moved
            )

        missing = [name for name in dict.fromkeys(columns) if not Path(self.column_path(name)).exists()]
        if missing:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(bring, missing))

    # --- Members ---

    def member_names(self) -> list[str]:
        # docstring inherited
        return sorted(self.remote.states("members"))

    def member_size(self, name: str) -> int:
        # docstring inherited
        return super().member_size(name) if super().has_member(name) else self.remote.state(f"members/{name}").size

    def opener(self, member: Member, opener: Opener[Any], version: Version) -> Opener[Any]:
        # docstring inherited
        return ArrivingOpener(opener, self._copier(version), member.name, self.member_path(member.name))

    def _copier(self, version: Version) -> Copier:
        given = self.remote.given
        place = given if "://" in given else file_url(self.engine, given)
        return Copier(f"{place}/?version={version.number}", self.entry)

    # --- Copying ---

    def prepare(self, version: Version) -> None:
        """Copy what reading needs before its first record, which are columns; remove members of another store that was here."""
        needed = [*(name for each in version.members for name in each.columns.values())]
        needed += [each.dropped for each in version.members if each.dropped is not None]
        self._bring(needed)
        if version.number not in self.kept():
            for member in version.members:
                self._is_here(member)

    def _exists(self, member: Member) -> bool:
        return Path(self.member_path(member.name)).exists()

    def _is_here(self, member: Member) -> bool:
        """Whether a member is here; removes another one with its name."""
        path = Path(self.member_path(member.name))
        if not self._exists(member):
            return False
        try:
            is_here = native_meta_of(self.engine, path).build == member.build
        except StoredsError:
            is_here = False
        if not is_here:
            path.unlink(missing_ok=True)
        return is_here

    def expect(self, version: Version, names: Sequence[str]) -> None:
        """Begin to copy a version, unless it is here, in the order in which its members will be read."""
        if version.number not in self.kept():
            self.entry.folder.mkdir(parents=True, exist_ok=True)
            self.entry.write(_ORDER, list(names))
            self._copier(version).begin()

    def fill(self, version: Version, progress: Moved | None = None) -> int:
        """Copy what a version needs and is not here, in the expected order; return how many bytes were copied.

        The caller has locked the entry.
        """
        is_kept = version.number in self.kept()  # then only what somebody has removed is not here
        is_here = self._exists if is_kept else self._is_here
        missing = {each.name: each for each in version.members if not is_here(each)}
        columns = [name for each in version.members for name in each.files]
        columns = [name for name in dict.fromkeys(columns) if not Path(self.column_path(name)).exists()]
        sizes = [*self._states("members", [*missing]), *self._states("columns", [f"{name}.npy" for name in columns])]
        total, done = sum(state.size for state in sizes), 0
        if is_kept and not sizes:
            return 0
        self.entry.cache.check_room(total, self.url)
        self.entry.note(complete=False)

        def count(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, max(total, done))

        self._bring(columns, count)
        link = threading.Lock()

        def copy_next(_: int) -> None:
            with link:
                name = next((name for name in self._expected() if name in missing), next(iter(missing)))
                member = missing.pop(name)
                fetched = fetch(self.remote, f"members/{name}", Path(self.member_path(name)), count)
            settle(fetched, partial(check_member, self.engine, member, self.url), count)

        with ThreadPoolExecutor(2) as threads:  # one checks a member while the other one copies the next
            list(threads.map(copy_next, range(len(missing))))
        VersionFolder.publish(self, version.number, version.to_text())
        self.entry.note(complete=True)
        return done

    def renew(self, version: Version, name: str) -> None:
        """Copy a member again if it is damaged here; raises FormatError if it is so there too."""
        member = next(each for each in version.members if each.name == name)
        path, check = Path(self.member_path(name)), partial(check_member, self.engine, member, self.url)
        try:
            check(path)
        except (FormatError, UnavailableError):
            copy_file(self.remote, f"members/{name}", path, check, lambda _: None)
            self.entry.count_repair()

    def _expected(self) -> list[str]:
        try:
            found = json.loads((self.entry.folder / _ORDER).read_text())
        except (OSError, ValueError):
            return []
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def _states(self, folder: str, names: Sequence[str]) -> list[State]:
        """Return the states of files; raises StoreNotFoundError if one is missing."""
        try:
            there = self.remote.states(folder) if len(names) > 1 else {}
        except UnavailableError:
            there = {}
        return [there.get(name) or self.remote.state(f"{folder}/{name}") for name in names]
