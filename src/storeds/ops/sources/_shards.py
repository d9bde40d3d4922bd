"""Finds the files that a list of paths, a glob or a brace range such as ``train-{000..099}.tar`` stands for."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator

from storeds._files import nearest
from storeds._text import some
from storeds.errors import ConfigError, StoreNotFoundError

__all__ = ["find_shards", "is_pattern", "short_names"]

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST = 100_000


def is_pattern(path: str) -> bool:
    """Whether `path` is to be expanded; a file of that very name is taken as it is."""
    return not os.path.lexists(path) and (_BRACES.search(path) is not None or glob.has_magic(path))


def find_shards(shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the absolute paths, in the order given; those of a glob sorted.

    Raises
    ------
    StoreNotFoundError
        There are none, or some are missing.
    ConfigError
        A range is no range, or a file is there twice.
    """
    given = [shards] if isinstance(shards, (str, os.PathLike)) else list(shards)
    paths = [os.path.abspath(path) for item in given for path in _expand(os.fspath(item))]
    if not paths:
        raise ConfigError("no tar file is given")
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        count = f"{len(missing)} of {len(paths)} tar files are missing" if len(paths) > 1 else "no tar file"
        raise StoreNotFoundError(f"{count}: {some(missing)}; {nearest(missing[0])}")
    if len(set(paths)) < len(paths):
        doubled = next(path for path in paths if paths.count(path) > 1)
        raise ConfigError(f"{doubled} is given twice")
    return paths


def short_names(paths: list[str]) -> list[str]:
    """Return what tells the files apart: their names, or their paths below the folder that holds them all."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, common) for path in paths]


def _expand(path: str) -> Iterator[str]:
    if not is_pattern(path):
        yield path
        return
    for name in _braces(path):
        if glob.has_magic(name) and not os.path.lexists(name):
            found = sorted(glob.glob(name, recursive=True))
            if not found:
                folder = os.path.dirname(os.path.abspath(name))
                raise StoreNotFoundError(f"no file matches {name}: {nearest(os.path.join(folder, 'x'))}")
            yield from found
        else:
            yield name


def _braces(path: str) -> list[str]:
    names = [path]
    while any(_BRACES.search(name) for name in names):
        names = [expanded for name in names for expanded in _expand_first(name)]
        if len(names) > _MOST:
            raise ConfigError(f"{path} stands for more than {_MOST} files")
    return names


def _expand_first(name: str) -> list[str]:
    found = _BRACES.search(name)
    if found is None:
        return [name]
    before, after = name[: found.start()], name[found.end() :]
    bounds = _RANGE.fullmatch(found[1])
    if bounds is None:
        if "," not in found[1]:
            raise ConfigError(f"{name}: {found[0]} is neither a range such as {{000..099}} nor a list such as {{a,b}}")
        return [before + part + after for part in found[1].split(",")]
    first, last = int(bounds[1]), int(bounds[2])
    if last < first or last - first >= _MOST:
        raise ConfigError(f"{name}: {found[0]} is {'empty' if last < first else f'of more than {_MOST} files'}")
    width = len(bounds[1]) if bounds[1].startswith("0") else 0
    return [f"{before}{number:0{width}d}{after}" for number in range(first, last + 1)]
