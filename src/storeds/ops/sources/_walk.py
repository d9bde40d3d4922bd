"""Walks a tree of folders in ImageFolder's order, through links and past everything that is odd."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from storeds.ops.sources._hidden import Hidden
from storeds.ops.sources._paths import IMAGE_SUFFIXES, Root, is_text, show
from storeds.ops.sources.base import Problem

__all__ = ["Found", "Walk"]

# (path below the root, size, mtime in ns)
Found: TypeAlias = tuple[str, int, int]

# Folders that link to one another need not form a loop to have more paths than anybody can walk.
_MOST_PATHS = 64


@dataclass(frozen=True)
class _Place:
    path: str
    """Below the root; empty for the root itself."""
    identity: tuple[int, int]
    parent: _Place | None

    def find(self, identity: tuple[int, int]) -> _Place | None:
        place: _Place | None = self
        while place is not None and place.identity != identity:
            place = place.parent
        return place


class Walk:
    """Finds the images, or other files, below folders of one root.

    Parameters
    ----------
    root : Root
        Where paths begin, and what they must not leave.
    suffixes : tuple of str
        How the names of the files end, in small letters.
    include_hidden : bool
        Whether to take hidden files and folders.

    Attributes
    ----------
    problems : list of Problem
        What was odd so far.
    hidden : Hidden
        What was left out for being hidden so far.
    """

    def __init__(self, root: Root, suffixes: tuple[str, ...] = IMAGE_SUFFIXES, *, include_hidden: bool = False) -> None:
        self._root, self._suffixes = root, suffixes
        self.hidden = Hidden(include=include_hidden)
        self._seen: Counter[tuple[int, int]] = Counter()
        self.problems: list[Problem] = []

    def files(self, top: str) -> Iterator[Found]:
        """Yield the files below `top`, a folder in the root, or "" for the root: folders by path, then files by name.

        Both in plain string order, as ``sorted(os.walk(top, followlinks=True))`` gives them.
        """
        above = None if not top else self._enter("", None)
        pending = [self._enter(top, above)] if not top or self._is_fit(top) else []
        folders: list[tuple[str, list[Found]]] = []
        while pending:
            place = pending.pop()
            if place is not None:
                found, inside = self._list(place)
                folders.append((place.path, found))
                pending += inside
        folders.sort(key=lambda folder: folder[0])
        for _, found in folders:
            found.sort()
            yield from found

    def _is_fit(self, top: str) -> bool:
        if not is_text(top):
            self._tell(top, "the folder's name is no valid UTF-8, which a key must be; rename it")
            return False
        path = os.path.join(self._root.path, top)
        fault = self._root.link_fault(path) if os.path.islink(path) else None
        if fault:
            self._tell(top, fault)
        return fault is None

    def _enter(self, path: str, parent: _Place | None) -> _Place | None:
        try:
            status = os.stat(os.path.join(self._root.path, path))
        except OSError as error:
            self._tell(path, f"the folder cannot be looked at: {error.strerror}")
            return None
        identity = (status.st_dev, status.st_ino)
        above = parent.find(identity) if parent is not None else None
        if above is not None:
            what = show(above.path) if above.path else "the root"
            self._tell(path, f"links back to {what}, a folder that holds it; what a loop leads to is left out")
            return None
        self._seen[identity] += bool(path)
        if self._seen[identity] > _MOST_PATHS:
            self._tell(path, f"is a folder that {_MOST_PATHS} other paths lead to already; more are left out")
            return None
        return _Place(path, identity, parent)

    def _list(self, place: _Place) -> tuple[list[Found], list[_Place | None]]:
        found: list[Found] = []
        inside: list[_Place | None] = []
        try:
            with os.scandir(os.path.join(self._root.path, place.path)) as entries:
                for entry in entries:
                    self._sort_in(entry, place, found, inside)
        except OSError as error:
            self._tell(place.path, f"the folder cannot be listed: {error.strerror}")
        return found, inside

    def _sort_in(self, entry: os.DirEntry[str], place: _Place, found: list[Found], inside: list[_Place | None]) -> None:
        path = f"{place.path}/{entry.name}" if place.path else entry.name
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            self._tell(path, f"cannot be looked at: {error.strerror}")
            return
        if not is_folder and not entry.name.lower().endswith(self._suffixes):
            return
        if self.hidden.folder(path) if is_folder else self.hidden.file(path):
            return
        fault = self._fault(entry)
        if fault:
            self._tell(path, fault)
        elif is_folder:
            inside.append(self._enter(path, place))
        else:
            found.append((path, *_state(entry)))

    def _fault(self, entry: os.DirEntry[str]) -> str | None:
        if not is_text(entry.name):
            return "its name is no valid UTF-8, which a key must be; rename it"
        return self._root.link_fault(entry.path) if entry.is_symlink() else None

    def _tell(self, path: str, reason: str) -> None:
        self.problems.append(Problem(show(path) or show(self._root.path), reason))


def _state(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:  # a link to nothing; reading it will say so
        return 0, 0
    return status.st_size, status.st_mtime_ns
