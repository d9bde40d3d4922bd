"""Detects what a source is, and opens it."""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import Callable, Sized
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from storeds._utils.locations import StoreURL, nearest, redact, sniff
from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError, suggest
from storeds.ops.packing.sources.base import IMAGE_SUFFIXES, PackSource, is_hidden, show
from storeds.ops.packing.sources.coco import CocoSource
from storeds.ops.packing.sources.coco_json import is_coco_file
from storeds.ops.packing.sources.exported import ExportedSource, is_exported
from storeds.ops.packing.sources.folders import FlatFolderSource, ImageFolderSource
from storeds.ops.packing.sources.list_columns import PATH_COLUMNS
from storeds.ops.packing.sources.manifests import JsonIndexSource, ManifestSource
from storeds.ops.packing.sources.masks import MaskFolderSource, find_mask_folders
from storeds.ops.packing.sources.originals import dataset_source
from storeds.ops.packing.sources.stores import StoreSource
from storeds.ops.packing.sources.tables import SAVED_FILES, TABLE_SUFFIXES, TableSource
from storeds.ops.packing.sources.tars import TarSource, is_pattern
from storeds.ops.packing.sources.text import Dialect, is_token_file
from storeds.ops.packing.sources.videos import VIDEO_SUFFIXES, FrameFolderSource, VideoSource
from storeds.ops.packing.sources.voc import VocSource, find_voc_folders
from storeds.ops.packing.sources.yolo import YoloSource
from storeds.ops.packing.sources.yolo_data import is_yolo_file, is_yolo_folder
from storeds.protocols import Backend

__all__ = ["KINDS", "SourceKind", "open_source"]

SourceKind: TypeAlias = Literal[
    "imagefolder",
    "flat",
    "masks",
    "csv",
    "jsonl",
    "index",
    "coco",
    "table",
    "tar",
    "store",
    "dataset",
    "videos",
    "frames",
    "yolo",
    "voc",
    "exported",
]

_SOURCES: dict[str, Callable[..., PackSource]] = {
    "imagefolder": ImageFolderSource,
    "flat": FlatFolderSource,
    "masks": MaskFolderSource,
    "csv": partial(ManifestSource, format="csv"),
    "jsonl": partial(ManifestSource, format="jsonl"),
    "index": JsonIndexSource,
    "coco": CocoSource,
    "table": TableSource,
    "tar": TarSource,
    "store": StoreSource,
    "dataset": dataset_source,
    "videos": VideoSource,
    "frames": FrameFolderSource,
    "yolo": YoloSource,
    "voc": VocSource,
    "exported": ExportedSource,
}
KINDS: tuple[str, ...] = get_args(SourceKind)
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "index",
    **dict.fromkeys(TABLE_SUFFIXES, "table"),
    ".tar": "tar",
    ".gz": "tar",
    ".tgz": "tar",
    ".yaml": "yolo",
    ".yml": "yolo",
    **dict.fromkeys(VIDEO_SUFFIXES, "videos"),
}
_TEXTS = (".txt", ".token")
_TABLE_DEPTH = 3
_TRIED = 8  # sub-folders that are looked into


def open_source(source: Any, *, kind: str | None = None, **options: Any) -> PackSource:
    """Open a source of records for `pack`.

    Parameters
    ----------
    source : path, URL or object
        One of: a folder with one sub-folder per class, or with images only; a folder of images beside one of masks; a
        data.yaml or a folder of YOLO; a folder of Pascal VOC; a folder of videos, or one video; a .csv, .tsv, .jsonl,
        .ndjson, .json (COCO or an index) or .tar file; a .txt file that begins like CSV; a glob, a range or a list of tar files; the URL or the file of a store, or a `Backend`; a dataset; a `PackSource`, which is returned.
    kind : str, optional
        One of ``KINDS``, if detection fails or is wrong.
    **options
        Arguments of the source's class.

    Raises
    ------
    StoreNotFoundError
        Nothing exists at the path.
    ConfigError
        The source is ambiguous or not supported; the kind or an option is unknown.
    """
    if kind is not None and kind not in _SOURCES:
        raise ConfigError(f"unknown kind of source {kind!r}; {suggest(kind, KINDS, 'kinds')}")
    if kind is None and _is_source(source):
        if options:
            raise ConfigError(f"a {type(source).__name__} is already a source and takes no {', '.join(options)}")
        ready: PackSource = source
        return ready
    kind = kind or _detect(source, include_hidden=bool(options.get("include_hidden")))
    if kind in ("imagefolder", "flat") and options.get("label") is not None:
        kind = _with_label(source, kind, label=bool(options.pop("label")))
    if kind not in ("tar", "store", "dataset") and not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"kind={kind!r} needs a path, not a {type(source).__name__}")
    make = _SOURCES[kind]
    _check_options(kind, make, options)
    return make(source, **options)


