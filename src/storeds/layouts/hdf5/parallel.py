"""HDF5 files with one dataset for each field: ``data`` and ``label``, ``train_img`` and ``train_labels``, and tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import h5py
from pydantic import field_validator

from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.hdf5.base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts.hdf5.columns import (
    MOST_COLUMNS,
    Columns,
    check_lengths,
    columns_argument,
    enter_group,
    select_columns,
)
from storeds.layouts.hdf5.detection import are_numbered_samples
from storeds.layouts.hdf5.elements import attributes
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files, NoSuchNameError
from storeds.layouts.hdf5.names import are_splits, field_names, split
from storeds.layouts.hdf5.rows_or_file import rows_or_file
from storeds.layouts.hdf5.tree import Left, left_of
from storeds.layouts.hdf5.values import SCALAR_KINDS, Values, row_count, unsupported, values_of
from storeds.protocols import JSON, Field
from storeds.records.fields import parse_fields

__all__ = ["ParallelHdf5", "ParallelOptions"]


class ParallelOptions(ForeignOptions):
    """Options of layout ``parallel``, besides those that every foreign HDF5 layout has.

    Attributes
    ----------
    columns : mapping of str to str, optional
        Field → dataset, as seen from `group`: ``{"image": "train_img", "label": "train_labels"}``, ``"table/x"`` for a
        column of a table, and ``"labels.h5::y"`` for a dataset in another file of the same folder. In a URL:
        ``columns=image:train_img,label:train_labels``. A dataset of a single value is the same in every record. By default
        every dataset of the group is a field, and every one in groups below it that has as many rows.
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
            columns = select_columns(files, self.settings.group)
            found = dict(_default_columns(files, columns, attrs))
            noted = attributes(files.group(columns.group))
            if noted:
                attrs["attributes"] = noted
        else:
            found = self._named_columns(files)
        count = _common_length(files, {name: (where, values) for name, (where, values) in found.items()})
        values = {name: values for name, (_, values) in found.items()}
        return Found(values, count, attrs, {name: where for name, (where, _) in found.items()})

    def _named_columns(self, files: Hdf5Files) -> dict[str, tuple[str, Values]]:
        found: dict[str, Values] = {}
        singles: dict[str, h5py.Dataset] = {}
        columns = dict(self.settings.columns or ())
        for name, where in columns.items():
            dataset, member = self._named(files, name, where)
            if not dataset.shape and dataset.dtype.names is None:
                singles[name] = dataset
                continue
            values = values_of(files, dataset, member)
            if member not in values:
                raise ConfigError(
                    f"{files.url}: columns[{name!r}] is {where!r}, a table; name a column: {where}/{next(iter(values))}"
                )
            found[name] = values[member]
        count = next((values.count for values in found.values()), 1)
        found |= {name: _Repeated(files, dataset, count) for name, dataset in singles.items()}
        return {name: (where, found[name]) for name, where in columns.items()}

    def _named(self, files: Hdf5Files, field: str, where: str) -> tuple[h5py.Dataset, str]:
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
        return found, member

    def left(self, files: Hdf5Files) -> Left:
        # docstring inherited
        if self.settings.columns is not None:
            return Left()  # the user selected them
        columns = select_columns(files, self.settings.group)
        return left_of(files, columns.group, columns.why_left)

    def advice(self, left: Left) -> str:
        # docstring inherited
        columns = columns_argument([left.largest.dataset.name] if left.largest else [], self.settings.group)
        return (
            f"columns= names the datasets to read together, as {columns}, group= a group to read by itself, and partial=True "
            "leaves out what is listed"
        )

    def guess_can_open(self, files: Hdf5Files) -> str | None:
        # docstring inherited
        if self.settings.columns is not None:
            self.find(files)
            return f"columns= names {len(self.settings.columns)} of its datasets"
        group, names = enter_group(files, self.settings.group)
        groups = split(files.group(group))[1]
        if not names and groups and are_splits(groups):
            return (
                f"its groups are parts of a data set, each a store of its own ({', '.join(groups)}): group= names one"
            )
        if len(names) > MOST_COLUMNS:
            return None
        found = select_columns(files, self.settings.group, check=False)
        direct = {name: dataset for name, dataset in found.columns.items() if "/" not in name}
        datasets = {**found.singles, **direct}
        if direct and are_numbered_samples(list(datasets), datasets):
            return None
        if not found.columns or (direct and rows_or_file(found.singles, direct) == "file"):
            return None
        check_lengths(files, [(row_count(dataset), dataset.name) for dataset in (direct or found.columns).values()])
        shown = ", ".join(f"{dataset.name} {dataset.shape}" for dataset in list(found.columns.values())[:4])
        return f"its datasets are columns: {shown}"


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


def _default_columns(
    files: Hdf5Files, found: Columns, attrs: dict[str, JSON]
) -> Iterator[tuple[str, tuple[str, Values]]]:
    if not found.columns and not found.singles:
        there = ", ".join(list(files.group(found.group))[:8]) or "nothing"
        raise FormatError(
            f"{files.url}: {found.group} holds no dataset, but {there}; group= names a group to read by itself, columns= "
            "datasets to read together"
        )
    if found.classes is not None:
        attrs["classes"] = values_of(files, found.classes)[""].column().tolist()
    many: dict[str, tuple[str, Values]] = {}
    for path, dataset in found.columns.items():
        for member, values in values_of(files, dataset).items():
            alone = len(found.columns) == 1 and not found.singles
            label = member if alone and member else f"{path}/{member}" if member else path
            many[label] = (f"{dataset.name}/{member}" if member else dataset.name, values)
    yield from ((field, many[label]) for label, field in _distinct_names(files, list(many)).items())


def _distinct_names(files: Hdf5Files, paths: Sequence[str]) -> dict[str, str]:
    """Return path → field; raises ConfigError where two paths make the same name, which would hide which is which."""
    seen: dict[str, str] = {}
    for path in paths:
        (field,) = field_names([path]).values()
        if field in seen:
            raise ConfigError(
                f"{files.url}: {seen[field]} and {path} would both be the field {field!r}; columns= names them, as "
                f"columns={{{field!r}: {seen[field]!r}, {field + '_2'!r}: {path!r}}}"
            )
        seen[field] = path
    return {path: field for field, path in seen.items()}


def _common_length(files: Hdf5Files, found: Mapping[str, tuple[str, Values]]) -> int:
    lengths = [(values.count, where) for where, values in found.values()]
    if not lengths:
        raise FormatError(f"{files.url}: its datasets are single values, not one for each record")
    return check_lengths(files, lengths)


class _Repeated(Values):
    """A single value, the same in every record."""

    def __init__(self, files: Hdf5Files, dataset: h5py.Dataset, count: int) -> None:
        text = h5py.check_string_dtype(dataset.dtype) is not None
        if not text and dataset.dtype.kind not in SCALAR_KINDS:
            raise unsupported(files, dataset)
        self.field, self.count = Field("str" if text else SCALAR_KINDS[dataset.dtype.kind]), count
        self._value = dataset.asstr()[()] if text else dataset[()].item()

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._value] * len(positions)
