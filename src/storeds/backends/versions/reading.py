"""Reads a version of a versioned store: its members as one backend, without opening them before they are read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from storeds._utils.urls import StoreURL
from storeds.backends.engine import Engine
from storeds.backends.overlay import Overlay
from storeds.backends.store import Store
from storeds.backends.versions.document import Member, Version
from storeds.backends.versions.place import VersionPlace
from storeds.backends.view import View
from storeds.errors import ConfigError
from storeds.protocols import Array, Backend, Field, Meta
from storeds.records.meta import NATIVE
from storeds.registry import BACKENDS

_LOG = logging.getLogger("storeds")

__all__ = ["VersionedStore", "kept_positions", "member_store", "open_version", "tell_of_newer", "version_number"]


def kept_positions(place: VersionPlace, member: Member) -> Array:
    """Return the positions of the records of a member that the version has, ascending."""
    positions = np.arange(member.count)
    return positions if member.dropped is None else np.delete(positions, place.get(member.dropped))


@dataclass
class _Kept:
    """The positions of the records that a version has of a member; stands for an `Index` in a `View`."""

    place: VersionPlace
    member: Member
    _positions: Array | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"{self.member.build}-{self.member.dropped}"

    @property
    def positions(self) -> Array:
        if self._positions is None:
            self._positions = kept_positions(self.place, self.member)
        return self._positions

    def __len__(self) -> int:
        return self.member.kept

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_positions": None}


class _Columns(Mapping[str, Array]):
    """The columns of a member, each read at its first use in a process."""

    def __init__(self, kept: _Kept, fields: Mapping[str, Field]) -> None:
        self.fields: Mapping[str, Field] = {name: fields[name] for name in fields if name in kept.member.columns}
        self._kept, self._found = kept, dict[str, Array]()

    @property
    def columns(self) -> Mapping[str, Array]:
        return self

    def __getitem__(self, name: str) -> Array:
        if name not in self._found:
            kept = self._kept
            whole = kept.place.get(kept.member.columns[name])
            self._found[name] = whole if kept.member.dropped is None else whole[kept.positions]
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": {}}


def member_store(place: VersionPlace, version: Version, member: Member, options: Mapping[str, Any]) -> Store:
    """Return the store of a member; nothing is opened before it is read."""
    engine: Engine = BACKENDS.get(place.engine)
    opener = place.opener(member, engine.opener(StoreURL.parse(place.member_url(member.name)), **options), version)
    fields = version.fields
    if member.lacks:
        fields = {name: each for name, each in fields.items() if name not in member.lacks}
    return Store.known(opener, Meta(member.id, member.build, member.count, NATIVE, fields, version.attrs))


class _Members(Sequence[Backend]):
    """The members of a version as backends, each made when it is asked for. A pickle has none."""

    def __init__(self, place: VersionPlace, version: Version, options: Mapping[str, Any]) -> None:
        self._place, self._version, self._options = place, version, options
        self._made: dict[int, Backend] = {}

    def __len__(self) -> int:
        return len(self._version.members)

    @overload
    def __getitem__(self, number: int) -> Backend: ...

    @overload
    def __getitem__(self, number: slice) -> list[Backend]: ...

    def __getitem__(self, number: int | slice) -> Backend | list[Backend]:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        if number not in self._made:
            self._made[number] = self._backend(self._version.members[number])
        return self._made[number]

    def _backend(self, member: Member) -> Backend:
        store = member_store(self._place, self._version, member, self._options)
        if member.dropped is None and not member.columns:
            return store
        kept: Any = _Kept(self._place, member)
        if not member.columns:
            return View([store], kept)
        view = Overlay(store, _Columns(kept, self._version.fields), kept)
        view.meta = replace(view.meta, fields=self._version.fields)
        return view

    def close(self) -> None:
        """Close those that were made."""
        for each in self._made.values():
            each.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}


class VersionedStore(View):
    """The records of one version of a versioned store.

    A reader keeps the version that it opened, in workers and pickles too, whatever is published later.

    Parameters
    ----------
    place : VersionPlace
    version : Version
    options : mapping
        Of the engine, for each member.

    Attributes
    ----------
    version : Version
    """

    def __init__(self, place: VersionPlace, version: Version, options: Mapping[str, Any]) -> None:
        self._place, self.version = place, version
        members: Any = _Members(place, version, options)
        counts = [member.kept for member in version.members]
        super().__init__(
            members, url=place.url, meta=version.meta(f"version-{version.number}-{version.id}"), counts=counts
        )

    def __repr__(self) -> str:
        return f"VersionedStore({self.url!r}, version={self.version.number}, count={self.meta.count})"

    def size_of(self, member: Member) -> int:
        """Return the bytes of the store of a member; 0 where that takes a question to a server."""
        return self._place.member_size(member.name)

    def url_of(self, id_: str | None) -> str | None:
        """Return the URL of another version that has the records with this id; None if there is none."""
        for number in reversed(self._place.numbers()):
            if number != self.version.number and self._place.version(number).id == id_:
                return self._place.version_url(number)
        return None

    def expect(self, numbers: Sequence[int]) -> None:
        # docstring inherited
        self._place.expect(self.version, [self.version.members[number].name for number in numbers])

    def close(self) -> None:
        # docstring inherited
        self.stores.close()  # type: ignore[attr-defined]  # the members
        self._place.close()


def tell_of_newer(place: VersionPlace, version: Version) -> None:
    """Log that a version is not the last one."""
    last = place.numbers()[-1]
    if last != version.number:
        _LOG.info("%s: version %d is open, and the last is %d", place.url, version.number, last)


def version_number(given: object, url: str) -> int:
    """Return the number of a version in an option; raises ConfigError."""
    try:
        return int(str(given))
    except ValueError:
        raise ConfigError(f"{url}: version is a number, not {given!r}") from None


def open_version(
    place: VersionPlace, number: object = None, options: Mapping[str, Any] | None = None
) -> VersionedStore:
    """Open a version, by default the last one.

    Raises
    ------
    StoreNotFoundError
        There is no such store, or no such version.
    FormatError
        The version is damaged.
    ConfigError
        `number` is no number.
    """
    version = place.version(None if number is None else version_number(number, place.url))
    if number is not None:
        tell_of_newer(place, version)
    place.close()  # so that a process usually holds no handle when it forks
    return VersionedStore(place, version, options or {})
