"""Packs a folder of images, one sub-folder a class, into a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storeds.errors import ConfigError, RecordError, StoreNotFoundError
from storeds.ops.progress import Progress, ProgressHook
from storeds.protocols import JSON, Meta, Record
from storeds.stores import open_writer

__all__ = ["IMAGE_SUFFIXES", "pack"]

# The extensions, and their order-free meaning, are those of torchvision's ImageFolder.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
FIELDS = {"image": "image", "label": "int", "key": "str"}
_BATCH = 256


@dataclass(frozen=True)
class _File:
    path: str
    key: str
    label: int


def pack(
    source: str | os.PathLike[str],
    url: str,
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = 1000,
    progress: ProgressHook | None = None,
) -> Meta:
    """Pack an ImageFolder tree into a store.

    Parameters
    ----------
    source : path
        A folder with one sub-folder per class. Order and labels are those that torchvision's ImageFolder gives: classes
        sorted by name, files sorted within each, whatever their depth.
    url : str
        Where the store goes, see `open_writer`. Its fields are ``image`` (the file's bytes, untouched), ``label`` and
        ``key`` (the path below `source`, with ``/``); ``attrs["classes"]`` holds the class names.
    overwrite, resume, commit_every
        As for `open_writer`.
    progress : callable, optional
        Called with a `Progress` now and then.

    Returns
    -------
    Meta
        Of the published store.

    Raises
    ------
    StoreNotFoundError
        There is no such folder.
    ConfigError
        It holds no class folders, or a class without images.
    RecordError
        A file cannot be read; nothing is published.
    """
    root = os.fspath(source)
    classes = _find_classes(root)
    files = _find_files(root, classes)
    done, volume = 0, 0
    with open_writer(url, FIELDS, overwrite=overwrite, resume=resume, commit_every=commit_every) as writer:
        for start in range(writer.count, len(files), _BATCH):
            records = [_read(file) for file in files[start : start + _BATCH]]
            writer.append(records)
            done, volume = start + len(records), volume + sum(len(record["image"]) for record in records)
            if progress is not None:
                progress(Progress(done, len(files), volume))
        names: list[JSON] = list(classes)
        return writer.publish({"classes": names})


def _find_classes(root: str) -> list[str]:
    try:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except NotADirectoryError:
        raise ConfigError(f"{root} is a file; pack expects a folder with one sub-folder per class") from None
    except OSError as error:
        raise StoreNotFoundError(f"no folder at {root}: {error.strerror}") from None
    if not classes:
        raise ConfigError(f"{root} has no sub-folders; pack expects one per class, each with its images")
    return classes


def _find_files(root: str, classes: Sequence[str]) -> list[_File]:
    files = [file for label, name in enumerate(classes) for file in _walk(root, name, label)]
    empty = sorted(set(range(len(classes))) - {file.label for file in files})
    if empty:
        names = ", ".join(classes[label] for label in empty[:8])
        raise ConfigError(
            f"{root}: no images in {names}; remove these folders, or put images ({' '.join(IMAGE_SUFFIXES)}) in"
        )
    return files


def _walk(root: str, name: str, label: int) -> Iterator[_File]:
    for folder, _, names in sorted(os.walk(os.path.join(root, name), followlinks=True)):
        for file in sorted(names):
            if file.lower().endswith(IMAGE_SUFFIXES):
                path = os.path.join(folder, file)
                yield _File(path, os.path.relpath(path, root).replace(os.sep, "/"), label)


def _read(file: _File) -> Record:
    try:
        # A FIFO would wait for a writer for ever.
        if not stat.S_ISREG(os.stat(file.path).st_mode):
            raise RecordError(f"{file.path} is no regular file")
        with open(file.path, "rb") as opened:
            return {"image": opened.read(), "label": file.label, "key": file.key}
    except OSError as error:
        raise RecordError(f"{file.path} cannot be read: {error.strerror}") from None
