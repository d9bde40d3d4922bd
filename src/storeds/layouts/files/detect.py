"""Finds out what a folder or a file holds, by names and first bytes."""

from __future__ import annotations

import os
import re
import stat
from glob import escape, glob

from storeds import registry
from storeds._utils.files import TAR, engine_of_file, nearest
from storeds._utils.text import counted, some
from storeds._utils.urls import StoreURL
from storeds.errors import ConfigError, FormatError, StoreNotFoundError
from storeds.layouts.files.masks import find_mask_folders
from storeds.layouts.files.walk import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    files_by_kind,
    folders_in,
    is_folder,
    is_hidden,
    kind_of_files,
    show,
)
from storeds.redaction import redact

__all__ = ["is_coco_file", "kind_of_path"]

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
_VERBS = {"kind": "pack", "layout": "read"}
_TRIED = 8  # sub-folders that are looked into
_TRIED_JSON = 100  # files that may be those of COCO; a folder may have one for each image


def kind_of_path(path: str, option: str = "kind") -> str:
    """Return the name of the format that reads a path, one of ``storeds.registry.FORMATS.names()``.

    Parameters
    ----------
    path : str
        Also a URL, or a pattern of tar files.
    option : str
        The argument with which the caller's user can decide, for messages.

    Raises
    ------
    StoreNotFoundError
        Nothing exists there, or it cannot be inspected.
    ConfigError, FormatError
        It may be several things, or is none that is known.
    """
    if StoreURL.parse(path).scheme is not None:
        return "store"
    by_suffix = _SUFFIXES.get(os.path.splitext(path)[1].lower())
    if by_suffix == "tar" and not os.path.lexists(path) and any(mark in path for mark in "*?[{"):
        return "tar"
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
            found = _known(path, entries, option)
        elif stat.S_ISREG(mode):
            found = _kind_of_content(path) or by_suffix
        else:
            raise ConfigError(f"{show(path)} is neither a folder nor a regular file")
    except (FileNotFoundError, NotADirectoryError):
        raise StoreNotFoundError(f"nothing exists at {show(path)}: {nearest(os.path.abspath(path))}") from None
    except OSError as error:
        raise StoreNotFoundError(f"{redact(show(path))} cannot be inspected: {error.strerror}") from None
    found = found or _plugin_for(path)
    if found is None and stat.S_ISDIR(mode):
        return _kind_of_folder(path, entries, option)
    if found is None:
        raise ConfigError(
            f"{show(path)} ends in none of {', '.join(_SUFFIXES)}, and it is not a store, a tar file or a file of COCO; pass "
            f"{option}= ({', '.join(registry.FORMATS.names())}) if it is one of these"
        )
    return found


def _plugin_for(path: str) -> str | None:
    """Return the format of a plug-in that recognises a path."""
    for name in registry.FORMATS.names():
        if not registry.FORMATS.is_built_in(name):
            detect = registry.FORMATS.get(name).detect
            if detect is not None and detect(path):
                return name
    return None


def _known(path: str, entries: list[os.DirEntry[str]], option: str) -> str | None:
    """Return the kind of a folder whose files and folders have the names of a known format, or None."""
    names = {entry.name for entry in entries}
    if {"storeds.json", "metadata.jsonl"} <= names:
        return "folder"
    has_labels = {"images", "labels"} <= names and kind_of_files(os.path.join(path, "labels"), _LABELS) == "yolo"
    if has_labels or not names.isdisjoint(("data.yaml", "data.yml")):
        return "yolo"
    devkit = os.path.join(path, "VOCdevkit")
    inside = [path, *(entry.path for entry in entries if is_folder(entry))]
    inside += [os.path.join(devkit, name) for name in os.listdir(devkit)] if os.path.isdir(devkit) else []
    if any(all(os.path.isdir(os.path.join(at, name)) for name in ("JPEGImages", "Annotations")) for at in inside):
        return "voc"
    # What save_to_disk of 🤗 datasets wrote: one dataset, or one dataset per split.
    if "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names:
        return "table"
    found = files_by_kind(path, _FILES)
    if len(found) > 1:
        held = ", ".join(show(os.path.relpath(file, path)) for file in found.values())
        choices = " or ".join(f"{option}={_KINDS[kind]!r}" for kind in found if option == "kind" or not kind)
        which = f"say which to {_VERBS[option]} with {choices} (--{option}); the others are left out, and counted"
        raise ConfigError(
            f"{show(path)} contains files of several kinds: {held}; "
            f"{which if choices else 'storeds pack --kind makes a store of those of one kind'}"
        )
    return next(iter(found), None)


