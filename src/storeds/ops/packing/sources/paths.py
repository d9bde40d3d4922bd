"""Files below a root: which are pictures, which are hidden, and which paths leave it."""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from storeds._utils.text import counted, printable, some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.rows import Bad, File

__all__ = [
    "IMAGE_SUFFIXES",
    "VIDEO_SUFFIXES",
    "Hidden",
    "Root",
    "Walk",
    "class_notes",
    "folders_in",
    "is_hidden",
    "is_int",
    "is_text",
    "names_of",
    "path_fault",
    "show",
]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The suffixes of torchvision's ImageFolder, in lower case."""

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv")

_MAX_PATHS = 64  # to one folder: links can give exponentially many paths without forming a loop
_ALLOW = "pass allow_outside=True (--option allow_outside=true) to read it anyway"
_ANNOTATIONS = (".csv", ".json", ".jsonl", ".txt", ".xml")


def is_text(name: str) -> bool:
    """Whether a name can be encoded as UTF-8, as every string in a store must be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def show(name: str) -> str:
    r"""Return `name` in printable form, with bytes that are not UTF-8 as ``\xff``."""
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace").decode()


def path_fault(path: object) -> str | None:
    """Return why `path` cannot be the path of a file and a key, or None if it can."""
    if path is None or path == "":
        return "no path is given"
    if not isinstance(path, str):
        return f"its path is a {type(path).__name__}, not text"
    if "\0" in path:
        return "its path contains a NUL character"
    return None if is_text(path) else "its path is not valid UTF-8"


def names_of(given: Any) -> list[str]:
    """Return the names in an option: a list, or text such as ``"a, b"``; None is no name."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        return list(map(str, given))
    return [name.strip() for name in str(given).split(",") if name.strip()]


# int() accepts more: int("1_0") is 10, and 007 would lose its zeros.
_INT = re.compile(r"0|-?[1-9][0-9]*")


def is_int(text: str) -> bool:
    """Whether `text` is an int64 as Python writes it."""
    return len(text) < 21 and _INT.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63


class Root:
    """A folder that paths must not leave.

    Parameters
    ----------
    path : str
        The folder.
    allow_outside : bool
        Allow paths to leave it.
    """

    def __init__(self, path: str | os.PathLike[str], *, allow_outside: bool) -> None:
        self.path = os.path.abspath(path)
        self._real = os.path.realpath(self.path)
        self._allow = allow_outside
        self._folders: dict[str, bool] = {}

    def file(self, path: str, what: str = "") -> File:
        """Return the file at `path`, which is relative to the root and may have other separators than the system's."""
        return File(os.path.join(self.path, path.replace("/", os.sep)), what=what)

    def link_fault(self, path: str) -> str | None:
        """Return why the link at `path` must not be followed, or None."""
        if self._allow:
            return None
        real = os.path.realpath(path)
        return None if self._contains(real) else f"is a link to {show(real)}, outside {show(self.path)}; {_ALLOW}"

    def path_fault(self, path: object) -> str | None:
        """Return why `path`, as written in a list, must not be opened, or None."""
        fault = path_fault(path)
        if self._allow or fault is not None:
            return fault
        path = str(path)
        if os.path.isabs(path):
            return f"the path is absolute, but paths are relative to {show(self.path)}; {_ALLOW}"
        if posixpath.normpath(path).split("/", 1)[0] == "..":
            return f"the path leads out of {show(self.path)}; {_ALLOW}"
        folder, name = os.path.split(os.path.join(self.path, path))
        # Each folder is resolved once: resolving it for every file takes longer than reading a small file.
        if folder not in self._folders:
            self._folders[folder] = self._contains(os.path.realpath(folder))
        whole = os.path.join(folder, name)
        if self._folders[folder] and name not in ("", ".", "..") and not os.path.islink(whole):
            return None
        real = os.path.realpath(whole)
        if self._contains(real):
            return None
        return f"the path leads through a link to {show(real)}, outside {show(self.path)}; {_ALLOW}"

    def _contains(self, real: str) -> bool:
        return real == self._real or real.startswith(self._real.rstrip("/") + "/")


