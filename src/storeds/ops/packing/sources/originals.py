"""Sources for dataset objects that read files or a store: these are packed as they are, not decoded and encoded again."""

from __future__ import annotations

import copy
import itertools
import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import xxhash

from storeds.errors import ConfigError
from storeds.ops.packing.sources.base import (
    IMAGE_SUFFIXES,
    PackSource,
    Problem,
    class_notes,
    file_state,
    is_text,
    locate,
    read_file,
    strata_of,
)
from storeds.ops.packing.sources.objects import DatasetSource, class_names
from storeds.ops.packing.sources.old_folders import FileList
from storeds.ops.packing.sources.old_stores import StoreSource
from storeds.ops.packing.sources.tables import TableSource, dataset_tables
from storeds.protocols import JSON, Backend, Field, Record

__all__ = ["FilesSource", "dataset_source"]

# Attributes in which datasets of torchvision and others keep (path, label) pairs, or paths and labels.
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
_NOT_APPLIED = (
    "its transform is not applied: pack stores the original {what}, and training applies a transform; files=False packs "
    "what the dataset returns instead"
)


def dataset_source(
    dataset: Any, *, fields: Sequence[str] | Mapping[str, Any] | None = None, files: bool | None = None, **options: Any
) -> PackSource:
    """Return the source for a map-style dataset.

    Parameters
    ----------
    dataset : object
        A `StoreDataset` gives the records of its store that its ``where`` selects. A dataset of image files gives these
        files with its labels and classes, if it is certain which files it reads: torchvision's ImageFolder, and others
        with ``samples``, ``imgs``, or paths and labels. PyTorch's Subset and ConcatDataset of such datasets work too. Any
        other dataset is read sample by sample, see `DatasetSource`.
    fields : sequence of str or mapping, optional
        As for `DatasetSource`; samples are then read one by one.
    files : bool, optional
        False: pack samples as the dataset returns them, decoded and transformed. True: raise ConfigError if its files
        are unknown.
    **options
        For a 🤗 ``Dataset`` or ``DatasetDict``: ``columns``, ``label`` and ``label_column``, as for `TableSource`.

    Raises
    ------
    ConfigError
        It is not a dataset, or `files` is True and its files are unknown.
    """
    if options and (files is False or fields is not None):
        raise ConfigError(
            f"{', '.join(options)}: not supported for samples as the dataset returns them; only fields= selects columns then"
        )
    found = None if files is False or fields is not None else _original(dataset, options)
    if found is None and files:
        raise ConfigError(
            f"files=True: it is unknown which files the {type(dataset).__name__} reads; pack their folder or a manifest instead"
        )
    if found is not None:
        return found
    source = DatasetSource(dataset, fields)
    source.stores = tuple(_stores_of(dataset))
    return source


def _stores_of(dataset: Any) -> Iterator[Backend]:
    """Yield the store of a `StoreDataset`, and of those that a Subset, a ConcatDataset or a similar wrapper contains."""
    if _is(dataset, "storeds.datasets.map_dataset", "StoreDataset"):
        yield dataset.view
        return
    inside = getattr(dataset, "__dict__", {})
    parts = inside.get("datasets")
    for part in (inside.get("dataset"), *(parts if isinstance(parts, (list, tuple)) else ())):
        if part is not None:
            yield from _stores_of(part)


