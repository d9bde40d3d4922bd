"""HDF5 files with one dataset for each field: ``data`` and ``label``, ``train_img`` and ``train_labels``, and tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import h5py
from pydantic import field_validator

from storeds._suggest import suggest
from storeds.errors import ConfigError, FormatError
from storeds.fields import parse_fields
from storeds.layouts._hdf5_base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts._hdf5_evidence import are_numbered_samples, is_picture
from storeds.layouts._hdf5_files import ForeignOptions, Hdf5Files, NoSuchNameError
from storeds.layouts._hdf5_matlab import is_single, row_count
from storeds.layouts._hdf5_names import are_splits, field_names, split
from storeds.layouts._hdf5_values import Values, values_of
from storeds.protocols import JSON

__all__ = ["ParallelHdf5", "ParallelOptions"]

_CLASSES = ("classes", "class_names", "list_classes", "label_names", "labels_names")
_MOST = 64  # fields; more datasets than that are samples


class ParallelOptions(ForeignOptions):
    """Options of layout ``parallel``, besides those that every foreign HDF5 layout has.

    Attributes
    ----------
    columns : mapping of str to str, optional
        Field → dataset, as seen from `group`: ``{"image": "train_img", "label": "train_labels"}``, ``"table/x"`` for a
        column of a table, and ``"labels.h5::y"`` for a dataset in another file of the same folder. In a URL:
        ``columns=image:train_img,label:train_labels``. By default every dataset of the group is a field.
    """

    columns: tuple[tuple[str, str], ...] | None = None

    @field_validator("columns", mode="before")
    @classmethod
    def _pairs(cls, columns: Any) -> Any:
        if isinstance(columns, str):
            parts = [part.partition(":") for part in columns.split(",")]
            if any(not colon for _, colon, _ in parts):
                raise ValueError("expected field:dataset,field:dataset")
            columns = {name.strip(): where.strip() for name, _, where in parts}
        if isinstance(columns, Mapping):
            if not columns:
                raise ValueError("expected at least one field")
            parse_fields(dict.fromkeys(columns, "int"))
            return tuple(columns.items())
        return columns


@dataclass(frozen=True)
class ParallelOpener(ForeignOpener):
    """Finds datasets of equal length."""

    layout: ClassVar[str] = "parallel"
    settings: ParallelOptions

    def find(self, files: Hdf5Files) -> Found:
        # docstring inherited
        attrs: dict[str, JSON] = {}
        if self.settings.columns is None:
            group, names = _members(files, self.settings.group)
            found = dict(_default_columns(files, group, names, attrs))
        else:
            found = {name: self._named(files, name, where) for name, where in self.settings.columns}
        count = _common_length(files, {name: (where, values) for name, (where, values) in found.items()})
        columns = {name: values for name, (_, values) in found.items()}
        return Found(columns, count, attrs, {name: where for name, (where, _) in found.items()})

    def _named(self, files: Hdf5Files, field: str, where: str) -> tuple[str, Values]:
        file, apart, name = where.rpartition("::")
        path = files.inside(file, os.path.dirname(self.path), f"columns[{field!r}]", ConfigError) if apart else None
        if path is None:
            files.group(self.settings.group)
            name = f"{self.settings.group}/{name}"
        try:
            found, member = files.find(name, path)
        except NoSuchNameError as error:
            raise ConfigError(f"columns[{field!r}]: {error}") from None
        if not isinstance(found, h5py.Dataset):
            raise ConfigError(
                f"{files.url}: columns[{field!r}] is {where!r}, a group; {suggest(name, found.keys(), 'names in it')}"
            )
        values = values_of(files, found, member)
        if "" not in values and not member:
            raise ConfigError(
                f"{files.url}: columns[{field!r}] is {where!r}, a table; name a column: {where}/{next(iter(values))}"
            )
        return where, values[member]

    def recognise(self, files: Hdf5Files) -> str | None:
        # docstring inherited
        if self.settings.columns is not None:
            self.find(files)
            return f"columns= names {len(self.settings.columns)} of its datasets"
        group, names = _members(files, self.settings.group)
        groups = split(files.group(group))[1]
        if not names and groups and are_splits(groups):
            return (
                f"its groups are parts of a data set, each a store of its own ({', '.join(groups)}): group= names one"
            )
        if not names or len(names) > _MOST:
            return None
        datasets = {name: files.dataset(f"{group}/{name}") for name in names if name.lower() not in _CLASSES}
        if are_numbered_samples(list(datasets), datasets):
            return None
        columns = [dataset for dataset in datasets.values() if not is_single(dataset)]
        if not columns or any(dataset.ndim == 1 and is_picture(dataset) for dataset in columns):
            return None  # the bytes of an image file are no column
        _check_lengths(files, [(row_count(dataset), dataset.name) for dataset in columns])
        told = ", ".join(f"{dataset.name} {dataset.shape}" for dataset in columns[:4])
        return f"its datasets are columns: {told}"


class ParallelHdf5(ForeignHdf5):
    """Reads datasets of equal length as the fields of records.

    Parameters
    ----------
    url : str
        Of one file; fields may lie in others of its folder.
    **options
        See `ParallelOptions`.
    """

    Options: ClassVar[type[ParallelOptions]] = ParallelOptions
    Opener: ClassVar[type[ParallelOpener]] = ParallelOpener


def _members(files: Hdf5Files, name: str) -> tuple[str, list[str]]:
    """Return a group and its datasets' names; where it holds nothing but another group, that one's."""
    group = files.group(name)
    names, groups = split(group)
    if not names and len(groups) == 1:
        return _members(files, f"{name.rstrip('/')}/{groups[0]}")
    if len(names) <= _MOST:
        # What links lead to is looked at only where they may lead; one that they may not is an error, not left out.
        names = [child for child in names if isinstance(files.find(f"{name}/{child}")[0], h5py.Dataset)]
    return name, names


def _default_columns(
    files: Hdf5Files, group: str, names: list[str], attrs: dict[str, JSON]
) -> Iterator[tuple[str, tuple[str, Values]]]:
    if not names:
        there = ", ".join(list(files.group(group))[:8]) or "nothing"
        raise FormatError(f"{files.url}: {group} holds no dataset, but {there}; group= or columns= say where they are")
    many: dict[str, tuple[str, Values]] = {}
    for name in names:
        dataset = files.dataset(f"{group}/{name}")
        if is_single(dataset):
            continue
        found = values_of(files, dataset)
        if name.lower() in _CLASSES and "" in found and found[""].field.kind == "str":
            attrs["classes"] = found[""].column().tolist()
            continue
        for member, values in found.items():
            label = member if len(names) == 1 and member else f"{name}_{member}" if member else name
            many[label] = (f"{dataset.name}/{member}" if member else dataset.name, values)
    yield from ((field, many[label]) for label, field in field_names(list(many)).items())


def _common_length(files: Hdf5Files, found: Mapping[str, tuple[str, Values]]) -> int:
    lengths = [(values.count, where) for where, values in found.values()]
    if not lengths:
        raise FormatError(f"{files.url}: its datasets are single values, not one for each record")
    return _check_lengths(files, lengths)


def _check_lengths(files: Hdf5Files, lengths: Sequence[tuple[int, str]]) -> int:
    first, where = lengths[0]
    for count, other in lengths:
        if count != first:
            raise FormatError(
                f"{files.url}: {where} has {first} rows and {other} has {count}, so they are not columns of the same records; "
                "columns= names those that belong together"
            )
    return first
