"""Walks folders for their files, and checks paths."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from storeds._utils.text import counted, printable, some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.layouts.files.rows import Bad, BadItem, File

__all__ = [
    "IMAGE_SUFFIXES",
    "VIDEO_SUFFIXES",
    "Hidden",
    "Root",
    "Walk",
    "files_by_kind",
    "folders_in",
    "is_folder",
    "is_hidden",
    "is_text",
    "kind_of_files",
    "names_of",
    "path_fault",
    "show",
]

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),  # those of torchvision's ImageFolder
    *(".jpe", ".jfif", ".mpo", ".jp2", ".j2k", ".j2c", ".jpx", ".jpf", ".jpc", ".avif"),
    *(".gif", ".apng", ".dib", ".pbm", ".pnm", ".tga"),
)
"""The suffixes of pictures that Pillow reads, in lower case."""

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv")

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

    def check_link(self, path: str) -> None:
        """Raise `BadItem` if the link at `path` must not be followed."""
        real = os.path.realpath(path)
        if not self._allow and not self._contains(real):
            raise BadItem(f"is a link to {show(real)}, outside {show(self.path)}; {_ALLOW}")

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
_SYSTEM_NAMES = (
    *("__macosx", "@eadir", "#recycle", "$recycle.bin", "lost+found"),
    *("system volume information", "thumbs.db", "ehthumbs.db", "desktop.ini"),
)
_NAMED = 4


def is_hidden(name: str) -> bool:
    """Whether the name of a file or folder begins with a dot or belongs to an operating system or a network drive."""
    is_dotted = name.startswith(".") and name not in (".", "..") and not name.startswith((".\\", "..\\"))
    return is_dotted or name.lower() in _SYSTEM_NAMES


class Hidden:
    """Skips hidden files and folders, such as ``.git``, ``__MACOSX`` and ``._0001.jpg``, and counts them."""

    def __init__(self) -> None:
        self._skipped: dict[str, set[str]] = {"folder": set(), "file": set()}

    def skips(self, path: str, what: str = "file", *, below: bool = False) -> bool:
        """Whether to skip a file or a folder by its own name, and for `below` by the names of its folders too."""
        names = path.split("/")
        if not any(map(is_hidden, names if below else names[-1:])):
            return False
        self._skipped[what].add(path)
        return True

    def notes(self) -> list[str]:
        """Return one sentence about what was skipped, or nothing."""
        parts = [
            f"{counted(len(skipped), f'hidden {what}')} ({some(sorted(skipped), _NAMED)})"
            for what, skipped in self._skipped.items()
            if skipped
        ]
        return [f"left out {' and '.join(parts)}; rename what is to be packed"] if parts else []


class Walk:
    """Finds the images, or other files, below folders of one root. What it left out it tells in `notes`.

    Parameters
    ----------
    root : Root
        The folder that paths are relative to and must not leave.
    suffixes : tuple of str
        How the names of the files end, in lower case.
    known : tuple of str
        How the names of other files end that the source reads itself, so that no note counts them.
    """

    def __init__(self, root: Root, suffixes: tuple[str, ...] = IMAGE_SUFFIXES, *, known: tuple[str, ...] = ()) -> None:
        self._root, self._suffixes, self._known = root, suffixes, known
        self.hidden = Hidden()
        self._others: dict[str, set[str]] = {}  # suffix → files that are left out; a source lists twice
        self.watched: dict[str, os.stat_result] = {}
        """The folders that were listed, each with its status before that, and what else `watch` was called for."""

    def watch(self, path: str) -> os.stat_result:
        """Remember the status of a path below the root, or "" for the root."""
        status = os.stat(os.path.join(self._root.path, path))
        self.watched.setdefault(path, status)
        return status

    def files(self, top: str) -> Iterator[tuple[str, File] | Bad]:
        """Yield paths below the root and their files below `top`, a folder in the root, or "" for the root.

        The order is that of ``sorted(os.walk(top, followlinks=True))``: folders by path, then files by name, both in
        plain string order. Then come files and folders that cannot be read.
        """
        problems = list[Bad]()
        found: list[tuple[str, str, File]] = []
        status = self.watch("")
        pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [
            (top, ((status.st_dev, status.st_ino),) if top else ())
        ]
        while pending:
            folder, above = pending.pop()
            try:
                inside = (*above, self._enter(folder, above))
                for path, file in self._list(folder, problems):
                    if file is None:
                        pending.append((path, inside))
                    else:
                        found.append((folder, path, file))
            except BadItem as error:
                problems.append(Bad(show(folder), str(error)))
            except OSError as error:
                where = show(folder or self._root.path)
                problems.append(Bad(where, f"the folder cannot be listed: {error.strerror}"))
        for _, path, file in sorted(found, key=itemgetter(0, 1)):
            yield path, file
        yield from problems

    def _list(self, folder: str, problems: list[Bad]) -> Iterator[tuple[str, File | None]]:
        """Yield the paths of the sub-folders and the files of a folder, a sub-folder with None."""
        with os.scandir(os.path.join(self._root.path, folder)) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    if not entry.is_dir():
                        if (file := self._file(entry, path)) is not None:
                            yield path, file
                    elif not self.hidden.skips(path, "folder"):
                        yield path, None
                except BadItem as error:
                    problems.append(Bad(show(path), str(error)))
                except OSError as error:
                    problems.append(Bad(show(path), f"cannot be inspected: {error.strerror}"))

    def _enter(self, path: str, above: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the identity of a folder; raise `BadItem` if it must not be listed."""
        if not is_text(path):
            raise BadItem("the folder's name is not valid UTF-8, which a key must be; rename it")
        whole = os.path.join(self._root.path, path)
        if path and os.path.islink(whole):
            self._root.check_link(whole)
        status = self.watch(path)
        identity = status.st_dev, status.st_ino
        if identity in above:
            raise BadItem("links back to a folder that contains it; the loop is left out")
        return identity

    def _file(self, entry: os.DirEntry[str], path: str) -> File | None:
        """Return the file of an entry, or None for one that is left out; raises `BadItem`."""
        if not entry.name.lower().endswith(self._suffixes):
            suffix = os.path.splitext(entry.name)[1].lower()
            if suffix not in self._known and not is_hidden(entry.name):
                self._others.setdefault(suffix, set()).add(path)
            return None
        if self.hidden.skips(path):
            return None
        if not is_text(entry.name):
            raise BadItem("its name is not valid UTF-8, which a key must be; rename it")
        if entry.is_symlink():
            self._root.check_link(entry.path)
        return File(entry.path)

    def notes(self) -> list[str]:
        """Return sentences about hidden files, files that may describe the images, and files of other kinds."""
        annotations = {suffix: paths for suffix, paths in self._others.items() if suffix in _ANNOTATIONS}
        others = {suffix: paths for suffix, paths in self._others.items() if suffix not in _ANNOTATIONS}
        notes = self.hidden.notes()
        if annotations:
            notes.append(
                f"left out {_by_suffix(annotations, 'that may describe the images')}; pack "
                "reads annotations as kind= coco, yolo, voc, masks, csv or jsonl (--kind)"
            )
        if others:
            notes.append(f"left out {_by_suffix(others, 'of other kinds')}")
        return notes


