"""Finds out what a source of `pack` is, and opens it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sized
from typing import Any

from storeds import registry
from storeds._utils.urls import REMOTE, StoreURL
from storeds.backends.opening import engine_of_suffix
from storeds.backends.staged.opening import PACKED, cache_of
from storeds.backends.staged.tree import copy_files, holds_versions
from storeds.errors import ConfigError, suggest
from storeds.formats.format import Format
from storeds.layouts.files.detect import kind_of_path
from storeds.layouts.files.rows import Rows
from storeds.layouts.files.tars import in_ranges
from storeds.protocols import Backend

__all__ = ["open_source"]


def open_source(
    source: Any, *, kind: str | None = None, max_side: int | None = None, quality: int | None = None, **options: Any
) -> Rows:
    """Open a source of records for `pack`.

    Parameters
    ----------
    source : path, URL or object
        Also a URL of another machine, ``s3://bucket/photos/`` or ``https://host/train-{000..009}.tar``: its files are copied first,
        to the folder in ``$STOREDS_STAGE``. One of: a folder with one sub-folder per class, or with images only; a folder of images beside one of masks; a
        data.yaml or a folder of YOLO; a folder of Pascal VOC; a folder of videos, or one video; a .csv, .tsv, .jsonl,
        .ndjson, .parquet or .tar file; a .json file of COCO; a glob, a range or a list of tar files; a folder that
        `export` wrote; the URL or the file of a store, or a `Backend`; a dataset; `storeds.formats.Rows`, which are returned.
    kind : str, optional
        The name of a format, if detection fails or is wrong: one of ``storeds.registry.FORMATS.names()``.
    max_side, quality : int, optional
        As for `storeds.pack`, for sources that encode their images themselves.
    **options
        Options of the source.

    Returns
    -------
    Rows

    Raises
    ------
    StoreNotFoundError
        Nothing exists at the path.
    ConfigError
        The source is ambiguous or not supported; the kind or an option is unknown.
    """
    if isinstance(source, Rows):
        if options or kind is not None:
            raise ConfigError(f"Rows take no {', '.join([*options, *([] if kind is None else ['kind'])])}")
        return source
    source = _local(source)
    kind = kind or _detect(source)
    format: Format = registry.FORMATS.get(kind)
    if format.read is None:
        raise ConfigError(
            f"export writes format {kind!r}, and pack does not read it; `storeds formats` lists what it reads"
        )
    if not format.takes_objects:
        _check_path(source, kind)
    known = dict(list(inspect.signature(format.read).parameters.items())[1:])
    if format.encodes:
        options = {**options, "max_side": max_side, "quality": quality}
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
        raise ConfigError(f"a source of kind {kind} has no option {unknown!r}; {suggest(unknown, known, 'options')}")
    return format.read(source, **options)


def _local(source: Any) -> Any:
    """Return a source on this machine: files of another one are copied, in the folder of staged copies."""
    given = [source] if isinstance(source, (str, os.PathLike)) else source
    if not isinstance(given, (list, tuple)) or not any(map(_is_remote, given)):
        return source
    urls = [url for each in given for url in in_ranges(os.fspath(each))]
    if not all(map(_is_remote, urls)):
        raise ConfigError("a list of files is of this machine, or of another one, not of both")
    if len(urls) == 1 and _is_store(StoreURL.parse(urls[0])):
        return source
    cache = cache_of(StoreURL.parse(urls[0]), None, PACKED)
    return os.fspath(copy_files(urls, cache))


def _is_remote(source: Any) -> bool:
    return isinstance(source, str) and StoreURL.parse(source).scheme in REMOTE


def _is_store(url: StoreURL) -> bool:
    if not url.path.endswith("/"):
        return engine_of_suffix(url.path) is not None
    return "version" in url.options or holds_versions(f"{url.scheme}://{url.path}")


def _check_path(source: Any, kind: str) -> None:
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"kind={kind!r} needs a path, not a {type(source).__name__}")
    if "\0" in os.fspath(source):
        raise ConfigError(f"{source!r} is no path: it has a NUL character")


def _detect(source: Any) -> str:
    if isinstance(source, (str, os.PathLike)):
        return kind_of_path(os.fspath(source))
    if isinstance(source, Backend):
        return "store"
    if isinstance(source, (list, tuple)) and source and all(isinstance(item, (str, os.PathLike)) for item in source):
        if all(os.fspath(item).lower().endswith(".tar") for item in source):
            return "tar"
        raise ConfigError(
            "a list of paths is a source only if all are .tar files; list other files in a CSV or JSONL manifest"
        )
    is_dataset = not isinstance(source, dict) or type(source).__name__ == "DatasetDict"
    if callable(getattr(source, "__getitem__", None)) and isinstance(source, Sized) and is_dataset:
        return "dataset"
    raise ConfigError(
        f"a {type(source).__name__} is not a source: expected a path, a URL, or a dataset with __getitem__ and __len__"
    )
