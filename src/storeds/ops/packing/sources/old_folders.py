"""Sources for folders of images: one sub-folder per class, as torchvision's ImageFolder reads them, or no classes."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from storeds._utils.text import counted, printable
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import (
    IMAGE_SUFFIXES,
    Fingerprint,
    Hidden,
    KeyedSource,
    Problem,
    Root,
    StringArray,
    class_notes,
    is_hidden,
    is_text,
    read_file,
    show,
)
from storeds.protocols import JSON, Field, Record

__all__ = ["FileList", "FlatFolderSource", "FoundFile", "ImageFolderSource", "Walk", "folders_in"]


# (path below the root, size, mtime in ns)
FoundFile: TypeAlias = tuple[str, int, int]

# Links between folders can give exponentially many paths without forming a loop.
_MAX_PATHS = 64
_ANNOTATIONS = (".csv", ".json", ".jsonl", ".txt", ".xml")


@dataclass(frozen=True)
class _Folder:
    path: str
    """Relative to the root; empty for the root itself."""
    identity: tuple[int, int]
    parent: _Folder | None

    def find(self, identity: tuple[int, int]) -> _Folder | None:
        folder: _Folder | None = self
        while folder is not None and folder.identity != identity:
            folder = folder.parent
        return folder


class Walk:
    """Finds the images, or other files, below folders of one root.

    Parameters
    ----------
    root : Root
        The folder that paths are relative to and must not leave.
    suffixes : tuple of str
        How the names of the files end, in lower case.
    include_hidden : bool
        Include hidden files and folders.

    Attributes
    ----------
    problems : list of Problem
        What went wrong so far.
    hidden : Hidden
        The hidden files and folders skipped so far.
    """

    def __init__(self, root: Root, suffixes: tuple[str, ...] = IMAGE_SUFFIXES, *, include_hidden: bool = False) -> None:
        self._root, self._suffixes = root, suffixes
        self.hidden = Hidden(include=include_hidden)
        self._seen: Counter[tuple[int, int]] = Counter()
        self._annotations: Counter[str] = Counter()  # suffix → files that may describe images
        self._examples: dict[str, str] = {}
        self.problems: list[Problem] = []

    def files(self, top: str) -> Iterator[FoundFile]:
        """Yield the files below `top`, a folder in the root, or "" for the root: folders by path, then files by name.

        Both are in plain string order, as ``sorted(os.walk(top, followlinks=True))`` gives them.
        """
        parent = self._enter("", None) if top else None
        pending = [self._enter(top, parent)] if not top or self._is_usable(top) else []
        folders: list[tuple[str, list[FoundFile]]] = []
        while pending:
            folder = pending.pop()
            if folder is not None:
                found, inside = self._list(folder)
                folders.append((folder.path, found))
                pending += inside
        folders.sort(key=lambda folder: folder[0])
        for _, found in folders:
            found.sort()
            yield from found

    def _is_usable(self, top: str) -> bool:
        if not is_text(top):
            self._report(top, "the folder's name is not valid UTF-8, which a key must be; rename it")
            return False
        path = os.path.join(self._root.path, top)
        fault = self._root.link_fault(path) if os.path.islink(path) else None
        if fault:
            self._report(top, fault)
        return fault is None

    def _enter(self, path: str, parent: _Folder | None) -> _Folder | None:
        try:
            status = os.stat(os.path.join(self._root.path, path))
        except OSError as error:
            self._report(path, f"the folder cannot be inspected: {error.strerror}")
            return None
        identity = (status.st_dev, status.st_ino)
        above = parent.find(identity) if parent is not None else None
        if above is not None:
            what = show(above.path) if above.path else "the root"
            self._report(path, f"links back to {what}, a folder that contains it; the loop is left out")
            return None
        self._seen[identity] += bool(path)
        if self._seen[identity] > _MAX_PATHS:
            self._report(path, f"is a folder that {_MAX_PATHS} other paths lead to already; more are left out")
            return None
        return _Folder(path, identity, parent)

    def _list(self, folder: _Folder) -> tuple[list[FoundFile], list[_Folder | None]]:
        found: list[FoundFile] = []
        inside: list[_Folder | None] = []
        try:
            with os.scandir(os.path.join(self._root.path, folder.path)) as entries:
                for entry in entries:
                    self._sort_in(entry, folder, found, inside)
        except OSError as error:
            self._report(folder.path, f"the folder cannot be listed: {error.strerror}")
        return found, inside

    def _sort_in(
        self, entry: os.DirEntry[str], parent: _Folder, found: list[FoundFile], inside: list[_Folder | None]
    ) -> None:
        path = f"{parent.path}/{entry.name}" if parent.path else entry.name
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            self._report(path, f"cannot be inspected: {error.strerror}")
            return
        if not is_folder and not entry.name.lower().endswith(self._suffixes):
            suffix = os.path.splitext(entry.name)[1].lower()
            if suffix in _ANNOTATIONS and not is_hidden(entry.name):
                self._annotations[suffix] += 1
                self._examples[suffix] = min(path, self._examples.get(suffix, path))
            return
        if self.hidden.skips_folder(path) if is_folder else self.hidden.skips_file(path):
            return
        fault = self._fault(entry)
        if fault:
            self._report(path, fault)
        elif is_folder:
            inside.append(self._enter(path, parent))
        else:
            found.append((path, *_state(entry)))

    def annotation_notes(self) -> tuple[str, ...]:
        """Return one sentence about files that may describe the images, or nothing."""
        if not self._annotations:
            return ()
        count = sum(self._annotations.values())
        listed = ", ".join(
            f"{number:,} *{suffix}, such as {printable(show(self._examples[suffix]))}"
            for suffix, number in sorted(self._annotations.items())
        )
        return (
            f"left out {counted(count, 'file')} that may describe the images: {listed}; pack reads annotations as kind= coco, "
            "yolo, voc, masks, csv or jsonl (--kind)",
        )

    def _fault(self, entry: os.DirEntry[str]) -> str | None:
        if not is_text(entry.name):
            return "its name is not valid UTF-8, which a key must be; rename it"
        return self._root.link_fault(entry.path) if entry.is_symlink() else None

    def _report(self, path: str, reason: str) -> None:
        self.problems.append(Problem(show(path) or show(self._root.path), reason))


def _state(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:  # a dangling link; reading it reports that
        return 0, 0
    return status.st_size, status.st_mtime_ns


class FileList(KeyedSource):
    """Image files below a root, with or without labels: the base of sources whose keys are paths.

    Parameters
    ----------
    root : str
        The folder that keys are relative to.
    has_labels : bool
        Give records a label.
    """

    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()

    def __init__(self, root: str, *, has_labels: bool) -> None:
        self._root = os.path.abspath(root)
        self._keys, self._sizes = StringArray(), array("q")
        self._labels = array("q") if has_labels else None
        self._fingerprint = Fingerprint()
        label = {"label": Field("int")} if has_labels else {}
        self.fields: Mapping[str, Field] = {"image": Field("image"), **label, "key": Field("str")}
        self.attrs: Mapping[str, JSON] = {}

    def _add(self, found: Iterable[FoundFile], label: int = -1) -> int:
        """Add files of one label, -1 without labels; return how many."""
        before = len(self._keys)
        for key, size, mtime in found:
            self._keys.append(key)
            self._sizes.append(size)
            self._fingerprint.add(key, size, mtime, label)
        count = len(self._keys) - before
        if self._labels is not None:
            self._labels.extend([label] * count)
        return count

    def _finish(self, kind: str) -> None:
        self.fingerprint: JSON = self._fingerprint.finish(kind, len(self._keys))
        del self._fingerprint  # it does not pickle

    def strata(self) -> Iterator[tuple[str, int | None]]:
        """Yield the key and the label of each item."""
        labels: Iterable[int | None] = [None] * len(self) if self._labels is None else self._labels
        return zip(self._keys, labels, strict=True)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key = self._keys[index]
        record: Record = {"image": read_file(os.path.join(self._root, key.replace("/", os.sep)))}
        if self._labels is not None:
            record["label"] = self._labels[index]
        record["key"] = key
        return record


_SUFFIXES = " ".join(IMAGE_SUFFIXES)


class ImageFolderSource(FileList):
    """A folder with one sub-folder per class, in the order and with the labels of torchvision's ImageFolder.

    Parameters
    ----------
    root : path
        The folder. Images directly in it have no class; they are left out, as ImageFolder leaves them out.
    allow_outside : bool
        Follow links that lead out of the folder.
    allow_empty : bool
        Accept classes without images.
    include_hidden : bool
        Include hidden files, and hidden folders as classes: ``.git``, ``.ipynb_checkpoints``, ``__MACOSX``.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It has no sub-folders, or one of them has no images.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        allow_outside: bool = False,
        allow_empty: bool = False,
        include_hidden: bool = False,
    ) -> None:
        super().__init__(os.fspath(root), has_labels=True)
        walk = Walk(Root(self._root, allow_outside=allow_outside), include_hidden=include_hidden)
        classes = sorted(folders_in(os.fspath(root), walk))
        if not classes:
            raise ConfigError(
                f"{root} has no sub-folders; expected one per class, each with its images{_skipped(walk)}"
            )
        empty = []
        for label, name in enumerate(classes):
            before = len(walk.problems)
            if not self._add(walk.files(name), label) and len(walk.problems) == before:
                empty.append(name)
        if empty and not allow_empty:
            names = ", ".join(map(show, empty[:8])) + (f" and {len(empty) - 8} more" if len(empty) > 8 else "")
            raise ConfigError(
                f"{root}: no images in {names}; remove these folders, put images ({_SUFFIXES}) in, or pass "
                "allow_empty=True (--allow-empty)"
            )
        # A class whose name is not UTF-8 is a problem but keeps its place; the labels after it must not change.
        names_as_json: list[JSON] = [show(name) for name in classes]
        self.attrs: Mapping[str, JSON] = {"classes": names_as_json}
        self.problems: Sequence[Problem] = tuple(walk.problems)
        self.notes: tuple[str, ...] = (*class_notes(classes), *walk.hidden.notes(), *walk.annotation_notes())
        self._finish("imagefolder")


