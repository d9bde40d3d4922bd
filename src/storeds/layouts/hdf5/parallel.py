"""HDF5 files with one dataset for each field: ``data`` and ``label``, ``train_img`` and ``train_labels``, and tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import h5py
from pydantic import field_validator

from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.hdf5.base import Contents, ForeignHdf5, ForeignOpener
from storeds.layouts.hdf5.files import (
    ForeignOptions,
    Hdf5Files,
    NoSuchNameError,
    Unread,
    are_splits,
    attributes,
    field_names,
    unread_below,
)
from storeds.layouts.hdf5.inference import (
    MOST_FIELDS,
    Columns,
    are_numbered,
    are_numbered_samples,
    check_lengths,
    columns_argument,
    enter_group,
    rows_or_file,
    select_columns,
)
from storeds.layouts.hdf5.values import SCALAR_KINDS, Computed, Values, row_count, unsupported, values_of
from storeds.protocols import JSON, Field
from storeds.records.fields import parse_fields

__all__ = ["ParallelHdf5", "ParallelOptions"]


class ParallelOptions(ForeignOptions):
    """Options of layout ``parallel``, besides those of every foreign HDF5 layout.

    Attributes
    ----------
    columns : mapping of str to str, optional
        Field → dataset, relative to `group`: ``{"image": "train_img", "label": "train_labels"}``, ``"table/x"`` for a
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

    def find(self, files: Hdf5Files) -> Contents:
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
        lengths = [(values.count, where) for where, values in found.values()]
        if not lengths:
            raise FormatError(f"{files.url}: its datasets are single values, not one for each record")
        count = check_lengths(files, lengths)
        values = {name: values for name, (_, values) in found.items()}
        return Contents(values, count, attrs, {name: where for name, (where, _) in found.items()})

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
        found |= {name: _repeated(files, dataset, count) for name, dataset in singles.items()}
        return {name: (where, found[name]) for name, where in columns.items()}

    def _named(self, files: Hdf5Files, field: str, where: str) -> tuple[h5py.Dataset, str]:
        file, separator, name = where.rpartition("::")
        path = None
        if separator:
            path = files.resolve(file, os.path.dirname(self.path), f"columns[{field!r}]", ConfigError)
        else:
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

    def unread(self, files: Hdf5Files) -> Unread:
        # docstring inherited
        if self.settings.columns is not None:
            return Unread()  # the user selected them
        columns = select_columns(files, self.settings.group)
        return unread_below(files, columns.group, columns.why_unread)

    def advice(self, unread: Unread) -> str:
        # docstring inherited
        columns = columns_argument([unread.largest.dataset.name] if unread.largest else [], self.settings.group)
        return (
            f"columns= names the datasets to read together, as {columns}, group= a group to read by itself, and partial=True "
            "leaves out what is listed"
        )

    def guess_can_open(self, files: Hdf5Files) -> str | None:
        # docstring inherited
        if self.settings.columns is not None:
            self.find(files)
            return f"columns= names {len(self.settings.columns)} of its datasets"
        _, names, groups = enter_group(files, self.settings.group)
        if not names and groups and are_splits(groups):
            return (
                f"its groups are splits of a data set, each a store of its own ({', '.join(groups)}): group= names one"
            )
        if len(names) > MOST_FIELDS:
            return None
        found = select_columns(files, self.settings.group, check=False)
        if found.own and are_numbered_samples({**found.singles, **found.own}):
            return None
        if not found.columns or (found.own and rows_or_file(found.singles, found.own) == "file"):
            return None
        check_lengths(files, [(row_count(dataset), dataset.name) for dataset in (found.own or found.columns).values()])
        shown = ", ".join(f"{dataset.name} {dataset.shape}" for dataset in list(found.columns.values())[:4])
        return f"its datasets are columns: {shown}"

    def rules_out_others(self, files: Hdf5Files) -> bool:
        # docstring inherited
        if self.settings.columns is not None:
            return True
        group, names, groups = enter_group(files, self.settings.group)
        if not 0 < len(names) < MOST_FIELDS or "data" in groups or are_numbered(names):
            return False
        found = select_columns(files, group, check=False)
        read_otherwise = len(names) - len(found.own) - len(found.singles)  # class names, lengths of frames
        return not read_otherwise and rows_or_file(found.singles, found.own) == "rows"


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
    """Yield field → (dataset, values); raises ConfigError if two datasets have the same field name."""
    if not found.columns and not found.singles:
        there = ", ".join(list(files.group(found.group))[:8]) or "nothing"
        raise FormatError(
            f"{files.url}: {found.group} holds no dataset, but {there}; group= names a group to read by itself, columns= "
            "datasets to read together"
        )
    if found.classes is not None:
        attrs["classes"] = values_of(files, found.classes)[""].column().tolist()
    seen: dict[str, str] = {}
    for path, dataset in found.columns.items():
        for member, values in values_of(files, dataset).items():
            alone = len(found.columns) == 1 and not found.singles
            label = member if alone and member else f"{path}/{member}" if member else path
            (field,) = field_names([label]).values()
            if field in seen:
                raise ConfigError(
                    f"{files.url}: {seen[field]} and {label} would both be the field {field!r}; columns= names them, as "
                    f"columns={{{field!r}: {seen[field]!r}, {field + '_2'!r}: {label!r}}}"
                )
            seen[field] = label
            yield field, (f"{dataset.name}/{member}" if member else dataset.name, values)


def _repeated(files: Hdf5Files, dataset: h5py.Dataset, count: int) -> Computed:
    """Return a single value as a field that is the same in every record."""
    text = h5py.check_string_dtype(dataset.dtype) is not None
    if not text and dataset.dtype.kind not in SCALAR_KINDS:
        raise unsupported(files, dataset)
    kind = "str" if text else SCALAR_KINDS[dataset.dtype.kind]
    value = dataset.asstr()[()] if text else dataset[()].item()
    return Computed(Field(kind), count, lambda _: value)
