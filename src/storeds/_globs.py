"""Finds the files that a path with ``*``, ``[…]`` or ``**`` stands for.

Unlike `glob.glob`: ``?`` is an ordinary character (in a URL it starts the options), a name that exists as it is written is
taken as it is written, ``**`` enters no link to a folder, and a folder that cannot be listed is an error, because whoever
trains on fewer files than there are should know.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from storeds._files import nearest, refused
from storeds._url import split_options, split_scheme
from storeds.errors import StoreNotFoundError

__all__ = ["Glob", "glob_of"]

_PIECE = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_MAGIC = re.compile(r"\*|\[!?\]?[^\]]*\]")
_SCHEMES = ("lmdb", "hdf5", None)


@dataclass(frozen=True)
class Glob:
    """A pattern for files, and how to open what matches it.

    Attributes
    ----------
    scheme : str or None
        The engine, if the URL names one.
    pattern : str
        Absolute.
    options : mapping
        What is behind the ``?`` of the URL.
    written : str
        The absolute path that would be meant if nothing in it were magic.
    """

    scheme: str | None
    pattern: str
    options: Mapping[str, str] = field(default_factory=dict)
    written: str = ""

    def paths(self) -> list[str]:
        """Return what matches, in the order of the paths' bytes.

        Raises
        ------
        StoreNotFoundError
            Nothing does, or a folder on the way cannot be listed.
        """
        found = sorted(set(_walk("/", self.pattern.strip("/").split("/"))), key=os.fsencode)
        if not found:
            raise StoreNotFoundError(f"no file matches {self.pattern}: {nearest(self.written)}")
        return found


def glob_of(url: str) -> Glob | None:
    """Return the pattern that a URL or a bare path is, or None where it names one store.

    That is so if it holds nothing magic, if its engine keeps no files, or if a file of exactly that name exists.
    """
    if split_scheme(url)[0] not in _SCHEMES or not _MAGIC.search(url) or "\0" in url:
        return None
    scheme, path, options = split_options(url)
    if not _MAGIC.search(path):
        return None
    written = os.path.abspath(os.path.expanduser(path))
    if os.path.lexists(written):
        return None
    if path.startswith("~"):
        home, slash, path = path.partition("/")
        path = glob.escape(os.path.expanduser(home)) + slash + path
    # What stands in front of a relative path was not written by the user, so nothing in it is magic.
    return Glob(scheme, os.path.normpath(os.path.join(glob.escape(os.getcwd()), path)), options, written)


def _walk(folder: str, parts: Sequence[str]) -> Iterator[str]:
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _descend(folder, rest)
        return
    for name in _names(folder, part):
        path = os.path.join(folder, name)
        if not rest and os.path.lexists(path):
            yield path
        elif rest and os.path.isdir(path):
            yield from _walk(path, rest)


def _names(folder: str, part: str) -> list[str]:
    if not _MAGIC.search(part) or os.path.lexists(os.path.join(folder, part)):
        return [part]
    plain = "".join("[?]" if piece == "?" else piece for piece in _PIECE.findall(part))
    accepts = re.compile(fnmatch.translate(plain)).match
    # As in a shell, * matches no leading dot: behind it are what interrupted writers left.
    return [
        entry.name
        for entry in _list(folder)
        if accepts(entry.name) and (part.startswith(".") or not entry.name.startswith("."))
    ]


def _descend(folder: str, rest: Sequence[str]) -> Iterator[str]:
    """Yield what `rest` matches in `folder` and in every folder below; links are not entered, since they may lead back."""
    if rest:
        yield from _walk(folder, rest)
    for entry in _list(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _descend(entry.path, rest)
        elif not rest and not entry.is_dir():
            yield entry.path


def _list(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise refused(folder, "listed", error) from None
