"""Opens stores of other tools: as the user says, or as what they certainly are. This is the same for every engine.

An engine lists the names in a tree, finds records in it by a pattern, and reads them. `TreeOpener` decides what a tree is.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeVar

import xxhash

from storeds._utils.settings import parse_options
from storeds.backends.file_stores import FileLocation
from storeds.backends.raw import BackendOptions, HandleOpener, Opener, RawStore
from storeds.backends.store import Store
from storeds.backends.unread import bounded
from storeds.errors import ConfigError, StoredsError
from storeds.layouts.explain import undecided
from storeds.layouts.pattern import Pattern
from storeds.protocols import JSON, Backend, Field, Meta
from storeds.records.canonical_json import canonical_json

__all__ = [
    "FileTreeLocation",
    "Found",
    "LeftOutError",
    "Tree",
    "TreeLocation",
    "TreeOpener",
    "TreeStore",
    "digest",
    "meta_of",
]

Opts = TypeVar("Opts", bound=BackendOptions)
_LOG = logging.getLogger("storeds")
_LEFT = 8  # parts in a message
_MOST_COLUMNS = 64  # of a line to paste


@dataclass(frozen=True)
class Found:
    """The records that a pattern or a preset finds in a tree; small when pickled.

    Attributes
    ----------
    meta : Meta
    pattern : Pattern or None
        None for a layout whose options say more.
    plan : object
        How the engine reads the records.
    unread : tuple of str or None
        What no record holds. None in other processes, as it may be long.
    kept : object
        What the process that opened the store keeps in memory, to find nothing twice; None in others.
    why : str or None
        Why the store is read so, if the user did not say it.
    """

    meta: Meta
    pattern: Pattern | None = None
    plan: Any = None
    unread: tuple[str, ...] | None = None
    kept: Any = None
    why: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "unread": None, "kept": None}


def meta_of(
    layout: str, identity: JSON, build: str, count: int, fields: Mapping[str, Field], attrs: Mapping[str, JSON]
) -> Meta:
    """Return the meta of a store without checksums: `identity`, which says all that is known of its content, gives the id."""
    return Meta(digest(identity), build, count, layout, fields, attrs)


def digest(content: JSON) -> str:
    """Return the hash of a content."""
    return xxhash.xxh3_128_hexdigest(canonical_json(content).encode())


class LeftOutError(ConfigError):
    """A place of ``"*"`` cannot read all that belongs to each record; ``columns`` names what can be read."""

    def __init__(self, url: str, left: Sequence[str], columns: Mapping[str, str]) -> None:
        self.why = f'"*" cannot read all of each record: {"; ".join(bounded(left, _LEFT))}'
        self.columns = columns
        super().__init__(f"{url}: {self.why}; columns= names the fields to read")


class Tree(Protocol):
    """An open file, environment, collection or folder, as its engine sees it: names, and the values there."""

    found: Found | None = None
    """What was found for another store, if the tree is the handle of both."""

    def is_native(self) -> bool:
        """Whether storeds wrote it."""
        return False

    def check(self) -> None:
        """Raise ConfigError if there are no records where the user says."""
        return

    @abstractmethod
    def recognise(self) -> tuple[str | None, str]:
        """Return the preset that it certainly fits, and why; or None, and why not if that is known."""

    @abstractmethod
    def entries(self) -> Iterable[str]:
        """Yield what it holds: names, each with what it is."""

    @abstractmethod
    def candidates(self) -> Iterable[Mapping[str, Any]]:
        """Yield the arguments of each way to read it that may fit its structure; those that open are shown."""

    def otherwise(self) -> str:
        """Return what to do if no candidate opens it."""
        return "Name the place of each field with columns=, as docs/patterns.md explains"

    @abstractmethod
    def pattern(self, layout: str) -> Pattern | None:
        """Return the pattern of a preset for it; raises ConfigError or FormatError if the preset does not fit."""

    @abstractmethod
    def find(self, layout: str, pattern: Pattern | None) -> Found:
        """Return the records; raises ConfigError or FormatError if there are none."""


class TreeLocation(HandleOpener[Any], Protocol):
    """Where a tree is, how to open it, and what the user says of it.

    Attributes
    ----------
    layout : str or None
        The name of a preset, if the user gives one.
    """

    @property
    def layout(self) -> str | None: ...

    @property
    def columns(self) -> Pattern | None:
        """The pattern, if the user gives one that alone says what a record is."""
        return None

    @property
    def source(self) -> str:
        """What a user passes to open it, without secrets."""
        ...

    def given(self) -> dict[str, Any]:
        """Return the options that the user gives, without the layout."""
        ...

    def again(self, layout: str | None, options: Mapping[str, Any]) -> Self:
        """Return the same place, of which the user says something else."""
        ...

    def tree(self, handle: Any, /) -> AbstractContextManager[Tree]:
        """Give the tree that is read through a handle. Errors of the engine become errors of storeds that name the store."""
        ...

    def store(self, handle: Any, found: Found, /) -> TreeStore:
        """Return what reads through a handle the records that were found, perhaps in another process."""
        ...


@dataclass(frozen=True)
class FileTreeLocation(FileLocation[Opts], TreeLocation):
    """A file or a folder, and what the user says of it."""

    layout: str | None = None

    @property
    def columns(self) -> Pattern | None:
        return getattr(self.settings, "columns", None)

    @property
    def source(self) -> str:
        return self.path

    def given(self) -> dict[str, Any]:
        # docstring inherited
        return self.settings.changed()

    def again(self, layout: str | None, options: Mapping[str, Any]) -> Self:
        # docstring inherited
        return replace(self, layout=layout, settings=parse_options(type(self.settings), {}, options, self.path))


class TreeStore(RawStore):
    """The reading side of a tree. An engine adds `read`, and what it can do faster.

    Parameters
    ----------
    location : TreeLocation
    handle : object
    found : Found
    """

    def __init__(self, location: TreeLocation, handle: Any, found: Found) -> None:
        self.location, self.handle, self.found, self.meta = location, handle, found, found.meta

    def unread(self) -> Iterable[str]:
        # docstring inherited
        if self.found.unread is not None:
            return self.found.unread
        with self.location.tree(self.handle) as tree:
            return tree.find(self.meta.layout, self.found.pattern).unread or ()


@dataclass(frozen=True)
class TreeOpener(Opener[Any]):
    """Opens a store of another tool: by the pattern that the user gives, as the named layout, or as what it certainly is.

    Nothing may write into the store while it is open, and it has no checksums.

    Parameters
    ----------
    location : TreeLocation
    found : Found or None
        What was found when the user opened the store.
    """

    location: TreeLocation
    found: Found | None = field(default=None, compare=False)

    @property
    def url(self) -> str:
        return self.location.url

    @property
    def may_wait(self) -> bool:
        return self.location.may_wait

    def key(self) -> Hashable:
        return self.location.key()

    def open(self) -> Any:
        return self.location.open()

    def close(self, handle: Any, /) -> None:
        self.location.close(handle)

    def is_current(self, handle: Any, /) -> bool:
        return self.location.is_current(handle)

    def attach(self, handle: Any, /) -> TreeStore:
        found = self.found
        if found is None:
            with self.location.tree(handle) as tree:
                found = tree.found = tree.found or self._find(tree)
        return self.location.store(handle, found)

    def settled(self, raw: TreeStore, /) -> TreeOpener:
        return replace(self, found=raw.found)

    def _find(self, tree: Tree) -> Found:
        """Return the records of a tree.

        Raises
        ------
        ConfigError, FormatError
            Nothing says for certain what it is; the message shows what it holds, and lines to paste.
        """
        location = self.location
        if tree.is_native():
            raise ConfigError(
                f"{self.url} is a native store; open it without layout=, columns= and other foreign options"
            )
        tree.check()
        layout, pattern, why = location.layout, location.columns, None
        if pattern is None and layout is None:
            layout, why = tree.recognise()
            if layout is None:
                raise self._undecided(tree, tree.candidates(), why)
            _LOG.info("%s is opened with layout %r: %s", self.url, layout, why)
        if pattern is None and layout is not None:
            pattern = tree.pattern(layout)
        try:
            return replace(tree.find(layout or "columns", pattern), why=why)
        except LeftOutError as error:
            ways = [{"columns": error.columns}] if len(error.columns) <= _MOST_COLUMNS else []
            raise self._undecided(tree, ways, error.why) from None

    def _undecided(self, tree: Tree, ways: Iterable[Mapping[str, Any]], why: str) -> StoredsError:
        given = self.location.given()
        whole = ({**given, **way} for way in ways)
        return undecided(self.url, self.location.source, tree.entries(), whole, self._open_again, why, tree.otherwise())

    def _open_again(self, arguments: Mapping[str, Any]) -> Backend:
        options = dict(arguments)
        layout = options.pop("layout", None)
        return Store(TreeOpener(self.location.again(layout, options)))
