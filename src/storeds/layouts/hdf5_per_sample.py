"""HDF5 files with one dataset for each sample: all in one group, or in one group for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from storeds._columns import column_of
from storeds.errors import FormatError
from storeds.layouts._hdf5_base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts._hdf5_elements import Attributes, Datasets, Elements, attribute_fields, attributes
from storeds.layouts._hdf5_files import ForeignOptions, Hdf5Files
from storeds.layouts._hdf5_frames import are_frames
from storeds.layouts._hdf5_names import PackedIndex, are_splits, field_names, natural_order, split, stem
from storeds.layouts._hdf5_values import Values
from storeds.protocols import Array, Field

__all__ = ["PerSampleHdf5", "PerSampleOptions"]

_LOOKED_AT = 16
_FEW = 64  # datasets; fewer without numbers in their names are rather columns


class PerSampleOptions(ForeignOptions):
    """Options of layout ``per_sample``: those of every foreign HDF5 layout; `group` is where the samples lie."""


@dataclass(frozen=True)
class PerSampleOpener(ForeignOpener):
    """Finds the samples' names, once."""

    layout: ClassVar[str] = "per_sample"
    settings: PerSampleOptions

    def find(self, files: Hdf5Files) -> Found:
        # docstring inherited
        key = [self.layout, self.settings.group, *files.identity()]
        index = PackedIndex.load(key, self._index)
        classes: list[str] | None = index.facts["classes"]
        paths = Paths(self.settings.group, index)
        if not index.count:
            raise FormatError(f"{files.url}: {self.settings.group} holds no dataset, so no sample")
        looked_at = sorted({round(at * (index.count - 1) / (_LOOKED_AT - 1)) for at in range(_LOOKED_AT)})
        elements = Elements(files, [paths(at) for at in looked_at])
        name = elements.field.kind if elements.field.kind in ("image", "bytes", "array") else "value"
        columns: dict[str, Values] = {name: Datasets(index.count, paths, elements)}
        if classes is not None:
            columns["label"] = Labels(index.numbers)
        columns["key"] = Keys(index)
        found = attributes(files.dataset(paths(0)))
        fields = attribute_fields(found)
        for attribute, field in field_names(list(found), columns).items():
            columns[field] = Attributes(files, index.count, paths, attribute, fields[attribute])
        return Found(
            columns, index.count, {"classes": list(classes)} if classes is not None else {}, self.settings.group
        )

    def _index(self) -> Array:
        with self.look() as files:  # what it opens must not tell the store that was scanned from the same one later
            return self._scan(files)

    def _scan(self, files: Hdf5Files) -> Array:
        group = files.group(self.settings.group)
        names, groups = split(group)
        if names and groups:
            raise FormatError(
                f"{files.url}: {group.name} holds datasets and groups ({names[0]!r}, {groups[0]!r}); group= names the one that "
                "holds samples"
            )
        if not groups:
            return PackedIndex.make(natural_order(names), np.empty(0, np.int64), {"classes": None})
        classes = sorted(groups, key=str.encode)
        keys: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(classes):
            members, nested = split(files.group(f"{group.name}/{name}"))
            if nested:
                raise FormatError(
                    f"{files.url}: {group.name.rstrip('/')}/{name} holds groups, expected one dataset a sample"
                )
            keys += [f"{name}/{member}" for member in natural_order(members)]
            labels += [label] * len(members)
        return PackedIndex.make(keys, np.array(labels, np.int64), {"classes": list(classes)})

    def recognise(self, files: Hdf5Files) -> str | None:
        # docstring inherited
        group = files.group(self.settings.group)
        names, groups = split(group)
        if bool(names) == bool(groups) or (groups and are_splits(groups)):
            return None
        if names:
            if not self._are_samples(files, names):
                return None
            return f"{group.name} holds {len(names)} datasets of one kind, {names[0]!r} to {names[-1]!r}: one a sample"
        counts = {}
        for name in groups:
            inner = files.group(f"{group.name}/{name}")
            members, nested = split(inner)
            if (
                nested
                or not members
                or are_frames(inner, members)
                or not self._are_samples(files, [f"{name}/{member}" for member in members])
            ):
                return None
            counts[name] = len(members)
        told = ", ".join(f"{name} ({count})" for name, count in list(counts.items())[:4])
        return f"each group of {group.name} holds datasets of one kind, as a class does its samples: {told}"

    def _are_samples(self, files: Hdf5Files, names: Sequence[str]) -> bool:
        one_series = len({stem(name) for name in names}) == 1 and stem(names[0].rpartition("/")[2]) is not None
        if not one_series and len(names) < _FEW:
            return False
        step = max(1, len(names) // _LOOKED_AT)
        Elements(files, [f"{self.settings.group}/{name}" for name in names[::step]])  # raises unless of one kind
        return True


class PerSampleHdf5(ForeignHdf5):
    """Reads each dataset as a record: ``image``, ``bytes`` or ``array``, its name as ``key``, its class as ``label``.

    Parameters
    ----------
    url : str
    **options
        See `PerSampleOptions`.
    """

    Options: ClassVar[type[PerSampleOptions]] = PerSampleOptions
    Opener: ClassVar[type[PerSampleOpener]] = PerSampleOpener


class Paths:
    """The names of the samples' datasets in the file."""

    def __init__(self, group: str, index: PackedIndex) -> None:
        self._prefix, self._index = group.rstrip("/"), index

    def __call__(self, number: int) -> str:
        return f"{self._prefix}/{self._index.name(number)}"


class Labels(Values):
    """The number of each sample's class."""

    def __init__(self, numbers: Array) -> None:
        self.field, self.count, self._numbers = Field("int"), len(numbers), numbers

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [int(self._numbers[at]) for at in positions]

    def column(self) -> Array:
        # docstring inherited
        return np.array(self._numbers)


class Keys(Values):
    """The name of each sample's dataset."""

    def __init__(self, index: PackedIndex) -> None:
        self.field, self.count, self._index = Field("str"), index.count, index

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._index.name(at) for at in positions]

    def column(self) -> Array:
        # docstring inherited
        return column_of(self.field, self.read(range(self.count)))
