"""HDF5 files that hold one sample each: ``image`` and ``mask``, ``image`` and ``density``, ``image`` and a label."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from storeds.errors import FormatError
from storeds.layouts.hdf5.base import ForeignHdf5, ForeignOpener, Found
from storeds.layouts.hdf5.columns import MOST_COLUMNS, enter_group, select_columns
from storeds.layouts.hdf5.detection import are_numbered_samples
from storeds.layouts.hdf5.elements import Elements, attribute_fields, attributes, element_field
from storeds.layouts.hdf5.files import ForeignOptions, Hdf5Files
from storeds.layouts.hdf5.names import field_names
from storeds.layouts.hdf5.rows_or_file import rows_or_file
from storeds.layouts.hdf5.tree import Left, Member, describe, left_of, members
from storeds.layouts.hdf5.values import Values
from storeds.protocols import Field

__all__ = ["PerFileHdf5", "PerFileOptions"]

KEY = "key"


class PerFileOptions(ForeignOptions):
    """Options of layout ``per_file``: those of every foreign HDF5 layout; `group` is where the sample lies."""


@dataclass(frozen=True)
class PerFileOpener(ForeignOpener):
    """Finds the datasets of the only sample."""

    layout: ClassVar[str] = "per_file"
    settings: PerFileOptions

    def find(self, files: Hdf5Files) -> Found:
        # docstring inherited
        group, _ = enter_group(files, self.settings.group)
        kinds = {member.path: self._kind(files, group, member) for member in members(files, group, most=MOST_COLUMNS)}
        read = {path: kind for path, kind in kinds.items() if isinstance(kind, Field)}
        if not read:
            raise FormatError(f"{files.url}: {group} holds no dataset that a field can hold, so no sample")
        names = field_names(list(read), [KEY])
        columns: dict[str, Values] = {
            names[path]: _Single(Elements(files, kind), f"{group}/{path}") for path, kind in read.items()
        }
        noted = attributes(files.group(group))
        for attribute, name in field_names(list(noted), [KEY, *columns]).items():
            columns[name] = _Known(noted[attribute], attribute_fields({"": noted[attribute]})[""])
        columns[KEY] = _Known(os.path.splitext(os.path.basename(self.path))[0], Field("str"))
        return Found(columns, 1, {}, {names[path]: path for path in read})

    def _kind(self, files: Hdf5Files, group: str, member: Member) -> Field | str:
        """Return the field that a dataset makes, or why it makes none."""
        try:
            return element_field(files, [f"{group}/{member.path}"])
        except FormatError:
            return "of a type that no field holds"

    def left(self, files: Hdf5Files) -> Left:
        # docstring inherited
        group, _ = enter_group(files, self.settings.group)

        def why(member: Member) -> str | None:
            kind = self._kind(files, group, member)
            return kind if isinstance(kind, str) else None

        return left_of(files, group, why)

    def guess_can_open(self, files: Hdf5Files) -> str | None:
        # docstring inherited
        group, names = enter_group(files, self.settings.group)
        if not 0 < len(names) <= MOST_COLUMNS:
            return None
        found = select_columns(files, group, check=False)
        arrays = {name: files.dataset(f"{group}/{name}") for name in names if name not in found.singles}
        if are_numbered_samples(names, {**found.singles, **arrays}):
            return None
        if rows_or_file(found.singles, arrays) not in ("file", "either"):
            return None
        shown = ", ".join(
            f"{name} {describe(dataset)}" for name, dataset in [*arrays.items(), *found.singles.items()][:4]
        )
        return f"its datasets are one sample: {shown}"


class PerFileHdf5(ForeignHdf5):
    """Reads the datasets of a file as the fields of one record, with the file's name as ``key``; a pattern reads many.

    Parameters
    ----------
    url : str
    **options
        See `PerFileOptions`.
    """

    Options: ClassVar[type[PerFileOptions]] = PerFileOptions
    Opener: ClassVar[type[PerFileOpener]] = PerFileOpener


class _Single(Values):
    """The value of a dataset, in the only record."""

    def __init__(self, elements: Elements, path: str) -> None:
        self.field, self.count, self._elements, self._path = elements.field, 1, elements, path

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._elements.read(self._path) for _ in positions]


class _Known(Values):
    """A value that is known when the file is opened."""

    def __init__(self, value: Any, field: Field) -> None:
        self.field, self.count, self._value = field, 1, value

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return [self._value for _ in positions]
