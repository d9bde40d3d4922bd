"""Opens a folder of images, or tar shards: as the layout that the user names, or as what it certainly is."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import xxhash

from storeds._utils.globs import pattern_of
from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path, file_url
from storeds.backends.engine import Engine
from storeds.backends.raw import BackendOptions
from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.explain import Reading, undecided
from storeds.layouts.files.class_names import unique_classes
from storeds.layouts.files.detect import kind_of_path
from storeds.layouts.files.listing import find
from storeds.layouts.files.reading import FilesOpener
from storeds.layouts.files.walk import is_folder, is_text, names_of, show
from storeds.layouts.presets import PRESETS, presets_of
from storeds.protocols import Meta
from storeds.records.canonical_json import canonical_json
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


def _opener(url: str | StoreURL, *, layout: str | None = None, **keywords: Any) -> FilesOpener:
    parsed = StoreURL.parse(url)
    path, in_url = file_path(parsed)
    path = pattern_of(parsed) or path
    options = parse_options(FilesOptions, in_url, keywords, parsed).changed()
    if "classes" in options:
        options["classes"] = unique_classes(options["classes"])
    if not is_text(path):
        raise ConfigError(f"{show(path)}: its name is not valid UTF-8; rename it")
    if layout is not None and layout not in _LAYOUTS:
        raise FormatError(f"{show(path)} is a folder or a tar file, and no store of layout {layout!r}")
    listed = find(path, options, layout, lambda: _checked(layout or _recognised(path, options), path, options))
    place, why = listed.place, None
    if layout is None:
        why = PRESETS[place.kind].certain
        _LOG.info("%s is opened with layout %r: %s", place.url, place.kind, why)
    for note in listed.notes:
        _LOG.warning("%s: %s", place.url, note)
    id_ = xxhash.xxh3_128_hexdigest(canonical_json([place.kind, listed.state]).encode())
    meta = Meta(id_, listed.build, listed.count, place.kind, listed.fields, listed.attrs)
    return FilesOpener(place, meta, listed.state, why, listed)


def _checked(kind: str, path: str, options: Mapping[str, Any]) -> str:
    """Return the name of a layout; raises ConfigError for an option that it has not."""
    known = list(inspect.signature(import_object(PRESETS[kind].options)).parameters)[1:]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"{show(path)}: layout {kind!r} has no option {name!r}; {suggest(name, known, 'options')}"
            )
    return kind


def _recognised(path: str, options: Mapping[str, Any]) -> str:
    """Return the layout of a path; raises ConfigError or FormatError with lines to paste."""
    name = os.path.basename(path) or "packed"
    packs = f"`storeds pack {show(path)} {show(name)}.lmdb` makes a store"
    try:
        kind = kind_of_path(path, "layout")
    except ConfigError as error:
        if not os.path.isdir(path):
            raise FormatError(f"{show(path)} is neither a folder nor a tar file") from None
        with os.scandir(path) as entries:
            held = sorted(f"{show(entry.name)}/" if is_folder(entry) else show(entry.name) for entry in entries)
        ways = ({"layout": layout, **options} for layout in _LAYOUTS)
        readings = [Reading(arguments, partial(FILES, path, **arguments)) for arguments in ways]
        why = str(error).removeprefix(f"{show(path)} ")
        raise undecided(file_url("files", path), path, held, readings, why, f"If no layout fits, {packs}") from None
    if kind == "store":
        raise FormatError(f"{show(path)} is a store of another engine: open it as {show(path)}, without files://")
    if kind not in _LAYOUTS:
        images = "; layout='flat' reads its images alone" if os.path.isdir(path) else ""
        raise FormatError(
            f"{show(path)} is a source of kind {kind!r}, which no store reads as it is: {packs} of it{images}"
        )
    return kind


FILES = Engine(_opener, holds_foreign=lambda url, options: True, presets=_LAYOUTS)
"""Opens folders and tar shards; the options are `FilesOptions`."""
