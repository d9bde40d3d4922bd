"""Opens a folder of images, or tar shards: as the layout that the user names, or as what it certainly is."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec import structs

from storeds._utils.files import stat_store
from storeds._utils.globs import pattern_of
from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path
from storeds.backends.engine import Engine
from storeds.backends.raw import BackendOptions
from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.files.class_names import unique_classes
from storeds.layouts.files.detect import kind_of_path
from storeds.layouts.files.listing import Listed, Place, find, find_again, find_first
from storeds.layouts.files.reading import FilesStore
from storeds.layouts.files.walk import is_folder, is_text, names_of, show
from storeds.layouts.pattern import Pattern
from storeds.layouts.presets import PRESETS, presets_of
from storeds.layouts.tree import FileTreeLocation, Found, Tree, TreeOpener, meta_of
from storeds.registry import import_object

__all__ = ["FILES", "FilesOptions"]

_LOG = logging.getLogger("storeds")
_LAYOUTS = presets_of("files")


def _path_or_names(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


class FilesOptions(BackendOptions, frozen=True):
    """Options of folders and of tar shards; each layout has those of the source of `pack` of the same name.

    Attributes
    ----------
    classes : list of str or path or None
        The class names in the order of their labels, or a file of them.
    allow_outside : bool
        Follow links that lead out of the folder.
    allow_empty : bool
        Accept classes without images.
    image_folder, mask_folder, image_suffix, mask_suffix : str or None
        Which folders hold images and masks, and how the names of both end before the file suffix.
    ignore_index : int or None
        The class id of pixels without a class.
    extensions : list of str or None
        Of members of tar files: those that every sample needs.
    key_with_shard : bool
        Prefix keys with the name of their shard.
    label : bool
        False to read tar files without labels.
    label_column : str or None
        The extension of the members that contain labels.
    """

    classes: list[str] | str | None = None
    allow_outside: bool = False
    allow_empty: bool = False
    image_folder: str | None = None
    mask_folder: str | None = None
    image_suffix: str | None = None
    mask_suffix: str | None = None
    ignore_index: int | None = None
    extensions: list[str] | None = None
    key_with_shard: bool = False
    label: bool = True
    label_column: str | None = None

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classes": _path_or_names, "extensions": names_of}


@dataclass(frozen=True)
class FilesLocation(FileTreeLocation[FilesOptions]):
    """A folder, a tar file, or a pattern of tar files. Each file is open only while it is read, so no handle is."""

    engine = "files"

    def key(self) -> Hashable:
        # docstring inherited
        if not os.path.lexists(self.path) and any(mark in self.path for mark in "*?[{"):
            return "files", self.path  # a pattern: each file is looked at when it is read
        status = stat_store(self.path, self.url)
        return "files", status.st_dev, status.st_ino

    def open(self) -> object:
        # docstring inherited
        return object()

    def close(self, handle: object, /) -> None:
        # docstring inherited
        return

    @contextmanager
    def tree(self, handle: object, /) -> Iterator[FilesTree]:
        # docstring inherited
        yield FilesTree(self)

    def store(self, handle: object, found: Found, /) -> FilesStore:
        # docstring inherited
        listed = found.kept
        if listed is None:
            listed = find_again(Place(self.path, found.meta.layout, self.given()), found.plan)
        return FilesStore(self, handle, found, listed)


class FilesTree(Tree):
    """The files of a folder, or the members of tar files."""

    def __init__(self, location: FilesLocation) -> None:
        self._path, self._layout, self._options = location.path, location.layout, location.given()
        self._looked = False
        self._last: Listed | None = None

    def _listed(self) -> Listed | None:
        """Return the rows that the cache folder holds, if nothing changed."""
        if not self._looked:
            self._looked = True
            self._last = find(self._path, self._options, self._layout)
        return self._last

    def recognise(self) -> tuple[str | None, str]:
        # docstring inherited; raises FormatError for what no layout reads
        listed, shown = self._listed(), show(self._path)
        if listed is not None:
            return listed.place.kind, PRESETS[listed.place.kind].certain
        try:
            kind = kind_of_path(self._path, "layout")
        except ConfigError as error:
            if not os.path.isdir(self._path):
                raise FormatError(f"{shown} is neither a folder nor a tar file") from None
            return None, str(error).removeprefix(f"{shown} ")
        if kind == "store":
            raise FormatError(f"{shown} is a store of another engine: open it as {shown}, without files://")
        if kind not in _LAYOUTS:
            images = "; layout='flat' reads its images alone" if os.path.isdir(self._path) else ""
            raise FormatError(
                f"{shown} is a source of kind {kind!r}, which no store reads as it is: {self._packs()} of it{images}"
            )
        return kind, PRESETS[kind].certain

    def _packs(self) -> str:
        name = os.path.basename(self._path) or "packed"
        return f"`storeds pack {show(self._path)} {show(name)}.lmdb` makes a store"

    def otherwise(self) -> str:
        # docstring inherited
        return f"If no layout fits, {self._packs()}"

    def entries(self) -> list[str]:
        # docstring inherited
        with os.scandir(self._path) as entries:
            return sorted(f"{show(entry.name)}/" if is_folder(entry) else show(entry.name) for entry in entries)

    def candidates(self) -> Iterator[dict[str, Any]]:
        # docstring inherited
        yield from ({"layout": layout} for layout in _LAYOUTS)

    def pattern(self, layout: str) -> Pattern | None:
        # docstring inherited; there is none, and the options must be those of the layout
        for name in self._options:
            known = list(inspect.signature(import_object(PRESETS[layout].options)).parameters)[1:]
            if name not in known:
                raise ConfigError(
                    f"{show(self._path)}: layout {layout!r} has no option {name!r}; {suggest(name, known, 'options')}"
                )
        return None

    def find(self, layout: str, pattern: Pattern | None) -> Found:
        # docstring inherited
        place = Place(self._path, layout, self._options)
        listed = self._listed() or find_first(place, self._layout)
        for note in listed.notes:
            _LOG.warning("%s: %s", place.url, note)
        identity = [layout, listed.state]
        meta = meta_of(layout, identity, listed.build, listed.count, listed.fields, listed.attrs)
        return Found(meta, None, listed.state, (*listed.left_out, *listed.faults), listed)


def _opener(url: str | StoreURL, *, layout: str | None = None, **keywords: Any) -> TreeOpener:
    parsed = StoreURL.parse(url)
    path, in_url = file_path(parsed)
    path = pattern_of(parsed) or path
    settings = parse_options(FilesOptions, in_url, keywords, parsed)
    if settings.classes is not None:
        settings = structs.replace(settings, classes=unique_classes(settings.classes))
    if not is_text(path):
        raise ConfigError(f"{show(path)}: its name is not valid UTF-8; rename it")
    if layout is not None and layout not in _LAYOUTS:
        raise FormatError(f"{show(path)} is a folder or a tar file, and no store of layout {layout!r}")
    return TreeOpener(FilesLocation(path, settings, layout))


FILES = Engine(_opener, holds_foreign=lambda url, options: True, presets=_LAYOUTS)
"""Opens folders and tar shards; the options are `FilesOptions`."""
