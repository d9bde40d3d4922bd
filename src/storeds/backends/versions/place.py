"""Where a versioned store is: what a folder of files and the collections of a database have in common."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from storeds.backends.raw import Opener
from storeds.backends.versions.document import Member, Version
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.protocols import Array

__all__ = ["Leftover", "VersionPlace"]


class Leftover(NamedTuple):
    """What no kept version needs.

    Attributes
    ----------
    kind : str
        ``version``, ``column`` or ``member``.
    path : str
        Of a file; or the name of a collection, and a slash and the name of what is in it.
    size : int
        Bytes.
    time : float
        Of the last change, in seconds.
    """

    kind: str
    path: str
    size: int
    time: float


class VersionPlace(Protocol):
    """Where the members, columns and versions of one store are. Picklable, and usable after a fork.

    Each method raises UnavailableError if the place cannot be read or written.

    Attributes
    ----------
    engine : str
        The scheme of the members.
    """

    engine: str

    @property
    def url(self) -> str:
        """The store, with a slash at the end of its path, and secrets removed."""
        ...

    def version_url(self, number: int) -> str:
        """Return the URL that opens a version. It may hold a password."""
        ...

    def close(self) -> None:
        """Release what is open; the next use opens it again."""
        return

    # --- Versions ---

    def numbers(self) -> list[int]:
        """Return the numbers of the versions, ascending; none if there is no such store."""
        ...

    def text(self, number: int | None = None) -> str:
        """Return the text of a version, by default of the last one; raises StoreNotFoundError."""
        numbers = self.numbers()
        if not numbers:
            raise StoreNotFoundError(f"no versioned store at {self.url}: {self._found_instead()}")
        if number is not None and number not in numbers:
            shown = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
            raise StoreNotFoundError(f"{self.url} has no version {number}; it has {shown}")
        return self._read(numbers[-1] if number is None else number)

    def version(self, number: int | None = None) -> Version:
        """Return a version, by default the last one.

        Raises
        ------
        StoreNotFoundError, FormatError
            There is none; it is damaged.
        ConfigError
            Its members are of another engine than the URL says.
        """
        version = Version.from_text(self.text(number), self.url)
        if version.engine != self.engine:
            raise ConfigError(f"{self.url} is a versioned store of {version.engine}: write {version.engine}://")
        return version

    def _read(self, number: int) -> str:
        """Return the text of a version that was there a moment ago."""
        ...

    def _found_instead(self) -> str:
        """Return what is there if no version is."""
        ...

    def publish(self, number: int, text: str) -> bool:
        """Make the version `number` visible, durably and in one step; False if there is one already."""
        ...

    def published(self, number: int) -> float:
        """Return when a version was published, in seconds."""
        ...

    # --- Columns ---

    def put(self, column: Array) -> str:
        """Keep a column durably, and return its name, which is a hash of its content."""
        ...

    def get(self, name: str) -> Array:
        """Return a column.

        Raises
        ------
        UnavailableError
            It is gone or cannot be read.
        FormatError
            Its bytes are not those that were written.
        """
        ...

    def get_each(self, names: Sequence[str]) -> Iterator[Array]:
        """Yield columns in this order, as `get` returns them; a server is not asked for each one."""
        return map(self.get, names)

    # --- Members ---

    def member_name(self, stem: str) -> str:
        """Return the name of the member that storeds calls `stem`."""
        ...

    def member_url(self, name: str) -> str:
        """Return the URL of a member, which opens and writes it. It may hold a password."""
        ...

    def member_names(self) -> list[str]:
        """Return the names of all members that are there, sorted; whether a version has them does not matter."""
        ...

    def member_size(self, name: str) -> int:
        """Return the bytes of a member; 0 where that takes a question to a server."""
        return 0

    def has_member(self, name: str) -> bool:
        """Whether a store with the name of a member is there."""
        ...

    def fetch(self, name: str) -> None:
        """Make a member readable at its URL now; the place may be a copy that lacks it."""
        return

    def deliver(self, name: str) -> None:
        """Keep a member that was written at its URL durably, before a version has it; the place may be elsewhere."""
        return

    def expect(self, version: Version, names: Sequence[str]) -> None:
        """Say in which order members of a version will be read; the place may be a copy that lacks some."""
        return

    def opener(self, member: Member, opener: Opener[Any], version: Version) -> Opener[Any]:
        """Return how a member of a version is opened, given how its URL is."""
        return opener

    def adopt(self, url: str | os.PathLike[str], *, move: bool) -> str | None:
        """Make a member of a store of the same engine without copying it, and return its name; None if it must be copied.

        Raises
        ------
        ConfigError
            It cannot be moved.
        StoreExistsError
            Another member has its name.
        """
        ...

    # --- Leftovers ---

    def leftovers(
        self, members: Collection[str], columns: Collection[str], numbers: Collection[int], former: Collection[str]
    ) -> Iterator[Leftover]:
        """Yield what is none of these members, columns and versions of the store.

        A member is of the store if it has a name that storeds gives, or is one of the `former` members. Anything else is its
        owner's.
        """
        ...

    def remove(self, leftover: Leftover) -> None:
        """Remove a leftover; it may be gone already."""
        ...
