"""Sources of rows for `pack`: folders, lists, tables, tar shards, videos, annotations, datasets and stores.

`open_source` finds out what a source is, and opens it. Each source is a function of one module that returns
`~storeds.ops.packing.rows.Rows`. Read ``folders.py`` first.
"""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import Sized
from glob import escape, glob
from typing import Any

from storeds import registry
from storeds._utils.files import engine_of_file, nearest
from storeds._utils.text import counted, some
from storeds._utils.urls import StoreURL
from storeds.errors import ConfigError, StoreNotFoundError, suggest
from storeds.ops.packing.rows import Rows
from storeds.ops.packing.sources.folders import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    files_by_kind,
    is_folder,
    is_hidden,
    kind_of_files,
    show,
)
from storeds.protocols import Backend
from storeds.redaction import redact

__all__ = ["IMAGE_SUFFIXES", "open_source"]

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "table",
    ".arrow": "table",
    ".tar": "tar",
    ".gz": "tar",
    ".tgz": "tar",
    **dict.fromkeys(VIDEO_SUFFIXES, "videos"),
}
_FILES = {"": IMAGE_SUFFIXES, "table": (".parquet",), "videos": VIDEO_SUFFIXES}
_KINDS = {"": "imagefolder", "table": "table", "videos": "videos"}
_LABELS = {"": IMAGE_SUFFIXES, "yolo": (".txt",)}
_BESIDE_MASKS = ("images", "image", "imgs", "img", "leftimg8bit")
_TRIED = 8  # sub-folders that are looked into
_TRIED_JSON = 100  # files that may be those of COCO; a folder may have one for each image


