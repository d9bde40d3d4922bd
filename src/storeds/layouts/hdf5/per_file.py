"""HDF5 files that hold one sample each: ``image`` and ``mask``, ``image`` and ``density``, ``image`` and a label."""

from __future__ import annotations

import functools
import os
from typing import Any, ClassVar

from storeds.errors import FormatError
from storeds.layouts.hdf5.base import Contents, ForeignHdf5
from storeds.layouts.hdf5.elements import element_field, read_element
from storeds.layouts.hdf5.files import (
    ForeignOptions,
    Hdf5Files,
    Member,
    Unread,
    attribute_fields,
    attributes,
    describe,
    field_names,
    members,
    unread_below,
)
from storeds.layouts.hdf5.parallel import MOST_FIELDS, are_numbered_samples, enter_group, rows_or_file, select_columns
from storeds.layouts.hdf5.values import Computed, Values
from storeds.protocols import Field

__all__ = ["PerFileHdf5", "PerFileOptions"]

KEY = "key"


class PerFileOptions(ForeignOptions):
    """Options of layout ``per_file``: those of every foreign HDF5 layout. `group` holds the sample."""


class PerFileHdf5(ForeignHdf5):
    """Reads the datasets of a file as the fields of one record, with the file's name as ``key``; a pattern reads many.

    Parameters
    ----------
    url : str
    **options
        See `PerFileOptions`.
    """

    Options: ClassVar[type[PerFileOptions]] = PerFileOptions
    layout: ClassVar[str] = "per_file"

    @classmethod
    def _find(cls, files: Hdf5Files) -> Contents:
        group, _, _ = enter_group(files, files.settings.group)
        kinds = {member.path: _kind(files, group, member) for member in members(files, group, most=MOST_FIELDS)}
        read = {path: kind for path, kind in kinds.items() if isinstance(kind, Field)}
        if not read:
            raise FormatError(f"{files.url}: {group} holds no dataset that a field can hold, so no sample")
        names = field_names(list(read), [KEY])
        columns: dict[str, Values] = {
            names[path]: Computed(kind, 1, functools.partial(_read, files, kind, f"{group}/{path}"))
            for path, kind in read.items()
        }
        noted = attributes(files.group(group))
        kinds_of_noted = attribute_fields(noted)
        for attribute, name in field_names(list(noted), [KEY, *columns]).items():
            columns[name] = Computed(kinds_of_noted[attribute], 1, [noted[attribute]].__getitem__)
        columns[KEY] = Computed(Field("str"), 1, [os.path.splitext(os.path.basename(files.path))[0]].__getitem__)
        return Contents(columns, 1, {}, {names[path]: path for path in read})

    @classmethod
    def _unread_in(cls, files: Hdf5Files) -> Unread:
        group, _, _ = enter_group(files, files.settings.group)

        def why(member: Member) -> str | None:
            kind = _kind(files, group, member)
            return kind if isinstance(kind, str) else None

        return unread_below(files, group, why)

    @classmethod
    def _guess(cls, files: Hdf5Files) -> str | None:
        group, names, _ = enter_group(files, files.settings.group)
        if not 0 < len(names) <= MOST_FIELDS:
            return None
        singles = select_columns(files, group, check=False).singles
        arrays = {name: files.dataset(f"{group}/{name}") for name in names if name not in singles}
        if are_numbered_samples({**singles, **arrays}) or rows_or_file(singles, arrays) not in ("file", "either"):
            return None
        shown = ", ".join(f"{name} {describe(dataset)}" for name, dataset in [*arrays.items(), *singles.items()][:4])
        return f"its datasets are one sample: {shown}"


def _read(files: Hdf5Files, kind: Field, name: str, _: int) -> Any:
    return read_element(files, kind, name)


def _kind(files: Hdf5Files, group: str, member: Member) -> Field | str:
    """Return the field that holds a dataset, or why there is none."""
    try:
        return element_field(files, [f"{group}/{member.path}"])
    except FormatError:
        return "of a type that no field holds"
