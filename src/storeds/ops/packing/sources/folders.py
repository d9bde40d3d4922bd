"""Folders of images: one sub-folder a class, as torchvision's ImageFolder reads them, or none."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import IMAGE_SUFFIXES, Fingerprint, Problem, Root, Texts, is_text, read_file, show
from storeds.ops.packing.sources.columns import class_notes
from storeds.ops.packing.sources.hidden import Hidden, is_hidden
from storeds.protocols import JSON, Field, Record

__all__ = ["FlatFolderSource", "Found", "ImageFolderSource", "Walk"]


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


_SUFFIXES = " ".join(IMAGE_SUFFIXES)


class _Folder:
    """Images below a folder, named by their paths."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        self._keys, self._sizes = Texts(), array("q")
        self._fingerprint = Fingerprint()
        self.problems: Sequence[Problem] = ()
        self.notes: Sequence[str] = ()

    def _take(self, found: Iterable[Found], label: int) -> int:
        before = len(self._keys)
        for key, size, mtime in found:
            self._keys.append(key)
            self._sizes.append(size)
            self._fingerprint.add(key, size, mtime, label)
        return len(self._keys) - before

    def _finish(self, kind: str, walk: Walk, notes: Iterable[str] = ()) -> None:
        self.fingerprint: JSON = self._fingerprint.finish(kind, len(self._keys))
        del self._fingerprint  # it does not pickle
        self.problems, self.notes = tuple(walk.problems), (*notes, *walk.hidden.notes())

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return self._keys[index]

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]

    def _image(self, key: str) -> bytes:
        return read_file(os.path.join(self._root, key.replace("/", os.sep)))


class ImageFolderSource(_Folder):
    """A folder with one sub-folder per class, in the order and with the labels of torchvision's ImageFolder.

    Parameters
    ----------
    root : path
        The folder. Images beside the class folders have no class and are left out, as ImageFolder leaves them out.
    allow_outside : bool
        Whether links may lead out of it.
    allow_empty : bool
        Whether a class may have no image.
    include_hidden : bool
        Whether to take hidden files, and hidden folders as classes: ``.git``, ``.ipynb_checkpoints``, ``__MACOSX``.

    Raises
    ------
    StoreNotFoundError
        There is no such folder.
    ConfigError
        It has no sub-folders, or one of them has no images.
    """

    fields: Mapping[str, Field] = {"image": Field("image"), "label": Field("int"), "key": Field("str")}

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        allow_outside: bool = False,
        allow_empty: bool = False,
        include_hidden: bool = False,
    ) -> None:
        super().__init__(os.fspath(root))
        walk = Walk(Root(self._root, allow_outside=allow_outside), include_hidden=include_hidden)
        classes = sorted(_folders_in(os.fspath(root), walk))
        if not classes:
            raise ConfigError(f"{root} has no sub-folders; expected one per class, each with its images{_said(walk)}")
        self._labels = array("q")
        empty = []
        for label, name in enumerate(classes):
            told = len(walk.problems)
            count = self._take(walk.files(name), label)
            self._labels.extend([label] * count)
            if not count and len(walk.problems) == told:
                empty.append(name)
        if empty and not allow_empty:
            names = ", ".join(map(show, empty[:8])) + (f" and {len(empty) - 8} more" if len(empty) > 8 else "")
            raise ConfigError(
                f"{root}: no images in {names}; remove these folders, put images ({_SUFFIXES}) in, or pass allow_empty=True (--allow-empty)"
            )
        # A class whose name is no text is told as a problem; it keeps its place, or all labels after it would change.
        names_as_json: list[JSON] = [show(name) for name in classes]
        self.attrs: Mapping[str, JSON] = {"classes": names_as_json}
        self._finish("imagefolder", walk, class_notes(classes))

    def strata(self) -> Iterator[tuple[str, int]]:
        """Yield the key and the label of each item."""
        return zip(self._keys, self._labels, strict=True)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key = self._keys[index]
        return {"image": self._image(key), "label": self._labels[index], "key": key}


class FlatFolderSource(_Folder):
    """A folder with images, also in folders below it, that have no labels.

    Parameters
    ----------
    root : path
        The folder.
    allow_outside : bool
        Whether links may lead out of it.
    include_hidden : bool
        Whether to take hidden files and folders.

    Raises
    ------
    StoreNotFoundError
        There is no such folder.
    ConfigError
        It holds no images.
    """

    fields: Mapping[str, Field] = {"image": Field("image"), "key": Field("str")}

    def __init__(
        self, root: str | os.PathLike[str], *, allow_outside: bool = False, include_hidden: bool = False
    ) -> None:
        super().__init__(os.fspath(root))
        walk = Walk(Root(self._root, allow_outside=allow_outside), include_hidden=include_hidden)
        _folders_in(os.fspath(root))
        if not self._take(walk.files(""), -1) and not walk.problems:
            raise ConfigError(f"{root} holds no images ({_SUFFIXES}), in no folder below it either{_said(walk)}")
        self.attrs: Mapping[str, JSON] = {}
        self._finish("flat", walk)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key = self._keys[index]
        return {"image": self._image(key), "key": key}


def _folders_in(root: str, walk: Walk | None = None) -> list[str]:
    """Return the names of the folders in `root`, links to folders among them; raises if it is none itself."""
    names: list[str] = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                try:
                    if entry.is_dir() and not _is_left_out(entry.name, walk):
                        names.append(entry.name)
                except OSError as error:  # a link that leads to itself
                    if walk is not None:
                        walk.problems.append(Problem(show(entry.name), f"cannot be looked at: {error.strerror}"))
    except NotADirectoryError:
        raise ConfigError(f"{root} is a file; expected a folder of images, or of one folder per class") from None
    except OSError as error:
        raise StoreNotFoundError(f"no folder at {root}: {error.strerror}") from None
    return names


def _is_left_out(name: str, walk: Walk | None) -> bool:
    return is_hidden(name) if walk is None else walk.hidden.folder(name)


def _said(walk: Walk) -> str:
    return "".join(f"; {note}" for note in walk.hidden.notes())
