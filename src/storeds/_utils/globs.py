"""Finds the files that a pattern matches."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence

from storeds._utils.files import nearest, os_failure
from storeds._utils.urls import FILE_ENGINES, StoreURL
from storeds.errors import StoreNotFoundError

__all__ = ["fixed_folder", "glob_escaped", "matches", "pattern_of"]


_ESCAPED = re.compile(r"\[([*[])\]")
_SPECIAL = re.compile(r"[*[]")
_MAGIC = re.compile(r"\*|\[!?\]?[^\]]*\]")


def pattern_of(url: StoreURL) -> str | None:
    """Return the absolute pattern in a URL or bare path, or None if it names one store.

    It names one store if it has no special characters, its engine stores no files, or a file of that name exists.
    """
    path = url.path
    if url.scheme not in (None, *FILE_ENGINES) or not _MAGIC.search(path) or os.path.lexists(url.file):
        return None
    if path.startswith("~"):
        home, slash, path = path.partition("/")
        path = glob_escaped(os.path.expanduser(home)) + slash + path
    # The user did not write the current folder, so its special characters are escaped.
    return os.path.normpath(os.path.join(glob_escaped(os.getcwd()), path))


def glob_escaped(text: str) -> str:
    """Return a pattern that matches the text itself. A ``?`` is not special here, as it begins options in URLs."""
    return re.sub(r"[*[]", r"[\g<0>]", text)


def fixed_folder(pattern: str) -> str:
    """Return the folder that holds all that a pattern may match."""
    parts = pattern.split("/")
    first = next(at for at, part in enumerate(parts) if _MAGIC.search(part) and _SPECIAL.search(_ESCAPED.sub("", part)))
    return _ESCAPED.sub(lambda found: found[1], "/".join(parts[:first])) or "/"


def matches(url: StoreURL, pattern: str) -> list[str]:
    """Return the paths that the pattern of a URL matches, in byte order.

    Raises
    ------
    StoreNotFoundError
        Nothing matches, or a folder cannot be listed.
    """
    found = sorted(set(_matches("/", pattern.strip("/").split("/"))), key=os.fsencode)
    if not found:
        raise StoreNotFoundError(f"no file matches {pattern}: {nearest(f'{fixed_folder(pattern)}/*')}")
    return found


def _matches(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield what `parts` of a pattern match in `folder`. Raises errors of folders, where `glob` would pass over them."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        if rest:
            yield from _matches(folder, rest)
        for entry in _list(folder):
            if entry.is_dir(follow_symlinks=False):  # links may form a cycle
                yield from _matches(entry.path, parts)
            elif not rest and not entry.is_dir():
                yield entry.path
        return
    names = [part]
    if _MAGIC.search(part) and not os.path.lexists(os.path.join(folder, part)):
        names = fnmatch.filter([entry.name for entry in _list(folder, part)], part.replace("?", "[?]"))
    for name in names:
        path = os.path.join(folder, name)
        if rest and os.path.isdir(path):
            yield from _matches(path, rest)
        elif not rest and os.path.lexists(path):
            yield path


def _list(folder: str, pattern: str = "*") -> list[os.DirEntry[str]]:
    """Return the entries of a folder; as in a shell, hidden ones, such as interrupted writes, only for a pattern with a dot."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") or pattern.startswith(".")]
    except OSError as error:
        raise os_failure(folder, "listed", error) from None
