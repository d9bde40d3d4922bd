"""The records of an HDF5 file, by a pattern: how the values of each field are read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import h5py
import msgspec
import numpy as np

from storeds.errors import ConfigError
from storeds.layouts.hdf5.elements import read_attribute, read_element
from storeds.layouts.hdf5.files import Hdf5Files, attributes, describe, members
from storeds.layouts.hdf5.scan import NUMBERS, Facts, NamesInMemory, Plan, Scan, is_class_list, number_pattern
from storeds.layouts.hdf5.sequences import Computed, SequenceRows
from storeds.layouts.hdf5.values import Values, values_of
from storeds.layouts.names import Names, pack_names
from storeds.layouts.pattern import ATTRIBUTES, EVERYTHING, KEY, Pattern
from storeds.protocols import JSON, Array, Field
from storeds.records.columns import index_path

__all__ = ["Contents", "contents_of", "unread_in"]

_VERSION = 3
_MASKS = re.compile("mask/[^/]+")
"""What the option ``mask`` selects from."""


@dataclass(frozen=True)
class Contents:
    """The fields of a store.

    Attributes
    ----------
    columns : mapping of str to Values
        Field → its values, in order.
    count : int
    attrs : mapping of str to JSON
    where : mapping of str to str
        Field → its place. `storeds info` shows it.
    read : tuple of re.Pattern
        Match the paths of the datasets that fields hold.
    empty : list of str
        Sequences without rows.
    unread : list of str or None
        What no field holds, if that is kept with the names of the records.
    """

    columns: Mapping[str, Values]
    count: int
    attrs: Mapping[str, JSON]
    where: Mapping[str, str]
    read: tuple[re.Pattern[str], ...]
    empty: list[str]
    unread: list[str] | None = None


def contents_of(files: Hdf5Files, pattern: Pattern) -> Contents:
    """Return the fields of an open store by a pattern.

    The names that a pattern matches, and what was inferred from them, are kept in the cache folder.
    """
    _check_places(pattern)
    names, bounds, facts = _kept_scan(files, pattern) if pattern.names else Scan(files, pattern).run()
    return _Builder(files, pattern, names, bounds, facts).build()


def _check_places(pattern: Pattern) -> None:
    """Raise ConfigError for what the grammar allows, but HDF5 files do not have."""
    for name, field in pattern.kinds:
        raise ConfigError(f"columns[{name!r}] declares {field.kind}, but HDF5 datasets have types; leave out kind")
    for name, place in pattern.places:
        takes_several = name in (EVERYTHING, ATTRIBUTES)
        why = ""
        if place.inner:
            why = "nothing follows [] in HDF5; a column of a table is table/column[]"
        elif place.file and (takes_several or place.attribute):
            why = "of another file, name each dataset"
        elif takes_several and place.attribute:
            why = f'"{name}" takes several values; give this one a name of its own'
        elif name == ATTRIBUTES and place.rows:
            why = "attributes have no rows; leave out []"
        if why:
            raise ConfigError(f"columns[{name!r}]: {place.text!r}: {why}")


def _kept_scan(files: Hdf5Files, pattern: Pattern) -> tuple[Names | NamesInMemory, Array, Facts]:
    def build() -> Array:
        # What the scan opens must not become a part of the identity of `files`.
        with Hdf5Files(files.path, files.url, files.settings, files.opened) as others:
            names, bounds, facts = Scan(others, pattern).run()
            facts = replace(facts, unread=unread_in(others, _Builder(others, pattern, names, bounds, facts).build()))
        return pack_names(names, bounds, msgspec.to_builtins(facts))

    settings = [str(pattern), files.settings.group, files.settings.mask, files.settings.allow_outside]
    path = index_path("hdf5", _VERSION, *settings, *(file[1:] for file in files.seen()))
    names = Names(path, build)
    facts = msgspec.convert(names.facts, Facts)
    if files.changed(facts.files):  # a file behind a link; the index is known by the store's own file alone
        path.unlink(missing_ok=True)
        names = Names(path, build)
        facts = msgspec.convert(names.facts, Facts)
    return names, names.numbers, facts


class _Builder:
    """Makes the values of each field from the facts of a scan."""

    def __init__(
        self, files: Hdf5Files, pattern: Pattern, names: Names | NamesInMemory, bounds: Array, facts: Facts
    ) -> None:
        self._files, self._pattern, self._names, self._facts = files, pattern, names, facts
        self._group = files.settings.group.rstrip("/")
        self._bounds: Array = bounds if pattern.has_rows else np.arange(len(names) + 1)
        self._count = int(self._bounds[-1])

    def build(self) -> Contents:
        attrs = dict(self._facts.attrs)
        datasets = {name: plan for name, plan in self._facts.plans.items() if not plan.attribute}
        columns = {name: self._values(name, plan) for name, plan in datasets.items()}
        columns |= self._named()
        for name, plan in self._facts.plans.items():
            if plan.attribute:
                columns[name] = self._values(name, plan)
        holder, _ = self._files.find(self._literal_group())
        noted = attributes(holder.parent if isinstance(holder, h5py.Dataset) else holder)  # a table holds columns
        if noted:
            attrs["attributes"] = noted
        where = {name: plan.where for name, plan in self._facts.plans.items()}
        read = [plan.path.regex() for plan in self._facts.plans.values() if not plan.file]
        if "episode" in self._pattern.names:
            read.append(_MASKS)
        return Contents(columns, self._count, attrs, where, tuple(read), self._facts.empty, self._facts.unread)

    def _literal_group(self) -> str:
        """Return the group that holds all records: the path of the pattern up to its first name."""
        literal = []
        place = self._pattern.leading
        for part in [] if place.file else place.path.split()[:-1]:
            if part.names:
                break
            literal.append(part.fill({}))
        return "/".join([self._group, *literal]) or "/"

    def _paths_of(self, plan: Plan) -> Callable[[Sequence[int]], list[str]]:
        """Return the function that gives the paths of a field's objects in ascending sequences."""
        return lambda sequences: [
            f"{self._group}/{plan.path.fill(dict(zip(self._pattern.names, text.split('/'), strict=False)))}"
            for text in self._texts(sequences)
        ]

    def _texts(self, sequences: Sequence[int]) -> list[str]:
        return [name.decode("utf-8", "surrogateescape") for name in self._names.many(sequences)]

    def _values(self, name: str, plan: Plan) -> Values:
        files, field, other = self._files, plan.field, self._files.beside(plan.file)
        paths = self._paths_of(plan)
        if plan.sort == "shared":
            shared = self._facts.shared[name]
            return Computed(self._bounds, field, lambda sequences, _: [shared[at] for at in sequences])
        if plan.sort == "attribute":
            found = partial(read_attribute, files, name=plan.attribute, field=field)
            return Computed(self._bounds, field, lambda sequences, _: [*map(found, paths(sequences))])
        if plan.sort == "dataset":
            whole = partial(read_element, files, field, path=other)
            return Computed(self._bounds, field, lambda sequences, _: [*map(whole, paths(sequences))])
        if not self._pattern.names:
            dataset = files.dataset(paths([0])[0], other)
            rows = values_of(files, dataset, plan.column, field)[plan.column]
            if rows.count != self._count:
                raise ConfigError(
                    f"{files.url}: {plan.where} has {rows.count} rows, and others {self._count}; columns= names datasets of one length"
                )
            rows.field = field  # with its role
            return rows
        return SequenceRows(files, paths, self._bounds, field, plan.column)

    def _named(self) -> dict[str, Values]:
        """Return the fields of the names in the pattern, and the numbers of rows."""
        bounds, columns = self._bounds, dict[str, Values]()

        def named(field: Field, value: Callable[[str, int], Any]) -> Computed:
            return Computed(bounds, field, lambda sequences, rows: [*map(value, self._texts(sequences), rows)])

        for place, name in enumerate(self._pattern.names):
            if name != KEY:
                field = self._facts.named[name]
                columns[name] = named(field, _value_of(name, place, field, self._facts.attrs))
        for name, number in NUMBERS.items():
            if self._pattern.has_rows and name in self._pattern.names and number not in columns:
                columns[number] = Computed(bounds, Field("int"), lambda _, rows: rows)
        if self._pattern.has_rows and {KEY, "episode"} & {*self._pattern.names}:
            columns[KEY] = named(Field("str"), lambda name, row: f"{name}/{row}")
        elif KEY in self._pattern.names:
            columns[KEY] = named(Field("str"), lambda name, _: name)
        elif not self._pattern.names and not self._pattern.has_rows:
            stem = os.path.splitext(os.path.basename(self._files.path))[0]
            columns[KEY] = Computed(bounds, Field("str"), lambda sequences, _: [stem] * len(sequences))
        return columns


def _value_of(name: str, place: int, field: Field, attrs: Mapping[str, Any]) -> Callable[[str, int], Any]:
    """Return the function that takes the value of a name in the pattern from the name of a record."""
    if name == "label":
        numbers = {text: number for number, text in enumerate(attrs["classes"])}
        return lambda path, _: numbers[path.split("/")[place]]
    if field.kind == "int":
        number = number_pattern(name)
        return lambda path, _: int(cast("re.Match[str]", number.search(path.split("/")[place]))[0])
    return lambda path, _: path.split("/")[place]


def unread_in(files: Hdf5Files, contents: Contents) -> list[str]:
    """Return the datasets that no field holds, among the first 1,024, and sequences without rows."""
    if contents.unread is not None:
        return contents.unread
    skipped: list[str] = []
    found = [*members(files, files.settings.group, skipped=skipped)]
    missed = [each for each in found if not any(pattern.fullmatch(each.path) for pattern in contents.read)]
    if "classes" in contents.attrs:
        missed = [each for each in missed if not is_class_list(each)]
    entries = [f"{name} (no rows)" for name in contents.empty]
    return entries + [f"{member.path} ({describe(member.dataset)})" for member in missed] + skipped