def _with_label(source: Any, kind: str, *, label: bool) -> str:
    if label and kind == "flat":
        raise ConfigError(
            f"{source} contains only images, and no sub-folder or list gives their labels; remove label=True (--label)"
        )
    return "imagefolder" if label else "flat"


def _is_source(source: Any) -> bool:
    return not isinstance(source, type) and all(hasattr(source, name) for name in ("problems", "fingerprint", "read"))


def _check_options(kind: str, make: Callable[..., PackSource], options: dict[str, Any]) -> None:
    parameters = list(inspect.signature(make).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters if parameter.name != "format"]
    for name in options:
        if name not in known:
            raise ConfigError(f"a source of kind {kind} has no option {name!r}; {suggest(name, known, 'options')}")


def _detect(source: Any, *, include_hidden: bool) -> str:
    if isinstance(source, (str, os.PathLike)):
        return _detect_path(os.fspath(source), include_hidden=include_hidden)
    if isinstance(source, Backend):
        return "store"
    if isinstance(source, (list, tuple)) and source and all(isinstance(item, (str, os.PathLike)) for item in source):
        if all(os.fspath(item).lower().endswith(".tar") for item in source):
            return "tar"
        raise ConfigError("a list of paths is a source only if all are .tar files; write other files into a manifest")
    is_dataset = not isinstance(source, dict) or type(source).__name__ == "DatasetDict"
    if callable(getattr(source, "__getitem__", None)) and isinstance(source, Sized) and is_dataset:
        return "dataset"
    raise ConfigError(
        f"a {type(source).__name__} is not a source: expected a path, a URL, or a dataset with __getitem__ and __len__"
    )


def _detect_path(path: str, *, include_hidden: bool) -> str:
    if StoreURL.parse(path).scheme is not None:
        return "store"
    by_suffix = _SUFFIXES.get(os.path.splitext(path)[1].lower())
    if by_suffix == "tar" and is_pattern(path):
        return "tar"
    try:
        mode = os.stat(path).st_mode
        found = _detect_content(path) or by_suffix if stat.S_ISREG(mode) else None
        found = "coco" if found == "index" and is_coco_file(path) else found
        entries = list(os.scandir(path)) if stat.S_ISDIR(mode) else []
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"nothing exists at {show(path)}: {nearest(os.path.abspath(path))}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreNotFoundError(f"{redact(show(path))} cannot be inspected: {reason}") from None
    if stat.S_ISDIR(mode):
        known = _detect_known(path)
        if known is not None:
            return known
        if _is_saved_dataset(entries) or _contains_tables(path, _TABLE_DEPTH):
            return "table"
        return "videos" if _contains_videos(path) else _detect_folder(path, entries, include_hidden=include_hidden)
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{show(path)} is neither a folder nor a regular file")
    if found is None:
        raise ConfigError(
            f"{show(path)} ends in none of {', '.join(_SUFFIXES)}, and it is not a store or a tar file; pass kind= "
            f"({', '.join(KINDS)}) if it is one of these"
        )
    return found


def _detect_known(path: str) -> str | None:
    """Return the kind of a folder whose files and folders have the names of a known format, or None."""
    if is_exported(path):
        return "exported"
    if is_yolo_folder(path):
        return "yolo"
    return "voc" if find_voc_folders(path) else None


def _detect_content(path: str) -> str | None:
    if sniff(path) is not None:
        return "store"
    if is_yolo_file(path):
        return "yolo"
    with open(path, "rb") as file:
        head = file.read(262)
    if head.startswith((b"PAR1", b"ARROW1")):
        return "table"
    if head[257:] == b"ustar":
        return "tar"
    return "csv" if path.lower().endswith(_TEXTS) and _has_header(path) else None