# macOS, Windows and network drives create these names, which have no leading dot.
_SYSTEM_NAMES = frozenset(
    (
        "__macosx",
        "@eadir",
        "#recycle",
        "$recycle.bin",
        "lost+found",
        "system volume information",
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
    )
)
_NAMED = 4


def is_hidden(name: str) -> bool:
    """Whether the name of a file or folder begins with a dot or belongs to an operating system or a network drive."""
    is_dotted = name.startswith(".") and name not in (".", "..") and not name.startswith((".\\", "..\\"))
    return is_dotted or name.lower() in _SYSTEM_NAMES


class Hidden:
    """Skips hidden files and folders, such as ``.git``, ``__MACOSX`` and ``._0001.jpg``, and counts them.

    Parameters
    ----------
    include : bool
        Skip nothing.
    """

    def __init__(self, *, include: bool = False) -> None:
        self._include = include
        self._folders: dict[str, None] = {}
        self._files: dict[str, None] = {}

    def skips_folder(self, path: str) -> bool:
        """Whether to skip the folder at `path`, relative to the root. Only its own name counts."""
        return self._skips(path, [path.rsplit("/", 1)[-1]], self._folders)

    def skips_file(self, path: str) -> bool:
        """Whether to skip the file at `path`, relative to the root. Only its own name counts."""
        return self._skips(path, [path.rsplit("/", 1)[-1]], self._files)

    def skips_path(self, path: str) -> bool:
        """Whether to skip a path from a list: it or one of its folders is hidden."""
        return self._skips(path, path.split("/"), self._files)

    def _skips(self, path: str, names: Iterable[str], skipped: dict[str, None]) -> bool:
        if self._include or not any(map(is_hidden, names)):
            return False
        skipped[path] = None
        return True

    def notes(self) -> list[str]:
        """Return one sentence about what was skipped, or nothing."""
        parts = [
            f"{counted(len(skipped), f'hidden {what}')} ({some(sorted(skipped), _NAMED)})"
            for what, skipped in (("folder", self._folders), ("file", self._files))
            if skipped
        ]
        if not parts:
            return []
        return [f"left out {' and '.join(parts)}; include_hidden=True (--option include_hidden=true) includes them"]


