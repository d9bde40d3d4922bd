"""Datasets that know which files they read, such as torchvision's ImageFolder: their files are packed as they are."""

from __future__ import annotations

import copy
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds.ops.packing.sources.base import IMAGE_SUFFIXES, Fingerprint, Problem, Texts, file_state, is_text, read_file
from storeds.ops.packing.sources.columns import class_notes
from storeds.protocols import JSON, Field, Record

__all__ = ["FilesSource", "KnownFiles", "find_files"]

# Where datasets of torchvision and of many others keep (path, label), or paths and labels apart.
_PAIRS = ("samples", "imgs", "_samples")
_PATHS = (
    "_image_files",
    "_images",
    "image_files",
    "image_paths",
    "img_paths",
    "filenames",
    "filepaths",
    "files",
    "paths",
)
_LABELS = ("_labels", "targets", "labels")
_TRANSFORMS = ("transform", "transforms", "target_transform")
_NEAR = 3.0  # mean difference of two decoders, of 255
NOT_APPLIED = (
    "its transform is not applied: what is stored are the {what} as they are, to be transformed in training; files=False "
    "packs what the dataset returns instead"
)


@dataclass(frozen=True)
class KnownFiles:
    """The files of a dataset, in its order.

    Parameters
    ----------
    paths : list of str
        Absolute.
    labels : list of int
    classes : list of str or None
    root : str
        Keys are the paths below it.
    notes : tuple of str
    """

    paths: list[str]
    labels: list[int]
    classes: list[str] | None
    root: str
    notes: tuple[str, ...]


def find_files(dataset: Any) -> KnownFiles | None:
    """Return the files of a map-style dataset, or None unless it is certain which they are.

    The first, the middle and the last sample, without the dataset's transforms, must be pairs of the picture in the file
    and its label.
    """
    try:
        listed, bare = _listed(dataset), copy.copy(dataset)
        for name in _TRANSFORMS:
            if getattr(bare, name, None) is not None:
                setattr(bare, name, None)
    except Exception:  # a third party's properties may raise anything
        return None
    if listed is None or not _agrees(bare, *listed):
        return None
    paths, labels = listed
    change = getattr(dataset, "target_transform", None)
    if change is not None:
        labels = [change(label) for label in labels]
        if not all(map(_is_label, labels)):
            return None
    applied = any(getattr(dataset, name, None) is not None for name in ("transform", "transforms"))
    notes = (NOT_APPLIED.format(what="files"),) if applied and not _only_target(dataset) else ()
    return KnownFiles(paths, [int(label) for label in labels], _classes(dataset), _root(dataset, paths), notes)


def _only_target(dataset: Any) -> bool:
    # torchvision sets `transforms` to what applies both others.
    return getattr(dataset, "transform", None) is None and getattr(dataset, "target_transform", None) is not None