def _has_header(path: str) -> bool:
    """Whether a text file begins with column names, one of which is a usual one for paths, or with a caption of Flickr8k."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        sample = file.read(4096)
    if is_token_file(sample):
        return True
    header = Dialect().complete(sample, PATH_COLUMNS).header(sample)
    return any(name.strip().lower() in PATH_COLUMNS for name in header)


def _is_saved_dataset(entries: list[os.DirEntry[str]]) -> bool:
    """Whether a folder was written by ``save_to_disk`` of 🤗 datasets: one dataset, or one dataset per split."""
    names = {entry.name for entry in entries}
    return "dataset_dict.json" in names or names.issuperset(SAVED_FILES)


def _inspect(folder: str) -> tuple[str | None, list[str]]:
    """Return what the files directly in a folder are (images, table or videos), and its sub-folders, sorted."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        names = [entry.name.lower() for entry in entries if not is_hidden(entry.name)]
        inside = [entry.path for entry in entries if not is_hidden(entry.name) and _is_folder(entry)]
    except OSError:  # the source that lists the folder reports why
        return None, []
    for kind, suffixes in (("images", IMAGE_SUFFIXES), ("table", (".parquet",)), ("videos", VIDEO_SUFFIXES)):
        if any(name.endswith(suffixes) for name in names):
            return kind, inside
    return None, inside


def _contains_tables(folder: str, depth: int) -> bool:
    """Whether `folder`, or the first below it with images or Parquet files, contains Parquet files and no images."""
    kind, inside = _inspect(folder)
    if kind in ("images", "table"):
        return kind == "table"
    return depth > 0 and any(_contains_tables(path, depth - 1) for path in inside[:8])


def _contains_videos(folder: str) -> bool:
    """Whether `folder`, or the first sub-folder with images or videos, contains videos and no images."""
    kind, inside = _inspect(folder)
    kinds = [kind] if kind is not None else (_inspect(path)[0] for path in inside)
    return next((found for found in kinds if found is not None), None) == "videos"


def _detect_folder(path: str, entries: list[os.DirEntry[str]], *, include_hidden: bool) -> str:
    folders, images, others, hidden = [], [], [], []
    for entry in entries:
        if is_hidden(entry.name) and not include_hidden:
            hidden.append(entry.name)
        elif _is_folder(entry):
            folders.append(entry.name)
        elif entry.name.lower().endswith(IMAGE_SUFFIXES):
            images.append(entry.name)
        else:
            others.append(entry.name)
    _refuse_coco(path, others, folders)
    for names in (folders, images, others, hidden):
        names[:] = sorted(map(show, names))
    if folders and images:
        raise ConfigError(
            f"{show(path)} contains {counted(len(images), 'image')} ({some(images)}) and {counted(len(folders), 'folder')} "
            f"({some(folders)}); pass kind='imagefolder' to use the folders as classes and leave these images out, or "
            "kind='flat' to pack all images without labels"
        )
    if folders:
        return _detect_masks(path) or "imagefolder"
    if images:
        return "flat"
    held = f"only {some(others)}; pass one of these files" if others else "nothing"
    held += f"; {some(hidden)} is hidden and left out without --include-hidden" if hidden else ""
    raise ConfigError(f"{show(path)} has no sub-folders and no images ({' '.join(IMAGE_SUFFIXES)}), {held}")


def _refuse_coco(path: str, files: list[str], folders: list[str]) -> None:
    """Raise ConfigError if a folder has annotations of COCO, itself or in a sub-folder, which no kind of folder reads."""
    names = list(files)
    for folder in sorted(folders)[:_TRIED]:
        try:
            names += [f"{folder}/{name}" for name in os.listdir(os.path.join(path, folder))]
        except OSError:  # the source that lists the folder reports why
            continue
    for name in sorted(name for name in names if name.lower().endswith(".json")):
        file = os.path.join(path, name)
        if os.path.isfile(file) and is_coco_file(file):
            raise ConfigError(
                f"{show(path)} contains the annotations of COCO in {show(name)}; pack {show(file)} to get each image with its "
                "annotations, or pass kind='imagefolder' or 'flat' (--kind) to pack the images without them"
            )


def _detect_masks(path: str) -> str | None:
    """Return ``masks`` for the folders of a known data set, None without masks; raise ConfigError if it is not certain."""
    found = find_mask_folders(path)
    if found is None or found.known_as:
        return None if found is None else "masks"
    _, images, masks = found.pairs[0]
    raise ConfigError(
        f"{show(path)} contains images in {show(images)} and in {show(masks)}, which may be their masks; pass kind='masks' "
        "(storeds pack SOURCE URL --kind masks) to pack each image with its mask, or kind='imagefolder' (--kind imagefolder) "
        "to use the folders as classes"
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
