"""Changes versioned stores: values of columns, dropped records, members of other stores, and the way back."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from storeds._utils.text import some
from storeds.backends.keyed_tables import is_parquet, read_table
from storeds.backends.selecting import classes_of, matching
from storeds.backends.versions.document import Version
from storeds.backends.versions.place import VersionPlace
from storeds.backends.versions.reading import VersionedStore, kept_positions, member_store
from storeds.errors import ConfigError, RecordError, StoreNotFoundError, suggest
from storeds.ops.growing import conflict, folder_of, next_version
from storeds.protocols import Array, Field
from storeds.records.codec import RecordCodec, canonical_value, checksum, preview
from storeds.records.columns import column_of
from storeds.records.conditions import Condition
from storeds.records.fields import parse_fields
from storeds.values.infer import fit
from storeds.values.text import values_of_cells

__all__ = ["edit", "log", "rollback"]

_BATCH = 64  # records


def edit(
    url: str | os.PathLike[str],
    *,
    set: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None = None,  # the name of the option
    drop: str | os.PathLike[str] | Iterable[str] | None = None,
    drop_where: str | None = None,
    on: str = "key",
    message: str = "",
) -> Version:
    """Change the records of a versioned store, as one new version. What was stored before stays in the versions before.

    Parameters
    ----------
    url : str
        Of a versioned store.
    set : path, or mapping of str to mapping
        A CSV or Parquet file with a column of keys, and a column for each field that it sets; or key → field → value. A field of
        kind int, float, bool or str gets these values; a class may be given by its name. A new field is added after the others,
        and then each record needs a value.
    drop : path, or iterable of str
        A file with a key in each line, or the keys: these records are left out.
    drop_where : str
        Records that meet this condition are left out, see `storeds.records.conditions.Condition`. It sees the values of `set`.
    on : str
        The field that is the key.
    message : str
        For `log`.

    Returns
    -------
    Version

    Raises
    ------
    ConfigError
        Nothing is asked for; a key, a field, a class or a value does not fit.
    StoreExistsError
        Another process has published a version meanwhile.
    StoreNotFoundError
        There is no such store, or no such file.

    Notes
    -----
    Reads the columns that it compares, and the records whose values change, for their checksums; it writes 16 bytes for each
    record of a member in which values change, and 8 bytes for each dropped record.
    """
    place = folder_of(url)
    base = place.version()
    change = _Change(place, base, on)
    if set is not None:
        change.set(*_values(set, on))
    keys = [] if drop is None else _keys(drop)
    if drop_where is not None or keys:
        change.drop(keys, drop_where)
    version = change.version(message)
    if not place.publish(version.number, version.to_text()):
        raise conflict(place, "edit")
    return version


def log(url: str | os.PathLike[str]) -> list[Version]:
    """Return all versions of a store, the last one first."""
    place = folder_of(url)
    place.version()  # raises StoreNotFoundError where there is none
    return [place.version(number) for number in reversed(place.numbers())]


def rollback(url: str | os.PathLike[str], number: int, *, message: str = "") -> Version:
    """Publish a new version with the records of an older one.

    Raises
    ------
    StoreNotFoundError
        There is no such store or version.
    StoreExistsError
        Another process has published a version meanwhile.
    """
    place = folder_of(url)
    base = place.version()
    old = place.version(number)
    own = {"fields": old.fields, "attrs": old.attrs, "changes": {"version": number}, "message": message}
    version = next_version(place, base, old.members, "rollback", **own)
    if not place.publish(version.number, version.to_text()):
        raise conflict(place, "roll back")
    return version


def _values(given: Any, on: str) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return field → key → value, and whether values are the texts of cells."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    if isinstance(given, Mapping):
        for key, values in given.items():
            if not isinstance(values, Mapping):
                raise ConfigError(f"set: {key!r} has {preview(values)}, and needs a mapping of fields to values")
            for name, value in values.items():
                found[name][str(key)] = value
        return found, False
    path = os.fspath(given)
    _, table = read_table(path, "set")
    if on not in table:
        raise ConfigError(f"set: {path} has no column {on!r}; {suggest(on, table, 'columns')}")
    keys = [str(key) for key in table[on]]
    if len({*keys}) < len(keys):
        twice = next(key for at, key in enumerate(keys) if key in keys[:at])
        raise ConfigError(f"set: {path} has several rows of {on} {twice!r}")
    return {name: dict(zip(keys, table[name], strict=True)) for name in table if name != on}, not is_parquet(path)


def _keys(given: Any) -> list[str]:
    if not isinstance(given, (str, os.PathLike)):
        return [str(key) for key in given]
    try:
        with open(given, encoding="utf-8-sig", newline="\n") as file:
            return [key for line in file if (key := line.rstrip("\r\n"))]
    except FileNotFoundError:
        raise StoreNotFoundError(f"drop: there is no file {os.fspath(given)}") from None


class _Change:
    """What one call of `edit` changes: member by member, which columns get which values, and which records go."""

    def __init__(self, place: VersionPlace, base: Version, on: str) -> None:
        self.place, self.base, self.on = place, base, on
        self.fields = dict(base.fields)
        self.members = list(base.members)
        self.changes: dict[str, int] = {}
        self._kept = [kept_positions(place, member) for member in base.members]
        self._bounds = np.cumsum([0, *map(len, self._kept)])
        self._touched: dict[int, Any] = defaultdict(list)  # member → positions in its store whose values change

    def _view(self) -> VersionedStore:
        """Return the records as they are changed so far; only the checksums of members are not."""
        return VersionedStore(self.place, replace(self.base, fields=self.fields, members=tuple(self.members)), {})

    def _positions(self, keys: Collection[str], what: str) -> dict[str, int]:
        """Return key → position in the version."""
        if self.on not in self.fields:
            raise ConfigError(
                f"{what}: {self.place.url} has no field {self.on!r}; {suggest(self.on, self.fields, 'fields')}"
            )
        wanted, found = {*keys}, dict[str, int]()
        for at, key in enumerate(map(str, self._view().column(self.on).tolist())):
            if key in wanted:
                if key in found:
                    raise ConfigError(f"{what}: {self.place.url} has several records with the {self.on} {key!r}")
                found[key] = at
        missing = sorted(wanted.difference(found))
        if missing:
            raise ConfigError(
                f"{what}: {self.place.url} has no record with {len(missing):,} of the keys: {some(missing)}"
            )
        return found

    def set(self, values: Mapping[str, Mapping[str, Any]], are_cells: bool) -> None:
        """Change the values of fields, given by key; cells are text."""
        position_of = self._positions({key for of_field in values.values() for key in of_field}, "set")
        touched = np.empty(0, np.int64)
        for name, of_key in values.items():
            positions = np.array([position_of[key] for key in of_key], np.int64)
            given, field = self._canonical(name, of_key, are_cells)
            order = np.argsort(positions)
            self._set(name, field, positions[order], column_of(field, [given[at] for at in order.tolist()]))
            touched = np.union1d(touched, positions)
        self.changes["changed"] = len(touched)

    def _canonical(self, name: str, of_key: Mapping[str, Any], are_cells: bool) -> tuple[list[Any], Field]:
        """Return values as they are stored, and the declaration of their field."""
        field = self.fields.get(name)
        if field is None:
            if len(of_key) != self.base.count:
                raise ConfigError(
                    f"set: {name!r} is a new field, and {self.base.count - len(of_key):,} of {self.base.count:,} records have no value"
                )
            field, fitted = fit(values_of_cells([*of_key.values()]) if are_cells else [*of_key.values()])
            parse_fields({name: field})  # a version with a wrong name could not be read again
            if not (field.is_scalar or field.kind == "str"):
                raise ConfigError(
                    f"set: {name!r} holds {field.kind}; a field that is set is a number, a truth value or a text"
                )
            return list(fitted), field
        if not (field.is_scalar or field.kind == "str") or name == self.on:
            what = "the key" if name == self.on else f"of kind {field.kind}"
            raise ConfigError(f"set: field {name!r} is {what}; only fields of kind int, float, bool and str can be set")
        classes = classes_of(self.base.meta(""), name)
        given = []
        for key, value in of_key.items():
            try:
                read = _of_cell(field, value) if are_cells and value not in (classes or ()) else value
                given.append(canonical_value(field, read if classes is None else _class_number(field, read, classes)))
            except (ValueError, TypeError, OverflowError) as error:
                raise ConfigError(
                    f"set: {name!r} ({field.kind}) of {key!r} refuses {preview(value)}: {error}"
                ) from None
        return given, field

    def _set(self, name: str, field: Field, positions: Array, values: Array) -> None:
        is_new = name not in self.fields
        for number, first, last in self._by_member(positions, every=is_new):
            inside = self._kept[number][positions[first:last] - self._bounds[number]]
            member = self.members[number]
            if name in member.columns:
                column = self.place.get(member.columns[name]).copy()
            elif is_new:
                column = column_of(field, [_nothing(field)] * member.count)
            else:
                column = member_store(self.place, self.base, member, {}).column(name).copy()
            column[inside] = values[first:last]
            lacks = (*member.lacks, name) if is_new else member.lacks
            self.members[number] = replace(
                member, columns={**member.columns, name: self.place.put(column)}, lacks=lacks
            )
            self._touched[number].append(inside)
        self.fields[name] = field

    def drop(self, keys: Collection[str], where: str | None) -> None:
        """Leave out records."""
        dropped = np.zeros(self.base.count, bool)
        if keys:
            dropped[list(self._positions(keys, "drop").values())] = True
        if where is not None:
            dropped |= matching(self._view(), Condition(where))
        positions = np.flatnonzero(dropped)
        for number, first, last in self._by_member(positions):
            member = self.members[number]
            gone = self._kept[number][positions[first:last] - self._bounds[number]]
            before = np.empty(0, np.int64) if member.dropped is None else self.place.get(member.dropped)
            every = np.union1d(before, gone).astype(np.int64)
            self.members[number] = replace(member, kept=member.count - len(every), dropped=self.place.put(every))
        self.changes["dropped"] = len(positions)

    def _by_member(self, positions: Array, *, every: bool = False) -> list[tuple[int, int, int]]:
        """Return the number of each member with some of these ascending positions, or of every one, and where they begin and end."""
        cuts = np.searchsorted(positions, self._bounds).tolist()
        shares = enumerate(itertools.pairwise(cuts))
        return [(at, first, last) for at, (first, last) in shares if every or first < last]

    def version(self, message: str) -> Version:
        """Return the changed version; raises ConfigError if nothing is changed."""
        if not any(self.changes.values()):
            raise ConfigError(f"{self.place.url}: nothing to change: pass set, drop or drop_where that match records")
        codec = RecordCodec(self.fields)
        fresh = replace(
            self.base,
            fields=self.fields,
            members=tuple(replace(each, dropped=None, kept=each.count) for each in self.members),
        )
        backend = VersionedStore(self.place, fresh, {})
        for number, parts in self._touched.items():
            positions = np.unique(np.concatenate(parts))
            digests = self.place.get(self.members[number].digests).copy()
            for start in range(0, len(positions), _BATCH):
                batch = positions[start : start + _BATCH]
                for at, record in zip(batch.tolist(), backend.stores[number].get_many(batch.tolist()), strict=True):
                    if isinstance(record, RecordError):
                        raise record
                    packed = codec.pack(codec.canonical(record))
                    digests[at] = np.frombuffer(checksum(packed), np.uint8)
            self.members[number] = replace(self.members[number], digests=self.place.put(digests))
        own = {"fields": self.fields, "changes": self.changes, "message": message}
        return next_version(self.place, self.base, self.members, "edit", **own)


def _of_cell(field: Field, text: str) -> Any:
    """Return the value of a cell of CSV for a field; raises ValueError."""
    (value,) = values_of_cells([text])
    is_right = field.kind == "str" or (type(value), field.kind) in (
        (int, "int"),
        (int, "float"),
        (float, "float"),
        (bool, "bool"),
    )
    if not is_right:
        raise ValueError("the cell holds no such value")
    return text if field.kind == "str" else value


def _class_number(field: Field, value: Any, classes: Sequence[str]) -> Any:
    """Return the number of a class that is given by name or number; raises ValueError if there is none."""
    if isinstance(value, str):
        if value not in classes:
            raise ValueError(suggest(value, classes, "classes"))
        return classes.index(value)
    least = 0 if field.role is not None else value  # without a role, negative numbers are no class
    if isinstance(value, int) and not least <= value < len(classes):
        raise ValueError(f"there are {len(classes)} classes, with the numbers from 0")
    return value


def _nothing(field: Field) -> Any:
    return "" if field.kind == "str" else 0