def _by_suffix(files: Mapping[str, Collection[str]], what: str) -> str:
    listed = ", ".join(
        f"{len(paths):,} {f'*{suffix}' if suffix else 'without a suffix'}, such as {printable(show(min(paths)))}"
        for suffix, paths in sorted(files.items())
    )
    return f"{counted(sum(map(len, files.values())), 'file')} {what}: {listed}"


def folders_in(root: str, hidden: Hidden | None = None) -> list[str]:
    """Return the names of the folders in `root`, sorted, including links to folders; hidden ones as `hidden` decides.

    Raises
    ------
    ConfigError, StoreNotFoundError
        `root` is a file, or cannot be listed.
    """
    hidden = Hidden() if hidden is None else hidden
    try:
        with os.scandir(root) as entries:
            return sorted(each.name for each in entries if is_folder(each) and not hidden.skips(each.name, "folder"))
    except NotADirectoryError:
        raise ConfigError(f"{root} is a file; expected a folder of images, or of one folder per class") from None
    except OSError as error:
        raise StoreNotFoundError(f"no folder at {root}: {error.strerror}") from None


def files_by_kind(
    folder: str, kinds: Mapping[str, tuple[str, ...]], depth: int = 3, *, is_enough: int | None = None
) -> dict[str, str]:
    """Return a file of each of `kinds`, each with suffixes, of which there are files, from `folder` up to `depth` folders down.

    Stop at a folder where `is_enough` kinds are known; by default, all of them.
    """
    found: dict[str, str] = {}
    pending = [(folder, depth)]
    while pending and len(found) < (is_enough or len(kinds)):
        folder, below = pending.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # the source that lists the folder reports why
            continue
        entries = [entry for entry in entries if not is_hidden(entry.name)]
        for kind, suffixes in kinds.items():
            name = next((entry.path for entry in entries if entry.name.lower().endswith(suffixes)), None)
            if name is not None:
                found.setdefault(kind, name)
        pending += [(entry.path, below - 1) for entry in reversed(entries) if below and is_folder(entry)]
    return found


def kind_of_files(folder: str, kinds: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the first of `kinds` that `files_by_kind` finds."""
    return next(iter(files_by_kind(folder, kinds, is_enough=1)), None)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, a link to one, or a link that cannot be followed."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, which listing it reports
        return True