def open_source(
    source: Any, *, kind: str | None = None, max_side: int | None = None, quality: int | None = None, **options: Any
) -> Rows:
    """Open a source of records for `pack`.

    Parameters
    ----------
    source : path, URL or object
        One of: a folder with one sub-folder per class, or with images only; a folder of images beside one of masks; a
        data.yaml or a folder of YOLO; a folder of Pascal VOC; a folder of videos, or one video; a .csv, .tsv, .jsonl,
        .ndjson, .parquet or .tar file; a .json file of COCO; a glob, a range or a list of tar files; a folder that
        `export` wrote; the URL or the file of a store, or a `Backend`; a dataset; `storeds.ops.packing.rows.Rows`, which are returned.
    kind : str, optional
        The name of a source, if detection fails or is wrong: one of ``storeds.registry.SOURCES.names()``.
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
    kind = kind or _detect(source)
    if kind in ("imagefolder", "flat") and options.get("label") is not None:
        if options["label"] and kind == "flat":
            raise ConfigError(
                f"{source} contains only images, and no sub-folder or list gives their labels; remove label=True (--label)"
            )
        kind = "imagefolder" if options.pop("label") else "flat"
    make = registry.SOURCES.get(kind)
    if kind not in ("tar", "store", "dataset"):
        if not isinstance(source, (str, os.PathLike)):
            raise ConfigError(f"kind={kind!r} needs a path, not a {type(source).__name__}")
        if "\0" in os.fspath(source):
            raise ConfigError(f"{source!r} is no path: it has a NUL character")
    known = dict(list(inspect.signature(make).parameters.items())[1:])
    encodes = "max_side" in known
    if encodes:
        options = {**options, "max_side": max_side, "quality": quality}
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
        raise ConfigError(f"a source of kind {kind} has no option {unknown!r}; {suggest(unknown, known, 'options')}")
    rows: Rows = make(source, **options)
    rows.is_encoded = encodes
    return rows


def _detect(source: Any) -> str:
    if isinstance(source, (str, os.PathLike)):
        return _detect_path(os.fspath(source))
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


def _detect_path(path: str) -> str:
    if StoreURL.parse(path).scheme is not None:
        return "store"
    by_suffix = _SUFFIXES.get(os.path.splitext(path)[1].lower())
    if by_suffix == "tar" and not os.path.lexists(path) and any(mark in path for mark in "*?[{"):
        return "tar"
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
            found = _detect_known(path, {entry.name for entry in entries})
        elif stat.S_ISREG(mode):
            found = _detect_content(path) or by_suffix
        else:
            raise ConfigError(f"{show(path)} is neither a folder nor a regular file")
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"nothing exists at {show(path)}: {nearest(os.path.abspath(path))}") from None
    except OSError as error:
        raise StoreNotFoundError(f"{redact(show(path))} cannot be inspected: {error.strerror}") from None
    found = found or _detect_plugin(path)
    if found is None and stat.S_ISDIR(mode):
        return _detect_folder(path, entries)
    if found is None:
        raise ConfigError(
            f"{show(path)} ends in none of {', '.join(_SUFFIXES)}, and it is not a store, a tar file or a file of COCO; pass "
            f"kind= ({', '.join(registry.SOURCES.names())}) if it is one of these"
        )
    return found


def _detect_plugin(path: str) -> str | None:
    """Return the source of a plug-in that recognises a path."""
    for name in registry.SOURCES.names():
        if not registry.SOURCES.is_built_in(name):
            detect = getattr(registry.SOURCES.get(name), "detect", None)
            if detect is not None and detect(path):
                return name
    return None


def _detect_known(path: str, names: set[str]) -> str | None:
    """Return the kind of a folder whose files and folders have the names of a known format, or None."""
    if {"storeds.json", "metadata.jsonl"} <= names:
        return "exported"
    has_labels = {"images", "labels"} <= names and kind_of_files(os.path.join(path, "labels"), _LABELS) == "yolo"
    if has_labels or not names.isdisjoint(("data.yaml", "data.yml")):
        return "yolo"
    pairs = (os.path.join(path, "VOCdevkit"), path)
    inside = [path, *(os.path.join(top, name) for top in pairs if os.path.isdir(top) for name in os.listdir(top))]
    if any(all(os.path.isdir(os.path.join(at, name)) for name in ("JPEGImages", "Annotations")) for at in inside):
        return "voc"
    # What save_to_disk of 🤗 datasets wrote: one dataset, or one dataset per split.
    if "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names:
        return "table"
    found = files_by_kind(path, _FILES)
    if len(found) > 1:
        raise ConfigError(
            f"{show(path)} contains files of several kinds: {', '.join(show(os.path.relpath(file, path)) for file in found.values())}; "
            f"say which to pack with {' or '.join(f'kind={_KINDS[kind]!r}' for kind in found)} (--kind); the others are left "
            "out, and counted"
        )
    return next(iter(found), None)


def _detect_content(path: str) -> str | None:
    suffix = os.path.splitext(path)[1].lower()
    if engine_of_file(path) is not None:
        return "store"
    if suffix in (".yaml", ".yml"):
        return "yolo"
    if suffix == ".json":
        from storeds.ops.packing.sources.coco import is_coco_file

        return "coco" if is_coco_file(path) else None
    with open(path, "rb") as file:
        head = file.read(262)
    if head.startswith((b"PAR1", b"ARROW1")):
        return "table"
    return "tar" if head[257:] == b"ustar" else None


def _detect_folder(path: str, entries: list[os.DirEntry[str]]) -> str:
    seen = [entry for entry in entries if not is_hidden(entry.name)]
    folders = [entry.name for entry in seen if is_folder(entry)]
    files = [show(entry.name) for entry in seen if not is_folder(entry)]
    images = [name for name in files if name.lower().endswith(IMAGE_SUFFIXES)]
    _refuse_coco(path, files, folders)
    if folders and images:
        raise ConfigError(
            f"{show(path)} contains {counted(len(images), 'image')} ({some(images)}) and {counted(len(folders), 'folder')} "
            f"({some(map(show, folders))}); pass kind='imagefolder' to use the folders as classes and leave these images "
            "out, or kind='flat' to pack all images without labels"
        )
    if folders:
        return _detect_masks(path, folders) or "imagefolder"
    if images:
        return "flat"
    held = f"only {some(files)}; pass one of these files" if files else "nothing"
    if len(seen) < len(entries):
        held += "; hidden names are left out"
    raise ConfigError(f"{show(path)} has no sub-folders and no images ({' '.join(IMAGE_SUFFIXES)}), {held}")


def _refuse_coco(path: str, files: list[str], folders: list[str]) -> None:
    """Raise ConfigError if a folder has annotations of COCO, itself or in a sub-folder, which no kind of folder reads."""
    names = [name for name in files if name.lower().endswith(".json")]
    for folder in folders[:_TRIED]:
        names += [os.path.relpath(name, path) for name in glob(os.path.join(escape(path), escape(folder), "*.json"))]
    if not names:
        return
    from storeds.ops.packing.sources.coco import is_coco_file

    for name in sorted(names)[:_TRIED_JSON]:
        file = os.path.join(path, name)
        if os.path.isfile(file) and is_coco_file(file):
            raise ConfigError(
                f"{show(path)} contains the annotations of COCO in {show(name)}; pack {show(file)} to get each image with its "
                "annotations, or pass kind='imagefolder' or 'flat' (--kind) to pack the images without them"
            )


def _detect_masks(path: str, folders: list[str]) -> str | None:
    """Return ``masks`` for the folders of a known data set, None without masks; raise ConfigError if it is not certain."""
    names = [*folders, *glob(os.path.join(escape(path), escape(folders[0]), "*"))]
    if not any(os.path.basename(name).lower() in _BESIDE_MASKS for name in names):
        return None
    from storeds.ops.packing.sources.masks import find_mask_folders

    found = find_mask_folders(path)
    if found is None or found.mask_suffix:  # those of Cityscapes
        return None if found is None else "masks"
    _, images, masks = found.pairs[0]
    raise ConfigError(
        f"{show(path)} contains images in {show(images)} and in {show(masks)}, which may be their masks; pass kind='masks' "
        "(storeds pack SOURCE URL --kind masks) to pack each image with its mask, or kind='imagefolder' (--kind imagefolder) "
        "to use the folders as classes"
    )
