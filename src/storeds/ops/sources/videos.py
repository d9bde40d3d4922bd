"""Folders of films, or of frames: each video becomes a run of records, one a frame."""

from __future__ import annotations

import copy
import os
import re
from array import array
from fractions import Fraction
from typing import Any, Self

from storeds.errors import ConfigError
from storeds.ops.sources._films import Film, FilmCursor, encode, import_av, list_film, scaled
from storeds.ops.sources._hidden import is_hidden
from storeds.ops.sources._packed import Texts
from storeds.ops.sources._paths import IMAGE_SUFFIXES, Root
from storeds.ops.sources._videos import Videos
from storeds.ops.sources._walk import Found, Walk
from storeds.ops.sources.base import BadItem, Problem, read_file
from storeds.ops.sources.folders import _folders_in
from storeds.protocols import Field, Record

__all__ = ["VIDEO_SUFFIXES", "FrameFolderSource", "VideoSource", "holds_films"]

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv")
_QUALITY = 90
_BYTES_A_PIXEL = 8  # pixels that take one byte as JPEG, about


class VideoSource(Videos):
    """A folder of films, also in folders below it, or one film; each frame is encoded as JPEG.

    Parameters
    ----------
    root : path
        The folder, or the film. Where films lie in its folders only, these are their classes.
    fps : float or str, optional
        The most frames to take from a second, also as ``"30000/1001"``; all of them by default.
    label : bool, optional
        Whether the folders are classes; by default that is found out.
    max_side, quality : int, optional
        As for `storeds.pack`, whose own come here: no frame is encoded twice.
    allow_outside : bool
        Whether links may lead out of the folder.
    allow_empty : bool
        Whether a class may have no film.
    include_hidden : bool
        Whether to take hidden files and folders.

    Notes
    -----
    Records have ``image``, ``label`` (where there are classes), ``video``, ``frame``, ``key`` (the film's path, so that a
    split keeps a film together) and ``time`` (in seconds from the film's beginning). Listing reads a film's packets, but
    decodes nothing, unless the file is neither MP4 nor Matroska, which alone keep when frames are shown; reading decodes one
    frame after the other, whatever the length of the film.

    A film that cannot be opened is a problem, and so is one that is cut short; frames that cannot be decoded whole are
    bad items.

    Raises
    ------
    StoreNotFoundError
        There is no such folder.
    ConfigError
        It holds no films; an option is malformed.
    MissingDependencyError
        PyAV is not installed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        fps: float | str | None = None,
        label: bool | None = None,
        max_side: int | None = None,
        quality: int | None = None,
        allow_outside: bool = False,
        allow_empty: bool = False,
        include_hidden: bool = False,
    ) -> None:
        import_av()
        path = os.fspath(root)
        single = os.path.isfile(path)
        folder = os.path.dirname(os.path.abspath(path)) if single else path
        super().__init__(folder, label=False if single else label, allow_empty=allow_empty)
        rate = _rate(fps)
        self._max_side, self._quality = max_side, quality
        walk = Walk(Root(self._root, allow_outside=allow_outside), VIDEO_SUFFIXES, include_hidden=include_hidden)
        if not single:
            _folders_in(folder)
        found = [(os.path.basename(path), *_state(path))] if single else list(walk.files(""))
        if not found and not walk.problems:
            raise ConfigError(f"{root} holds no films ({' '.join(VIDEO_SUFFIXES)}), in no folder below it either")
        classes = self._classify([key for key, _, _ in found], walk, "films")
        self._films: list[Film] = []
        for key, size, mtime in found:
            self._list(key, classes.get(key.split("/", 1)[0], -1), size, mtime, rate, walk.problems)
        self._fingerprint.add(f"{rate} {max_side} {quality}")
        self._cursor: FilmCursor | None = None
        self._finish("videos", {"time": Field("float")}, walk)

    def _list(
        self, key: str, label: int, size: int, mtime: int, rate: Fraction | None, problems: list[Problem]
    ) -> None:
        try:
            film = list_film(self._path(key), rate)
        except BadItem as error:
            problems.append(Problem(key, str(error)))
            return
        if film.missing:
            problems.append(Problem(key, f"is cut short or damaged: about {film.missing} of its frames are not there"))
        self._films.append(film)
        self._add(key, label, len(film.marks), size, mtime)

    def encoded(self, max_side: int | None, quality: int | None) -> Self:
        """Return a source of the same films that encodes their frames so; None leaves a setting as it is."""
        other = copy.copy(self)
        other._max_side = self._max_side if max_side is None else max_side
        other._quality = self._quality if quality is None else quality
        return other

    def size(self, index: int, /) -> int:
        # docstring inherited
        width, height = scaled(*self._films[self._place(index)[0]].size, self._max_side)
        return width * height // _BYTES_A_PIXEL + 1

    def read(self, index: int, /) -> Record:
        # docstring inherited
        video, frame = self._place(index)
        film, path = self._films[video], self._path(self._keys[video])
        if self._cursor is None or self._cursor.path != path:
            if self._cursor is not None:
                self._cursor.close()
            self._cursor = FilmCursor(path, film.ordered)
        image = encode(self._cursor.find(film, frame), self._max_side, self._quality or _QUALITY)
        return {**self._record(video, frame, image), "time": film.time(frame)}

    def _path(self, key: str) -> str:
        return os.path.join(self._root, key.replace("/", os.sep))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": None}


class FrameFolderSource(Videos):
    """A folder of videos, each a folder of images in the order of the numbers in their names, stored as they are.

    Parameters
    ----------
    root : path
        The folder. Where it holds folders of videos, these are their classes: ``root/class/video/0001.jpg``.
    label, allow_outside, allow_empty, include_hidden
        As for `VideoSource`.

    Raises
    ------
    StoreNotFoundError
        There is no such folder.
    ConfigError
        It holds no folders of images.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        label: bool | None = None,
        allow_outside: bool = False,
        allow_empty: bool = False,
        include_hidden: bool = False,
    ) -> None:
        super().__init__(os.fspath(root), label=label, allow_empty=allow_empty)
        _folders_in(os.fspath(root))
        walk = Walk(Root(self._root, allow_outside=allow_outside), include_hidden=include_hidden)
        videos: dict[str, list[Found]] = {}
        for one in walk.files(""):
            videos.setdefault(os.path.dirname(one[0]), []).append(one)
        if not (videos or walk.problems) or "" in videos:
            held = "images beside them" if "" in videos else "none"
            raise ConfigError(f"{root}: expected folders of images, one a video, and there are {held}")
        classes = self._classify(list(videos), walk, "videos")
        self._frames, self._sizes = Texts(), array("q")
        for key, frames in videos.items():
            frames.sort(key=lambda one: _natural(one[0]))
            for path, size, mtime in frames:
                self._frames.append(path)
                self._sizes.append(size)
                self._fingerprint.add(path, size, mtime)
            self._add(key, classes.get(key.split("/", 1)[0], -1), len(frames))
        self._finish("frames", {}, walk)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return self._frames[index]

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]

    def read(self, index: int, /) -> Record:
        # docstring inherited
        path = os.path.join(self._root, self._frames[index].replace("/", os.sep))
        return self._record(*self._place(index), read_file(path))


def holds_films(folder: str) -> bool:
    """Whether the films of a folder, or of the first of its folders that holds films or images, have no images beside."""
    top = _held(folder)
    if top is not None:
        return top
    inside = (_held(os.path.join(folder, name)) for name in sorted(_folders_in(folder)))
    return next((held for held in inside if held is not None), False)


def _held(folder: str) -> bool | None:
    try:
        names = [name.lower() for name in os.listdir(folder) if not is_hidden(name)]
    except OSError:  # the walk will tell
        return None
    if any(name.endswith(IMAGE_SUFFIXES) for name in names):
        return False
    return True if any(name.endswith(VIDEO_SUFFIXES) for name in names) else None


def _rate(fps: float | str | None) -> Fraction | None:
    if fps is None:
        return None
    try:
        rate = Fraction(str(fps))
    except (ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if isinstance(fps, bool) or rate <= 0:
        raise ConfigError(f"fps is a number of frames a second, above 0, got {fps!r}")
    return rate


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a key by which 2 stands before 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


def _state(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