class FlatFolderSource(FileList):
    """A folder of images without labels, including the folders below it.

    Parameters
    ----------
    root : path
        The folder.
    allow_outside : bool
        Follow links that lead out of the folder.
    include_hidden : bool
        Include hidden files and folders.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It contains no images.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, allow_outside: bool = False, include_hidden: bool = False
    ) -> None:
        super().__init__(os.fspath(root), has_labels=False)
        walk = Walk(Root(self._root, allow_outside=allow_outside), include_hidden=include_hidden)
        folders_in(os.fspath(root))
        if not self._add(walk.files("")) and not walk.problems:
            raise ConfigError(f"{root} contains no images ({_SUFFIXES}), not even in folders below it{_skipped(walk)}")
        self.problems: Sequence[Problem] = tuple(walk.problems)
        self.notes: tuple[str, ...] = (*walk.hidden.notes(), *walk.annotation_notes())
        self._finish("flat")


def folders_in(root: str, walk: Walk | None = None) -> list[str]:
    """Return the names of the folders in `root`, including links to folders; hidden ones as `walk` decides.

    Raises
    ------
    ConfigError, StoreNotFoundError
        `root` is a file, or cannot be listed.
    """
    names: list[str] = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                try:
                    skip = is_hidden if walk is None else walk.hidden.skips_folder
                    if entry.is_dir() and not skip(entry.name):
                        names.append(entry.name)
                except OSError as error:  # a link to itself
                    if walk is not None:
                        walk.problems.append(Problem(show(entry.name), f"cannot be inspected: {error.strerror}"))
    except NotADirectoryError:
        raise ConfigError(f"{root} is a file; expected a folder of images, or of one folder per class") from None
    except OSError as error:
        raise StoreNotFoundError(f"no folder at {root}: {error.strerror}") from None
    return names


def _skipped(walk: Walk) -> str:
    return "".join(f"; {note}" for note in walk.hidden.notes())
