"""Finds what a dataset object reads, files or a store, so that it is packed as it is instead of decoded and encoded."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from storeds.errors import ConfigError
from storeds.ops.packing.sources.base import PackSource
from storeds.ops.packing.sources.combined import ChainedSource, PickedSource
from storeds.ops.packing.sources.files import NOT_APPLIED, FilesSource, find_files
from storeds.ops.packing.sources.objects import DatasetSource
from storeds.ops.packing.sources.stores import StoreSource
from storeds.ops.packing.sources.tables import TableSource, dataset_tables

__all__ = ["dataset_source"]


def dataset_source(
    dataset: Any, *, fields: Sequence[str] | Mapping[str, Any] | None = None, files: bool | None = None, **options: Any
) -> PackSource:
    """Return the source of a map-style dataset.

    Parameters
    ----------
    dataset : object
        A `StoreDataset` gives the records of its store, those that its ``where`` selects. A dataset of image files gives
        these files, with its labels and classes, where it is certain which they are: torchvision's ImageFolder, and
        others with ``samples``, ``imgs``, or paths and labels. PyTorch's Subset and ConcatDataset of such give theirs. All
        others are read sample by sample, see `DatasetSource`.
    fields : sequence of str or mapping, optional
        As for `DatasetSource`; samples are then read one by one.
    **options
        For a 🤗 ``Dataset`` or ``DatasetDict``: ``columns``, ``label`` and ``label_column``, as for `TableSource`.
    files : bool, optional
        False to take samples as the dataset returns them, transformed and decoded; True to raise ConfigError where its
        files are not known.

    Raises
    ------
    ConfigError
        It is no dataset, or `files` is True and its files are not known.
    """
    if options and (files is False or fields is not None):
        raise ConfigError(
            f"{', '.join(options)}: for samples taken as they are returned, only fields= says what is taken"
        )
    found = None if files is False or fields is not None else _original(dataset, options)
    if found is None and files:
        raise ConfigError(
            f"files=True: it is not certain which files the {type(dataset).__name__} reads; pack their folder, or a list of them"
        )
    return DatasetSource(dataset, fields) if found is None else found


def _original(dataset: Any, options: Mapping[str, Any]) -> PackSource | None:
    if _is(dataset, "datasets", "Dataset") or _is(dataset, "datasets", "DatasetDict"):
        return TableSource(dataset_tables(dataset), **options)
    if options:
        raise ConfigError(f"a {type(dataset).__name__} takes no {', '.join(options)}; these are for 🤗 datasets")
    if _is(dataset, "storeds.datasets.map_dataset", "StoreDataset"):
        return _stored(dataset)
    if _is(dataset, "torch.utils.data", "Subset"):
        inner = _original(dataset.dataset, options)
        return None if inner is None or not len(dataset.indices) else PickedSource(inner, dataset.indices)
    if _is(dataset, "torch.utils.data", "ConcatDataset"):
        parts = [_original(part, options) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        same = len(known) == len(parts) and all(part.fields == known[0].fields for part in known)
        return ChainedSource(known) if same else None
    known_files = find_files(dataset)
    return None if known_files is None else FilesSource(known_files)


def _is(dataset: Any, module: str, name: str) -> bool:
    """Whether `dataset` is of a class whose module is loaded, as it is if there is an instance."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(dataset, kind)


def _stored(dataset: Any) -> PackSource | None:
    source = StoreSource(dataset.view)
    if len(dataset) != len(source):  # samples of several records, such as clips
        return None
    if dataset.transform is not None or dataset.target_transform is not None:
        source.notes = (NOT_APPLIED.format(what="records of the store"),)
    return source