def _kind_of_content(path: str) -> str | None:
    suffix = os.path.splitext(path)[1].lower()
    if engine_of_file(path) is not None:
        return "store"
    if suffix in (".yaml", ".yml"):
        return "yolo"
    if suffix == ".json":
        return "coco" if is_coco_file(path) else None
    with open(path, "rb") as file:
        head = file.read(262)
    if head.startswith((b"PAR1", b"ARROW1")):
        return "table"
    return "tar" if head[257:] == TAR else None


_LOOKED_AT = 1 << 20  # bytes at each end of a file; LVIS ends in 600 kB of categories
_SIGNS = (rb'"images"\s*:\s*\[', rb'"annotations"\s*:\s*\[|"image_id"\s*:', rb'"categories"\s*:\s*\[')


def is_coco_file(path: str) -> bool:
    """Whether a JSON file is one of COCO, from its beginning and its end; False for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            ends = file.read(_LOOKED_AT)
            file.seek(max(os.fstat(file.fileno()).st_size - _LOOKED_AT, len(ends)))
            ends += file.read(_LOOKED_AT)
    except OSError:
        return False
    is_object = ends.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    return is_object and sum(re.search(sign, ends) is not None for sign in _SIGNS) > 1


def _kind_of_folder(path: str, entries: list[os.DirEntry[str]], option: str) -> str:
    seen = [entry for entry in entries if not is_hidden(entry.name)]
    folders = [entry.name for entry in seen if is_folder(entry)]
    files = [show(entry.name) for entry in seen if not is_folder(entry)]
    images = [name for name in files if name.lower().endswith(IMAGE_SUFFIXES)]
    _refuse_coco(path, files, folders, option)
    if folders and images:
        raise ConfigError(
            f"{show(path)} contains {counted(len(images), 'image')} ({some(images)}) and {counted(len(folders), 'folder')} "
            f"({some(map(show, folders))}); pass {option}='imagefolder' to use the folders as classes and leave these images "
            f"out, or {option}='flat' to {_VERBS[option]} all images without labels"
        )
    if folders:
        return _masks_in(path, folders, option) or "imagefolder"
    if images:
        return "flat"
    if any(name.lower().endswith(".tar") for name in files):
        return "tar"
    held = f"only {some(files)}; pass one of these files" if files else "nothing"
    if len(seen) < len(entries):
        held += "; hidden names are left out"
    if option == "layout":
        raise FormatError(
            f"{show(path)} is a folder without data.mdb, so no LMDB environment, and has no images and no tar files, {held}; from "
            "videos or tables, `storeds pack` makes a store"
        )
    raise ConfigError(f"{show(path)} has no sub-folders and no images ({' '.join(IMAGE_SUFFIXES)}), {held}")


def _refuse_coco(path: str, files: list[str], folders: list[str], option: str) -> None:
    """Raise ConfigError if a folder has annotations of COCO, itself or in a sub-folder, which no kind of folder reads."""
    names = [name for name in files if name.lower().endswith(".json")]
    for folder in folders[:_TRIED]:
        names += [os.path.relpath(name, path) for name in glob(os.path.join(escape(path), escape(folder), "*.json"))]
    for name in sorted(names)[:_TRIED_JSON]:
        file = os.path.join(path, name)
        if os.path.isfile(file) and is_coco_file(file):
            raise ConfigError(
                f"{show(path)} contains the annotations of COCO in {show(name)}; pack {show(file)} to get each image with its "
                f"annotations, or pass {option}='imagefolder' or 'flat' (--{option}) to {_VERBS[option]} the images without them"
            )


def _masks_in(path: str, folders: list[str], option: str) -> str | None:
    """Return ``masks`` for the folders of a known data set, None without masks; raise ConfigError if it is not certain."""
    names = [*folders, *glob(os.path.join(escape(path), escape(folders[0]), "*"))]
    if not any(os.path.basename(name).lower() in _BESIDE_MASKS for name in names):
        return None
    found = find_mask_folders(path)
    if found is None:
        return None
    read = {each for _, images, masks in found.pairs for each in (images, masks)}
    is_named = {os.path.basename(each) for each in read} == {"images", "masks"}
    inside = {f"{prefix}{name}" for prefix, _, _ in found.pairs for name in folders_in(os.path.join(path, prefix))}
    if found.mask_suffix:  # those of Cityscapes
        return "masks"
    if is_named and inside == read:
        return "masks"
    _, images, masks = found.pairs[0]
    raise ConfigError(
        f"{show(path)} contains images in {show(images)} and in {show(masks)}, which may be their masks; pass {option}='masks' "
        f"(--{option} masks) to {_VERBS[option]} each image with its mask, or {option}='imagefolder' (--{option} imagefolder) "
        "to use the folders as classes"
    )
