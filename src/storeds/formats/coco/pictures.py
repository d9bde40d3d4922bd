"""Finds the pictures that a file of COCO lists, which may be of another machine."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from storeds._utils.text import counted, some
from storeds.errors import StoreNotFoundError
from storeds.layouts.files.walk import IMAGE_SUFFIXES, is_hidden, show

__all__ = ["file_name_of", "find_by_name", "find_pictures", "unlisted_pictures"]

_BASE = re.compile(r".*[/\\]|[?#].*")  # what lies around the name of a file in a path or a URL
_TRIED = 20  # images that are looked for in each folder that may be the root


def find_pictures(file: str, root: str | os.PathLike[str] | None, entries: Sequence[Any]) -> str:
    """Return the folder of the pictures."""
    if root is not None:
        if not os.path.isdir(root):
            raise StoreNotFoundError(f"root={os.fspath(root)!r} is not a folder")
        return os.fspath(root)
    own = os.path.dirname(os.path.abspath(file))
    above, part = os.path.dirname(own), os.path.splitext(os.path.basename(file))[0].rpartition("_")[2]
    inside = (os.path.join(base, name) for base in (own, above) for name in ("images", part, f"images/{part}"))
    folders = [own, *inside, above]
    names = list(islice(filter(None, map(file_name_of, entries)), _TRIED))
    for folder in folders:
        if any(os.path.isfile(os.path.join(folder, name)) for name in names):
            return folder
    if not names:
        return own
    raise StoreNotFoundError(
        f"no picture of {show(os.path.basename(file))}, such as {show(names[0])}, is in any of "
        f"{', '.join(map(show, folders))}; pass the folder of the pictures as root= (--option root=…)"
    )


def file_name_of(entry: Any) -> str | None:
    """Return the name of the file of an image, or None if it has none."""
    name = entry.get("file_name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else None


def find_by_name(entries: Sequence[Any], root: str, where: str) -> tuple[list[Any], list[str]]:
    """Return the entries of images with the paths of their files, and notes: files that are elsewhere are found by their names."""
    names = [name for name in map(file_name_of, entries) if name is not None]
    missing = {name: _BASE.sub("", name) for name in names if not os.path.lexists(os.path.join(root, name))}
    if not missing:
        return [], []
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for folder, _, files in os.walk(root):
        for each in files:
            by_name[each].append(os.path.relpath(os.path.join(folder, each), root))
    wanted, listed = Counter(missing.values()), set(names)
    places = {name: by_name[base] for name, base in missing.items() if base in by_name}
    found = {
        name: paths[0]
        for name, paths in places.items()
        if len(paths) == wanted[missing[name]] == 1 and paths[0] not in listed
    }
    notes = []
    if found:
        first = next(iter(found.items()))
        notes.append(
            f"{counted(len(found), 'file_name is', 'file_names are')} of another place, and found by name below {show(root)}: "
            f"{show(first[0])} is {show(first[1])}"
        )
    if len(found) < len(missing):
        lost = sorted(map(show, missing.keys() - found.keys()))
        notes.append(
            f"{counted(len(lost), 'file_name')} of {where} {'is' if len(lost) == 1 else 'are'} not below {show(root)}, and no single "
            f"file there has the same name: {some(lost)}; edit file_name"
        )
    return [
        {**each, "file_name": found.get(name, name)} if (name := file_name_of(each)) else each for each in entries
    ], notes


def unlisted_pictures(paths: Mapping[str, Any], root: str, where: str) -> Iterator[str]:
    """Yield a sentence about pictures beside those of the file that it does not list."""
    unlisted = []
    for folder in sorted({posixpath.dirname(path) for path in paths}):
        at = os.path.join(root, folder)
        for name in sorted(os.listdir(at)) if os.path.isdir(at) else ():
            path = posixpath.join(folder, name)
            if name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(name) and path not in paths:
                unlisted.append(show(path))
    if unlisted:
        number = counted(len(unlisted), "image file is", "image files are")
        yield f"{number} in {show(root)}, but not in {where}, and left out: {some(unlisted)}"