def _listed(dataset: Any) -> tuple[list[str], list[Any]] | None:
    for name in _PAIRS:
        pairs = getattr(dataset, name, None)
        if isinstance(pairs, (list, tuple)) and all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
        ):
            return _checked(dataset, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    for name in _PATHS:
        paths = getattr(dataset, name, None)
        labels = next((found for name in _LABELS if _is_column(found := getattr(dataset, name, None))), None)
        if paths is not None and labels is not None and _is_column(paths):
            return _checked(dataset, list(paths), list(labels))
    return None


def _is_column(value: Any) -> bool:
    return isinstance(value, Sized) and isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


def _checked(dataset: Any, paths: list[Any], labels: list[Any]) -> tuple[list[str], list[Any]] | None:
    if not (len(paths) == len(labels) == len(dataset) > 0) or not all(map(_is_label, labels)):
        return None
    if not all(isinstance(path, (str, os.PathLike)) for path in paths):
        return None
    root = getattr(dataset, "root", None)
    root = os.fspath(root) if isinstance(root, (str, os.PathLike)) else ""
    texts = [str(os.fspath(path)) for path in paths]
    if not all(text.lower().endswith(IMAGE_SUFFIXES) and is_text(text) for text in texts):
        return None
    if root and not os.path.isabs(texts[0]) and not os.path.exists(texts[0]):
        texts = [os.path.join(root, text) for text in texts]
    return [os.path.abspath(text) for text in texts], labels


def _is_label(value: Any) -> bool:
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_int or (not isinstance(value, (int, float, str)) and getattr(value, "ndim", None) == 0 and _whole(value))


def _whole(value: Any) -> bool:
    item = value.item()
    return isinstance(item, int) and not isinstance(item, bool)


def _agrees(bare: Any, paths: Sequence[str], labels: Sequence[Any]) -> bool:
    seen = False
    for index in sorted({0, len(paths) // 2, len(paths) - 1}):
        try:
            sample = bare[index]
        except Exception:  # noqa: S112  # a damaged file: another sample tells
            continue
        if not isinstance(sample, (tuple, list)) or len(sample) != 2 or not _is_label(sample[1]):
            return False
        if int(sample[1]) != int(labels[index]) or not _shows(sample[0], paths[index]):
            return False
        seen = True
    return seen


def _shows(value: Any, path: str) -> bool:
    """Whether `value` is the picture in the file at `path`, in whatever form."""
    from PIL import Image

    if isinstance(value, (str, os.PathLike)):
        return os.path.abspath(value) == path
    try:
        if isinstance(value, bytes):
            return value == read_file(path)
        with Image.open(path) as image:
            if isinstance(value, Image.Image):
                return value.size == image.size and value.tobytes() == image.convert(value.mode).tobytes()
            pixels = np.asarray(value)
            if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
                return False
            pixels = np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 and pixels.shape[0] in (1, 3) else pixels
            wanted = np.asarray(image.convert("L" if pixels.ndim == 2 or pixels.shape[-1] == 1 else "RGB"))
    except Exception:  # Pillow and third-party arrays may raise anything
        return False
    pixels = pixels.reshape(wanted.shape) if pixels.size == wanted.size else pixels
    return pixels.shape == wanted.shape and float(np.abs(pixels.astype(float) - wanted).mean()) < _NEAR


def _classes(dataset: Any) -> list[str] | None:
    classes = getattr(dataset, "classes", None)
    is_names = isinstance(classes, (list, tuple)) and all(isinstance(name, str) for name in classes)
    return list(classes) if is_names and classes else None


def _root(dataset: Any, paths: Sequence[str]) -> str:
    root = getattr(dataset, "root", None)
    if isinstance(root, (str, os.PathLike)):
        own = os.path.abspath(os.fspath(root))
        if all(path.startswith(str(own).rstrip("/") + "/") for path in paths):
            return str(own)
    return os.path.commonpath([os.path.dirname(path) for path in paths])


class FilesSource:
    """The files that a dataset reads, with its labels, classes and order; a folder's when it is an ImageFolder.

    Parameters
    ----------
    known : KnownFiles
        From `find_files`.
    """

    problems: Sequence[Problem] = ()
    fields: Mapping[str, Field] = {"image": Field("image"), "label": Field("int"), "key": Field("str")}

    def __init__(self, known: KnownFiles) -> None:
        self._root, self._labels = known.root, array("q", known.labels)
        self._keys, self._sizes = Texts(), array("q")
        fingerprint = Fingerprint()
        for path, label in zip(known.paths, known.labels, strict=True):
            key = os.path.relpath(path, known.root).replace(os.sep, "/")
            size, mtime = file_state(path)
            self._keys.append(key)
            self._sizes.append(size)
            fingerprint.add(key, size, mtime, label)
        self.fingerprint: JSON = fingerprint.finish("files", len(self._keys))
        named: list[JSON] = list(known.classes or ())
        self.attrs: Mapping[str, JSON] = {"classes": named} if known.classes is not None else {}
        self.notes = (*class_notes(known.classes or ()), *known.notes)

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return self._keys[index]

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]

    def strata(self) -> Iterator[tuple[str, int]]:
        """Yield the key and the label of each item."""
        return zip(self._keys, self._labels, strict=True)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key = self._keys[index]
        blob = read_file(os.path.join(self._root, key.replace("/", os.sep)))
        return {"image": blob, "label": self._labels[index], "key": key}