def _original(dataset: Any, options: Mapping[str, Any]) -> PackSource | None:
    if _is(dataset, "datasets", "Dataset") or _is(dataset, "datasets", "DatasetDict"):
        return TableSource(dataset_tables(dataset), **options)
    if options:
        raise ConfigError(
            f"a {type(dataset).__name__} takes no {', '.join(options)}; these options are for 🤗 datasets"
        )
    if _is(dataset, "storeds.datasets.map_dataset", "StoreDataset"):
        return _stored(dataset)
    if _is(dataset, "torch.utils.data", "Subset"):
        inner = _original(dataset.dataset, options)
        return None if inner is None or not len(dataset.indices) else _ComposedSource([inner], dataset.indices)
    if _is(dataset, "torch.utils.data", "ConcatDataset"):
        parts = [_original(part, options) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        same = len(known) == len(parts) and all(part.fields == known[0].fields for part in known)
        return _ComposedSource(known) if same else None
    return _find_files(dataset)


def _is(dataset: Any, module: str, name: str) -> bool:
    """Whether `dataset` is an instance of a class; if its module is not loaded, it cannot be one."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(dataset, kind)


def _stored(dataset: Any) -> PackSource | None:
    source = StoreSource(dataset.view)
    if len(dataset) != len(source):  # samples of several records, such as clips
        return None
    if dataset.transform is not None or dataset.target_transform is not None:
        source.notes = (_NOT_APPLIED.format(what="records of the store"),)
    return source


def _find_files(dataset: Any) -> FilesSource | None:
    """Return the source for the files that a map-style dataset reads, or None if these are not certain.

    The first, the middle and the last sample, without transforms, must be pairs of the picture in the file and its label.
    """
    try:
        listed, bare = _files_and_labels(dataset), copy.copy(dataset)
        for name in _TRANSFORMS:
            if getattr(bare, name, None) is not None:
                setattr(bare, name, None)
    except Exception:  # third-party properties may raise anything
        return None
    if listed is None or not _samples_match(bare, *listed):
        return None
    paths, labels = listed
    change = getattr(dataset, "target_transform", None)
    if change is not None:
        labels = [change(label) for label in labels]
        if not all(map(_is_label, labels)):
            return None
    applied = any(getattr(dataset, name, None) is not None for name in ("transform", "transforms"))
    notes = (_NOT_APPLIED.format(what="files"),) if applied and not _has_only_target_transform(dataset) else ()
    return FilesSource(
        paths, [int(label) for label in labels], class_names(dataset) or None, _root(dataset, paths), notes
    )


def _has_only_target_transform(dataset: Any) -> bool:
    # torchvision sets `transforms` to what applies both others.
    return getattr(dataset, "transform", None) is None and getattr(dataset, "target_transform", None) is not None


def _files_and_labels(dataset: Any) -> tuple[list[str], list[Any]] | None:
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


def _samples_match(bare: Any, paths: Sequence[str], labels: Sequence[Any]) -> bool:
    seen = False
    for index in sorted({0, len(paths) // 2, len(paths) - 1}):
        try:
            sample = bare[index]
        except Exception:  # noqa: S112  # a damaged file; another sample decides
            continue
        if not isinstance(sample, (tuple, list)) or len(sample) != 2 or not _is_label(sample[1]):
            return False
        if int(sample[1]) != int(labels[index]) or not _is_picture_in(sample[0], paths[index]):
            return False
        seen = True
    return seen


def _is_picture_in(value: Any, path: str) -> bool:
    """Whether `value` is the picture in the file at `path`, in any form."""
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


def _root(dataset: Any, paths: Sequence[str]) -> str:
    root = getattr(dataset, "root", None)
    if isinstance(root, (str, os.PathLike)):
        own = os.path.abspath(os.fspath(root))
        if all(path.startswith(str(own).rstrip("/") + "/") for path in paths):
            return str(own)
    return os.path.commonpath([os.path.dirname(path) for path in paths])


class FilesSource(FileList):
    """The files that a dataset reads, with its labels, classes and order.

    Parameters
    ----------
    paths : list of str
        Absolute paths.
    labels : list of int
    classes : list of str or None
    root : str
        The folder that keys are relative to.
    notes : tuple of str
    """

    def __init__(
        self, paths: list[str], labels: list[int], classes: list[str] | None, root: str, notes: tuple[str, ...]
    ) -> None:
        super().__init__(root, has_labels=True)
        for path, label in zip(paths, labels, strict=True):
            self._add([(os.path.relpath(path, root).replace(os.sep, "/"), *file_state(path))], label)
        named: list[JSON] = list(classes or ())
        self.attrs: Mapping[str, JSON] = {"classes": named} if classes is not None else {}
        self.notes: tuple[str, ...] = (*class_notes(classes or ()), *notes)
        self._finish("files")


class _ComposedSource:
    """Items of other sources in a given order, as PyTorch's Subset and ConcatDataset.

    Parameters
    ----------
    sources : list of PackSource
        Sources without problems and with the same fields, one after another.
    indices : iterable of int, optional
        The items of them all, from a single source; negative indices count from the end. All items by default.

    Raises
    ------
    ConfigError
        Their class names differ, so one label would mean several classes.
    """

    problems: Sequence[Problem] = ()

    def __init__(self, sources: Sequence[PackSource], indices: Iterable[Any] | None = None) -> None:
        self._sources, first = sources, sources[0]
        for other in sources[1:]:
            if other.attrs.get("classes") != first.attrs.get("classes"):
                raise ConfigError(
                    "the concatenated datasets have different classes, so one label would mean several: "
                    f"{first.attrs.get('classes')} and {other.attrs.get('classes')}; pack each separately"
                )
        self._ends = list(itertools.accumulate(map(len, sources)))
        self._indices: Sequence[int] = range(self._ends[-1])
        prints: list[JSON] = [source.fingerprint for source in sources]
        self.fingerprint: JSON = {"kind": "chained", "of": prints}
        if indices is not None:
            picked = self._indices = array("q", (self._indices[int(index)] for index in indices))
            self.fingerprint = {"kind": "picked", "xxh3": xxhash.xxh3_64_hexdigest(picked.tobytes()), "of": prints[0]}
        self.stores: Sequence[Backend] = tuple(store for source in sources for store in getattr(source, "stores", ()))
        self.fields: Mapping[str, Field] = first.fields
        same = all(other.attrs == first.attrs for other in sources)
        self.attrs: Mapping[str, JSON] = {
            name: value for name, value in first.attrs.items() if same or name == "classes"
        }
        self.notes: Sequence[str] = tuple(
            dict.fromkeys(note for source in sources for note in getattr(source, "notes", ()))
        )

    def _find(self, index: int) -> tuple[PackSource, int]:
        part, at = locate(self._ends, self._indices[index])
        return self._sources[part], at

    def __len__(self) -> int:
        return len(self._indices)

    def name(self, index: int, /) -> str:
        # docstring inherited
        source, at = self._find(index)
        return source.name(at)

    def size(self, index: int, /) -> int:
        # docstring inherited
        source, at = self._find(index)
        return source.size(at)

    def strata(self) -> Iterator[tuple[str, Any]]:
        """Yield the key and the label of each item."""
        everything = [each for source in self._sources for each in strata_of(source)]
        return (everything[index] for index in self._indices)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        source, at = self._find(index)
        return source.read(at)