class Walk:
    """Finds the images, or other files, below folders of one root. What it left out it tells in `notes`.

    Parameters
    ----------
    root : Root
        The folder that paths are relative to and must not leave.
    suffixes : tuple of str
        How the names of the files end, in lower case.
    include_hidden : bool
        Include hidden files and folders.
    """

    def __init__(self, root: Root, suffixes: tuple[str, ...] = IMAGE_SUFFIXES, *, include_hidden: bool = False) -> None:
        self._root, self._suffixes = root, suffixes
        self.hidden = Hidden(include=include_hidden)
        self._annotations: dict[str, set[str]] = {}  # suffix → files that may describe images; a source lists twice

    def files(self, top: str) -> Iterator[tuple[str, File] | Bad]:
        """Yield paths below the root and their files below `top`, a folder in the root, or "" for the root.

        The order is that of ``sorted(os.walk(top, followlinks=True))``: folders by path, then files by name, both in
        plain string order. Then come files and folders that cannot be read.
        """
        problems, seen = list[Bad](), Counter[tuple[int, int]]()
        folders: list[tuple[str, list[tuple[str, File]]]] = []
        status = os.stat(self._root.path)
        above: tuple[tuple[int, int], ...] = ((status.st_dev, status.st_ino),) if top else ()
        pending = [(top, above)]
        while pending:
            path, above = pending.pop()
            found: list[tuple[str, File]] = []
            entered = self._enter(path, above, seen)
            if isinstance(entered, str):
                problems.append(Bad(show(path) or show(self._root.path), entered))
                continue
            try:
                with os.scandir(os.path.join(self._root.path, path)) as entries:
                    for entry in entries:
                        below = f"{path}/{entry.name}" if path else entry.name
                        each = self._sort(entry, below)
                        if isinstance(each, str):
                            problems.append(Bad(show(below), each))
                        elif isinstance(each, File):
                            found.append((below, each))
                        elif each:
                            pending.append((below, (*above, entered)))
            except OSError as error:
                problems.append(
                    Bad(show(path) or show(self._root.path), f"the folder cannot be listed: {error.strerror}")
                )
            folders.append((path, sorted(found, key=lambda each: each[0])))
        for _, found in sorted(folders, key=lambda folder: folder[0]):
            yield from found
        yield from problems

    def _enter(
        self, path: str, above: Sequence[tuple[int, int]], seen: Counter[tuple[int, int]]
    ) -> tuple[int, int] | str:
        """Return the identity of a folder, or why it must not be listed."""
        whole = os.path.join(self._root.path, path)
        if not is_text(path):
            return "the folder's name is not valid UTF-8, which a key must be; rename it"
        fault = self._root.link_fault(whole) if os.path.islink(whole) else None
        if path and fault is not None:
            return fault
        try:
            status = os.stat(whole)
        except OSError as error:
            return f"the folder cannot be inspected: {error.strerror}"
        if (status.st_dev, status.st_ino) in above:
            return "links back to a folder that contains it; the loop is left out"
        identity = status.st_dev, status.st_ino
        seen[identity] += 1
        if seen[identity] > _MAX_PATHS:
            return f"is a folder that {_MAX_PATHS} other paths lead to already; more are left out"
        return identity

    def _sort(self, entry: os.DirEntry[str], path: str) -> File | bool | str:
        """Return the file of an entry, True for a folder, False for what is left out, or why it cannot be read."""
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            return f"cannot be inspected: {error.strerror}"
        if is_folder:
            return not self.hidden.skips_folder(path)
        if not entry.name.lower().endswith(self._suffixes):
            suffix = os.path.splitext(entry.name)[1].lower()
            if suffix in _ANNOTATIONS and not is_hidden(entry.name):
                self._annotations.setdefault(suffix, set()).add(path)
            return False
        if self.hidden.skips_file(path):
            return False
        if not is_text(entry.name):
            return "its name is not valid UTF-8, which a key must be; rename it"
        fault = self._root.link_fault(entry.path) if entry.is_symlink() else None
        return fault or File(entry.path)

    def notes(self) -> list[str]:
        """Return sentences about hidden files, and about files that may describe the images."""
        notes = self.hidden.notes()
        if self._annotations:
            listed = ", ".join(
                f"{len(paths):,} *{suffix}, such as {printable(show(min(paths)))}"
                for suffix, paths in sorted(self._annotations.items())
            )
            number = sum(map(len, self._annotations.values()))
            notes.append(
                f"left out {counted(number, 'file')} that may describe the images: {listed}; pack "
                "reads annotations as kind= coco, yolo, voc, masks, csv or jsonl (--kind)"
            )
        return notes


def folders_in(root: str, hidden: Hidden | None = None) -> list[str]:
    """Return the names of the folders in `root`, sorted, including links to folders; hidden ones as `hidden` decides.

    Raises
    ------
    ConfigError, StoreNotFoundError
        `root` is a file, or cannot be listed.
    """
    skips = is_hidden if hidden is None else hidden.skips_folder
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if _is_folder(entry) and not skips(entry.name))
    except NotADirectoryError:
        raise ConfigError(f"{root} is a file; expected a folder of images, or of one folder per class") from None
    except OSError as error:
        raise StoreNotFoundError(f"no folder at {root}: {error.strerror}") from None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, which listing it reports
        return True


def class_notes(classes: Sequence[str]) -> list[str]:
    """Return warnings about class names that look alike, or that look like labels."""
    notes, by_look = [], dict[str, list[str]]()
    for name in classes:
        by_look.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    alike = [names for names in by_look.values() if len(names) > 1]
    if alike:
        shown = "; ".join(", ".join(ascii(name) for name in names) for names in alike[:4])
        notes.append(
            f"{counted(len(alike), 'group')} of classes differ only in case, spaces or Unicode form, and stay separate: "
            f"{shown}{' …' if len(alike) > 4 else ''}"
        )
    if classes and all(map(is_int, classes)):
        moved = next((label for label, name in enumerate(classes) if int(name) != label), None)
        if moved is not None and sorted(classes, key=int) != list(classes):
            notes.append(
                "classes are sorted as text, as ImageFolder sorts them, so labels are not the numbers in their names: "
                f"class {classes[moved]!r} is label {moved}"
            )
    return notes
