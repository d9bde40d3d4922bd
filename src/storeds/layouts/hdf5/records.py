"""The records of an HDF5 file, by a pattern: how the values of each field are read."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import h5py
import msgspec
import numpy as np

from storeds.errors import ConfigError, StoredsError, UnavailableError
from storeds.layouts.hdf5.elements import read_attribute, read_element
from storeds.layouts.hdf5.files import (
    MOST_OPEN,
    MOST_WALKED,
    Address,
    Hdf5Files,
    Unreadable,
    attributes,
    describe,
    members,
)
from storeds.layouts.hdf5.frames import names_columns, parts_of
from storeds.layouts.hdf5.ranges import MOST_COLUMNS, Ranges, rows_of
from storeds.layouts.hdf5.scan import NUMBERS, Facts, Plan, Scan, computed_names, is_class_list
from storeds.layouts.hdf5.values import Values, packing
from storeds.layouts.names import Names, pack_names
from storeds.layouts.pattern import ATTRIBUTES, EVERYTHING, KEY, NO_FILE, Pattern, Template
from storeds.protocols import JSON, Array, Field
from storeds.records.cache import index_path

__all__ = ["Contents", "contents_of"]

_VERSION = 7
_OPEN = 4  # datasets of a field
_FLAT = 1 << 14  # datasets of a field that are contiguous in their file
_Addresses = Callable[[Sequence[int]], list[Address]]
_Many = Callable[[Sequence[int]], list[bytes]]
"""Returns the names of the records or sequences at ascending numbers."""


def contents_of(files: Hdf5Files, pattern: Pattern) -> Contents:
    """Return the fields of an open store by a pattern.

    The names that a pattern matches, and what was inferred from them, are kept in the cache folder.
    """
    _check_places(pattern)
    if pattern.names_files:
        files.note({place.file for _, place in pattern.places}, pattern.leading.file)
    if not pattern.names:
        return _scanned(files, pattern)[1]

    def build() -> Array:
        # What the scan opens must not become a part of the identity of `files`.
        with contextlib.closing(files.again()) as others:
            names, contents = _scanned(others, pattern)
            facts = replace(contents.facts, unread=contents.unread())
        return pack_names(names, contents.bounds if pattern.has_rows else (), msgspec.to_builtins(facts))

    settings: list[JSON] = [str(pattern), files.settings.group, files.settings.allow_outside]
    path = index_path("hdf5", _VERSION, *settings, *(file[1:] for file in files.seen()))
    names = Names(path, build)
    facts = msgspec.convert(names.facts, Facts)
    if files.changed(facts.files):  # a file behind a link; the index is known by the store's own file alone
        path.unlink(missing_ok=True)
        names = Names(path, build)
        facts = msgspec.convert(names.facts, Facts)
    bounds = names.numbers if pattern.has_rows else np.arange(len(names) + 1)
    return Contents(files, pattern, names.many, bounds, facts)


def _scanned(files: Hdf5Files, pattern: Pattern) -> tuple[list[bytes], Contents]:
    names, bounds, facts = Scan(files, pattern).run()
    return names, Contents(files, pattern, lambda numbers: [names[at] for at in numbers], bounds, facts)


def _check_places(pattern: Pattern) -> None:
    """Raise ConfigError for what the grammar allows, but HDF5 files do not have."""
    for name, field in pattern.kinds:
        raise ConfigError(f"columns[{name!r}] declares {field.kind}, but HDF5 datasets have types; leave out kind")
    for name, place in pattern.places:
        takes_several, why = name in (EVERYTHING, ATTRIBUTES), ""
        if place.inner:
            why = "nothing follows [] in HDF5; a column of a table is table/column[]"
        elif takes_several and place.attribute:
            why = f'"{name}" takes several values; give this one a name of its own'
        elif name == ATTRIBUTES and place.rows:
            why = "attributes have no rows; leave out []"
        if why:
            raise ConfigError(f"columns[{name!r}]: {place.text!r}: {why}")


class _Names:
    """The names of records, or of sequences of records, and what lies under them.

    It does not refer to `Contents`, so that the values which hold it go with them.
    """

    def __init__(self, files: Hdf5Files, group: str, names: tuple[str, ...], many: _Many) -> None:
        self._files, self._group, self._names, self._many = files, group, names, many

    def texts(self, sequences: Sequence[int]) -> list[str]:
        """Return the names of ascending records or sequences."""
        return [name.decode("utf-8", "surrogateescape") for name in self._many(sequences)]

    def addresses(self, plan: Plan, sequences: Sequence[int]) -> list[Address]:
        """Return the addresses of the objects of a plan, in ascending records or sequences."""
        return [self._address(plan.path, plan.file, text) for text in self.texts(sequences)]

    def rows(self, plan: Plan, text: str) -> Values:
        """Return the rows of a plan in the sequence that is called `text`."""
        bounds = {name: self._address(path, plan.file, text) for name, path in plan.ranges}
        dataset = self._files.dataset(self._address(plan.path, plan.file, text))
        return rows_of(self._files, dataset, plan.column, plan.field, bounds)[plan.column]

    def _address(self, path: Template, file: Template, text: str) -> Address:
        named = dict(zip(self._names, text.split("/"), strict=False))
        return Address(f"{self._group}/{path.fill(named)}", file.fill(named))


class Contents:
    """The fields of a store, from the facts of a scan.

    Parameters
    ----------
    files : Hdf5Files
    pattern : Pattern
    many : callable
        Returns the names of records, or of sequences of records.
    bounds : array of int64
        The positions of the first record of each sequence, and the number of records.
    facts : Facts

    Attributes
    ----------
    columns : dict of str to Values
        Field → its values, in order.
    count : int
    attrs : dict of str to JSON
    where : dict of str to str
        Field → its place. `storeds info` shows it.
    """

    def __init__(self, files: Hdf5Files, pattern: Pattern, many: _Many, bounds: Array, facts: Facts) -> None:
        self.facts, self.bounds, self.count = facts, bounds, int(bounds[-1])
        self._files, self._pattern = files, pattern
        self._group = files.settings.group.rstrip("/")
        self._names = _Names(files, self._group, pattern.names, many)
        self.where = {name: plan.where for name, plan in facts.plans.items()}
        self.attrs: dict[str, JSON] = dict(facts.attrs)
        if not files.is_folder:
            holder, _ = files.find(Address(self._literal_group()))
            noted = attributes(holder.parent if isinstance(holder, h5py.Dataset) else holder)  # a table holds columns
            if noted:
                self.attrs["attributes"] = noted
        values = {name: self._values(name, plan) for name, plan in facts.plans.items()}
        own = {name: value for name, value in values.items() if not facts.plans[name].attribute}
        self.columns: dict[str, Values] = {**own, **self._named(), **values}

    def unread(self) -> list[str]:
        """Return the first 1,024 datasets that no field holds, in the first 1,024 groups, and sequences without rows.

        Of files that a pattern names, the first one shows what the others hold.
        """
        if self.facts.unread is not None:
            return self.facts.unread
        entries = [f"{name} (no rows)" for name in self.facts.empty]
        by_file: dict[Template, list[Plan]] = {}
        for plan in self.facts.plans.values():
            if not plan.attribute and (self._files.is_folder or not plan.file):
                by_file.setdefault(plan.file, []).append(plan)
        if not self._files.is_folder:
            by_file.setdefault(NO_FILE, [])
        return [*entries, *itertools.chain.from_iterable(map(self._unread_beside, by_file, by_file.values()))]

    def _unread_beside(self, template: Template, plans: Sequence[Plan]) -> list[str]:
        """Return what `plans` leave out of the first of the files that a template names."""
        file = self._names.addresses(plans[0], [0])[0].file if plans else ""
        read = [plan.path.regex() for plan in plans]
        bounds = [path.regex() for plan in plans for _, path in plan.ranges]

        def is_read(path: str) -> bool:
            columns = [path, *(f"{path}/{number}" for number in range(MOST_COLUMNS))] if bounds else []
            return any(pattern.fullmatch(path) for pattern in read) or any(
                pattern.fullmatch(column) for pattern in bounds for column in columns
            )

        skipped: list[Unreadable] = []
        group = Address(self._files.settings.group, file)
        missed = [*members(self._files, group, skipped=skipped, is_left=is_read, most_groups=MOST_WALKED)]
        missed = [each for each in missed if not names_columns(each.dataset)]
        if "classes" in self.attrs:
            missed = [each for each in missed if not is_class_list(each)]
        entries = list[str]()
        for path, table in {plan.path: plan for plan in plans if plan.column}.items():
            names = parts_of(self._files.dataset(self._names.addresses(table, [0])[0]))
            columns = {plan.column for plan in plans if plan.path == path}
            entries += [f"{path}/{name} (a column)" for name in names if name not in columns]
        for plan in plans:
            with contextlib.suppress(StoredsError):  # of a missing dataset
                first = self._files.dataset(self._names.addresses(plan, [0])[0])
                packed = packing(first) if not plan.column else []
                entries += self._spare(plan)
                entries += [f"{', '.join(packed)} of {plan.where}, which is read as stored"] if packed else []
        entries += [f"{member.path} ({describe(member.dataset)})" for member in missed] + [*map(str, skipped)]
        return [f"{template}::{entry}" for entry in entries] if template else entries

    def _spare(self, plan: Plan) -> list[str]:
        rows = self._names.rows(plan, self._names.texts([0])[0]) if plan.ranges else None
        return (
            [f"{rows.spare} rows of {plan.where}, which are in no range"]
            if isinstance(rows, Ranges) and rows.spare > 0
            else []
        )

    def _literal_group(self) -> str:
        """Return the group that holds all records: the path of the pattern up to its first name."""
        literal = []
        place = self._pattern.leading
        for part in [] if place.file else place.path.split()[:-1]:
            if part.names:
                break
            literal.append(part.fill({}))
        return "/".join([self._group, *literal]) or "/"

    def _values(self, name: str, plan: Plan) -> Values:
        files, field, names = self._files, plan.field, self._names
        addresses = functools.partial(names.addresses, plan)
        if plan.sort == "shared":
            shared = self.facts.shared[name]
            return _Computed(self.bounds, field, lambda sequences, _: [shared[at] for at in sequences])
        if plan.sort == "attribute":
            found = functools.partial(read_attribute, files, name=plan.attribute, field=field)
            return _Computed(self.bounds, field, lambda sequences, _: [*map(found, addresses(sequences))])
        if plan.sort == "dataset":
            return _Elements(files, field, self.bounds, addresses)
        if self._pattern.names:
            most = MOST_OPEN if files.is_folder else _FLAT
            return _SequenceRows(files.url, names.texts, self.bounds, plan, functools.partial(names.rows, plan), most)
        rows = names.rows(plan, names.texts([0])[0])
        if rows.count != self.count:
            raise ConfigError(
                f"{files.url}: {plan.where} has {rows.count} rows, and others {self.count}; columns= names datasets of one length"
            )
        rows.field = field  # with its role
        return rows

    def _named(self) -> dict[str, Values]:
        """Return the fields of the names in the pattern, and the numbers of rows."""
        columns, texts = dict[str, Values](), self._names.texts

        def named(field: Field, value: Callable[[str, int], Any]) -> _Computed:
            return _Computed(self.bounds, field, lambda sequences, rows: [*map(value, texts(sequences), rows)])

        for name, field in self.facts.named.fields.items():
            columns[name] = named(field, _part_reader(self._pattern.names.index(name), self.facts.named.reader(name)))
        computed = computed_names(self._pattern) - self.facts.plans.keys()
        for number in NUMBERS.values():
            if number in computed:
                columns[number] = _Computed(self.bounds, Field("int"), lambda _, rows: rows)
        if not {KEY} & {*self._pattern.names, *computed}:
            return columns
        if self._pattern.has_rows:
            columns[KEY] = named(Field("str"), lambda name, row: f"{name}/{row}")
        elif self._pattern.names:
            columns[KEY] = named(Field("str"), lambda name, _: name)
        else:
            stem = os.path.splitext(os.path.basename(self._files.path))[0]
            columns[KEY] = _Computed(self.bounds, Field("str"), lambda sequences, _: [stem] * len(sequences))
        return columns


def _part_reader(place: int, value: Callable[[str], Any]) -> Callable[[str, int], Any]:
    """Return the function that takes the value of a name in the pattern from the name of a record."""
    return lambda path, _: value(path.split("/")[place])


def _each_once(read: Callable[[Address], Any], addresses: Sequence[Address]) -> list[Any]:
    """Return the value at each address, read once where several records share it; each gets an array of its own."""
    seen: dict[Address, Any] = {}
    values: list[Any] = []
    for address in addresses:
        if address not in seen:
            values.append(seen.setdefault(address, read(address)))
        else:
            values.append(copy.copy(seen[address]))
    return values


def _located(bounds: Array, positions: Sequence[int] | Array) -> tuple[Array, Array]:
    """Return the numbers of the sequences of records, and of the records in them."""
    wanted = np.asarray(positions, np.int64)
    sequences: Array = np.searchsorted(bounds, wanted, "right") - 1
    return sequences, wanted - bounds[sequences]


class _Computed(Values):
    """Values that follow from a record's sequence and its number there, such as a name, or a dataset for each record.

    `values` takes the numbers of the sequences, which ascend, and of the records in them.
    """

    def __init__(self, bounds: Array, field: Field, values: Callable[[list[int], list[int]], list[Any]]) -> None:
        self.field, self.count, self._bounds, self._values = field, int(bounds[-1]), bounds, values

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        sequences, rows = _located(self._bounds, positions)
        return self._values(sequences.tolist(), rows.tolist())


class _Elements(_Computed):
    """A dataset for each record, or one that several records share; `addresses` returns those of sequences."""

    def __init__(self, files: Hdf5Files, field: Field, bounds: Array, addresses: _Addresses) -> None:
        whole = functools.partial(read_element, files, field)
        super().__init__(bounds, field, lambda sequences, _: _each_once(whole, addresses(sequences)))
        self._addresses = addresses
        # The arrays used last keep their decompressed chunks.
        self._stored = functools.lru_cache(_OPEN)(functools.partial(whole, is_stored=True))

    def arrays(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        if self.field.kind != "array":
            return self.read(positions)
        sequences, _ = _located(self._bounds, positions)
        return [*map(self._stored, self._addresses(sequences.tolist()))]


class _SequenceRows(Values):
    """Rows of one dataset for each sequence: `texts` returns the names of sequences, and `rows` the rows of the one so called."""

    def __init__(
        self,
        url: str,
        texts: Callable[[Sequence[int]], list[str]],
        bounds: Array,
        plan: Plan,
        rows: Callable[[str], Values],
        most_flat: int,
    ) -> None:
        self.field, self.count, self._bounds = plan.field, int(bounds[-1]), bounds
        self._url, self._texts, self._where, self._most_flat = url, texts, plan.where, most_flat
        # The datasets used last keep their decompressed chunks. It does not refer to `self`, so they go with it.
        self._opened = functools.lru_cache(_OPEN)(rows)
        self._flat: dict[str, Values] = {}

    def _open(self, text: str) -> Values:
        """Return the rows of a sequence. Those that are a place in a file take little memory, and many of them are kept."""
        values = self._flat.get(text)
        if values is None:
            values = self._opened(text)
            if values.is_flat and len(self._flat) < self._most_flat:
                self._flat[text] = values
        return values

    def stacked(self, positions: Array) -> Array | None:
        # docstring inherited
        sequences, rows = _located(self._bounds, positions)
        unique, places = np.unique(sequences, return_inverse=True)
        out: Array | None = None
        try:
            for number, text in enumerate(self._texts(unique.tolist())):
                at = np.flatnonzero(places == number)
                found = self._open(text).stacked(rows[at])
                if found is None:
                    return None
                if out is None:
                    out = np.empty((len(positions), *found.shape[1:]), found.dtype)
                out[at] = found
        except UnavailableError:
            raise
        except (StoredsError, OSError, RuntimeError, KeyError, TypeError, ValueError):
            return None  # reading the records one by one says why
        return out

    def read(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return self._of_each(positions, lambda values, rows: values.read(rows))

    def arrays(self, positions: Sequence[int]) -> list[Any]:
        # docstring inherited
        return self._of_each(positions, lambda values, rows: values.arrays(rows))

    def _of_each(self, positions: Sequence[int], read: Callable[[Values, list[int]], list[Any]]) -> list[Any]:
        """Return what `read` gives for the rows of each dataset, with a ValueError for those of one that cannot be read."""
        sequences, rows = _located(self._bounds, positions)
        out: list[Any] = []
        unique = np.unique(sequences).tolist()
        for sequence, text in zip(unique, self._texts(unique), strict=True):
            asked = rows[sequences == sequence].tolist()
            try:
                out += read(self._open(text), asked)
            except UnavailableError:
                raise
            except (StoredsError, OSError, RuntimeError, KeyError, TypeError) as error:
                reason = str(error).removeprefix(f"{self._url}: ")
                out += [ValueError(f"{self._where} of {text} cannot be read: {reason}")] * len(asked)
        return out
